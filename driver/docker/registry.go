package docker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/moby/moby/api/types/registry"

	"mariposa"
)

// remoteRepository reads documents of a repository in its registry. Only public protocols of
// registries are used: documents by digest, and the two ways to log in.
type remoteRepository struct {
	name         string // in its registry
	architecture string // of the machine
	insecure     bool   // the engine may use the registry without TLS
	login        *mariposa.Login
	bases        []string // where the registry is, in the order of attempts
	authorize    string   // the header of authorized requests, once it is known
	transport    *http.Transport
	http         *http.Client
}

// certificatesDir has further certificates of registries, as for the engine.
const certificatesDir = "/etc/docker/certs.d"

// maxToken bounds the answer of an authorization server, in bytes.
const maxToken = 64 << 10

func newRemoteRepository(host, name, architecture string, insecure bool, login *mariposa.Login) *remoteRepository {
	r := &remoteRepository{name: name, architecture: architecture, insecure: insecure, login: login}
	address := host
	if host == mariposa.DefaultRegistry {
		address = "registry-1.docker.io"
	}
	r.bases = []string{"https://" + address}
	if insecure {
		r.bases = append(r.bases, "http://"+address)
	}
	r.transport = &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: certificatesOf(host), InsecureSkipVerify: insecure}, //nolint:gosec // only if the administrator of the engine says so
	}
	r.http = &http.Client{Transport: r.transport, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) > 4 || req.URL.Scheme != "https" && !insecure {
			return errors.New("the registry redirects too often, or to where there is no TLS")
		}
		return nil
	}}
	return r
}

func (r *remoteRepository) close() { r.transport.CloseIdleConnections() }

// certificatesOf returns the certificates for a registry; nil: those of the machine.
func certificatesOf(host string) *x509.CertPool {
	paths, _ := filepath.Glob(filepath.Join(certificatesDir, filepath.Base(host), "*.crt")) // none if the host makes no sense
	if len(paths) == 0 {
		return nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	for _, path := range paths {
		if b, err := os.ReadFile(path); err == nil {
			pool.AppendCertsFromPEM(b)
		}
	}
	return pool
}

// isInsecure reports whether an engine may use a registry without TLS: its configuration says
// so, or the registry is on the same machine.
func isInsecure(c *registry.ServiceConfig, host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	ip, err := netip.ParseAddr(name)
	if name == "localhost" || err == nil && ip.IsLoopback() {
		return true
	}
	if c == nil {
		return false
	}
	if is := c.IndexConfigs[host]; is != nil && !is.Secure {
		return true
	}
	for _, p := range c.InsecureRegistryCIDRs {
		if err == nil && p.Contains(ip) {
			return true
		}
	}
	return false
}

// get fetches a part of the repository.
func (r *remoteRepository) get(ctx context.Context, path string, limit int64) ([]byte, error) {
	var last error
	for _, base := range r.bases {
		b, err := r.request(ctx, base+"/v2/"+r.name+"/"+path, limit)
		if err == nil {
			r.bases = []string{base}
			return b, nil
		}
		if last = err; ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// request sends a request, and again with what the registry wants to see if it refuses it.
func (r *remoteRepository) request(ctx context.Context, from string, limit int64) ([]byte, error) {
	for first := true; ; first = false {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, http.NoBody)
		if err != nil {
			return nil, err
		}
		req.Header["Accept"] = manifestTypes
		if r.authorize != "" {
			req.Header.Set("Authorization", r.authorize)
		}
		b, challenge, err := r.send(req, limit)
		if challenge == "" || !first {
			return b, err
		}
		if err := r.answer(ctx, challenge); err != nil {
			return nil, err
		}
	}
}

// send sends one request. It returns how the registry wants it to be authorized, if it does.
func (r *remoteRepository) send(req *http.Request, limit int64) (body []byte, challenge string, err error) {
	res, err := r.http.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close() // it was only read
	if res.StatusCode != http.StatusOK {
		err = fmt.Errorf("the registry answers %d", res.StatusCode)
		if res.StatusCode == http.StatusUnauthorized {
			challenge = res.Header.Get("WWW-Authenticate")
		}
		return nil, challenge, err
	}
	body, err = io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err == nil && int64(len(body)) > limit {
		err = errors.New("the answer of the registry is too large")
	}
	return body, "", err
}

var challengeParts = regexp.MustCompile(`(realm|service)="([^"]*)"`)

// answer finds out how requests are authorized: with the login, or with a token that another
// server gives for it, or to everybody.
func (r *remoteRepository) answer(ctx context.Context, challenge string) error {
	kind, rest, _ := strings.Cut(challenge, " ")
	switch {
	case strings.EqualFold(kind, "basic") && r.login != nil:
		req := &http.Request{Header: http.Header{}}
		req.SetBasicAuth(r.login.Username, r.login.Password)
		r.authorize = req.Header.Get("Authorization")
		return nil
	case !strings.EqualFold(kind, "bearer"):
		return errors.New("the registry wants a login")
	}
	said := map[string]string{}
	for _, m := range challengeParts.FindAllStringSubmatch(rest, -1) {
		said[m[1]] = m[2]
	}
	at, err := url.Parse(said["realm"])
	if err != nil || at.Scheme != "https" && (at.Scheme != "http" || !r.insecure) {
		return errors.New("the registry names an authorization server without TLS")
	}
	q := at.Query()
	q.Set("service", said["service"])
	q.Set("scope", "repository:"+r.name+":pull")
	at.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return err
	}
	if r.login != nil {
		req.SetBasicAuth(r.login.Username, r.login.Password)
	}
	b, _, err := r.send(req, maxToken)
	if err != nil {
		return err
	}
	var given struct {
		Token  string `json:"token"`
		Access string `json:"access_token"`
	}
	if err := json.Unmarshal(b, &given); err != nil {
		return err
	}
	if given.Token == "" {
		given.Token = given.Access
	}
	r.authorize = "Bearer " + given.Token
	return nil
}
