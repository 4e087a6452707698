package main_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/listener/porttest"
)

// balanced is a service of hello backends behind a load balancer.
func balanced(scale, listen int, version, balancer, more string) string {
	return fmt.Sprintf(`services:
  web:
    compute_type: process
    command: [%s, backend]
    environment: [V=%s]
    scale: %d
    ports: [8080]
    healthchecks: [{type: tcp, port: 8080, poll: 0.2, unhealthy_poll: 0.1, timeout: 10, retries: 1}]
    grace: 60
    update: {min_healthy: 0}
load_balancers:
  front: {listen: %d, service: web, port: 8080%s}
%s`, filepath.Join(binaries, "hello"), version, scale, listen, balancer, more)
}

// balancer returns a load balancer of a project.
func (h *devServer) balancer(project, name string) contract.Balancer {
	h.t.Helper()
	doc, err := h.Balancers(h.t.Context(), project)
	must(h.t, err)
	i := slices.IndexFunc(doc.Balancers, func(b contract.Balancer) bool { return b.Name == name })
	if i < 0 {
		h.t.Fatalf("there is no load balancer %s: %+v", name, doc)
	}
	return doc.Balancers[i]
}

// membersUp waits until exactly n members are up, and none is in another state, and returns them
// by instance.
func (h *devServer) membersUp(project, name string, n int) map[string]contract.BalancerMember {
	h.t.Helper()
	var last contract.Balancer
	defer func() {
		if h.t.Failed() {
			h.t.Logf("%s is %+v", name, last)
		}
	}()
	up := map[string]contract.BalancerMember{}
	h.await(fmt.Sprintf("%s has %d members", name, n), func() bool {
		clear(up)
		last = h.balancer(project, name)
		for _, m := range last.Members {
			if m.State != mariposa.MemberUp || m.Connections == nil {
				return false
			}
			up[m.Instance] = m
		}
		return len(up) == n
	})
	return up
}

// fetch sends a request, and returns the instance that answered.
func fetch(c *http.Client, url string) (instance string, err error) {
	r, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d: %s %w", r.StatusCode, b, err)
	}
	_, text, _ := strings.Cut(string(b), `"instance":"`)
	instance, _, _ = strings.Cut(text, `"`)
	return instance, nil
}

// load sends requests without a pause, half of them on kept connections, until it is stopped.
type load struct {
	mu       sync.Mutex
	sent     int
	lost     []string
	answered map[string]int
	stop     func()
}

func startLoad(t *testing.T, url string) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{answered: map[string]int{}}
	var work sync.WaitGroup
	for i := range 4 {
		work.Go(func() {
			c := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: i%2 == 0}}
			defer c.CloseIdleConnections()
			for ctx.Err() == nil {
				instance, err := fetch(c, url)
				l.mu.Lock()
				l.sent++
				if err != nil {
					l.lost = append(l.lost, time.Now().Format(time.StampMilli)+" "+err.Error())
				}
				l.answered[instance]++
				l.mu.Unlock()
			}
		})
	}
	l.stop = sync.OnceFunc(func() { cancel(); work.Wait() })
	t.Cleanup(l.stop)
	return l
}

// ends stops the load, and fails the test if a request was lost.
func (l *load) ends(t *testing.T) {
	t.Helper()
	l.stop()
	if len(l.lost) > 0 || l.sent == 0 {
		t.Errorf("%d of %d requests were lost: %q", len(l.lost), l.sent, l.lost[:min(len(l.lost), 5)])
	}
	t.Logf("%d requests", l.sent)
}

