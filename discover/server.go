package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// DefaultTTL is how long answers may be kept.
const DefaultTTL = 5 * time.Second

// MaxTTL bounds it.
const MaxTTL = time.Hour

const (
	maxUDP     = 1232 // bytes of an answer over UDP, which no network splits
	maxAnswers = 512  // instances in one answer; as many fit into a message over TCP
	maxTCP     = 256  // connections to one door
	idleTCP    = 10 * time.Second
	maxPerConn = 128  // queries over one connection
	maxBusy    = 4096 // queries of one door that are being answered

	maxGroupTCP  = 32  // connections of one group of clients
	maxGroupBusy = 256 // its queries that are being answered

	maxAttempts = 50 // to find a port that is free over UDP and TCP
)

// Client is who asks.
type Client struct {
	Address netip.AddrPort
	Server  netip.AddrPort // the address that it asked
	TCP     bool
}

// Identity is what a client may ask for.
type Identity struct {
	Scope Scope
	View  View
	// Key is what the client shares its query rate with: its address, its user or its project.
	Key string
	// Group is who shares the bounds of what is in progress with the client: its user or its network.
	// Unlike an address, no client can choose it. Key if empty.
	Group string
}

func (i *Identity) group() string { return cmp.Or(i.Group, i.Key) }

// Door is an address at which a server listens.
type Door struct {
	Address netip.AddrPort
	// Device is the interface to which the door is bound, so that only what arrives there gets in;
	// empty: any.
	Device string
	// Identify finds out who a client is. It reports false for clients that are not answered.
	Identify func(Client) (Identity, bool)
}

// Server answers queries at any number of doors.
type Server struct {
	Zone *Zone
	// Fetch adds names to the zone that are not in it yet, before a lookup. May be nil.
	Fetch func(relative string)
	// TTL is how long answers may be kept; DefaultTTL if zero.
	TTL     time.Duration
	Forward *Forwarder // answers all other names; nil: they are refused

	rates  rates
	busy   bounds // queries
	conns  bounds // connections
	mu     sync.Mutex
	doors  map[netip.AddrPort]*openDoor
	closed bool
}

// openDoor is a door with its listeners.
type openDoor struct {
	Door
	index    int // of the device
	udp, tcp *dns.Server
	ended    sync.WaitGroup
	busy     chan struct{}
}

// ErrClosed means that the server was closed.
var ErrClosed = errors.New("the DNS server is closed")

// Open listens at an address, and returns the address; its port may be 0. A door that is open
// already stays, unless its device was replaced.
func (s *Server) Open(ctx context.Context, d Door) (netip.AddrPort, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return d.Address, ErrClosed
	}
	index := 0
	if d.Device != "" {
		i, err := net.InterfaceByName(d.Device)
		if err != nil {
			return d.Address, fmt.Errorf("cannot find the interface %s: %w", d.Device, err)
		}
		index = i.Index
	}
	if old := s.doors[d.Address]; old != nil {
		if old.Device == d.Device && old.index == index {
			return d.Address, nil
		}
		s.close(old)
	}
	o := &openDoor{Door: d, index: index, busy: make(chan struct{}, maxBusy)}
	if err := s.listen(ctx, o); err != nil {
		return d.Address, err
	}
	if s.doors == nil {
		s.doors = map[netip.AddrPort]*openDoor{}
	}
	s.doors[o.Address] = o
	return o.Address, nil
}

// listen opens the sockets of a door.
func (s *Server) listen(ctx context.Context, o *openDoor) error {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		if o.Device == "" {
			return nil
		}
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), o.Device) }), err)
	}}
	packets, conns, at, err := listenBoth(ctx, &config, o.Address)
	if err != nil {
		return err
	}
	o.Address = at
	o.udp = &dns.Server{PacketConn: packets, UDPSize: maxUDP, MsgAcceptFunc: accept}
	o.tcp = &dns.Server{
		Listener: &boundedListener{Listener: conns, slots: make(chan struct{}, maxTCP), bounds: &s.conns, identify: o.Identify}, ReadTimeout: idleTCP, WriteTimeout: idleTCP,
		IdleTimeout: func() time.Duration { return idleTCP }, MaxTCPQueries: maxPerConn, MsgAcceptFunc: accept,
	}
	for _, server := range []*dns.Server{o.udp, o.tcp} {
		server.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) { s.answer(o, w, r) })
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		failed := make(chan error, 1)
		o.ended.Go(func() {
			err := server.ActivateAndServe()
			if err != nil {
				slog.Warn("the DNS server has stopped listening", "address", at, "err", err)
			}
			failed <- err
		})
		select {
		case <-started:
		case err = <-failed:
		}
	}
	return err
}

