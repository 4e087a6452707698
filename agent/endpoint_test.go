package agent

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mariposa/listener/porttest"

	"mariposa"
)

func variables(pairs ...string) (list []mariposa.Variable) {
	for n := 0; n < len(pairs); n += 2 {
		list = append(list, mariposa.Variable{Name: pairs[n], Value: pairs[n+1]})
	}
	return list
}

// reader sends requests like an instance.
type reader struct {
	t      *testing.T
	base   string
	client *http.Client
}

func newReader(t *testing.T, base string) *reader {
	t.Helper()
	r := &reader{t, base, &http.Client{Transport: &http.Transport{}, Timeout: 30 * time.Second}}
	t.Cleanup(r.client.CloseIdleConnections)
	return r
}

type reply struct {
	status int
	text   string
	header http.Header
}

func (r *reader) try(token, path string) (reply, error) {
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.base+path, http.NoBody)
	if err != nil {
		return reply{}, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, string(b), resp.Header}, err
}

func (r *reader) get(token, path string) reply {
	r.t.Helper()
	got, err := r.try(token, path)
	if err != nil {
		r.t.Fatal(err)
	}
	return got
}

// all reads every value at once.
func (r *reader) all(token string) map[string]string {
	r.t.Helper()
	got := r.get(token, "/v1/mdata")
	var object map[string]string
	if err := json.Unmarshal([]byte(got.text), &object); err != nil || got.status != http.StatusOK {
		r.t.Fatalf("got %d %s (%v)", got.status, got.text, err)
	}
	return object
}

func newTestBoard(t *testing.T) (*valuesServer, *reader) {
	t.Helper()
	b := newValuesServer("127.0.0.1:1", "the key of the node")
	srv := httptest.NewServer(b.handler())
	t.Cleanup(srv.Close)
	return b, newReader(t, srv.URL)
}

func TestAnInstanceReadsItsOwnValuesAndNobodyElses(t *testing.T) {
	t.Parallel()
	b, r := newTestBoard(t)
	b.publish("a", 1, variables("com.example.key", "one\n", "x/y z", "two", "ü%", "three"))
	b.publish("b", 1, nil)
	if got := r.all(b.token("a")); !maps.Equal(got, map[string]string{"com.example.key": "one\n", "x/y z": "two", "ü%": "three"}) {
		t.Errorf("a reads %v", got)
	}
	if got := r.all(b.token("b")); len(got) != 0 {
		t.Errorf("b reads %v", got)
	}
	for key, want := range r.all(b.token("a")) {
		got := r.get(b.token("a"), "/v1/mdata/"+url.PathEscape(key))
		if got.status != http.StatusOK || got.text != want || !strings.HasPrefix(got.header.Get("Content-Type"), "text/plain") || got.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %+v", key, got)
		}
	}
	if got := r.get(b.token("b"), "/v1/mdata/com.example.key"); got.status != http.StatusNotFound || !strings.Contains(got.text, `"ResourceNotFound"`) {
		t.Errorf("b reads a's key: %+v", got)
	}
	b.publish("a", 2, variables("k", "v"))
	if got := r.all(b.token("a")); !maps.Equal(got, map[string]string{"k": "v"}) {
		t.Errorf("a reads %v", got)
	}
}

func TestWhoShowsNoTokenOfAnInstanceReadsNothing(t *testing.T) {
	t.Parallel()
	b, r := newTestBoard(t)
	b.publish("a", 1, variables("k", "v"))
	b.publish("gone", 1, variables("k", "v"))
	b.remove("gone")
	b.remove("never was")
	other := newValuesServer("127.0.0.1:1", "the key of another node")
	for name, token := range map[string]string{
		"none": "", "a guess": "letmein", "an id": "a", "half of it": b.token("a")[:32], "in capitals": strings.ToUpper(b.token("a")),
		"one more letter": b.token("a") + "0", "of what is gone": b.token("gone"), "of what never was": b.token("nobody"), "of another node": other.token("a"),
	} {
		for _, path := range []string{"/v1/mdata", "/v1/mdata/k", "/v1/mdata?wait=60"} {
			got := r.get(token, path)
			if got.status != http.StatusUnauthorized || !strings.Contains(got.text, `"Unauthorized"`) || got.header.Get("WWW-Authenticate") == "" ||
				(len(token) > 1 && strings.Contains(got.text, token)) {
				t.Errorf("%s at %s: %+v", name, path, got)
			}
		}
	}
	again := newValuesServer("127.0.0.1:2", "the key of the node")
	if again.token("a") != b.token("a") || len(b.token("a")) != 64 {
		t.Error("a restarted agent does not know the token any more")
	}
}

func TestARequestIsAnsweredAtOnceWhenThereIsNews(t *testing.T) {
	t.Parallel()
	b, r := newTestBoard(t)
	b.publish("a", 7, variables("k", "one"))
	// Each of these would take a minute otherwise.
	for _, path := range []string{"/v1/mdata/k", "/v1/mdata/k?after=7", "/v1/mdata/k?wait=60&after=6", "/v1/mdata/k?wait=60&after=8", "/v1/mdata/k?wait=0.01", "/v1/mdata/k?wait=0.01&after=7"} {
		if got := r.get(b.token("a"), path); got.text != "one" || got.header.Get(mdataNumber) != "7" {
			t.Errorf("%s: %+v", path, got)
		}
	}
	answers := make(chan reply, 1)
	go func() {
		got, err := r.try(b.token("a"), "/v1/mdata/k?wait=60&after=7")
		if err != nil {
			t.Error(err)
		}
		answers <- got
	}()
	b.publish("a", 8, variables("k", "two")) // before the request comes or after
	if got := <-answers; got.text != "two" || got.header.Get(mdataNumber) != "8" {
		t.Errorf("got %+v", got)
	}
}

