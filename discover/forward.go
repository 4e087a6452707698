package discover

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	maxForwarded   = 512             // queries that wait for other servers
	maxGroupWaits  = 32              // those of one group of clients
	upstreamWait   = 2 * time.Second // for one answer
	forwardLimit   = 5 * time.Second // for all attempts
	retryUpstream  = 10 * time.Second
	maxSilent      = 16 // servers that are remembered because they do not answer
	maxUpstreams   = 3
	resolvInterval = 5 * time.Second // how often the name servers of the machine are read at most
)

// Forwarder passes queries on to other name servers. Equal queries at the same time become one, so
// a loop of servers ends by itself.
type Forwarder struct {
	// Upstreams returns the servers, the preferred first.
	Upstreams func() []netip.AddrPort

	once   sync.Once
	slots  chan struct{}
	groups bounds
	mu     sync.Mutex
	flying map[flightKey]*flight
	silent map[netip.AddrPort]time.Time // servers that did not answer, and when they were last asked first
}

// flightKey is what makes queries equal.
type flightKey struct {
	name   string
	kind   uint16
	secure bool // DNSSEC records are wanted
	check  bool // without validation
}

// flight is a query that was passed on.
type flight struct {
	done   chan struct{}
	answer *dns.Msg // nil if there is none
}

// resolve returns the answer of another server. It is a failure if no server answers in time.
func (f *Forwarder) resolve(r *dns.Msg, group string) *dns.Msg {
	f.once.Do(func() {
		f.slots, f.flying, f.silent = make(chan struct{}, maxForwarded), map[flightKey]*flight{}, map[netip.AddrPort]time.Time{}
	})
	q := r.Question[0]
	key := flightKey{name: strings.ToLower(q.Name), kind: q.Qtype, check: r.CheckingDisabled}
	if o := r.IsEdns0(); o != nil {
		key.secure = o.Do()
	}
	fl := f.join(key, group)
	if fl == nil {
		return failed(r)
	}
	<-fl.done
	if fl.answer == nil {
		return failed(r)
	}
	m := fl.answer.Copy()
	m.Id, m.RecursionDesired, m.RecursionAvailable, m.Authoritative = r.Id, r.RecursionDesired, true, false
	m.Question = slices.Clone(r.Question) // spelled as the client did
	m.Extra = slices.DeleteFunc(m.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
	return m
}

// join returns the flight of a query, which begins now if there is none. It returns nil if too many
// are on their way.
func (f *Forwarder) join(key flightKey, group string) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.flying[key]; fl != nil {
		return fl
	}
	if !f.groups.enter(group, maxGroupWaits) {
		return nil
	}
	select {
	case f.slots <- struct{}{}:
	default:
		f.groups.leave(group)
		return nil
	}
	fl := &flight{done: make(chan struct{})}
	f.flying[key] = fl
	go func() { // ends by its time limit
		f.ask(key, fl)
		f.groups.leave(group)
	}()
	return fl
}

func failed(r *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetRcode(r, dns.RcodeServerFailure)
	m.RecursionAvailable = true
	return m
}

// ask asks one server after the other.
func (f *Forwarder) ask(key flightKey, fl *flight) {
	ctx, cancel := context.WithTimeout(context.Background(), forwardLimit)
	defer cancel()
	defer func() {
		f.mu.Lock()
		delete(f.flying, key)
		f.mu.Unlock()
		close(fl.done)
		<-f.slots
	}()
	m := new(dns.Msg)
	m.SetQuestion(key.name, key.kind)
	m.SetEdns0(maxUDP, key.secure)
	m.CheckingDisabled = key.check
	for _, at := range f.ordered(time.Now()) {
		in := exchange(ctx, m, at)
		f.note(at, in != nil)
		if in == nil {
			continue
		}
		fl.answer = in
		if in.Rcode == dns.RcodeSuccess || in.Rcode == dns.RcodeNameError {
			return
		}
	}
}

// ordered returns the servers to ask. Those that did not answer come last, except that one query
// now and then finds out whether they do again.
func (f *Forwarder) ordered(now time.Time) []netip.AddrPort {
	servers := f.Upstreams()
	servers = servers[:min(len(servers), maxUpstreams)]
	f.mu.Lock()
	defer f.mu.Unlock()
	var good, silent []netip.AddrPort
	for _, at := range servers {
		if since, is := f.silent[at]; is && now.Sub(since) < retryUpstream {
			silent = append(silent, at)
			continue
		} else if is {
			f.silent[at] = now
		}
		good = append(good, at)
	}
	return append(good, silent...)
}

// note remembers whether a server has answered.
func (f *Forwarder) note(at netip.AddrPort, answered bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch _, known := f.silent[at]; {
	case answered:
		delete(f.silent, at)
	case !known && len(f.silent) < maxSilent:
		f.silent[at] = time.Now()
	}
}

// exchange asks a server, over TCP if its answer does not fit into a packet. It returns nil if it
// does not answer.
func exchange(ctx context.Context, m *dns.Msg, at netip.AddrPort) *dns.Msg {
	for _, network := range []string{"udp", "tcp"} {
		c := dns.Client{Net: network, Timeout: upstreamWait, UDPSize: maxUDP}
		in, _, err := c.ExchangeContext(ctx, m, at.String())
		if err != nil || len(in.Question) != 1 || !in.Response || !strings.EqualFold(in.Question[0].Name, m.Question[0].Name) || in.Question[0].Qtype != m.Question[0].Qtype {
			return nil
		}
		if !in.Truncated {
			return in
		}
	}
	return nil
}

// MachineResolvers returns the name servers of this machine, except those that are not. It is read
// again when the file has changed.
type MachineResolvers struct {
	Path   string                             // /etc/resolv.conf if empty
	Except func(at netip.AddrPort) (own bool) // our own addresses; may be nil

	mu      sync.Mutex
	checked time.Time
	changed time.Time
	servers []netip.AddrPort
}

// Servers returns the name servers.
func (r *MachineResolvers) Servers() []netip.AddrPort {
	r.mu.Lock()
	if time.Since(r.checked) > resolvInterval {
		r.checked = time.Now()
		path := r.Path
		if path == "" {
			path = "/etc/resolv.conf"
		}
		if info, err := os.Stat(path); err == nil && !info.ModTime().Equal(r.changed) {
			b, _ := os.ReadFile(path) // without one there are none
			r.servers, r.changed = ParseResolvers(string(b)), info.ModTime()
		}
	}
	all := slices.Clone(r.servers)
	r.mu.Unlock()
	if r.Except != nil {
		all = slices.DeleteFunc(all, r.Except)
	}
	return all
}

const dnsPort = 53

// ParseResolvers returns the name servers in the text of a resolv.conf.
func ParseResolvers(text string) (all []netip.AddrPort) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil && !a.IsUnspecified() {
			all = append(all, netip.AddrPortFrom(a, dnsPort))
		}
	}
	return all
}

// ParseAddress reads the address of a DNS server, with or without its port.
func ParseAddress(text string) (netip.AddrPort, error) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return at, nil
	}
	if host, port, err := net.SplitHostPort(text); err == nil && host == "" {
		n, err := strconv.ParseUint(port, 10, 16)
		return netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(n)), err
	}
	a, err := netip.ParseAddr(text)
	return netip.AddrPortFrom(a, dnsPort), err
}