// listenBoth listens over UDP and TCP at one address. If any port will do, it is one that is free
// for both.
func listenBoth(ctx context.Context, config *net.ListenConfig, want netip.AddrPort) (net.PacketConn, net.Listener, netip.AddrPort, error) {
	for attempt := 0; ; attempt++ {
		packets, err := config.ListenPacket(ctx, "udp", want.String())
		if err != nil {
			return nil, nil, want, err
		}
		at := packets.LocalAddr().(*net.UDPAddr).AddrPort() //nolint:forcetypeassert // of a UDP socket
		at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		conns, err := config.Listen(ctx, "tcp", at.String())
		if err == nil {
			return packets, conns, at, nil
		}
		_ = packets.Close() // nothing was answered
		if want.Port() != 0 || attempt == maxAttempts || !errors.Is(err, unix.EADDRINUSE) {
			return nil, nil, want, err
		}
	}
}

// Close ends a door.
func (s *Server) Close(at netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.doors[at]; o != nil {
		s.close(o)
	}
}

// Shutdown ends all doors. No others can be opened.
func (s *Server) Shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, o := range s.doors {
		s.close(o)
	}
}

// close ends a door. The caller holds the lock.
func (s *Server) close(o *openDoor) {
	delete(s.doors, o.Address)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, server := range []*dns.Server{o.udp, o.tcp} {
		_ = server.ShutdownContext(ctx) // connections that are still open end by their time limit
	}
	o.ended.Wait()
}

