package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/listener/porttest"
)

// replica is a server of an installation that records who sends it a token.
type replica struct {
	*httptest.Server
	installation string
	handle       http.HandlerFunc
	tokens       atomic.Int32
	ready        chan struct{} // if not nil, it does not say that it is alive before this is closed
}

func newReplica(t *testing.T, installation string, handle http.HandlerFunc) *replica {
	t.Helper()
	r := &replica{installation: installation, handle: handle}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") != "" {
			r.tokens.Add(1)
		}
		if req.URL.Path == "/healthz" {
			if r.ready != nil {
				<-r.ready
			}
			_ = json.NewEncoder(w).Encode(contract.Health{Status: "ok", Installation: r.installation})
			return
		}
		r.handle(w, req)
	}))
	_ = r.Listener.Close()
	r.Listener = porttest.Listen(t) // when the test closes it, no other server takes its port
	r.Start()
	t.Cleanup(r.Server.Close)
	return r
}

func fine(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"nodes":[]}`) }

func lost(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func busy(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusServiceUnavailable)
	fmt.Fprint(w, `{"code":"Unavailable","message":"the store is away"}`)
}

// among returns a client of several servers, and what it says. It tolerates
// pauses of a busy machine, unless a server is slow on purpose.
func among(t *testing.T, o Options, all ...*replica) (*Client, *[]string) {
	t.Helper()
	var urls []string
	for _, r := range all {
		urls = append(urls, r.URL)
	}
	var mu sync.Mutex
	said := &[]string{}
	o.URL, o.Token = strings.Join(urls, ", "), "s3cret"
	o.Notify = func(sentence string) {
		mu.Lock()
		defer mu.Unlock()
		*said = append(*said, sentence)
	}
	c, err := New(o)
	must(t, err)
	t.Cleanup(c.Close)
	if !slices.ContainsFunc(all, func(r *replica) bool { return r.ready != nil }) {
		c.servers.stagger, c.servers.compareTime = time.Minute, time.Minute
	}
	return c, said
}

func TestTheNextServerIsTried(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first http.HandlerFunc // nil: nobody listens
		says  string
	}{
		"nobody listens":        {nil, "does not answer; continuing with"},
		"the connection breaks": {lost, "does not answer; continuing with"},
		"it is not available":   {busy, "cannot do this now (the store is away); continuing with"},
		"it answers":            {fine, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newReplica(t, "one", c.first), newReplica(t, "one", fine)
			if c.first == nil {
				a.Close()
			}
			cl, said := among(t, Options{}, a, b)
			for range 3 {
				if _, err := cl.Nodes(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			want := b.URL
			if c.says == "" {
				want = a.URL
			}
			if cl.URL() != want {
				t.Errorf("it uses %s, not %s", cl.URL(), want)
			}
			if said := strings.Join(*said, "\n"); !strings.Contains(said, c.says) || strings.Contains(said, "\n") || c.says == "" && said != "" {
				t.Errorf("it said %q", said)
			}
		})
	}
}

func TestAnErrorNamesEveryServer(t *testing.T) {
	t.Parallel()
	a, b := newReplica(t, "one", fine), newReplica(t, "one", lost)
	a.Close()
	c, _ := among(t, Options{}, a, b)
	_, err := c.Nodes(t.Context())
	if mariposa.CodeOf(err) != mariposa.Unavailable || !strings.Contains(err.Error(), a.URL) || !strings.Contains(err.Error(), b.URL) {
		t.Errorf("%v", err)
	}
	a, b = newReplica(t, "one", busy), newReplica(t, "one", busy)
	c, _ = among(t, Options{}, a, b)
	if _, err := c.Nodes(t.Context()); err == nil || err.Error() != "the store is away ("+a.URL+" and "+b.URL+" say so)" {
		t.Errorf("they agree: %v", err)
	}
	a.Close()
	b.Close()
	_, err = c.Nodes(t.Context())
	if want := "none of the 2 servers answers: " + a.URL + ": no server is running there; " + b.URL + ": no server is running there"; err == nil || err.Error() != want {
		t.Errorf("nobody is there: %v, want %s", err, want)
	}
}

// A server that answers later than another one is tried if that one cannot carry the request out.
func TestASlowServerIsTriedOnceNoOtherIsLeft(t *testing.T) {
	t.Parallel()
	slow := newReplica(t, "one", fine)
	slow.ready = make(chan struct{})
	c, _ := among(t, Options{}, slow, newReplica(t, "one", func(w http.ResponseWriter, req *http.Request) {
		close(slow.ready)
		busy(w, req)
	}))
	if _, err := c.Nodes(t.Context()); err != nil || slow.tokens.Load() != 1 {
		t.Errorf("%v, and the slow one got %d requests", err, slow.tokens.Load())
	}
}

func TestAnAnswerIsNotAskedForTwice(t *testing.T) {
	t.Parallel()
	b := newReplica(t, "one", fine)
	c, said := among(t, Options{}, newReplica(t, "one", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"code":"ResourceNotFound","message":"there is none"}`)
	}), b)
	if _, err := c.Nodes(t.Context()); mariposa.CodeOf(err) != mariposa.ResourceNotFound || len(*said) > 0 || b.tokens.Load() > 0 {
		t.Errorf("%v, %q", err, *said)
	}
}

