package agent_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mariposa/agent"
	"mariposa/clock"
	"mariposa/listener/porttest"
	"mariposa/wire"
)

// A node sends its key to every server that it tries.
func TestALearnedServerIsAsWellProtectedAsTheConfiguredOnes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		configured string
		learned    string
		ok         bool
	}{
		"https to https":                          {"https://a", "https://b:8080", true},
		"https to http":                           {"https://a", "http://b", false},
		"https to http on this machine":           {"https://a", "http://127.0.0.1:8080", false},
		"https to https on this machine":          {"https://a", "https://localhost", false},
		"https on this machine to https":          {"https://localhost", "https://127.0.0.1:1", true},
		"http on this machine to itself":          {"http://127.0.0.1:1", "http://127.0.0.1:2", true},
		"http on this machine to https":           {"http://127.0.0.1:1", "https://b", true},
		"http on this machine to http":            {"http://127.0.0.1:1", "http://b", false},
		"http to http":                            {"http://a", "http://b", true},
		"http to this machine":                    {"http://a", "http://127.0.0.1:1", false},
		"one of both is https":                    {"https://a,http://a", "http://b", true},
		"something else":                          {"https://a", "file:///etc/passwd", false},
		"nothing":                                 {"https://a", "", false},
		"a name that only looks like https":       {"https://a", "httpsx://b", false},
		"an address that stands for this machine": {"https://a", "https://0.0.0.0:1", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := agent.Link{Servers: strings.Split(c.configured, ","), Insecure: true, Known: agent.NewKnown([]string{c.learned}, nil)}
			if got := slices.Contains(l.All(), c.learned); got != c.ok {
				t.Errorf("it is tried: %v", got)
			}
		})
	}
}

// host is a server that welcomes nodes, or says goodbye.
type host struct {
	*httptest.Server
	hellos  atomic.Int32
	welcome wire.Welcome
	bye     *wire.Bye
	joined  chan struct{}
	// stalls is when it stops reading and writing, as a stopped process does; nil: never.
	stalls func(welcomed bool) bool
	conn   atomic.Pointer[websocket.Conn] // the last one
}

func newHost(t *testing.T, l net.Listener, change func(*host)) *host {
	t.Helper()
	h := &host{joined: make(chan struct{}, 100), welcome: wire.Welcome{Epoch: 1, Cluster: "c", Incarnation: "i", HeartbeatInterval: time.Hour}}
	if change != nil {
		change(h)
	}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		pipe := wire.NewPipe(r.Context(), conn)
		defer pipe.Close()
		if f, err := pipe.Read(r.Context()); err != nil || f.Hello == nil {
			return
		}
		h.conn.Store(conn)
		h.hellos.Add(1)
		h.joined <- struct{}{}
		if h.bye != nil {
			pipe.Send(wire.Frame{Seq: 1, Bye: h.bye})
			return
		}
		if h.stalls != nil && h.stalls(false) {
			<-t.Context().Done()
			return
		}
		pipe.Send(wire.Frame{Seq: 1, Welcome: &h.welcome})
		if h.stalls != nil && h.stalls(true) {
			<-t.Context().Done()
			return
		}
		for err == nil {
			_, err = pipe.Read(r.Context())
		}
	}))
	_ = h.Listener.Close()
	h.Listener = l
	h.Start()
	t.Cleanup(h.Close)
	return h
}

// runAgent runs an agent until the test ends.
func runAgent(t *testing.T, l agent.Link) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		_ = agent.Run(ctx, l, agent.Options{Hello: wire.Hello{Node: "n1", Name: "n1", Key: "0123456789abcdef"}, Clock: clock.Real{}}) // it ends with the context
	})
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
}

func awaitSignal(t *testing.T, what string, from <-chan struct{}) {
	t.Helper()
	select {
	case <-from:
	case <-time.After(time.Minute):
		t.Fatalf("%s: never", what)
	}
}

