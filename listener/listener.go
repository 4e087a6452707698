// Package listener accepts connections, and limits the resources of clients that have not
// authenticated yet. A connection is pending until an authenticated request holds it, and
// again after the response to that request. The number of pending connections is limited,
// in total and for each address. Beyond the limit, a new connection is still accepted,
// and the oldest pending one of the address that uses the largest part of its share is
// closed. So a client that opens thousands of connections loses its own, and all others
// can still connect.
//
// The package owns connections and their origin. It does not know tokens, users or
// requests.
package listener

import (
	"cmp"
	"container/heap"
	"container/list"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// These are the defaults of the options.
const (
	DefaultPerAddress = 256
	maxPending        = 4096
	warnInterval      = 10 * time.Second
)

// Options configure the limits of a listener.
type Options struct {
	// Max is how many connections there may be. If zero, the limit of open files decides.
	Max int
	// Share limits connections to one part in Share of the limit of open files; no such
	// limit if zero.
	Share int
	// PerAddress is how many pending connections one address may have; DefaultPerAddress
	// if zero. Trusted proxies and this machine act for many clients, so they may have
	// half of all.
	PerAddress int
	Proxies    Proxies
}

// Stats contains how many connections there are, and how many were closed in favor of
// others.
type Stats struct {
	Pending, Held, Evicted int
}

// Listener is a net.Listener that limits pending connections.
type Listener struct {
	net.Listener
	perAddress, maxPending, maxHeld int
	proxies                         Proxies

	mu      sync.Mutex
	sources map[netip.Prefix]*source
	fullest sourceHeap
	stats   Stats
	number  int64 // of the newest pending connection
	warned  time.Time
}

// New adds limits to a listener.
func New(l net.Listener, o Options) *Listener {
	most := cmp.Or(o.Max, openFiles()*3/4)
	if o.Share > 0 {
		most = min(most, openFiles()/o.Share)
	}
	pending := max(1, min(maxPending, most/2))
	return &Listener{
		Listener: l, maxPending: pending, maxHeld: max(1, most-pending), proxies: o.Proxies,
		perAddress: min(pending, cmp.Or(o.PerAddress, DefaultPerAddress)), sources: map[netip.Prefix]*source{},
	}
}

// openFiles returns how many files this process may have open.
func openFiles() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 1024
	}
	return int(min(limit.Cur, 1<<20))
}

// Accept waits for the next connection. It never refuses one, but may close others.
func (l *Listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) { // no file descriptor is free: make room for the next one
			l.mu.Lock()
			victim := l.evict()
			l.mu.Unlock()
			l.drop(victim)
		}
		return nil, err
	}
	c := &Conn{Conn: conn, listener: l, address: sourceOf(conn.RemoteAddr())}
	l.drop(l.admit(c)...)
	return c, nil
}

// admit makes a connection pending and returns those that must be closed for it.
func (l *Listener) admit(c *Conn) (victims []*Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addPending(c)
	if s := l.sources[c.address]; s.pending.Len() > s.share {
		victims = append(victims, l.evictFrom(s))
	}
	for l.stats.Pending > l.maxPending {
		victims = append(victims, l.evict())
	}
	return victims
}

// drop closes connections at once. Unsent data is discarded, so that the kernel keeps
// nothing either.
func (l *Listener) drop(victims ...*Conn) {
	for _, c := range victims {
		if c == nil {
			continue
		}
		if tcp, ok := c.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // fails only if it is already closed
		}
		_ = c.Conn.Close() // likewise
		l.warn(c)
	}
}

// warn logs occasionally that connections are closed.
func (l *Listener) warn(c *Conn) {
	l.mu.Lock()
	now, stats := time.Now(), l.stats
	due := now.Sub(l.warned) > warnInterval
	if due {
		l.warned = now
	}
	l.mu.Unlock()
	if due {
		slog.Warn("too many connections without a valid request: closing the oldest connection of the address with the most", "address", c.address.Addr(),
			"pending", stats.Pending, "held", stats.Held, "closed_so_far", stats.Evicted)
	}
}

// Stats returns how many connections there are.
func (l *Listener) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Conn is a connection that a Listener accepted.
type Conn struct {
	net.Conn
	listener *Listener
	address  netip.Prefix

	// Guarded by the listener's mutex.
	number int64         // in the order in which connections became pending
	place  *list.Element // among the pending ones of its address; nil if it is not pending
	holds  int           // requests that hold it
	gone   bool
}

