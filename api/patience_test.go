package api_test

import (
	"net"
	"sync"
	"testing"
	"time"
)

// watched is a listener that records the read deadlines of its connections.
type watched struct {
	net.Listener
	mu    sync.Mutex
	until map[*watchedConn]time.Time
}

type watchedConn struct {
	net.Conn
	by *watched
}

func (w *watched) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &watchedConn{Conn: c, by: w}, nil
}

func (c *watchedConn) SetReadDeadline(at time.Time) error {
	c.by.mu.Lock()
	c.by.until[c] = at
	c.by.mu.Unlock()
	return c.Conn.SetReadDeadline(at)
}

// limited counts the connections with a read deadline.
func (w *watched) limited() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, at := range w.until {
		if !at.IsZero() && at.After(time.Now()) {
			n++
		}
	}
	return n
}

// An event stream lasts as long as the client reads. The server also reads from the
// client, which sends nothing: a read deadline once ended every stream with its
// connection.
func TestAStreamHasNoTimeToEndBy(t *testing.T) {
	t.Parallel()
	w := &watched{until: map[*watchedConn]time.Time{}}
	h := newTestServer(t, func(s *settings) {
		s.listen = func(l net.Listener) net.Listener {
			w.Listener = l
			return w
		}
	})
	live := h.stream("", 0)
	defer live.close()
	h.create("shop", hello)
	if _, more := live.next(); !more {
		t.Fatal("the stream has ended")
	}
	h.until("no connection to have a time to end by", func() bool { return w.limited() == 0 })
}