func TestARepeatedChangeHasTheSameKey(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var keys []string
	note := func(r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, r.Header.Get("Idempotency-Key"))
	}
	a := newReplica(t, "one", func(w http.ResponseWriter, r *http.Request) {
		note(r)
		lost(w, r)
	})
	b := newReplica(t, "one", func(w http.ResponseWriter, r *http.Request) {
		note(r)
		fmt.Fprint(w, `{}`)
	})
	c, _ := among(t, Options{}, a, b)
	for range 2 {
		if _, err := c.DeleteProject(t.Context(), "x", false); err != nil {
			t.Fatal(err)
		}
	}
	if len(keys) != 3 || keys[0] == "" || keys[0] != keys[1] || keys[1] == keys[2] {
		t.Errorf("the keys are %q", keys)
	}
}

func TestAServerOfAnotherInstallationGetsNoToken(t *testing.T) {
	t.Parallel()
	a, b := newReplica(t, "one", fine), newReplica(t, "two", fine)
	c, _ := among(t, Options{}, a, b)
	if _, err := c.Nodes(t.Context()); mariposa.CodeOf(err) != mariposa.InvalidArgument || !strings.Contains(err.Error(), "different installations") {
		t.Errorf("%v", err)
	}
	if a.tokens.Load()+b.tokens.Load() > 0 {
		t.Error("one of them got the token")
	}
	// The installation is known, or the first server has answered before.
	c, said := among(t, Options{Installation: "two"}, a, b)
	if _, err := c.Nodes(t.Context()); err != nil || a.tokens.Load() > 0 || len(*said) != 1 || !strings.Contains((*said)[0], "belongs to another installation") {
		t.Errorf("%v, %q", err, *said)
	}
	moving := newReplica(t, "two", fine)
	c, _ = among(t, Options{}, b, moving)
	if _, err := c.Nodes(t.Context()); err != nil {
		t.Fatal(err)
	}
	moving.installation = "three"
	b.handle = busy
	if _, err := c.Nodes(t.Context()); err == nil || !strings.Contains(err.Error(), "belongs to another installation (three instead of two)") || moving.tokens.Load() > 0 {
		t.Errorf("%v", err)
	}
}

func TestARevisionIsSentToTheNextServer(t *testing.T) {
	t.Parallel()
	var seen atomic.Value
	a := newReplica(t, "one", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(contract.RevisionHeader, "17")
		fine(w, r)
	})
	b := newReplica(t, "one", func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get(contract.RevisionHeader))
		fine(w, r)
	})
	c, _ := among(t, Options{}, a, b)
	_, err := c.Nodes(t.Context())
	must(t, err)
	a.Close()
	_, err = c.Nodes(t.Context())
	must(t, err)
	if seen.Load() != "17" {
		t.Errorf("it sent %v", seen.Load())
	}
}

// A name has two addresses, and only one of them answers.
func TestANameWithSeveralAddresses(t *testing.T) {
	t.Parallel()
	a := newReplica(t, "one", fine)
	_, port, err := net.SplitHostPort(a.Listener.Addr().String())
	must(t, err)
	var said []string
	c, err := New(Options{URL: "http://replicas.invalid:" + port, Token: "s3cret", Insecure: true, Notify: func(sentence string) { said = append(said, sentence) }})
	must(t, err)
	defer c.Close()
	c.servers.lookup = func(context.Context, string) ([]string, error) { return []string{"127.0.0.77", "127.0.0.1"}, nil }
	for range 2 {
		if _, err := c.Nodes(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.HasSuffix(c.URL(), "(127.0.0.1)") || len(said) != 1 || !strings.Contains(said[0], "does not answer; continuing with replicas.invalid:"+port+" (127.0.0.1)") {
		t.Errorf("it uses %s and said %q", c.URL(), said)
	}
	a.Close()
	if _, err := c.Nodes(t.Context()); err == nil || !strings.Contains(err.Error(), "(127.0.0.77)") || !strings.Contains(err.Error(), "(127.0.0.1)") {
		t.Errorf("%v", err)
	}
}

func TestTheURLsOfAClient(t *testing.T) {
	t.Parallel()
	for list, wrong := range map[string]string{
		"http://127.0.0.1:1,http://127.0.0.1:2": "", "http://127.0.0.1:1, https://b.example.com/": "",
		"http://127.0.0.1:1,": "invalid server URL", "http://127.0.0.1:1,ftp://x": "invalid server URL",
		"https://a.example.com,http://b.example.com": "unencrypted",
	} {
		_, err := New(Options{URL: list})
		if (err == nil) != (wrong == "") || err != nil && !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v", list, err)
		}
	}
}

// A request to a server that is starting waits for a moment, and a change is made once.
func TestARequestWaitsForAServerThatIsStarting(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if asked.Add(1) < 3 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"code":"Unavailable","message":"the server is starting"}`))
			return
		}
		_, _ = w.Write([]byte(`{"projects":[]}`))
	}))
	t.Cleanup(s.Close)
	c, err := New(Options{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if _, err := c.Projects(t.Context(), ""); err != nil || asked.Load() != 3 {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
}
