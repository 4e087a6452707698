package main_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
)

// These tests simulate an attacker without a token who opens thousands of connections
// from several addresses and never completes a request.

// attack keeps connections open until the test ends.
type attack struct {
	t    *testing.T
	at   string
	mu   sync.Mutex
	open []net.Conn
}

// halfSaid are incomplete requests.
var halfSaid = []string{
	"",
	"GET /v1/projects HT",
	"GET /v1/projects HTTP/1.1\r\nHost: x\r\nX-Slow: ",
	"POST /v1/projects HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{",
	"POST /v1/projects HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n{",
	"PUT /v1/projects/x/state HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nContent-Length: 100\r\n\r\n",
	"GET /v1/agent HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",                          // the connection stays open
	strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n", 40), // the answers are not read
}

// begin opens connections, a hundred from each address.
func (a *attack) begin(connections int) {
	a.t.Helper()
	a.t.Cleanup(func() {
		for _, c := range a.open {
			_ = c.Close()
		}
	})
	var all sync.WaitGroup
	failed := make(chan error, connections)
	for w := range 20 {
		all.Go(func() {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(w+1))}, Timeout: 30 * time.Second}
			for i := range connections / 20 {
				c, err := d.DialContext(a.t.Context(), "tcp", a.at)
				if err != nil {
					failed <- err
					return
				}
				_, _ = io.WriteString(c, halfSaid[i%len(halfSaid)]) // it may be closed already
				a.mu.Lock()
				a.open = append(a.open, c)
				a.mu.Unlock()
			}
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		a.t.Fatalf("the attack failed: %v", err)
	}
}

// get sends a request without a token on a new connection.
func (h *devServer) get(path string, headers ...string) (status int, body string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.URL()+path, nil)
	must(h.t, err)
	req.Close = true
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	must(h.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	must(h.t, err)
	return res.StatusCode, string(text)
}

// metric reads a metric of the server.
func (h *devServer) metric(name string) int {
	h.t.Helper()
	_, text := h.get("/metrics")
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			must(h.t, err)
			return int(n)
		}
	}
	h.t.Fatalf("there is no metric %s", name)
	return 0
}

func TestThousandsOfSlowClientsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--max-connections", "1000") // half of them for clients without a token yet
	h.create("shop", "services:\n  web: {compute_type: process, scale: 2, command: [/bin/sleep, \"1000\"]}\n")
	h.converged("shop", "web", 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	repaired := make(chan struct{})
	revision, err := h.State(ctx, "shop", "")
	must(t, err)
	lost := make(chan error, 100)
	go func() { // a stream opened before the attack continues
		for e, err := range h.Stream(ctx, client.StreamOptions{Project: "shop", Since: revision.Revision, Lost: func(err error, _ time.Duration) { lost <- err }}) {
			if err != nil {
				return
			}
			if e.Kind == "instance.failed" {
				close(repaired)
				return
			}
		}
	}()
	a := &attack{t: t, at: strings.TrimPrefix(h.URL(), "http://")}
	a.begin(6000)

	for _, path := range []string{"/healthz", "/readyz"} {
		if status, body := h.get(path); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	for _, pid := range h.pids("shop") {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
		break
	}
	select {
	case <-repaired:
	case err := <-lost:
		t.Fatalf("the stream of events was cut: %v", err)
	case <-time.After(limit):
		t.Fatal("the stream of events does not tell of the end of an instance")
	}
	h.converged("shop", "web", 2)
	h.realityMatches("shop")

	// A new node can join, and the existing nodes stay connected.
	join := h.ok("node", "join-token")
	var out lockedBuffer
	node := launch(t, program(context.Background(), h.dir, []string{"MARIPOSA_JOIN=" + strings.TrimSpace(join)},
		"agent", "--server", h.URL(), "--data", t.TempDir(), "--name", "late", "--dummy-nodes", "1"), &out)
	t.Cleanup(func() { end(node) })
	h.await("the node late has joined", func() bool {
		nodes, err := h.Nodes(ctx)
		must(t, err)
		running := 0
		for _, n := range nodes.Nodes {
			if n.Status == mariposa.NodeRunning {
				running++
			}
		}
		return running == 2
	})
	if pending := h.metric("mariposa_connections_pending"); pending > 500 {
		t.Errorf("%d connections wait without a token", pending)
	}
	if h.metric("mariposa_connections_evicted_total") == 0 {
		t.Error("the attack was too small to count")
	}
}

// Connections that stall during the handshake are closed. HTTP/2, with many requests per
// connection, is not supported.
func TestHalfOpenHandshakesEnd(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.sign(1)
	h := &devServer{t: t, dir: t.TempDir(), args: a.flags(), roots: a.pem}
	h.start()
	t.Cleanup(h.tearDown)
	at := strings.TrimPrefix(h.URL(), "https://")
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if i%2 == 0 {
				_, _ = c.Write([]byte{0x16, 3, 1, 2, 0, 1}) // the start of a ClientHello
			}
			_ = c.SetReadDeadline(time.Now().Add(limit))
			if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
				t.Errorf("a handshake that is not gone on with stays open: %v", err)
			}
		})
	}
	h.must(h.Ready(t.Context()))
	all.Wait()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}} //nolint:gosec // the certificate does not matter here
	c, err := d.DialContext(t.Context(), "tcp", at)
	must(t, err)
	defer c.Close()
	if got := c.(*tls.Conn).ConnectionState().NegotiatedProtocol; got != "http/1.1" {
		t.Errorf("the server speaks %q", got)
	}
}

func TestLimitsThatCannotBeMeantAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"--trust-proxy=everybody", "10.0.0.0/8"},
		{"--trust-proxy=0.0.0.0/0", "let every client choose its address"},
		{"--max-connections=3", "at least 16"},
		{"--max-connections-per-address=0", "at least 1"},
		{"--max-execs=0", "at least 1"},
		{"--max-request-rate=-1", "at least 1"},
	} {
		dir := t.TempDir()
		_, said, code := finish(t, program(t.Context(), dir, nil, "dev", "--listen", "127.0.0.1:0", "--data", dir, c[0]), "")
		if code != 2 || !strings.Contains(said, c[1]) {
			t.Errorf("%s: exit %d, %s", c[0], code, said)
		}
	}
}

// Behind a trusted proxy, the audit log contains the address of the client.
func TestTheAuditNamesTheClientBehindAProxy(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--trust-proxy", "127.0.0.1")
	if status, _ := h.get("/v1/projects", "X-Forwarded-For", "198.51.100.1, 203.0.113.9", "Authorization", "Bearer wrong"); status != http.StatusUnauthorized {
		t.Errorf("a wrong token is answered with %d", status)
	}
	if out := h.ok("events", "--audit", "--outcome", "denied", "--json"); !strings.Contains(out, `"203.0.113.9"`) || strings.Contains(out, "198.51.100.1") {
		t.Errorf("the audit says %s", out)
	}
}
