package agent

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"mariposa"
	"mariposa/wire"
)

// Known are the servers that an agent has learned of from a server. The nodes of one agent
// share them.
type Known struct {
	save func([]string)

	mu   sync.Mutex
	urls []string
}

// NewKnown returns the servers that were learned earlier. save is called with each change;
// it may be nil.
func NewKnown(urls []string, save func([]string)) *Known { return &Known{save: save, urls: urls} }

func (k *Known) list() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.urls
}

// maxKnown bounds how many servers an agent remembers.
const maxKnown = 64

// learn replaces the servers that were learned earlier.
func (k *Known) learn(urls []string) {
	if len(urls) == 0 || len(urls) > maxKnown {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.Equal(urls, k.urls) {
		return
	}
	k.urls = slices.Clone(urls)
	if k.save != nil {
		k.save(k.urls)
	}
}

// all returns the URLs of all servers: those that were configured, and those that were
// learned and are as well protected.
func (l Link) all() []string {
	urls := slices.Clone(l.Servers)
	if l.Known != nil {
		for _, s := range l.Known.list() {
			if l.isAcceptable(s) && !slices.Contains(urls, s) {
				urls = append(urls, s)
			}
		}
	}
	return urls
}

// isAcceptable reports whether the key of this node can be sent to a server that the node
// has learned of: the connection must be as well protected as those to the configured
// servers, and must not end at this machine unless a configured one does. What is loopback
// for the server is another machine than this one.
func (l Link) isAcceptable(server string) bool {
	u, err := parseServer(server)
	if err != nil {
		return false
	}
	anyLocal, least := false, protected
	for _, s := range l.Servers {
		if c, err := parseServer(s); err == nil {
			anyLocal, least = anyLocal || isLocal(c), min(least, protectionOf(c))
		}
	}
	return protectionOf(u) >= least && (anyLocal || !isLocal(u))
}

// How well a connection is protected.
const (
	unprotected = iota // unencrypted, over a network
	local              // unencrypted, within this machine
	protected          // encrypted
)

func protectionOf(u *url.URL) int {
	switch {
	case u.Scheme == "https":
		return protected
	case isLocal(u):
		return local
	}
	return unprotected
}

// isLocal reports whether a server is on this machine, judged by its address alone.
func isLocal(u *url.URL) bool {
	return mariposa.CheckEncrypted(&url.URL{Scheme: "http", Host: u.Host}, false) == nil
}

func parseServer(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, mariposa.Errorf(mariposa.InvalidArgument, "invalid server address %q: use a URL such as https://10.0.0.1:8080", s)
	}
	return u, nil
}

// target is one address of a server. A name with several addresses may stand for several
// servers, so each address is tried by itself.
type target struct {
	server string
	ip     netip.Addr // invalid: whatever the server's name means
}

func (t target) String() string {
	if t.ip.IsValid() {
		return t.server + " (" + t.ip.String() + ")"
	}
	return t.server
}

const lookupTimeout = 2 * time.Second

// targets returns the addresses of all servers in random order, so that nodes spread over
// them. Those that failed a moment ago come last.
func (l Link) targets(ctx context.Context, failed map[target]time.Time) []target {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	servers := l.all()
	found := make([][]target, len(servers))
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() { found[i] = l.lookUp(ctx, s) })
	}
	all.Wait()
	targets := slices.Concat(found...)
	rand.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	slices.SortStableFunc(targets, func(a, b target) int { return cmp.Compare(failed[a].Unix(), failed[b].Unix()) })
	return targets
}

// lookUp returns the addresses of one server. If they cannot be found out here, it leaves
// that to the dialer or to a proxy.
func (l Link) lookUp(ctx context.Context, server string) []target {
	plain := []target{{server: server}}
	u, err := parseServer(server)
	if err != nil {
		return plain
	}
	if _, err := netip.ParseAddr(u.Hostname()); err == nil {
		return plain
	}
	if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: u}); proxy != nil || err != nil {
		return plain
	}
	lookup := l.Lookup
	if lookup == nil {
		lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	ips, err := lookup(ctx, u.Hostname())
	if err != nil || len(ips) == 0 {
		return plain
	}
	var all []target
	for _, ip := range ips {
		if t := (target{server, ip.Unmap()}); !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return all
}

// transport returns the transport for one attempt. It keeps no connections: a kept one
// would lead the next attempt to the same server.
func (t target) transport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	known, ok := base.(*http.Transport)
	if !ok {
		return base
	}
	own := known.Clone()
	own.DisableKeepAlives = true
	dial := own.DialContext
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	u, _ := url.Parse(t.server) // it was parsed before
	own.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if host, port, err := net.SplitHostPort(address); err == nil && t.ip.IsValid() && strings.EqualFold(host, u.Hostname()) {
			address = net.JoinHostPort(t.ip.String(), port)
		}
		conn, err := dial(ctx, network, address)
		if err == nil {
			wire.LimitUnsent(conn)
		}
		return conn, err
	}
	return own
}
