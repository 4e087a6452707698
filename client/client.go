// Package client is the Go client of a Mariposa server. It owns the HTTP communication:
// addresses, the token, limited reads, readable errors, and an event stream that survives
// disconnects. It knows only the contract: no store, no engine, no files, no environment.
package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mariposa"
	"mariposa/contract"
)

// Limits for responses: the server may be broken, or something else may listen at its
// address.
const (
	maxDocument = 256 << 20
	maxError    = 1 << 20
)

// maxRedirects is the number of redirects to follow.
const maxRedirects = 10

// Options configure a client.
type Options struct {
	// URL is the server's address, such as http://127.0.0.1:8080, or those of several
	// replicas of one installation, separated by commas. If a replica does not answer,
	// the client continues with another one.
	URL          string
	Token        string       // sent as a bearer token; never part of an error
	Organization string       // where project names are looked up; empty: the caller's personal organization
	User         string       // act for this user, which requires an admin of the installation; empty: the caller
	Roots        []byte       // PEM certificates to trust in addition to the system's; not with a custom HTTPClient
	Insecure     bool         // allow plain http to another machine: the token is sent unencrypted
	HTTPClient   *http.Client // nil: the client creates its own
	UserAgent    string       // empty: mariposa

	// Installation is the id of the installation that the URLs belong to, as Installation
	// returns it. Servers of another one get no request. Empty: that of the first server
	// that answers. It is checked only if there are several URLs.
	Installation string
	// First is the URL to begin with, one of those in URL, as URL returned it. Empty: the
	// first one.
	First string
	// Notify is called with a sentence whenever the client continues with another server.
	// It may be nil.
	Notify func(sentence string)
	// Now is the clock of this machine; nil: time.Now.
	Now func() time.Time
}

// Client talks to one installation. It is safe for concurrent use.
type Client struct {
	token        string
	organization string
	user         string
	agent        string
	notify       func(string)
	now          func() time.Time
	servers      servers
	clock        serverClock

	// pause waits between two attempts of a stream; tests replace it.
	pause func(ctx context.Context, d time.Duration) error
}

// New returns a client. It does not connect yet.
func New(o Options) (*Client, error) {
	c := &Client{token: o.Token, organization: o.Organization, user: o.User, agent: cmp.Or(o.UserAgent, "mariposa"), notify: o.Notify, now: o.Now, pause: pause}
	if c.notify == nil {
		c.notify = func(string) {}
	}
	if c.now == nil {
		c.now = time.Now
	}
	return c, c.servers.init(o)
}

// tlsConfig returns a TLS configuration with additional trusted certificates.
func tlsConfig(roots []byte) (*tls.Config, error) {
	if len(roots) == 0 {
		return nil, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // the system has no pool
	}
	if !pool.AppendCertsFromPEM(roots) {
		return nil, mariposa.Errorf(mariposa.InvalidArgument, "no PEM certificate found in the CA file: certificates begin with -----BEGIN CERTIFICATE-----")
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

func redacted(raw string, u *url.URL) string {
	if u == nil {
		return raw
	}
	return u.Redacted()
}

// transport returns a transport without a limit for the duration of a response: log and
// event streams may last for days.
func transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	t.ResponseHeaderTimeout = time.Minute
	t.MaxIdleConnsPerHost = 8
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second} // else new requests would share a dead connection
	return t
}

// URL returns the address of the server in use, safe to show.
func (c *Client) URL() string { return c.servers.inUse().name() }

// Close closes idle connections.
func (c *Client) Close() { c.servers.closeIdle() }

// A request is one call of the API.
type request struct {
	method string
	path   string // escaped, from the root of the API
	query  url.Values
	body   []byte
	kind   string // of the body
	accept string // empty: JSON
	header map[string]string
	// onNode: the request is forwarded to a node. If a server cannot do that, it is still
	// the right one for other requests.
	onNode bool
	once   bool // it must not be repeated if it may have been carried out
}

// changes reports whether a request may change something.
func (r request) changes() bool { return r.method != http.MethodGet }

func get(path string, query url.Values) request {
	return request{method: http.MethodGet, path: path, query: query}
}

func put(path string, document any) request { return withDocument(http.MethodPut, path, document) }

func post(path string, document any) request { return withDocument(http.MethodPost, path, document) }

func remove(path string, query url.Values) request {
	return request{method: http.MethodDelete, path: path, query: query}
}

// withDocument returns a request with a JSON document. Documents are our own structs,
// which always marshal.
func withDocument(method, path string, document any) request {
	body, err := json.Marshal(document)
	if err != nil {
		panic(fmt.Sprintf("client: cannot encode request body: %v", err))
	}
	return request{method: method, path: path, body: body, kind: "application/json"}
}

// with adds query parameters to a request.
func (r request) with(query url.Values) request {
	r.query = query
	return r
}

// do calls the API and decodes the response into a document.
func (c *Client) do(ctx context.Context, r request, document any) error {
	return c.exchange(ctx, r, func(at *endpoint, res *http.Response) error {
		if res.StatusCode == http.StatusNoContent {
			return nil
		}
		body, err := readAll(at, res.Body)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(body, document); err != nil {
			return mariposa.Errorf(mariposa.Internal, "unexpected response from %s (%s %s): check that the URL is that of a Mariposa server: %w", at.name(), r.method, r.path, err)
		}
		return nil
	})
}

