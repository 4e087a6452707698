package assembly

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"mariposa/agent"
	"mariposa/discover"
	"mariposa/wire"
)

// DNSConfig says how a control plane answers DNS queries.
type DNSConfig struct {
	// Listen is the address of the server; not valid: there is none.
	Listen netip.AddrPort
	// Fallback chooses another port if that of Listen is in use.
	Fallback bool
	// Allow are the networks whose clients may ask for every name, in addition to this machine.
	Allow []netip.Prefix
	TTL   time.Duration // of answers; discover.DefaultTTL if zero
	// Local: all instances are on this machine, so clients here reach them at its loopback.
	Local bool
	// Refuses reports whether a user of this machine is an instance; nil: none is. Users from
	// overflowUID on are always refused, except that of this process.
	Refuses func(uid int) bool
	// Bound is called with the address of the server. May be nil.
	Bound func(netip.AddrPort)
}

// overflowUID is the uid of users that this process cannot tell apart, because it is in a user
// namespace. They may be instances. Uids above belong to instances and to users in user namespaces.
const overflowUID = 65534

// startDNS starts the DNS server of a control plane. It returns nil if there is none.
func startDNS(ctx context.Context, cfg *DNSConfig, book *discover.Book) (*discover.Server, error) {
	if cfg == nil || !cfg.Listen.IsValid() {
		return nil, nil //nolint:nilnil // there is none
	}
	s := &discover.Server{Zone: book.Zone, Fetch: book.Fetch, TTL: cfg.TTL}
	machine := &discover.MachineResolvers{Except: func(at netip.AddrPort) bool { return slices.Contains(s.Addresses(), at) }}
	s.Forward = &discover.Forwarder{Upstreams: machine.Servers}
	door := discover.Door{Address: cfg.Listen, Identify: cfg.identify}
	at, err := s.Open(ctx, door)
	if cfg.Fallback && errors.Is(err, syscall.EADDRINUSE) {
		door.Address = netip.AddrPortFrom(cfg.Listen.Addr(), 0)
		at, err = s.Open(ctx, door)
	}
	if err != nil {
		return nil, fmt.Errorf("the DNS server cannot listen on %s: %w: choose another address with --dns, or turn it off with --dns off", cfg.Listen, err)
	}
	cfg.Listen = at // also when the store is read anew
	if cfg.Bound != nil {
		cfg.Bound(at)
	}
	return s, nil
}

// identify decides whether a client may ask. On this machine, instances may not: they ask the DNS
// server of their node, which knows their project.
func (cfg *DNSConfig) identify(c discover.Client) (discover.Identity, bool) {
	from := c.Address.Addr()
	id := discover.Identity{Scope: discover.Scope{All: true}, Key: from.String()}
	if from.IsLoopback() || from == c.Server.Addr() {
		uid, err := discover.OwnerOf(c)
		id.Key, id.View.Local = "uid "+strconv.Itoa(uid), cfg.Local
		return id, err == nil && cfg.admits(uid)
	}
	return id, slices.ContainsFunc(cfg.Allow, func(p netip.Prefix) bool { return p.Contains(from) })
}

// admits reports whether a user of this machine may ask.
func (cfg *DNSConfig) admits(uid int) bool {
	if cfg.Refuses != nil && cfg.Refuses(uid) {
		return false
	}
	return uid < overflowUID || uid == os.Geteuid()
}

// NodeDNS says how a node answers DNS queries.
type NodeDNS struct {
	// Listen is where processes on the machine ask; chosen once, and kept, if not valid.
	Listen netip.AddrPort
	TTL    time.Duration // of answers; discover.DefaultTTL if zero
}

// namesFile has the names that a node knew last.
const namesFile = "names.json"

// startNames starts the DNS server of a node.
func startNames(ctx context.Context, cfg NodeConfig, id *identity) *agent.NameServer {
	if cfg.DNS == nil || cfg.Dummy {
		return nil
	}
	path := filepath.Join(cfg.Dir, namesFile)
	o := agent.NamesOptions{Node: id.ID, Listen: cfg.DNS.Listen, TTL: cfg.DNS.TTL, Load: func() *wire.Names { return readNames(path) }}
	var last sync.Mutex
	o.Store = func(n *wire.Names) {
		last.Lock()
		defer last.Unlock()
		b, err := json.Marshal(n)
		if err == nil {
			err = WriteFile(path, b)
		}
		if err != nil {
			slog.Warn("cannot store the names that the node knows", "err", err)
		}
	}
	if !o.Listen.IsValid() {
		o.Listen, _ = netip.ParseAddrPort(id.DNS) // not valid: it is chosen now
	}
	if !o.Listen.IsValid() {
		if o.Listen = freeNameAddress(); o.Listen.IsValid() {
			id.storeDNS(identityFile(cfg.Dir), o.Listen.String())
		}
	}
	s := agent.NewNameServer(o)
	if err := s.Start(ctx); err != nil {
		slog.Warn("processes on this node cannot ask for names", "err", err)
	}
	return s
}

// readNames returns the names that a node knew last; nil if it knows none.
func readNames(path string) *wire.Names {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var n wire.Names
	if json.Unmarshal(b, &n) != nil {
		return nil // the control plane sends them again
	}
	return &n
}

// freeNameAddress returns an address of the loopback whose port for DNS is free. It is not valid
// if this process may not use the port.
func freeNameAddress() netip.AddrPort {
	for range 20 {
		a := netip.AddrFrom4([4]byte{127, byte(64 + mathrand.IntN(63)), byte(mathrand.IntN(256)), byte(1 + mathrand.IntN(254))})
		at := netip.AddrPortFrom(a, 53)
		l, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err == nil {
			_ = l.Close() // it was only tried
			return at
		}
		if errors.Is(err, os.ErrPermission) {
			return netip.AddrPort{}
		}
	}
	return netip.AddrPort{}
}

// storeDNS stores the address at which processes ask for names: running ones know no other.
func (id *identity) storeDNS(path, at string) {
	next := *id
	next.DNS = at
	b, err := json.Marshal(next)
	if err == nil {
		err = WriteFile(path, b)
	}
	if err != nil {
		slog.Warn("cannot store the address of the DNS server", "err", err)
		return
	}
	*id = next
}
