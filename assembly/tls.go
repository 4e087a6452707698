package assembly

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// certificate serves a certificate from its files and reloads them when they
// change, so renewing one needs no restart.
type certificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	current *tls.Certificate
	changed [2]time.Time
	looked  time.Time
}

// reloadInterval is how often the files are checked.
const reloadInterval = 10 * time.Second

func newCertificate(certFile, keyFile string) (*certificate, error) {
	if certFile == "" || keyFile == "" {
		return nil, errors.New("a certificate needs its key: set both --tls-cert and --tls-key")
	}
	c := &certificate{certFile: certFile, keyFile: keyFile}
	return c, c.read()
}

func (c *certificate) read() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("load certificate %s: %w", c.certFile, err)
	}
	c.current, c.changed, c.looked = &pair, c.times(), time.Now()
	return nil
}

func (c *certificate) times() (at [2]time.Time) {
	for i, path := range []string{c.certFile, c.keyFile} {
		if info, err := os.Stat(path); err == nil {
			at[i] = info.ModTime()
		}
	}
	return at
}

// get returns the current certificate. A new one that cannot be read does not
// replace one that works.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) > reloadInterval {
		c.looked = time.Now()
		if c.times() != c.changed {
			if err := c.read(); err != nil {
				slog.Warn("cannot load the new certificate; keeping the old one", "err", err)
			}
		}
	}
	return c.current, nil
}

func (c *certificate) config() *tls.Config {
	return &tls.Config{GetCertificate: c.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
}

// leaf returns the certificate itself, without its chain.
func (c *certificate) leaf() []byte {
	got, _ := c.get(nil) // it never fails
	return got.Certificate[0]
}

// isLoopback reports whether an address can be reached from this machine only.
func isLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Client returns an HTTP client for callers in the same process. It trusts exactly
// the certificate that this control plane serves, whatever name that is for.
func (c *Control) Client() *http.Client {
	if c.cert == nil {
		return nil
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{
		MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, //nolint:gosec // it is compared below, byte for byte
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			if len(raw) == 0 || !bytes.Equal(raw[0], c.cert.leaf()) {
				return errors.New("the server certificate is not the one that this process serves")
			}
			return nil
		},
	}
	return &http.Client{Transport: t}
}

// Trusting returns an HTTP client that trusts the certificates in a file in
// addition to the system's.
func Trusting(path string) (*http.Client, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read trusted certificates: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s contains no PEM certificate", path)
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return &http.Client{Transport: t}, nil
}
