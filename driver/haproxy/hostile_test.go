package haproxy_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/haproxy"
	"mariposa/listener/porttest"
)

// named starts a server that answers with its name.
func named(t *testing.T, name string) mariposa.Member {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, name+" "+r.Header.Get("X-Forwarded-Proto"))
	}))
	t.Cleanup(s.Close)
	return mariposa.Member{Backend: name + ".80", Instance: name + "-1", Address: strings.TrimPrefix(s.URL, "http://"), Weight: 100, State: mariposa.MemberUp}
}

// run starts a balancer, which is removed when the test ends.
func run(t *testing.T, i driver.Instance) (*haproxy.Driver, *reports, driver.Observed) {
	t.Helper()
	d, seen := open(t, t.TempDir()), &reports{}
	d.Watch(seen.note)
	o, err := d.Start(t.Context(), i)
	must(t, err)
	t.Cleanup(func() {
		must(t, d.Remove(context.WithoutCancel(t.Context()), i.ID))
		must(t, d.Close())
	})
	return d, seen, o
}

// get returns what a balancer answers, or why it does not.
func get(url string) string {
	c := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	r, err := c.Get(url)
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// eventually waits until a text is as it should be.
func eventually(t *testing.T, want string, get func() string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		got := get()
		if got == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it is %q, want %q", got, want)
		}
	}
}

// control sends a command to a balancer, as a person would.
func control(t *testing.T, id, command string) string {
	t.Helper()
	for _, place := range []string{"/run/mariposa", os.Getenv("XDG_RUNTIME_DIR") + "/mariposa", "/dev/shm/mariposa-" + strconv.Itoa(os.Geteuid())} {
		found, _ := filepath.Glob(filepath.Join(place, "*", id, "admin.sock"))
		if len(found) != 1 {
			continue
		}
		c, err := net.Dial("unix", found[0])
		must(t, err)
		defer c.Close()
		_, err = io.WriteString(c, command+"\n")
		must(t, err)
		b, err := io.ReadAll(c)
		must(t, err)
		return string(b)
	}
	t.Fatalf("instance %s has no control socket", id)
	return ""
}

func TestTwoBalancersCannotShareAPort(t *testing.T) {
	t.Parallel()
	port := porttest.Reserve(t)
	run(t, instance(drivertest.NewID(), mariposa.Balancer{Listen: []int{port}}))
	other := open(t, t.TempDir())
	t.Cleanup(func() { must(t, other.Close()) })
	other.Watch(func(driver.Event) {})
	i := instance(drivertest.NewID(), mariposa.Balancer{Listen: []int{port}})
	_, err := other.Start(t.Context(), i)
	if err == nil || !strings.Contains(err.Error(), "cannot bind") {
		t.Errorf("the second one is started: %v", err)
		must(t, other.Remove(context.WithoutCancel(t.Context()), i.ID))
	}
}

func TestClientsAndMembersUseIPv6(t *testing.T) {
	t.Parallel()
	hosts := []string{"127.0.0.1", "[::1]"}
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil { // without IPv6, everything works with IPv4
		hosts = hosts[:1]
		l, err = net.Listen("tcp4", "127.0.0.1:0")
	}
	must(t, err)
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "for ["+r.Header.Get("X-Forwarded-For")+"]")
	})}}
	s.Start()
	t.Cleanup(s.Close)
	port := porttest.Reserve(t)
	i := instance(drivertest.NewID(), mariposa.Balancer{Listen: []int{port}})
	d, seen, _ := run(t, i)
	m := mariposa.Member{Backend: "web.80", Instance: "a", Address: l.Addr().String(), Weight: 100, State: mariposa.MemberUp}
	must(t, d.SetMembers(t.Context(), i.ID, []mariposa.Member{m}))
	seen.await(t, i.ID, "a", func(s mariposa.MemberStatus) bool { return s.State == mariposa.MemberUp && s.Address == m.Address })
	for _, host := range hosts {
		if got := get("http://" + host + ":" + strconv.Itoa(port)); got != "for ["+strings.Trim(host, "[]")+"]" {
			t.Errorf("at %s: %s", host, got)
		}
	}
}