func TestALoadBalancerLosesNoRequest(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	port := porttest.Reserve(t)
	h.ok("project", "create", "shop", "-m", fileOf(t, balanced(2, port, "1", "", "")), "--wait")
	h.membersUp("shop", "front", 2)
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	l := startLoad(t, url)
	h.ok("-j", "shop", "project", "update", "-m", fileOf(t, balanced(3, port, "2", "", "")), "--force", "--wait")
	h.membersUp("shop", "front", 3)
	h.ok("-j", "shop", "project", "scale", "web=1", "--wait")
	h.membersUp("shop", "front", 1)
	h.ok("-j", "shop", "project", "scale", "web=3", "--wait")
	h.kill() // server and agent
	h.start()
	h.membersUp("shop", "front", 3)
	h.ok("-j", "shop", "project", "reprovision", "--service", "web", "--wait")
	// Other routes reload HAProxy.
	other := strings.Replace(balanced(3, port, "2", ", drain: 20", ""), "service: web, port: 8080", "routes: [{path: /api, service: web, port: 8080}, {service: web, port: 8080}]", 1)
	h.ok("-j", "shop", "project", "update", "-m", fileOf(t, other), "--force", "--wait")
	h.await("it has other routes", func() bool { return len(h.balancer("shop", "front").Routes) == 2 })
	l.ends(t)

	before := h.membersUp("shop", "front", 3)
	events := h.ok("-j", "shop", "events", "--limit", "500")
	if !strings.Contains(events, "its connections end first") {
		t.Errorf("no instance drained:\n%s", events)
	}
	shown := h.ok("-j", "shop", "balancer", "show", "front")
	for _, m := range before {
		if !strings.Contains(shown, m.InstanceName) || !strings.Contains(shown, m.Address) {
			t.Errorf("member %s is not shown:\n%s", m.InstanceName, shown)
		}
	}
	if list := h.ok("balancer", "list"); !strings.Contains(list, "3 of 3 up") {
		t.Errorf("the list is\n%s", list)
	}
	graph := h.ok("-j", "shop", "project", "graph")
	if !strings.Contains(graph, "front") {
		t.Errorf("the graph does not have it:\n%s", graph)
	}
}

func TestALeavingMemberKeepsItsConnections(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	port := porttest.Reserve(t)
	h.ok("project", "create", "shop", "-m", fileOf(t, balanced(1, port, "1", ", mode: tcp, drain: 3600", "")), "--wait")
	old := slices.Collect(maps.Keys(h.membersUp("shop", "front", 1)))[0]
	c := dial(t, port)
	ask := func() error {
		if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return err
		}
		must(t, c.SetDeadline(time.Now().Add(time.Minute)))
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, r.Body)
		return err
	}
	must(t, ask())
	h.ok("-j", "shop", "project", "update", "-m", fileOf(t, balanced(1, port, "2", ", mode: tcp, drain: 3600", "")), "--force")
	h.await("it drains", func() bool {
		b := h.balancer("shop", "front")
		return len(b.Members) == 2 && slices.ContainsFunc(b.Members, func(m contract.BalancerMember) bool {
			return m.Instance == old && m.State == mariposa.MemberDrain && m.Connections != nil && *m.Connections == 1
		}) && h.instanceByID("shop", old).State == mariposa.StateDraining
	})
	must(t, ask()) // it still answers on the open connection
	for range 5 {
		if instance, err := fetch(&http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}, fmt.Sprintf("http://127.0.0.1:%d/", port)); err != nil || instance == old {
			t.Errorf("a new connection went to %s: %v", instance, err)
		}
	}
	h.kill()
	h.start()
	h.await("the server is back", func() bool { return h.instanceByID("shop", old).State == mariposa.StateDraining })
	must(t, ask())
	must(t, c.Close())
	h.await("it is gone", func() bool { return h.instanceByID("shop", old).ID == "" })

	// A restart in place waits for them too.
	next := slices.Collect(maps.Keys(h.membersUp("shop", "front", 1)))[0]
	began := h.instanceByID("shop", next).Started
	c = dial(t, port)
	must(t, ask())
	h.ok("-j", "shop", "instance", "restart", next)
	h.await("it drains", func() bool {
		b := h.balancer("shop", "front")
		return len(b.Members) == 1 && b.Members[0].State == mariposa.MemberDrain && h.instanceByID("shop", next).State == mariposa.StateDraining
	})
	must(t, ask())
	must(t, c.Close())
	h.membersUp("shop", "front", 1)
	if i := h.instanceByID("shop", next); i.State != mariposa.StateRunning || !i.Started.After(*began) {
		t.Errorf("after its restart it is %+v", i)
	}

	// The drain time ends connections that stay open.
	h.ok("-j", "shop", "project", "update", "-m", fileOf(t, balanced(1, port, "2", ", mode: tcp, drain: 1", "")), "--force", "--wait")
	h.await("it drains for a second", func() bool { return h.balancer("shop", "front").Drain == 1 })
	c = dial(t, port)
	must(t, ask())
	h.ok("-j", "shop", "project", "reprovision", "--service", "web", "--wait")
	h.membersUp("shop", "front", 1)
	if err := ask(); err == nil {
		t.Error("the connection to the former member is still open")
	}
}

