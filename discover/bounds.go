package discover

import (
	"net"
	"sync"
)

// bounds counts what each group of clients has in progress, so that one group cannot take
// everything from the others.
type bounds struct {
	mu     sync.Mutex
	counts map[string]int
}

// enter reports whether a group may have one more in progress, of at most some. If so, leave must
// follow.
func (b *bounds) enter(group string, most int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.counts[group] >= most {
		return false
	}
	if b.counts == nil {
		b.counts = map[string]int{}
	}
	b.counts[group]++
	return true
}

func (b *bounds) leave(group string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.counts[group]--; b.counts[group] <= 0 {
		delete(b.counts, group)
	}
}

// boundedListener accepts a limited number of connections at a time, also of each group of clients.
type boundedListener struct {
	net.Listener
	slots    chan struct{}
	bounds   *bounds
	identify func(Client) (Identity, bool)
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		who, _ := l.identify(clientOf(conn)) // its queries are refused if it may not ask
		group := who.group()
		if !l.bounds.enter(group, maxGroupTCP) {
			_ = conn.Close() // it has others
			continue
		}
		select {
		case l.slots <- struct{}{}:
			return &boundedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.slots; l.bounds.leave(group) })}, nil
		default:
			l.bounds.leave(group)
			_ = conn.Close() // the client tries again
		}
	}
}

type boundedConn struct {
	net.Conn
	release func()
}

func (c *boundedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