// Close closes the connection, which makes room for others.
func (c *Conn) Close() error {
	c.listener.mu.Lock()
	c.listener.forget(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite closes the sending side only. So the client can read a response to the end
// although its remaining request is not read.
func (c *Conn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return nil
	}
	return half.CloseWrite()
}

type connKey struct{}

// Context makes the connection available to requests; it is for http.Server.ConnContext.
func Context(ctx context.Context, conn net.Conn) context.Context {
	for {
		if c, ok := conn.(*Conn); ok {
			return context.WithValue(ctx, connKey{}, c)
		}
		inner, ok := conn.(interface{ NetConn() net.Conn }) // a TLS connection wraps it
		if !ok {
			return ctx
		}
		conn = inner.NetConn()
	}
}

// Hold protects the connection of an authenticated request from being closed in favor of
// others, until it is released. It returns false, and does nothing, if too many are held
// already.
func Hold(ctx context.Context) (release func(), ok bool) {
	c, known := ctx.Value(connKey{}).(*Conn)
	if !known {
		return func() {}, true
	}
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.gone:
		return func() {}, true // it has just been closed; writes to it will fail
	case c.holds == 0 && l.stats.Held >= l.maxHeld:
		return nil, false
	}
	if c.holds++; c.holds == 1 {
		l.removePending(c)
		l.stats.Held++
	}
	return sync.OnceFunc(func() { l.release(c) }), true
}

func (l *Listener) release(c *Conn) {
	l.mu.Lock()
	var victims []*Conn
	if c.holds--; c.holds == 0 && !c.gone {
		l.stats.Held--
		l.addPending(c)
		for l.stats.Pending > l.maxPending {
			victims = append(victims, l.evict())
		}
	}
	l.mu.Unlock()
	l.drop(victims...)
}

// forget removes a connection from the counts.
func (l *Listener) forget(c *Conn) {
	if c.gone {
		return
	}
	c.gone = true
	if c.holds > 0 {
		l.stats.Held--
	} else {
		l.removePending(c)
	}
}

// evict removes the oldest pending connection of the address that uses the largest part
// of its share.
func (l *Listener) evict() *Conn {
	if len(l.fullest) == 0 {
		return nil
	}
	return l.evictFrom(l.fullest[0])
}

func (l *Listener) evictFrom(s *source) *Conn {
	c := s.pending.Front().Value.(*Conn)
	l.forget(c)
	l.stats.Evicted++
	return c
}

func (l *Listener) addPending(c *Conn) {
	s := l.sources[c.address]
	if s == nil {
		s = &source{address: c.address, share: l.perAddress}
		if c.address.Addr().IsLoopback() || l.proxies.contains(c.address.Addr()) {
			s.share = max(l.perAddress, l.maxPending/2)
		}
		l.sources[c.address] = s
		heap.Push(&l.fullest, s)
	}
	l.number++
	c.number, c.place = l.number, s.pending.PushBack(c)
	l.stats.Pending++
	heap.Fix(&l.fullest, s.index)
}

func (l *Listener) removePending(c *Conn) {
	s := l.sources[c.address]
	s.pending.Remove(c.place)
	c.place = nil
	l.stats.Pending--
	if s.pending.Len() == 0 {
		heap.Remove(&l.fullest, s.index)
		delete(l.sources, s.address)
		return
	}
	heap.Fix(&l.fullest, s.index)
}

// source is the origin of pending connections: an address, or a network of addresses that
// belongs to one subscriber.
type source struct {
	address netip.Prefix
	share   int       // how many it may have
	pending list.List // of *Conn, oldest first
	index   int       // in the heap
}

// sourceOf returns the network under which an address is counted. With IPv6, a subscriber
// usually has a whole /64.
func sourceOf(a net.Addr) netip.Prefix {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Prefix{} // not TCP: all count as one
	}
	return group(at.Addr())
}

func group(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() && !a.IsLoopback() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // never fails within the address's own length
	return p
}

// Group returns the network under which the attempts of an address are counted.
func Group(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	return group(a).String()
}

// sourceHeap orders sources by the part of their share that they use, the largest first;
// among equals, the one with the oldest connection first.
type sourceHeap []*source

func (h sourceHeap) Len() int { return len(h) }

func (h sourceHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	if d := a.pending.Len()*b.share - b.pending.Len()*a.share; d != 0 {
		return d > 0
	}
	return a.oldest() < b.oldest()
}

func (h sourceHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *sourceHeap) Push(x any) {
	s := x.(*source)
	s.index = len(*h)
	*h = append(*h, s)
}

func (h *sourceHeap) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return s
}

func (s *source) oldest() int64 {
	if front := s.pending.Front(); front != nil {
		return front.Value.(*Conn).number
	}
	return 0
}
