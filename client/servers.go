package client

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"mariposa"
)

// maxURLs limits the number of servers that a client knows.
const maxURLs = 32

// An endpoint is one server, or one address of it if its name has several.
type endpoint struct {
	base  url.URL
	pin   string       // the IP address to connect to; empty: any that the host has
	http  *http.Client // for requests
	probe *http.Client // for checks, which use a new connection each

	// guarded by servers.mu
	answers    bool // it answered last, and belongs to the installation
	isResolved bool // its host has no other addresses
}

// name returns the address, safe to show.
func (e *endpoint) name() string {
	if e.pin != "" {
		return e.base.Redacted() + " (" + e.pin + ")"
	}
	return e.base.Redacted()
}

// short returns the address as host and port.
func (e *endpoint) short() string {
	if e.pin != "" {
		return e.base.Host + " (" + e.pin + ")"
	}
	return e.base.Host
}

// canHaveMore reports whether the host of an endpoint may have several addresses.
func (e *endpoint) canHaveMore() bool {
	_, err := netip.ParseAddr(e.base.Hostname())
	return err != nil && !strings.EqualFold(e.base.Hostname(), "localhost") && e.pin == "" && !e.isResolved
}

// servers are the replicas that a client knows, and which of them it uses.
type servers struct {
	insecure bool
	custom   *http.Client
	tls      *tls.Config
	lookup   func(ctx context.Context, host string) ([]string, error)

	stagger, compareTime time.Duration // see defaultStagger and defaultCompareTime

	picking sync.Mutex // held while servers are checked
	mu      sync.Mutex
	all     []*endpoint
	current *endpoint
	// installation is the one that all belong to; empty: not known yet.
	installation string
	// seen is the newest revision that a server has shown, and by is that server. Another
	// one is asked to show at least as much.
	seen int64
	by   *endpoint
}

// incarnationError is an answer with the incarnation of the store that it is about.
type incarnationError struct {
	error
	incarnation string
}

func (e *incarnationError) Unwrap() error { return e.error }

func (s *servers) init(o Options) error {
	s.insecure, s.custom, s.installation, s.lookup = o.Insecure, o.HTTPClient, o.Installation, net.DefaultResolver.LookupHost
	s.stagger, s.compareTime = defaultStagger, defaultCompareTime
	var err error
	if s.custom == nil {
		if s.tls, err = tlsConfig(o.Roots); err != nil {
			return err
		}
	}
	for raw := range strings.SplitSeq(o.URL, ",") {
		u, err := url.Parse(strings.TrimRight(strings.TrimSpace(raw), "/"))
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return mariposa.Errorf(mariposa.InvalidArgument, "invalid server URL %q: use a URL such as http://127.0.0.1:8080; separate several with commas", redacted(raw, u))
		}
		if err := mariposa.CheckEncrypted(u, o.Insecure); err != nil {
			return err
		}
		if slices.ContainsFunc(s.all, func(e *endpoint) bool { return e.base == *u }) {
			continue
		}
		s.all = append(s.all, s.newEndpoint(*u, ""))
	}
	if len(s.all) > maxURLs {
		return mariposa.Errorf(mariposa.InvalidArgument, "%d server URLs are too many: give at most %d", len(s.all), maxURLs)
	}
	s.current = s.all[0]
	for _, e := range s.all {
		if e.base.Redacted() == strings.TrimRight(o.First, "/") {
			s.current = e
		}
	}
	return nil
}

// newEndpoint returns an endpoint with its own connections.
func (s *servers) newEndpoint(u url.URL, pin string) *endpoint {
	e := &endpoint{base: u, pin: pin}
	if s.custom != nil {
		e.http, e.probe, e.isResolved = s.custom, s.custom, true
		return e
	}
	redirect := func(next *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return errors.New("too many redirects")
		}
		return mariposa.CheckEncrypted(next.URL, s.insecure)
	}
	t := transport()
	t.TLSClientConfig = s.tls.Clone()
	if pin != "" {
		t.DialContext = pinnedDial(t.DialContext, u, pin)
	}
	once := t.Clone()
	once.DisableKeepAlives = true
	e.http, e.probe = &http.Client{Transport: t, CheckRedirect: redirect}, &http.Client{Transport: once, CheckRedirect: redirect}
	return e
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// pinnedDial connects to one address of a host.
func pinnedDial(dial dialFunc, u url.URL, ip string) dialFunc {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	host := net.JoinHostPort(u.Hostname(), port)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.EqualFold(address, host) { // otherwise it is the address of a proxy
			address = net.JoinHostPort(ip, port)
		}
		return dial(ctx, network, address)
	}
}

// inUse returns the server that requests go to.
func (s *servers) inUse() *endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// list returns all servers, the current one first.
func (s *servers) list() []*endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := max(0, slices.Index(s.all, s.current))
	return append(slices.Clone(s.all[at:]), s.all[:at]...)
}

// isAlone reports whether there is only one server to talk to.
func (s *servers) isAlone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all) == 1 && !s.all[0].canHaveMore()
}

// isSeveral reports whether there are several servers.
func (s *servers) isSeveral() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all) > 1
}

// resolveTimeout limits the lookup of further addresses of a server.
const resolveTimeout = 3 * time.Second

// resolve replaces a server that failed by its addresses, if its name has several.
func (s *servers) resolve(ctx context.Context, e *endpoint) {
	s.mu.Lock()
	wanted := e.canHaveMore()
	s.mu.Unlock()
	if !wanted {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	found, err := s.lookup(ctx, e.base.Hostname())
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.all, e)
	if err != nil || at < 0 { // the failure of the lookup is that of the request, too
		return
	}
	if e.isResolved = true; len(found) < 2 {
		return
	}
	pinned := make([]*endpoint, 0, len(found))
	for _, ip := range found[:min(len(found), maxURLs)] {
		pinned = append(pinned, s.newEndpoint(e.base, ip))
	}
	s.all = slices.Replace(s.all, at, at+1, pinned...)
	if s.current == e {
		s.current = pinned[0]
	}
}

// note records whether a server answers.
func (s *servers) note(e *endpoint, answers bool) {
	s.mu.Lock()
	e.answers = answers
	s.mu.Unlock()
	if !answers && s.custom == nil {
		e.http.CloseIdleConnections() // they may be dead, too
	}
}

// use makes a server the current one, and returns the one before.
func (s *servers) use(e *endpoint) (before *endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.current = s.current, e
	return before
}

func (s *servers) closeIdle() {
	for _, e := range s.list() {
		e.http.CloseIdleConnections()
	}
}

// seenElsewhere returns the newest revision that another server has shown.
func (s *servers) seenElsewhere(e *endpoint) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == e {
		return 0
	}
	return s.seen
}

// noteRevision records the revision that a server has shown.
func (s *servers) noteRevision(e *endpoint, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by != e || revision > s.seen {
		s.seen, s.by = revision, e
	}
}