// Servers that accept connections and never answer, like stopped processes, cost no more
// than a moment each. No attempt that loses opens a session.
func TestASilentServerCostsOnlyAMoment(t *testing.T) {
	t.Parallel()
	var servers []string
	for range 4 {
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		servers = append(servers, "http://"+silent.Addr().String())
	}
	good := newHost(t, porttest.Listen(t), nil)
	began := time.Now()
	runAgent(t, agent.Link{Servers: append(servers, good.URL)})
	awaitSignal(t, "the node connects", good.joined)
	if took := time.Since(began); took > 8*time.Second { // one timeout is 10 s
		t.Errorf("it took %s", took)
	}
	if n := good.hellos.Load(); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// One server hangs, and the other cannot admit nodes for a moment. The node does not wait for
// the first one until it tries the second one again.
func TestAServerThatIsBackIsTriedAgainWhileAnotherOneHangs(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	good := newHost(t, porttest.Listen(t), nil)
	var asked atomic.Int32
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"code":"Unavailable","message":"the server cannot reach its database now"}`))
			return
		}
		good.Config.Handler.ServeHTTP(w, r)
	}))
	defer busy.Close()
	began := time.Now()
	runAgent(t, agent.Link{Servers: []string{"http://" + silent.Addr().String(), busy.URL}})
	awaitSignal(t, "the node connects", good.joined)
	if took := time.Since(began); took > 8*time.Second { // the attempt at the first server takes 10 s
		t.Errorf("it took %s", took)
	}
}

// A server stops answering right after it has accepted a connection, or right after its
// welcome. The node is connected to another one long before it would count as unknown.
func TestANodeLeavesAServerThatStopsAnswering(t *testing.T) {
	t.Parallel()
	for name, welcomed := range map[string]bool{"before its welcome": false, "after its welcome": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stalled atomic.Bool // the first that gets a hello
			joined := make(chan struct{}, 100)
			var servers []string
			for range 2 {
				h := newHost(t, porttest.Listen(t), func(h *host) {
					h.joined, h.welcome.HeartbeatInterval = joined, time.Second
					h.stalls = func(now bool) bool { return now == welcomed && stalled.CompareAndSwap(false, true) }
				})
				servers = append(servers, h.URL)
			}
			runAgent(t, agent.Link{Servers: servers})
			awaitSignal(t, "the node connects", joined)
			began := time.Now()
			awaitSignal(t, "the node connects to the other server", joined)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func TestOneSessionIsOpenedHoweverManyServersAnswer(t *testing.T) {
	t.Parallel()
	joined := make(chan struct{}, 100)
	var hosts []*host
	var servers []string
	for range 4 {
		h := newHost(t, porttest.Listen(t), func(h *host) { h.joined = joined })
		hosts, servers = append(hosts, h), append(servers, h.URL)
	}
	runAgent(t, agent.Link{Servers: servers})
	awaitSignal(t, "the node connects", joined)
	for range 3 { // each time another server dies, until one is left
		for _, h := range hosts {
			if h.hellos.Load() > 0 {
				_ = h.Listener.Close()
				h.hellos.Store(0)
				_ = h.conn.Load().CloseNow()
			}
		}
		awaitSignal(t, "the node connects again", joined)
		total := int32(0)
		for _, h := range hosts {
			total += h.hellos.Load()
		}
		if total != 1 {
			t.Fatalf("%d sessions", total)
		}
	}
}

// A name stands for two servers. The first of them cannot open sessions now.
func TestANameWithSeveralAddressesMeansAllOfThem(t *testing.T) {
	t.Parallel()
	bad := newHost(t, porttest.Listen(t), func(h *host) { h.bye = &wire.Bye{Reason: "not now"} })
	u, err := url.Parse(bad.URL)
	if err != nil {
		t.Fatal(err)
	}
	second, err := net.Listen("tcp", "127.0.0.2:"+u.Port())
	if err != nil {
		t.Fatal(err)
	}
	good := newHost(t, second, nil)
	runAgent(t, agent.Link{
		Servers: []string{"http://servers.test:" + u.Port()}, Insecure: true,
		Lookup: func(_ context.Context, name string) ([]netip.Addr, error) {
			if name != "servers.test" {
				t.Errorf("looked up %s", name)
			}
			return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}, nil
		},
	})
	awaitSignal(t, "the node connects to the second address", good.joined)
}

func TestAnAgentLearnsOfServersAndStoresThem(t *testing.T) {
	t.Parallel()
	second := newHost(t, porttest.Listen(t), nil)
	first := newHost(t, porttest.Listen(t), func(h *host) { h.welcome.Servers = []string{second.URL, "http://10.0.0.1:1"} })
	saved := make(chan []string, 10)
	runAgent(t, agent.Link{Servers: []string{first.URL}, Known: agent.NewKnown(nil, func(urls []string) { saved <- urls })})
	awaitSignal(t, "the node connects", first.joined)
	if urls := <-saved; !slices.Equal(urls, first.welcome.Servers) {
		t.Errorf("stored %v", urls)
	}
	_ = first.Listener.Close() // otherwise the node may find it again before the second one answers
	_ = first.conn.Load().CloseNow()
	awaitSignal(t, "the node connects to a server that it was not configured with", second.joined)
}
