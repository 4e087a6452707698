package listener_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa/listener"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the listener logs a warning for every attack
	m.Run()
}

// serve accepts connections from loopback until the test ends, and hands them out.
func serve(t *testing.T, o listener.Options) (*listener.Listener, <-chan net.Conn) {
	t.Helper()
	tcp, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := listener.New(tcp, o)
	accepted := make(chan net.Conn)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	return l, accepted
}

// dial connects from an address of loopback and returns both ends.
func dial(t *testing.T, l *listener.Listener, accepted <-chan net.Conn, from string) (client, server net.Conn) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	client, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server = <-accepted
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return client, server
}

// isOpen reports whether a byte that the server sends arrives.
func isOpen(t *testing.T, client, server net.Conn) bool {
	t.Helper()
	_, _ = server.Write([]byte{1})
	if err := client.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	_, err := io.ReadFull(client, make([]byte, 1))
	return err == nil
}

func TestWhoOpensManyConnectionsPushesOutTheirOwn(t *testing.T) {
	t.Parallel()
	l, accepted := serve(t, listener.Options{Max: 64, PerAddress: 8}) // 32 may be pending, 16 from one address of this machine
	quiet, quietServer := dial(t, l, accepted, "127.0.0.9")
	first, firstServer := dial(t, l, accepted, "127.0.0.2")
	for _, from := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4"} {
		for range 40 {
			dial(t, l, accepted, from)
		}
	}
	if s := l.Stats(); s.Pending != 32 || s.Evicted != 122-32 {
		t.Errorf("stats are %+v", s)
	}
	if isOpen(t, first, firstServer) {
		t.Error("the oldest connection of an address that opens many is still open")
	}
	if !isOpen(t, quiet, quietServer) {
		t.Error("the only connection of a quiet address had to go")
	}
}

func TestAConnectionThatIsHeldStaysWhateverComes(t *testing.T) {
	t.Parallel()
	l, accepted := serve(t, listener.Options{Max: 16})
	var clients, servers []net.Conn
	var releases []func()
	for range 8 {
		c, s := dial(t, l, accepted, "127.0.0.2")
		release, ok := listener.Hold(listener.Context(t.Context(), s))
		if !ok {
			t.Fatal("there is no room to hold it")
		}
		clients, servers, releases = append(clients, c), append(servers, s), append(releases, release)
	}
	_, more := dial(t, l, accepted, "127.0.0.2")
	if _, ok := listener.Hold(listener.Context(t.Context(), more)); ok {
		t.Error("more are held than may be: those who have not shown a token have no room left")
	}
	for range 40 {
		dial(t, l, accepted, "127.0.0.2")
	}
	for i := range clients {
		if !isOpen(t, clients[i], servers[i]) {
			t.Errorf("connection %d had to go although it is held", i)
		}
		releases[i]()
		releases[i]() // releasing twice is allowed
	}
	if s := l.Stats(); s.Held != 0 || s.Pending > 8 {
		t.Errorf("stats are %+v", s)
	}
}

// A response arrives completely although the server stops reading the request.
func TestAnAnswerToAnUnreadRequestArrivesWhole(t *testing.T) {
	t.Parallel()
	tcp, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, ConnContext: listener.Context, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		http.Error(w, "no", http.StatusUnauthorized)
	})}
	go func() { _ = server.Serve(listener.New(tcp, listener.Options{})) }() // it ends with the test
	t.Cleanup(func() { _ = server.Close() })
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"+strings.Repeat("x", 100_000)); err != nil {
		t.Fatal(err)
	}
	if said, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(said), "HTTP/1.1 401") {
		t.Errorf("it read %q, then %v", said, err)
	}
}

// The counts are correct whatever happens to connections, in any order.
func TestTheBooksAreRight(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		far := &pipes{conns: make(chan net.Conn, 1)}
		l := listener.New(far, listener.Options{Max: rapid.IntRange(2, 12).Draw(r, "max"), PerAddress: rapid.IntRange(1, 4).Draw(r, "each")})
		type one struct {
			net.Conn
			release func()
		}
		var open []*one
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			step := rapid.IntRange(0, 3).Draw(r, "step")
			if step == 0 || len(open) == 0 {
				far.conns <- fake{far: rapid.IntRange(1, 5).Draw(r, "from")}
				c, err := l.Accept()
				if err != nil {
					r.Fatal(err)
				}
				open = append(open, &one{Conn: c})
				continue
			}
			c := rapid.SampledFrom(open).Draw(r, "which")
			switch step {
			case 1:
				if release, ok := listener.Hold(listener.Context(context.Background(), c.Conn)); ok && c.release == nil {
					c.release = release
				} else if ok {
					release()
				}
			case 2:
				if c.release != nil {
					c.release()
					c.release = nil
				}
			case 3:
				_ = c.Close()
			}
		}
		for _, c := range open {
			_ = c.Close()
			if c.release != nil {
				c.release()
			}
		}
		if s := l.Stats(); s.Pending != 0 || s.Held != 0 {
			r.Fatalf("all are closed, and stats are %+v", s)
		}
	})
}