func TestAMemberThatSomebodyMarkedAsFailedComesBack(t *testing.T) {
	t.Parallel()
	port := porttest.Reserve(t)
	i := instance(drivertest.NewID(), mariposa.Balancer{Listen: []int{port}})
	i.Members = []mariposa.Member{named(t, "web")}
	run(t, i)
	url := "http://127.0.0.1:" + strconv.Itoa(port)
	eventually(t, "web http", func() string { return get(url) })
	for _, state := range []string{"down", "stopping"} {
		if out := control(t, i.ID, "set server web.80/web-1 health "+state); strings.TrimSpace(out) != "" {
			t.Fatal(out)
		}
		eventually(t, "web http", func() string { return get(url) })
	}
}

// routed returns a balancer whose second version has one more route.
func routed(port int) (before, after mariposa.Balancer) {
	web, api := mariposa.Route{Service: "web", Port: 80}, mariposa.Route{Path: "/api", Service: "api", Port: 80}
	before = mariposa.Balancer{Mode: "http", Listen: []int{port}, Routes: []mariposa.Route{web}, Drain: time.Minute}
	after = before
	after.Routes = []mariposa.Route{api, web}
	return before, after
}

func TestAStalledBalancerGetsItsRoutesLater(t *testing.T) {
	t.Parallel()
	port := porttest.Reserve(t)
	before, after := routed(port)
	i := instance(drivertest.NewID(), before)
	i.Members = []mariposa.Member{named(t, "web"), named(t, "api")}
	d, _, o := run(t, i)
	worker := workerOf(t, o)
	must(t, syscall.Kill(worker, syscall.SIGSTOP))
	resume := sync.OnceFunc(func() { _ = syscall.Kill(worker, syscall.SIGCONT) })
	defer resume()
	next := instance(i.ID, after).Mdata.Values
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := d.PublishValues(short, i.ID, next); err == nil {
		t.Fatal("a stalled HAProxy has accepted other routes")
	}
	resume()
	must(t, d.PublishValues(t.Context(), i.ID, next)) // as the agent does
	eventually(t, "api http", func() string { return get("http://127.0.0.1:" + strconv.Itoa(port) + "/api") })
}

func TestAStalledBalancerIsRestarted(t *testing.T) {
	t.Parallel()
	d, err := haproxy.New(haproxy.Options{Dir: t.TempDir(), Interval: 50 * time.Millisecond, StallLimit: time.Millisecond})
	must(t, err)
	ended := make(chan driver.Observed, 100)
	d.Watch(func(e driver.Event) {
		if e.Kind == driver.InstanceChanged && !e.Instance.Running {
			ended <- e.Instance
		}
	})
	port := porttest.Reserve(t)
	i := instance(drivertest.NewID(), mariposa.Balancer{Listen: []int{port}})
	i.Members = []mariposa.Member{named(t, "web")}
	o, err := d.Start(t.Context(), i)
	must(t, err)
	t.Cleanup(func() {
		must(t, d.Remove(context.WithoutCancel(t.Context()), i.ID))
		must(t, d.Close())
	})
	worker := workerOf(t, o)
	must(t, syscall.Kill(worker, syscall.SIGSTOP))
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		_ = syscall.Kill(worker, syscall.SIGCONT)
		t.Fatal("it is still stalled")
	}
	_, err = d.Start(t.Context(), i) // as the agent does
	must(t, err)
	eventually(t, "web http", func() string { return get("http://127.0.0.1:" + strconv.Itoa(port)) })
}