// An instance that opens many waiting requests does not block the others.
func TestWaitsOfOneInstanceAreBounded(t *testing.T) {
	t.Parallel()
	b, r := newTestBoard(t)
	b.publish("a", 7, variables("k", "one"))
	b.publish("b", 7, variables("k", "other"))
	for range maxWaiting {
		if !b.beginWait(b.token("a")) {
			t.Fatal("fewer may wait than are said to")
		}
	}
	refused := r.get(b.token("a"), "/v1/mdata/k?wait=60&after=7")
	if refused.status != http.StatusTooManyRequests || !strings.Contains(refused.text, `"Throttled"`) || refused.header.Get("Retry-After") == "" {
		t.Errorf("one more wait: %+v", refused)
	}
	if got := r.get(b.token("a"), "/v1/mdata/k"); got.text != "one" {
		t.Errorf("without a wait: %+v", got)
	}
	if got := r.get(b.token("b"), "/v1/mdata/k?wait=0.01&after=7"); got.text != "other" {
		t.Errorf("another instance: %+v", got)
	}
	b.endWait(b.token("a"))
	for range 2 { // each gives its place back
		if got := r.get(b.token("a"), "/v1/mdata/k?wait=0.01&after=7"); got.text != "one" {
			t.Errorf("with a place: %+v", got)
		}
	}
}

func TestARequestWaitsForNews(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newValuesServer("127.0.0.1:1", "the key of the node")
		b.publish("a", 7, variables("k", "one"))
		type answer struct {
			seen publishedValues
			ok   bool
			took time.Duration
		}
		ask := func(wait time.Duration, after *int64) <-chan answer {
			answers, begun := make(chan answer, 1), time.Now()
			seen, _ := b.find(b.token("a"))
			go func() {
				seen, ok := b.await(t.Context(), b.token("a"), seen, wait, after)
				answers <- answer{seen, ok, time.Since(begun)}
			}()
			synctest.Wait()
			return answers
		}
		seven := int64(7)
		if got := <-ask(time.Minute, &seven); !got.ok || got.seen.number != 7 || got.took != time.Minute {
			t.Errorf("without news: %+v", got)
		}
		careful, careless := ask(time.Minute, &seven), ask(time.Minute, nil)
		time.Sleep(time.Second)
		b.publish("a", 7, variables("k", "one")) // no change for a client that names the number it has
		synctest.Wait()
		if got := <-careless; !got.ok || got.took != time.Second {
			t.Errorf("got %+v", got)
		}
		select {
		case got := <-careful:
			t.Errorf("got %+v", got)
		default:
		}
		time.Sleep(time.Second)
		b.publish("a", 8, variables("k", "two"))
		if got := <-careful; !got.ok || got.seen.number != 8 || got.seen.values[0].Value != "two" || got.took != 2*time.Second {
			t.Errorf("got %+v", got)
		}
		eight := int64(8)
		last := ask(time.Minute, &eight)
		b.remove("a")
		if got := <-last; got.ok {
			t.Errorf("it is gone, and its reader gets %+v", got)
		}
	})
}

func TestRequestsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	b, r := newTestBoard(t)
	b.publish("a", 1, nil)
	for path, want := range map[string]int{
		"/v1/mdata?wait=soon": http.StatusBadRequest, "/v1/mdata?wait=-1": http.StatusBadRequest, "/v1/mdata?wait=NaN": http.StatusBadRequest,
		"/v1/mdata?wait=1&after=x": http.StatusBadRequest, "/v1/mdata/": http.StatusNotFound, "/": http.StatusNotFound, "/v1/": http.StatusNotFound,
	} {
		if got := r.get(b.token("a"), path); got.status != want {
			t.Errorf("%s: %+v", path, got)
		}
	}
	resp, err := r.client.Post(r.base+"/v1/mdata", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a POST gets %d", resp.StatusCode)
	}
}

func TestTheEndpointWaitsForItsPortAndEndsWithTheAgent(t *testing.T) {
	t.Parallel()
	taken := porttest.Listen(t)
	address := taken.Addr().String()
	b := newValuesServer(address, "the key of the node")
	b.publish("a", 1, variables("k", "v"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() { b.serve(ctx, address); close(ended) }()
	if !strings.HasPrefix(b.url, "http://"+address+"/v1/mdata") {
		t.Errorf("its instances look for it at %s", b.url)
	}
	_ = taken.Close() // the port is retried
	r := newReader(t, "http://"+address)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if got, err := r.try(b.token("a"), "/v1/mdata/k"); err == nil && got.text == "v" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it never answered")
		}
	}
	r.oversized(address)
	waits := make(chan error, 1)
	go func() {
		_, err := r.try(b.token("a"), "/v1/mdata?wait=60")
		waits <- err
	}()
	cancel()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("it goes on without its agent")
	}
	<-waits // with a response or without, but before a minute is over
}

// oversized sends a useless header.
func (r *reader) oversized(address string) {
	r.t.Helper()
	if got, err := r.try(strings.Repeat("x", 64<<10), "/v1/mdata"); err != nil || got.status != http.StatusRequestHeaderFieldsTooLarge {
		r.t.Errorf("a large header at %s: %+v, %v", address, got, err)
	}
}
