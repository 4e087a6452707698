package relay_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mariposa/clock"
	"mariposa/leaktest"
	"mariposa/relay"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// directory is what the store says about replicas.
type directory struct {
	mu  sync.Mutex
	all map[string]relay.Replica
}

func (d *directory) set(r relay.Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all[r.Name] = r
}

func (d *directory) Leases(context.Context, string) (leases []store.Lease, _ error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, r := range d.all {
		leases = append(leases, store.Lease{Name: store.ReplicaPrefix + name, Holder: name, Note: r.Note()})
	}
	return leases, nil
}

// shifted is a clock that is ahead.
type shifted struct {
	clock.Real
	by time.Duration
}

func (s shifted) Now() time.Time { return time.Now().Add(s.by) }

// world is a replica b, which answers every request with the node's name, and what others
// need to reach it.
type world struct {
	t     *testing.T
	dir   *directory
	ring  *seal.Ring
	srv   *httptest.Server
	links atomic.Int32 // that were admitted
	last  atomic.Pointer[string]
}

func newWorld(t *testing.T, encrypted bool) *world {
	t.Helper()
	w := &world{t: t, dir: &directory{all: map[string]relay.Replica{}}, ring: seal.NewRing()}
	b := w.replica("b", nil)
	handler := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		credentials := strings.TrimPrefix(r.Header.Get("Authorization"), relay.Scheme+" ")
		w.last.Store(&credentials)
		peer, err := b.Admit(credentials)
		if err != nil {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.links.Add(1)
		rw.Header().Set(relay.AnswerHeader, b.Answer(peer))
		conn, err := websocket.Accept(rw, r, nil)
		if err != nil {
			return
		}
		relay.Serve(r.Context(), conn, func(_ context.Context, s *wire.Stream, f *wire.Forward) {
			if f.Node == "absent" {
				_ = s.Send(wire.Message{Absent: true})
				return
			}
			_ = s.Send(wire.Message{})
			_ = s.Send(wire.Message{Bytes: []byte(f.Node), Last: true})
		})
	})
	r := relay.Replica{Name: "b"}
	if encrypted {
		w.srv = httptest.NewTLSServer(handler)
		r.Pin = relay.Pin(w.srv.Certificate().Raw)
	} else {
		w.srv = httptest.NewServer(handler)
	}
	t.Cleanup(w.srv.Close)
	r.URL = w.srv.URL
	w.dir.set(r)
	return w
}

// replica returns the links of a replica.
func (w *world) replica(name string, change func(*relay.Options)) *relay.Links {
	w.t.Helper()
	o := relay.Options{Replica: name, Cluster: "c", Store: w.dir, Ring: w.ring, Clock: clock.Real{}}
	if change != nil {
		change(&o)
	}
	l := relay.New(o)
	w.t.Cleanup(l.Close)
	return l
}

// ask asks replica b about a node.
func (w *world) ask(from *relay.Links, node string) error {
	w.t.Helper()
	s, err := from.Open(w.t.Context(), "b", wire.Forward{Node: node})
	if err != nil {
		return err
	}
	defer s.Close()
	m, err := s.Receive()
	if err == nil && string(m.Bytes) != node {
		w.t.Errorf("%s answered %+v", node, m)
	}
	return err
}

func TestOneLinkCarriesAllRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	a := w.replica("a", nil)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := w.ask(a, "n1"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := w.ask(a, "absent"); !errors.Is(err, relay.ErrAbsent) {
		t.Errorf("%v", err)
	}
	if n := w.links.Load(); n != 1 {
		t.Errorf("%d links", n)
	}
}