// While a balancer finishes its connections, its control socket is closed. That is no stall.
func TestABalancerThatFinishesItsConnectionsIsNotRestarted(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	d, err := haproxy.New(haproxy.Options{Dir: t.TempDir(), Interval: 10 * time.Millisecond, StallLimit: time.Millisecond})
	must(t, err)
	d.Watch(func(driver.Event) {})
	port := porttest.Reserve(t)
	i := instance(drivertest.NewID(), mariposa.Balancer{Mode: "tcp", Listen: []int{port}, Drain: 10 * time.Minute})
	i.Members = []mariposa.Member{{Backend: "web.80", Instance: "a", Address: l.Addr().String(), Weight: 100, State: mariposa.MemberUp}}
	_, err = d.Start(t.Context(), i)
	must(t, err)
	t.Cleanup(func() {
		must(t, d.Remove(context.WithoutCancel(t.Context()), i.ID))
		must(t, d.Close())
	})
	at := "127.0.0.1:" + strconv.Itoa(port)
	c, err := net.Dial("tcp", at)
	must(t, err)
	defer c.Close()
	in := bufio.NewReader(c)
	echo := func() {
		t.Helper()
		_, err := io.WriteString(c, "hello\n")
		must(t, err)
		_, err = in.ReadString('\n')
		must(t, err)
	}
	echo()
	stopped := make(chan error, 1)
	go func() {
		_, err := d.Stop(context.WithoutCancel(t.Context()), i.ID, 10*time.Minute)
		stopped <- err
	}()
	eventually(t, "refused", func() string {
		if other, err := net.Dial("tcp", at); err == nil {
			_ = other.Close()
			return "accepted"
		}
		return "refused"
	})
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // many rounds of the driver
		echo()
	}
	must(t, c.Close())
	must(t, <-stopped)
}

// workerOf returns the process of a balancer that has the connections.
func workerOf(t *testing.T, o driver.Observed) int {
	t.Helper()
	pid := strconv.Itoa(pidOf(t, o))
	b, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	must(t, err)
	worker, err := strconv.Atoi(strings.Fields(string(b))[0])
	must(t, err)
	return worker
}

// pair makes a self-signed certificate with its key.
func pair(t *testing.T, name string, key any, public any) string {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})) + string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

func goodPair(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return pair(t, name, key, &key.PublicKey)
}

// withCert returns the values of a balancer with a certificate.
func withCert(id string, b mariposa.Balancer, cert string) []mariposa.Variable {
	b.TLS = true
	return append(instance(id, b).Mdata.Values, mariposa.Variable{Name: mariposa.CertificateValue, Value: cert})
}

// servedBy returns the name in the certificate that a balancer uses.
func servedBy(port int) string {
	c, err := tls.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName
}

func TestACertificateThatCannotBeUsedChangesNothing(t *testing.T) {
	t.Parallel()
	port := porttest.Reserve(t)
	before, _ := routed(port)
	i := instance(drivertest.NewID(), before)
	i.Members = []mariposa.Member{named(t, "web")}
	d, seen, o := run(t, i)

	// HAProxy does not accept short keys; package tls does.
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	must(t, err)
	if err := d.PublishValues(t.Context(), i.ID, withCert(i.ID, before, pair(t, "weak", weak, &weak.PublicKey))); err == nil || !strings.Contains(err.Error(), "HAProxy") {
		t.Errorf("a weak certificate: %v", err)
	}
	url := "127.0.0.1:" + strconv.Itoa(port)
	eventually(t, "web http", func() string { return get("http://" + url) })
	must(t, d.PublishValues(t.Context(), i.ID, withCert(i.ID, before, goodPair(t, "good"))))
	eventually(t, "good", func() string { return servedBy(port) })
	eventually(t, "web https", func() string { return get("https://" + url) })

	// HAProxy crashes while the newest certificate cannot be used: it starts with the former one.
	if err := d.PublishValues(t.Context(), i.ID, withCert(i.ID, before, "nonsense")); err == nil {
		t.Error("nonsense is a certificate")
	}
	must(t, syscall.Kill(pidOf(t, o), syscall.SIGKILL))
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		seen.mu.Lock()
		running := seen.last[i.ID].Running
		seen.mu.Unlock()
		if !running {
			break
		}
		if time.Now().After(end) {
			t.Fatal("its end is not reported")
		}
	}
	i.Mdata.Values = withCert(i.ID, before, "nonsense")
	again, err := d.Start(t.Context(), i)
	must(t, err)
	if !strings.Contains(again.Details["problem"], "certificate cannot be used") {
		t.Errorf("it does not say what is wrong: %v", again.Details)
	}
	eventually(t, "good", func() string { return servedBy(port) })
	if list, err := d.PublishedValues(t.Context(), i.ID); err != nil || slices.ContainsFunc(list, func(v mariposa.Variable) bool { return v.Value == "nonsense" }) {
		t.Errorf("nonsense counts as published: %v", err)
	}

	must(t, d.PublishValues(t.Context(), i.ID, withCert(i.ID, before, goodPair(t, "better"))))
	eventually(t, "better", func() string { return servedBy(port) })
	eventually(t, "", func() string {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		return seen.last[i.ID].Details["problem"]
	})
}

func TestALargeCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	port := porttest.Reserve(t)
	before, _ := routed(port)
	i := instance(drivertest.NewID(), before)
	i.Mdata.Values = withCert(i.ID, before, goodPair(t, "first"))
	d, _, _ := run(t, i)
	eventually(t, "first", func() string { return servedBy(port) })
	second := goodPair(t, "second")
	chain, _, _ := strings.Cut(goodPair(t, "chain"), "-----BEGIN PRIVATE")
	must(t, d.PublishValues(t.Context(), i.ID, withCert(i.ID, before, second+strings.Repeat(chain, 60))))
	eventually(t, "second", func() string { return servedBy(port) })
}

func TestABackendOfAnExternalBalancerBelongsToOneProject(t *testing.T) {
	t.Parallel()
	const address = "/run/haproxy-of-nobody.sock"
	d, err := haproxy.New(haproxy.Options{Dir: t.TempDir(), Addresses: []string{address}, Interval: time.Hour})
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	d.Watch(func(driver.Event) {})
	start := func(project, name string) error {
		i := instance(drivertest.NewID(), mariposa.Balancer{Address: address})
		i.Service, i.Origin = name, &mariposa.Provenance{Project: project}
		_, err := d.Start(t.Context(), i)
		return err
	}
	must(t, start("p1", "front"))
	if err := start("p2", "front"); err == nil || !strings.Contains(err.Error(), "another project") {
		t.Errorf("two projects have one backend: %v", err)
	}
	must(t, start("p2", "other"))
	must(t, start("p1", "front")) // its successor
}

// socketPath returns a path for a control socket, which must be short.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mp")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// stalling is a control socket that answers questions, and never answers commands.
func stalling(t *testing.T, path string) (lines <-chan string, end func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	all := make(chan string, 1000)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				line, _ := in.ReadString('\n')
				switch all <- line; {
				case strings.HasPrefix(line, "show servers state"):
					fmt.Fprint(c, "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_port\n")
				case strings.HasPrefix(line, "show stat"):
					fmt.Fprint(c, "# pxname,svname,qcur,qmax,scur,smax,slim,stot,bin,bout,dreq\n")
				default:
					_, _ = in.ReadString('\n') // until the client has enough
				}
			}()
		}
	}()
	return all, func() { must(t, l.Close()) }
}

