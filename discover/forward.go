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
	maxForwarded   = 128             // queries that wait for other servers
	upstreamWait   = 2 * time.Second // for one answer
	forwardLimit   = 5 * time.Second // for all attempts
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
	mu     sync.Mutex
	flying map[flightKey]*flight
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
func (f *Forwarder) resolve(r *dns.Msg) *dns.Msg {
	f.once.Do(func() { f.slots, f.flying = make(chan struct{}, maxForwarded), map[flightKey]*flight{} })
	q := r.Question[0]
	key := flightKey{name: strings.ToLower(q.Name), kind: q.Qtype, check: r.CheckingDisabled}
	if o := r.IsEdns0(); o != nil {
		key.secure = o.Do()
	}
	f.mu.Lock()
	fl := f.flying[key]
	if fl == nil {
		select {
		case f.slots <- struct{}{}:
			fl = &flight{done: make(chan struct{})}
			f.flying[key] = fl
			go f.ask(key, fl) // ends by its time limit
		default:
			f.mu.Unlock()
			return failed(r)
		}
	}
	f.mu.Unlock()
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
	servers := f.Upstreams()
	for _, at := range servers[:min(len(servers), maxUpstreams)] {
		in := exchange(ctx, m, at)
		if in == nil {
			continue
		}
		fl.answer = in
		if in.Rcode == dns.RcodeSuccess || in.Rcode == dns.RcodeNameError {
			return
		}
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
