// Package listener accepts connections, and bounds what those can take who have not
// shown that they may be here. A connection is pending until a request that was let in
// holds it, and again once that request is answered. There is room for a number of
// pending ones, in all and from each address. Beyond it a new connection is still
// accepted, and the oldest pending one of the address with the largest part goes: who
// opens thousands of connections pushes out their own, and everybody else gets in.
//
// The room owns connections and where they come from. It refuses to know tokens, users
// and what is asked for.
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

// Defaults of the options.
const (
	DefaultPerAddress = 256
	maxPending        = 4096
	warnInterval      = 10 * time.Second
)

// Options bound a listener.
type Options struct {
	// Max is how many connections there may be; zero: as the limit of open files allows.
	Max int
	// Share bounds it to one part in so many of the limit of open files; zero: it does not.
	Share int
	// PerAddress is how many pending connections one address may have; zero stands for
	// DefaultPerAddress. Trusted proxies and this machine speak for many, so they may
	// have half of all.
	PerAddress int
	Proxies    Proxies
}

// Stats are how many connections there are, and how many had to go for others.
type Stats struct {
	Pending, Held, Evicted int
}

// Listener is a net.Listener that bounds pending connections.
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

// New bounds a listener.
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

// openFiles is how many files this process may have open.
func openFiles() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 1024
	}
	return int(min(limit.Cur, 1<<20))
}

// Accept waits for the next connection. It never refuses one; others may have to go.
func (l *Listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) { // others took the files: the next one gets in
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

// admit makes a connection pending and returns those that have to go for it.
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

// drop closes connections that had to go, at once: what was not yet sent to them is
// given up, so that the kernel keeps nothing either.
func (l *Listener) drop(victims ...*Conn) {
	for _, c := range victims {
		if c == nil {
			continue
		}
		if tcp, ok := c.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // one that is closed already has nothing to give up
		}
		_ = c.Conn.Close() // likewise
		l.warn(c)
	}
}

// warn says now and then that connections have to go.
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

// Stats tells how many connections there are.
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
	place  *list.Element // among the pending ones of its address; nil: it is none
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

// CloseWrite ends what is sent and leaves the rest open: so the other side reads an answer
// to its end although nobody reads what it still sends.
func (c *Conn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return nil
	}
	return half.CloseWrite()
}

type connKey struct{}

// Context lets requests find their connection; it is for http.Server.ConnContext.
func Context(ctx context.Context, conn net.Conn) context.Context {
	for {
		if c, ok := conn.(*Conn); ok {
			return context.WithValue(ctx, connKey{}, c)
		}
		inner, ok := conn.(interface{ NetConn() net.Conn }) // TLS stands in front of it
		if !ok {
			return ctx
		}
		conn = inner.NetConn()
	}
}

// Hold keeps the connection of a request that was let in from having to go for others,
// until it is released. False: as many as there may be are held, and it is not.
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
		return func() {}, true // it had to go just now; whoever writes to it will see
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

// forget takes a connection off the books.
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

// evict forgets the oldest pending connection of the address with the largest part.
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

// source is where pending connections come from: an address, or a network of
// addresses that one subscriber has to themselves.
type source struct {
	address netip.Prefix
	share   int       // how many it may have
	pending list.List // of *Conn, oldest first
	index   int       // in the heap
}

// sourceOf is what an address is counted under. With IPv6, whoever has one has
// all of its /64.
func sourceOf(a net.Addr) netip.Prefix {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Prefix{} // not TCP: all are one
	}
	return group(at.Addr())
}

func group(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() && !a.IsLoopback() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // within the address's own length it never fails
	return p
}

// Group is what an address in text counts under where attempts are counted.
func Group(address string) string {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	return group(a).String()
}

// sourceHeap has the source with the largest part of its share first; among equals the
// one whose oldest connection is the oldest.
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
