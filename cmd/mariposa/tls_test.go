package main_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority is a CA that signs certificates for this machine.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a root of our own"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, newKey(t)
	raw, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	must(t, err)
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	a.write("ca.pem", a.pem)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return key
}

// sign replaces the certificate and the key in the authority's directory. number is the
// serial number.
func (a *authority) sign(number int64) {
	a.t.Helper()
	key := newKey(a.t)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(number), Subject: pkix.Name{CommonName: "this machine"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	must(a.t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(a.t, err)
	a.write("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))
	a.write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name string, content []byte) {
	a.t.Helper()
	write(a.t, a.path(name), content)
}

// flags returns the flags of a server that uses the certificate.
func (a *authority) flags() []string {
	return []string{"--tls-cert", a.path("cert.pem"), "--tls-key", a.path("key.pem")}
}

// served returns the serial number of the certificate that a server presents.
func (a *authority) served(url string) int64 {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.pem)
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(a.t.Context(), "tcp", strings.TrimPrefix(url, "https://"))
	if err != nil {
		a.t.Log(err)
		return 0
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

func TestServerAgentAndClientTalkTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.sign(7)
	h := &splitSystem{devServer: &devServer{t: t, dir: t.TempDir(), roots: ca.pem}, data: t.TempDir(), flags: ca.flags(), links: []string{"--ca", ca.path("ca.pem")}}
	h.open()
	if !strings.HasPrefix(h.url, "https://") || ca.served(h.url) != 7 {
		t.Fatalf("it is at %s with certificate %d", h.url, ca.served(h.url))
	}
	h.agent()
	h.create("hello", "services: {web: {compute_type: process, command: [sleep, '1000'], mdata: {word: '{{ .meta.word }}'}}}\nmetadata: {word: {default: one}}")
	h.converged("hello", "web", 1)
	_, pid := h.one("hello")

	at := []string{"--url", h.url, "--token", h.admin}
	if _, errs, code := h.mariposa("", append(at, "project", "list")...); code != 1 || !strings.Contains(errs, "certificate") || !strings.Contains(errs, "--ca") {
		t.Errorf("without the root: exit %d, %s", code, errs)
	}
	if out := h.ok(append(at, "--ca", ca.path("ca.pem"), "project", "list")...); !strings.Contains(out, "hello") {
		t.Errorf("with the root:\n%s", out)
	}
	plain := strings.Replace(h.url, "https:", "http:", 1)
	h.cannot("https", "--url", plain, "--token", h.admin, "project", "list")
	me := &person{h: h.devServer, name: "admin", home: t.TempDir(), token: h.admin}
	out, errs, code := me.run(h.admin, "login", "--url", h.url, "--ca", ca.path("ca.pem"), "--token-stdin")
	if code != 0 {
		t.Fatalf("login: %s%s", out, errs)
	}
	if out := me.can("instance", "logs", "web.1") + me.can("events", "--since", "0"); !strings.Contains(out, "web.1") {
		t.Errorf("a profile remembers the root:\n%s", out)
	}

	stranger := newAuthority(t)
	lost := &lockedBuffer{}
	stray := t.TempDir()
	defer end(launch(t, program(context.Background(), stray, []string{"MARIPOSA_JOIN=" + h.joinToken()},
		"agent", "--server", h.url, "--data", stray, "--name", "stray", "--ca", stranger.path("ca.pem")), lost))
	h.await("an agent that trusts another root says why it does not connect", func() bool { return strings.Contains(lost.String(), "certificate") })

	ca.sign(8)
	h.await("the renewed certificate is served", func() bool { return ca.served(h.url) == 8 })
	h.set("hello", "word", "two")
	file := environ(t, pid)["MARIPOSA_MDATA_FILE"]
	h.await("the agent is still there", func() bool { return valuesIn(file)["word"] == "two" })
	if nodes, err := h.Nodes(t.Context()); err != nil || len(nodes.Nodes) != 1 {
		t.Errorf("nodes: %+v, %v", nodes, err)
	}
}

func TestDevOverTLSWorksWithItsOwnAgent(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.sign(7)
	h := &devServer{t: t, dir: t.TempDir(), args: ca.flags(), roots: ca.pem, env: []string{"MARIPOSA_CA=" + ca.path("ca.pem")}}
	h.start()
	t.Cleanup(h.tearDown)
	h.create("hello", web(2, "hi"))
	h.converged("hello", "web", 2)
	before := h.pids("hello")
	ca.sign(8) // it has another certificate when it returns
	h.kill()
	h.start()
	h.converged("hello", "web", 2)
	h.runOn("hello", before)
	if out := h.ok("instance", "list"); strings.Count(out, "running") != 3 {
		t.Errorf("instance list:\n%s", out)
	}
}

// started runs a command that should exit by itself, and returns its output.
func started(t *testing.T, args ...string) (said string, code int) {
	t.Helper()
	return startedWith(t, nil, args...)
}

func startedWith(t *testing.T, env []string, args ...string) (said string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := program(ctx, t.TempDir(), env, args...)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestTokensDoNotTravelInTheClearUnlessSomebodyInsists(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.sign(7)
	ca.write("other.pem", nil)
	other := newAuthority(t)
	other.sign(9)
	store := func() string { return "sqlite:" + filepath.Join(t.TempDir(), "m.db") }
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"a server on every address":        {[]string{"server", "--store", store(), "--listen", "0.0.0.0:0"}, "--tls-cert"},
		"a server on no address":           {[]string{"server", "--store", store(), "--listen", ":0"}, "--insecure"},
		"dev on every address":             {[]string{"dev", "--data", t.TempDir(), "--listen", "[::]:0"}, "--tls-cert"},
		"a certificate without its key":    {[]string{"server", "--store", store(), "--listen", "127.0.0.1:0", "--tls-cert", ca.path("cert.pem")}, "--tls-key"},
		"a key of another certificate":     {[]string{"server", "--store", store(), "--listen", "127.0.0.1:0", "--tls-cert", ca.path("cert.pem"), "--tls-key", other.path("key.pem")}, ca.path("cert.pem")},
		"a certificate that is not there":  {[]string{"server", "--store", store(), "--listen", "127.0.0.1:0", "--tls-cert", "/no/such.pem", "--tls-key", ca.path("key.pem")}, "/no/such.pem"},
		"an agent without a root to trust": {[]string{"agent", "--server", "https://127.0.0.1:1", "--join", "x", "--data", t.TempDir(), "--ca", ca.path("other.pem")}, "other.pem"},
	} {
		if said, code := started(t, c.args...); code != 1 || !strings.Contains(said, c.says) {
			t.Errorf("%s: exit %d, %s", name, code, said)
		}
	}
	insisting := &splitSystem{devServer: &devServer{t: t, dir: t.TempDir()}, data: t.TempDir(), flags: []string{"--insecure"}, address: "0.0.0.0:0"}
	insisting.open()
	if _, err := insisting.Projects(t.Context(), ""); err != nil {
		t.Errorf("who insists: %v", err)
	}
	open := &splitSystem{devServer: &devServer{t: t, dir: t.TempDir(), roots: ca.pem}, data: t.TempDir(), flags: ca.flags(), address: "0.0.0.0:0"}
	open.open()
	res, err := http.Post(strings.Replace(open.url, "https:", "http:", 1)+"/v1/tokens", "application/json", bytes.NewReader(nil))
	if err == nil {
		defer res.Body.Close()
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("plain HTTP is answered with %s", res.Status)
		}
	}
	if _, err := open.Projects(t.Context(), ""); err != nil {
		t.Errorf("over TLS: %v", err)
	}
}