// bytes calls the API for a response that is not JSON.
func (c *Client) bytes(ctx context.Context, r request) (body []byte, err error) {
	err = c.exchange(ctx, r, func(at *endpoint, res *http.Response) error {
		body, err = readAll(at, res.Body)
		return err
	})
	return body, err
}

func readAll(at *endpoint, body io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(body, maxDocument+1))
	if err != nil {
		return nil, &lostError{err}
	}
	if len(text) > maxDocument {
		return nil, mariposa.Errorf(mariposa.TooLarge, "the response of %s is larger than %d MiB: request less at a time", at.name(), maxDocument>>20)
	}
	return text, nil
}

// address returns the URL of a request.
func (c *Client) address(at *endpoint, r request) string {
	u := at.base
	u.User, u.Path, u.RawPath = nil, "", ""
	address := u.String() + at.base.EscapedPath() + c.actingPath(r.path)
	if len(r.query) > 0 {
		address += "?" + r.query.Encode()
	}
	return address
}

// actingPath returns the path of a request for the user that is acted for, if any.
func (c *Client) actingPath(path string) string {
	if rest, ok := strings.CutPrefix(path, "/v1/"); ok && c.user != "" {
		return pathUnder("/v1/users", c.user) + "/" + rest
	}
	return path
}

func (c *Client) addHeaders(req *http.Request, at *endpoint, r request) {
	req.Header.Set("User-Agent", c.agent)
	req.Header.Set("Accept", cmp.Or(r.accept, "application/json"))
	if r.kind != "" {
		req.Header.Set("Content-Type", r.kind)
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	if seen := c.servers.seenElsewhere(at); seen > 0 {
		req.Header.Set(contract.RevisionHeader, strconv.FormatInt(seen, 10))
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
}

// failure turns an unsuccessful response into an error.
func failure(at *endpoint, res *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxError)) // a partial error is better than none
	e := &mariposa.Error{}
	if json.Unmarshal(body, e) == nil && e.Code != "" && e.Message != "" {
		return e
	}
	e = &mariposa.Error{Code: cmp.Or(codes[res.StatusCode], mariposa.Internal)}
	if bytes.Contains(body, []byte("HTTP request to an HTTPS server")) { // the wording of Go's servers
		e.Message = at.name() + " requires TLS: use a URL that begins with https://"
		return e
	}
	e.Message = fmt.Sprintf("unexpected response %[2]s from %[1]s: check that the URL is that of a Mariposa server", at.name(), res.Status)
	return e
}

// codes are the error codes for responses of something else, such as a proxy.
var codes = map[int]mariposa.Code{
	http.StatusBadRequest:            mariposa.InvalidArgument,
	http.StatusUnauthorized:          mariposa.Unauthorized,
	http.StatusForbidden:             mariposa.Forbidden,
	http.StatusNotFound:              mariposa.ResourceNotFound,
	http.StatusConflict:              mariposa.Conflict,
	http.StatusGone:                  mariposa.TooOld,
	http.StatusRequestEntityTooLarge: mariposa.TooLarge,
	http.StatusTooManyRequests:       mariposa.Throttled,
	http.StatusBadGateway:            mariposa.Unavailable,
	http.StatusServiceUnavailable:    mariposa.Unavailable,
	http.StatusGatewayTimeout:        mariposa.Unavailable,
}

// unreachable explains why a connection failed. A cancellation by the caller is
// returned as such.
func unreachable(ctx context.Context, at *endpoint, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("request to %s: %w", at.name(), context.Cause(ctx))
	}
	var (
		refused     *mariposa.Error // an error of CheckRedirect
		dns         *net.DNSError
		plain       tls.RecordHeaderError
		certificate *tls.CertificateVerificationError
		hostname    x509.HostnameError
	)
	switch {
	case errors.Is(err, errSilent):
		return unavailable(err, "%s does not answer", at.name())
	case errors.As(err, &refused):
		return refused
	case errors.Is(err, syscall.ECONNREFUSED):
		return unavailable(err, "no server is running at %s: start one with `mariposa dev`, or set MARIPOSA_URL", at.name())
	case errors.As(err, &dns):
		return unavailable(err, "cannot find host %q of %s: check MARIPOSA_URL", dns.Name, at.name())
	case errors.As(err, &hostname):
		return unavailable(err, "the certificate of %s is not valid for this host name: %v; use a name from the certificate, with --url https://NAME:PORT or in MARIPOSA_URL", at.name(), hostname)
	case errors.As(err, &certificate):
		return unavailable(err, "the certificate of %s is not trusted: %v; if your own CA signed it, pass the CA file with --ca or in MARIPOSA_CA", at.name(), certificate.Err)
	case errors.As(err, &plain), errors.Is(err, http.ErrSchemeMismatch):
		return unavailable(err, "%s does not use TLS: use a URL that begins with http://", at.name())
	}
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		return unavailable(err, "%s does not answer", at.name())
	}
	var inner *url.Error
	if errors.As(err, &inner) {
		err = inner.Err
	}
	return unavailable(err, "lost the connection to %s: %v", at.name(), err)
}

func unavailable(cause error, format string, args ...any) error {
	e := mariposa.Errorf(mariposa.Unavailable, format, args...)
	e.Cause = cause
	return e
}