// Addresses returns where the server listens.
func (s *Server) Addresses() (all []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := range s.doors {
		all = append(all, at)
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all
}

// accept decides by its header whether a message is read.
func accept(h dns.Header) dns.MsgAcceptAction {
	const response = 1 << 15
	opcode := int(h.Bits>>11) & 0xf
	switch {
	case h.Bits&response != 0:
		return dns.MsgIgnore
	case opcode != dns.OpcodeQuery:
		return dns.MsgRejectNotImplemented
	case h.Qdcount != 1 || h.Ancount > 1 || h.Nscount > 1 || h.Arcount > 2:
		return dns.MsgReject
	}
	return dns.MsgAccept
}

// answer answers one query.
func (s *Server) answer(o *openDoor, w dns.ResponseWriter, r *dns.Msg) {
	select {
	case o.busy <- struct{}{}:
		defer func() { <-o.busy }()
	default:
		return // too many; the client asks again
	}
	c := clientOf(w)
	who, ok := o.Identify(c)
	if !ok {
		s.reply(w, c, r, s.failure(r, dns.RcodeRefused))
		return
	}
	if !s.rates.take(who.Key, who.group(), time.Now()) {
		if c.TCP {
			_ = w.Close() // it asks too much
		}
		return
	}
	if !s.busy.enter(who.group(), maxGroupBusy) {
		return // too many of its own
	}
	defer s.busy.leave(who.group())
	s.reply(w, c, r, s.resolve(r, who, c))
}

// clientOf returns who is at the other end of a connection or a query.
func clientOf(w interface {
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
},
) Client {
	address := func(a net.Addr) netip.AddrPort {
		var at netip.AddrPort
		switch a := a.(type) {
		case *net.UDPAddr:
			at = a.AddrPort()
		case *net.TCPAddr:
			at = a.AddrPort()
		}
		return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
	}
	_, tcp := w.RemoteAddr().(*net.TCPAddr)
	return Client{Address: address(w.RemoteAddr()), Server: address(w.LocalAddr()), TCP: tcp}
}

// reply sends an answer that fits. Over UDP, what does not fit is cut off, and the client asks
// again over TCP.
func (s *Server) reply(w dns.ResponseWriter, c Client, r, m *dns.Msg) {
	size := dns.MaxMsgSize
	if !c.TCP {
		size = dns.MinMsgSize
	}
	if o := r.IsEdns0(); o != nil {
		if m.IsEdns0() == nil {
			m.SetEdns0(maxUDP, o.Do())
		}
		if !c.TCP {
			size = min(max(int(o.UDPSize()), dns.MinMsgSize), maxUDP)
		}
	}
	m.Compress = true
	m.Truncate(size)
	_ = w.WriteMsg(m) // the client has left
}

// failure returns an answer without records.
func (s *Server) failure(r *dns.Msg, code int) *dns.Msg {
	m := new(dns.Msg)
	m.SetRcode(r, code)
	m.RecursionAvailable = s.Forward != nil
	return m
}

// resolve returns the answer to a query of a client that may ask.
func (s *Server) resolve(r *dns.Msg, who Identity, c Client) *dns.Msg {
	q := r.Question[0]
	if o := r.IsEdns0(); o != nil && o.Version() != 0 {
		m := s.failure(r, dns.RcodeBadVers)
		m.SetEdns0(maxUDP, false)
		return m
	}
	switch {
	case q.Qclass != dns.ClassINET, slices.Contains(refusedTypes, q.Qtype):
		return s.failure(r, dns.RcodeRefused)
	}
	if relative, ours := s.Zone.Relative(q.Name); ours {
		return s.resolveOwn(r, relative, who, c)
	}
	if names := s.reverse(q, who); len(names) > 0 {
		m := s.failure(r, dns.RcodeSuccess)
		m.Authoritative = true
		for _, name := range names[:min(len(names), maxAnswers)] {
			m.Answer = append(m.Answer, &dns.PTR{Hdr: s.header(q.Name, dns.TypePTR), Ptr: name})
		}
		return m
	}
	if isShort(q) {
		return s.failure(r, dns.RcodeNameError)
	}
	if s.Forward == nil || !r.RecursionDesired {
		return s.failure(r, dns.RcodeRefused)
	}
	return s.withoutOwn(s.Forward.resolve(r, who.group()))
}

// withoutOwn removes what another server says about names of the zone: it knows nothing about them.
func (s *Server) withoutOwn(m *dns.Msg) *dns.Msg {
	isOwn := func(rr dns.RR) bool {
		_, ours := s.Zone.Relative(rr.Header().Name)
		return ours
	}
	m.Answer, m.Ns, m.Extra = slices.DeleteFunc(m.Answer, isOwn), slices.DeleteFunc(m.Ns, isOwn), slices.DeleteFunc(m.Extra, isOwn)
	return m
}

// refusedTypes are what no client needs: they make answers large, or copy everything.
var refusedTypes = []uint16{dns.TypeANY, dns.TypeAXFR, dns.TypeIXFR, dns.TypeMAILA, dns.TypeMAILB}

// isShort reports whether a query is for a name that is nowhere in the world: a single label, or a
// name that lacks the domain, which resolvers try next.
func isShort(q dns.Question) bool {
	name := strings.ToLower(strings.TrimSuffix(q.Name, "."))
	if q.Qtype != dns.TypeA && q.Qtype != dns.TypeAAAA && q.Qtype != dns.TypeSRV {
		return false
	}
	return !strings.Contains(name, ".") && name != "" || strings.HasSuffix(name, "."+kindService) || strings.HasSuffix(name, "."+kindInstance)
}

// reverse returns the names of the instances that a PTR query asks for.
func (s *Server) reverse(q dns.Question, who Identity) []string {
	if q.Qtype != dns.TypePTR {
		return nil
	}
	a, ok := reverseAddress(q.Name)
	if !ok {
		return nil
	}
	return s.Zone.Reverse(a, who.Scope)
}

// reverseAddress returns the address that a name under in-addr.arpa or ip6.arpa stands for.
func reverseAddress(name string) (netip.Addr, bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	var text string
	if parts, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		labels := strings.Split(parts, ".")
		slices.Reverse(labels)
		text = strings.Join(labels, ".")
	} else if parts, ok := strings.CutSuffix(name, ".ip6.arpa"); ok {
		digits := strings.Split(parts, ".")
		if len(digits) != 32 {
			return netip.Addr{}, false
		}
		slices.Reverse(digits)
		var b strings.Builder
		for n, d := range digits {
			if n > 0 && n%4 == 0 {
				b.WriteByte(':')
			}
			b.WriteString(d)
		}
		text = b.String()
	}
	a, err := netip.ParseAddr(text)
	return a, err == nil
}