func dial(t *testing.T, port int) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Minute)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// instanceByID returns an instance of a project; without an id if it is gone.
func (h *devServer) instanceByID(project, id string) contract.Instance {
	h.t.Helper()
	for _, i := range h.instances(project) {
		if i.ID == id {
			return i
		}
	}
	return contract.Instance{}
}

// socketsOf finds the control sockets of the HAProxy processes of this server.
func (h *devServer) socketOf(id string) string {
	h.t.Helper()
	for _, place := range []string{"/run/mariposa", "/dev/shm/mariposa-" + itoa(os.Geteuid())} {
		if found, _ := filepath.Glob(filepath.Join(place, "*", id, "admin.sock")); len(found) == 1 {
			return found[0]
		}
	}
	h.t.Fatalf("instance %s has no control socket", id)
	return ""
}

// command sends a command to HAProxy, as a person would.
func command(t *testing.T, socket, text string) string {
	t.Helper()
	c, err := net.DialTimeout("unix", socket, time.Minute)
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(c, text+"\n")
	must(t, err)
	b, err := io.ReadAll(c)
	must(t, err)
	return string(b)
}

func TestALoadBalancerRepairsItself(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	port := porttest.Reserve(t)
	h.ok("project", "create", "shop", "-m", fileOf(t, balanced(2, port, "1", "", "")), "--wait")
	members := h.membersUp("shop", "front", 2)
	ids := slices.Sorted(maps.Keys(members))
	front := h.balancer("shop", "front").Instances[0]
	socket := h.socketOf(front.ID)
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info, err)
	}

	// By hand: one is taken out, one gets another weight and port, one is added.
	command(t, socket, "set server web.8080/"+ids[0]+" state maint")
	command(t, socket, "set server web.8080/"+ids[1]+" weight 7")
	command(t, socket, "set server web.8080/"+ids[1]+" addr 127.0.0.1 port 1")
	command(t, socket, "add server web.8080/by-hand 127.0.0.1:1")
	h.await("the changes are undone", func() bool {
		now := map[string]contract.BalancerMember{}
		for _, m := range h.balancer("shop", "front").Members {
			now[m.Instance] = m
		}
		return now[ids[0]].State == mariposa.MemberUp && now[ids[1]].Weight == 100 && now[ids[1]].Address == members[ids[1]].Address
	})
	if state := command(t, socket, "show servers state web.8080"); !strings.Contains(state, "by-hand") {
		t.Errorf("a server that is not ours is gone:\n%s", state)
	}

	// kill -9 of HAProxy, while the server is away: it comes back with its members.
	pid := h.pidOf(front.ID)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	h.await("it runs again", func() bool {
		i := h.instanceByID("shop", front.ID)
		return i.State == mariposa.StateRunning && i.Restarts == 1
	})
	h.membersUp("shop", "front", 2)
	if _, err := fetch(&http.Client{Timeout: time.Minute}, fmt.Sprintf("http://127.0.0.1:%d/", port)); err != nil {
		t.Error(err)
	}

	// A member that dies is replaced.
	must(t, syscall.Kill(h.pidOf(ids[0]), syscall.SIGKILL))
	h.await("it is replaced", func() bool {
		now := h.membersUp("shop", "front", 2)
		_, still := now[ids[0]]
		return !still
	})
}