// pipes is a listener whose connections come from a channel.
type pipes struct {
	net.Listener
	conns chan net.Conn
}

func (p *pipes) Accept() (net.Conn, error) { return <-p.conns, nil }

// fake is a connection without data from an address.
type fake struct {
	net.Conn
	far int
}

func (f fake) Close() error { return nil }

func (f fake) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, byte(f.far)), Port: 1}
}

func TestClientAddressBehindProxies(t *testing.T) {
	t.Parallel()
	proxies, err := listener.ParseProxies([]string{"10.0.0.0/8", "fd00::1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		peer                 string
		forwardedFor, formal []string
		want                 string
	}{
		"a client that is not a proxy is not trusted":    {"203.0.113.9:4", []string{"1.2.3.4"}, []string{"for=1.2.3.4"}, "203.0.113.9"},
		"a proxy that says nothing":                      {"10.0.0.1:4", nil, nil, "10.0.0.1"},
		"a proxy says whom it speaks for":                {"10.0.0.1:4", []string{"203.0.113.9"}, nil, "203.0.113.9"},
		"what the client put in front is not believed":   {"10.0.0.1:4", []string{"1.2.3.4, 203.0.113.9"}, nil, "203.0.113.9"},
		"nor in a header of its own":                     {"10.0.0.1:4", []string{"1.2.3.4", "203.0.113.9"}, nil, "203.0.113.9"},
		"two proxies":                                    {"10.0.0.1:4", []string{"1.2.3.4, 203.0.113.9, 10.2.2.2"}, nil, "203.0.113.9"},
		"a client in the proxies' network":               {"10.0.0.1:4", []string{"10.2.2.2"}, nil, "10.2.2.2"},
		"an entry with a port":                           {"10.0.0.1:4", []string{"203.0.113.9:99"}, nil, "203.0.113.9"},
		"what is no address ends the way back":           {"10.0.0.1:4", []string{"1.2.3.4, unknown"}, nil, "10.0.0.1"},
		"an IPv4 peer in IPv6":                           {"[::ffff:10.0.0.1]:4", []string{"203.0.113.9"}, nil, "203.0.113.9"},
		"Forwarded":                                      {"[fd00::1]:4", nil, []string{`for=1.2.3.4, For="[2001:db8::7]:99";proto=https`}, "2001:db8::7"},
		"Forwarded hidden":                               {"10.0.0.1:4", nil, []string{"for=_hidden"}, "10.0.0.1"},
		"Forwarded with a quote that swallows the proxy": {"10.0.0.1:4", nil, []string{`for=1.2.3.4;by="`, `for=203.0.113.9`}, "10.0.0.1"},
		"both agree":                                     {"10.0.0.1:4", []string{"203.0.113.9"}, []string{"for=203.0.113.9"}, "203.0.113.9"},
		"both differ, so one of them is the client's":    {"10.0.0.1:4", []string{"203.0.113.9"}, []string{"for=1.2.3.4"}, "10.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &http.Request{RemoteAddr: c.peer, Header: http.Header{"X-Forwarded-For": c.forwardedFor, "Forwarded": c.formal}}
			if got := proxies.Client(r); got != c.want {
				t.Errorf("it comes from %s, not %s", got, c.want)
			}
		})
	}
}

func TestProxiesThatCannotBeMeant(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "proxy.example", "10.0.0.0/40", "0.0.0.0/0", "::/0"} {
		if _, err := listener.ParseProxies([]string{text}); err == nil {
			t.Errorf("%q is taken for proxies", text)
		}
	}
}

func TestAddressesOfOneSubscriberCountAsOne(t *testing.T) {
	t.Parallel()
	for a, b := range map[string]string{"2001:db8::1": "2001:db8::ffff:1", "::ffff:192.0.2.1": "192.0.2.1"} {
		if listener.Group(a) != listener.Group(b) {
			t.Errorf("%s and %s count apart", a, b)
		}
	}
	if listener.Group("192.0.2.1") == listener.Group("192.0.2.2") {
		t.Error("two addresses count as one")
	}
}