func TestAnIdleLinkIsClosedAndOpenedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	a := w.replica("a", func(o *relay.Options) { o.Idle = time.Millisecond })
	for w.links.Load() < 3 { // it ends with the test, if links are never closed
		if err := w.ask(a, "n1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond) // let it become idle
	}
	s, err := a.Open(t.Context(), "b", wire.Forward{Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	time.Sleep(20 * time.Millisecond) // an open stream uses the link, however quiet it is
	if m, err := s.Receive(); err != nil || string(m.Bytes) != "n1" {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestOutsidersAreRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*relay.Options){
		"with another key":             func(o *relay.Options) { o.Ring = seal.NewRing() },
		"of another installation":      func(o *relay.Options) { o.Cluster = "d" },
		"with credentials of long ago": func(o *relay.Options) { o.Clock = shifted{by: -time.Minute} },
		"with credentials of later":    func(o *relay.Options) { o.Clock = shifted{by: time.Minute} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, false)
			err := w.ask(w.replica("a", change), "n1")
			var unreachable *relay.UnreachableError
			if !errors.As(err, &unreachable) || unreachable.Sent || !strings.Contains(err.Error(), "it refuses this replica") || w.links.Load() > 0 {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("with credentials for another replica", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, false)
		w.dir.set(relay.Replica{Name: "x", URL: w.srv.URL})
		_, err := w.replica("a", nil).Open(t.Context(), "x", wire.Forward{Node: "n1"})
		if err == nil || !strings.Contains(err.Error(), "it refuses this replica") || w.links.Load() > 0 {
			t.Errorf("%v", err)
		}
	})
	t.Run("with credentials that were used before", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, false)
		if err := w.ask(w.replica("a", nil), "n1"); err != nil {
			t.Fatal(err)
		}
		w.wantRefused(*w.last.Load())
	})
	t.Run("with nonsense", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, false)
		for _, credentials := range []string{"", "a b", "a b 1 2 3", "a b x y z=", strings.Repeat("a ", 1000)} {
			w.wantRefused(credentials)
		}
	})
}

func (w *world) wantRefused(credentials string) {
	w.t.Helper()
	before := w.links.Load()
	conn, resp, err := websocket.Dial(w.t.Context(), w.srv.URL, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {relay.Scheme + " " + credentials}}})
	if err == nil {
		_ = conn.CloseNow()
	}
	if err == nil || resp == nil || resp.StatusCode != http.StatusUnauthorized || w.links.Load() != before {
		w.t.Errorf("%q: %v", credentials, err)
	}
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close()
	}
}

// Whoever answers at the address of a replica must prove that it is that one.
func TestAnImpostorIsNotAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	impostor := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if conn, err := websocket.Accept(rw, r, nil); err == nil {
			_, _, err = conn.Read(r.Context())
			if err == nil {
				t.Error("the impostor was asked")
			}
		}
	}))
	defer impostor.Close()
	w.dir.set(relay.Replica{Name: "b", URL: impostor.URL})
	if err := w.ask(w.replica("a", nil), "n1"); err == nil || !strings.Contains(err.Error(), "not that replica") {
		t.Errorf("%v", err)
	}
}

func TestACertificateIsVerifiedByItsPin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true) // its certificate is from nobody
	if err := w.ask(w.replica("a", nil), "n1"); err != nil {
		t.Fatal(err)
	}
	for name, pin := range map[string]string{"another one": relay.Pin([]byte("x")), "none": ""} {
		w.dir.set(relay.Replica{Name: "b", URL: w.srv.URL, Pin: pin})
		if err := w.ask(w.replica(name, nil), "n1"); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A renewed certificate is published with the next renewal of the lease.
	other := httptest.NewUnstartedServer(w.srv.Config.Handler)
	other.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	other.StartTLS()
	defer other.Close()
	w.dir.set(relay.Replica{Name: "b", URL: other.URL, Pin: relay.Pin(other.Certificate().Raw)})
	if err := w.ask(w.replica("later", nil), "n1"); err != nil {
		t.Error(err)
	}
}

func TestAReplicaThatDiesEndsItsStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t, false)
	a := w.replica("a", nil)
	s, err := a.Open(t.Context(), "b", wire.Forward{Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w.srv.CloseClientConnections()
	for err == nil { // its answer may still come
		_, err = s.Receive()
	}
	if why := s.EndReason(); why == nil || errors.Is(why, io.EOF) || !strings.Contains(why.Error(), "replica b") {
		t.Errorf("%v", why)
	}
	if _, err := a.Open(t.Context(), "nobody", wire.Forward{}); err == nil || !strings.Contains(err.Error(), "no longer alive") {
		t.Errorf("%v", err)
	}
}

func TestAddressesOfReplicas(t *testing.T) {
	t.Parallel()
	for url, ok := range map[string]bool{
		"https://10.0.0.1:8080": true, "http://[::1]:1/": true, "https://name": true,
		"": false, "name:8080": false, "ftp://x": false, "https://": false, "https://u:p@x": false, "https://x/path": false, "https://x?q": false, "https://" + strings.Repeat("x", 600): false,
	} {
		if got := relay.CheckURL(url) == nil; got != ok {
			t.Errorf("%q is valid: %v", url, got)
		}
	}
}