func TestAStalledBalancerIsNotAskedForEveryMember(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	lines, _ := stalling(t, path)
	d, err := haproxy.New(haproxy.Options{Dir: t.TempDir(), Addresses: []string{path}, Interval: 50 * time.Millisecond})
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	d.Watch(func(driver.Event) {})
	i := instance(drivertest.NewID(), mariposa.Balancer{Address: path})
	for n := range 100 {
		i.Members = append(i.Members, mariposa.Member{Backend: "front", Instance: "m" + strconv.Itoa(n), Address: "127.0.0.1:1", Weight: 1, State: mariposa.MemberUp})
	}
	_, err = d.Start(t.Context(), i)
	must(t, err)
	states, commands := 0, 0
	for states < 2 {
		switch line := <-lines; {
		case strings.HasPrefix(line, "show servers"):
			states++
		case !strings.HasPrefix(line, "show"):
			if commands++; commands > 1 {
				t.Fatal("after a command without an answer, others are sent")
			}
		}
	}
}

// An operator who no longer allows a control socket ends its use, also by balancers that exist.
func TestASocketThatIsNoLongerAllowedIsNotUsed(t *testing.T) {
	t.Parallel()
	path, dir := socketPath(t), t.TempDir()
	lines, end := stalling(t, path)
	d, err := haproxy.New(haproxy.Options{Dir: dir, Addresses: []string{path}})
	must(t, err)
	d.Watch(func(driver.Event) {})
	i := instance(drivertest.NewID(), mariposa.Balancer{Address: path})
	i.Members = []mariposa.Member{{Backend: "front", Instance: "a", Address: "127.0.0.1:1", Weight: 1, State: mariposa.MemberUp}}
	_, err = d.Start(t.Context(), i)
	must(t, err)
	<-lines
	must(t, d.Close())
	end()
	lines, _ = stalling(t, path)
	d, err = haproxy.New(haproxy.Options{Dir: dir, Interval: 10 * time.Millisecond})
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	var seen reports
	d.Watch(seen.note)
	seen.await(t, i.ID, "a", func(s mariposa.MemberStatus) bool {
		return s.State == mariposa.MemberDown && strings.Contains(s.Reason, "--balancer-address")
	})
	must(t, d.Remove(t.Context(), i.ID))
	if len(lines) > 0 {
		t.Errorf("it was sent %q", <-lines)
	}
}

// A balancer with many routes is asked for all of them at once.
func TestABalancerWithManyRoutesIsAskedLittle(t *testing.T) {
	t.Parallel()
	b := mariposa.Balancer{Mode: "http", Listen: []int{porttest.Reserve(t)}}
	var members []mariposa.Member
	for n := range mariposa.MaxRoutes {
		name := "s" + strconv.Itoa(n)
		b.Routes = append(b.Routes, mariposa.Route{Path: "/" + name, Service: name, Port: 80})
		members = append(members, mariposa.Member{Backend: name + ".80", Instance: name + "-1", Address: "127.0.0.1:1", Weight: 100, State: mariposa.MemberUp})
	}
	i := instance(drivertest.NewID(), b)
	d, err := haproxy.New(haproxy.Options{Dir: t.TempDir(), Interval: time.Hour})
	must(t, err)
	var seen reports
	d.Watch(seen.note)
	_, err = d.Start(t.Context(), i)
	must(t, err)
	t.Cleanup(func() {
		must(t, d.Remove(context.WithoutCancel(t.Context()), i.ID))
		must(t, d.Close())
	})
	must(t, d.SetMembers(t.Context(), i.ID, members))
	for _, m := range members {
		seen.await(t, i.ID, m.Instance, func(s mariposa.MemberStatus) bool { return s.State == mariposa.MemberUp })
	}
	asked := func() int {
		for line := range strings.Lines(control(t, i.ID, "show info")) {
			if text, ok := strings.CutPrefix(line, "CumReq: "); ok {
				n, err := strconv.Atoi(strings.TrimSpace(text))
				must(t, err)
				return n
			}
		}
		t.Fatal("HAProxy does not count")
		return 0
	}
	before := asked()
	_, err = d.Usage(t.Context(), i.ID)
	must(t, err)
	if n := asked() - before; n >= mariposa.MaxRoutes {
		t.Errorf("it was asked %d times", n)
	}
}