// header returns the header of a record.
func (s *Server) header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: s.ttl()}
}

func (s *Server) ttl() uint32 {
	ttl := s.TTL
	if ttl == 0 {
		ttl = DefaultTTL
	}
	return uint32(min(max(ttl, 0), MaxTTL) / time.Second) //nolint:gosec // bounded
}

// resolveOwn answers a query for a name in the zone.
func (s *Server) resolveOwn(r *dns.Msg, relative string, who Identity, c Client) *dns.Msg {
	q := r.Question[0]
	m := s.failure(r, dns.RcodeSuccess)
	m.Authoritative = true
	domain := s.Zone.Domain() + "."
	switch {
	case relative == "" && q.Qtype == dns.TypeSOA:
		m.Answer = append(m.Answer, s.soa(domain))
		return m
	case relative == "" && q.Qtype == dns.TypeNS:
		m.Answer = append(m.Answer, &dns.NS{Hdr: s.header(q.Name, dns.TypeNS), Ns: nameServer + "." + domain})
		m.Extra = s.addressRecords(m.Extra, nameServer+"."+domain, c.Server.Addr(), 0)
		return m
	case relative == nameServer:
		m.Answer = s.addressRecords(m.Answer, q.Name, c.Server.Addr(), q.Qtype)
		return s.negative(m, domain)
	}
	if s.Fetch != nil {
		s.Fetch(relative)
	}
	found := s.Zone.Lookup(relative, who.Scope, who.View)
	switch {
	case !found.Known:
		return s.failure(r, dns.RcodeServerFailure) // soon it will be
	case !found.Exists:
		m.Rcode = dns.RcodeNameError
		return s.negative(m, domain)
	}
	list := found.Targets[:min(len(found.Targets), maxAnswers)]
	switch q.Qtype {
	case dns.TypeA, dns.TypeAAAA:
		seen := map[netip.Addr]bool{}
		for _, t := range list {
			if !seen[t.Address] {
				seen[t.Address] = true
				m.Answer = s.addressRecords(m.Answer, q.Name, t.Address, q.Qtype)
			}
		}
	case dns.TypeSRV:
		for _, t := range list {
			for _, port := range t.Ports {
				m.Answer = append(m.Answer, &dns.SRV{Hdr: s.header(q.Name, dns.TypeSRV), Priority: 1, Weight: 1, Port: port, Target: t.Name})
			}
			if len(t.Ports) > 0 {
				m.Extra = s.addressRecords(m.Extra, t.Name, t.Address, 0)
			}
		}
	}
	return s.negative(m, domain)
}

// nameServer is the label of the server itself.
const nameServer = "ns"

// addressRecords adds a record of an address, if it is of the type that was asked for, or if that
// is 0.
func (s *Server) addressRecords(to []dns.RR, name string, a netip.Addr, kind uint16) []dns.RR {
	switch {
	case a.Is4() && (kind == dns.TypeA || kind == 0):
		return append(to, &dns.A{Hdr: s.header(name, dns.TypeA), A: a.AsSlice()})
	case a.Is6() && (kind == dns.TypeAAAA || kind == 0):
		return append(to, &dns.AAAA{Hdr: s.header(name, dns.TypeAAAA), AAAA: a.AsSlice()})
	}
	return to
}

// negative adds how long an answer without records may be kept.
func (s *Server) negative(m *dns.Msg, domain string) *dns.Msg {
	if len(m.Answer) == 0 {
		m.Ns = append(m.Ns, s.soa(domain))
	}
	return m
}

func (s *Server) soa(domain string) dns.RR {
	return &dns.SOA{
		Hdr: s.header(domain, dns.TypeSOA), Ns: nameServer + "." + domain, Mbox: "hostmaster." + domain,
		Serial: uint32(time.Now().Unix()), Refresh: 60, Retry: 10, Expire: 600, Minttl: s.ttl(), //nolint:gosec // serial numbers wrap
	}
}