// pidOf returns the process of an instance.
func (h *devServer) pidOf(id string) int {
	h.t.Helper()
	i, err := h.Instance(h.t.Context(), id)
	must(h.t, err)
	if pid := atoi(i.Details["pid"]); pid > 1 {
		return pid
	}
	h.t.Fatalf("instance %s has no process: %+v", id, i.Details)
	return 0
}

// certificate makes a self-signed certificate with its key.
func certificate(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) + string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

func TestACertificateIsRenewedWithoutTheEndOfAConnection(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	port := porttest.Reserve(t)
	first := certificate(t, "first.example")
	dir := t.TempDir()
	values := filepath.Join(dir, "values.yaml")
	write(t, values, []byte("cert: |\n  "+strings.ReplaceAll(strings.TrimSpace(first), "\n", "\n  ")+"\n"))
	h.ok("project", "create", "shop", "-m", fileOf(t, balanced(1, port, "1", `, tls: "{{ .meta.cert }}"`, "metadata: {cert: {secret: true, required: true}}\n")), "--metadata", values, "--wait")
	h.membersUp("shop", "front", 1)
	front := h.balancer("shop", "front").Instances[0]
	connect := func() (*tls.Conn, string) {
		c, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c.(*tls.Conn), c.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	ask := func(c net.Conn) {
		t.Helper()
		must(t, c.SetDeadline(time.Now().Add(time.Minute)))
		_, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		must(t, err)
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		must(t, err)
		_, err = io.Copy(io.Discard, r.Body)
		must(t, err)
	}
	open, name := connect()
	if ask(open); name != "first.example" {
		t.Fatalf("the certificate is that of %s", name)
	}
	second := certificate(t, "second.example")
	h.ok("-j", "shop", "meta", "set", "--", "cert", second)
	h.await("new connections get the new certificate", func() bool {
		c, name := connect()
		defer c.Close()
		return name == "second.example"
	})
	ask(open) // the old connection goes on
	if now := h.balancer("shop", "front").Instances[0]; now.ID != front.ID || h.instanceByID("shop", front.ID).Restarts > 0 {
		t.Errorf("the balancer was replaced: %+v", now)
	}

	// A value that is not a certificate changes nothing, and is explained.
	h.ok("-j", "shop", "meta", "set", "cert", "nonsense")
	h.await("it says what is wrong", func() bool {
		i, err := h.Instance(t.Context(), front.ID)
		must(t, err)
		return strings.Contains(i.Details["problem"], "its certificate cannot be used")
	})
	if shown := h.ok("-j", "shop", "balancer", "show", "front"); !strings.Contains(shown, "its certificate cannot be used") {
		t.Errorf("it is not shown:\n%s", shown)
	}
	if _, name := connect(); name != "second.example" {
		t.Errorf("the certificate is that of %s", name)
	}
	h.containsNowhere(strings.Split(second, "\n")[len(strings.Split(second, "\n"))-3])
}

// containsNowhere fails the test if a secret is in the files of the server or in its output.
func (h *devServer) containsNowhere(secret string) {
	h.t.Helper()
	if len(secret) < 16 {
		h.t.Fatalf("%q is too short", secret)
	}
	must(h.t, filepath.WalkDir(h.dir, func(path string, f os.DirEntry, err error) error {
		if err == nil && f.Type().IsRegular() {
			var b []byte
			b, err = os.ReadFile(path)
			if strings.Contains(string(b), secret) {
				h.t.Errorf("%s contains the secret", path)
			}
		}
		if errors.Is(err, os.ErrNotExist) { // it was removed meanwhile
			return nil
		}
		return err
	}))
	if strings.Contains(h.out.String(), secret) {
		h.t.Error("the output of the server contains the secret")
	}
}
