package main_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/listener/porttest"
)

func TestRequestsAreRoutedByHostAndPath(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	port := porttest.Reserve(t)
	service := func(name string) string {
		script := "for d in . api api/v1 api/x apis; do mkdir -p $d; echo " + name + " > $d/index.html; done; exec busybox httpd -f -p 127.0.0.1:$PORT -h ."
		return fmt.Sprintf("  %s: {compute_type: process, command: [sh, -c, %q], ports: [8080]}\n", name, script)
	}
	h.ok("project", "create", "shop", "--wait", "-m", fileOf(t, "services:\n"+service("web")+service("api")+service("admin")+fmt.Sprintf(`load_balancers:
  site:
    listen: %d
    routes:
      - {service: web, port: 8080}
      - {path: /api, service: api, port: 8080}
      - {host: admin.example, service: admin, port: 8080}
      - {host: "*.internal.example", path: /api, service: admin, port: 8080}
`, port)))
	h.membersUp("shop", "site", 3)
	ask := func(host, path string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
		must(t, err)
		req.Host = host
		r, err := (&http.Client{Timeout: time.Minute}).Do(req)
		must(t, err)
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		must(t, err)
		return strings.TrimSpace(string(b))
	}
	for _, c := range []struct{ host, path, want string }{
		{"x", "/", "web"},
		{"x", "/api", "api"},
		{"x", "/api/v1", "api"},
		{"x", "/apis", "web"},
		{"admin.example", "/api", "admin"},
		{"ADMIN.example:80", "/", "admin"},
		{"a.internal.example", "/api/x", "admin"},
		{"a.internal.example", "/", "web"},
	} {
		if got := ask(c.host, c.path); got != c.want {
			t.Errorf("%s%s went to %q, want %s", c.host, c.path, got, c.want)
		}
	}
	graph := h.ok("-j", "shop", "project", "graph", "--json")
	for _, name := range []string{"web", "api", "admin"} {
		if !strings.Contains(strings.Join(strings.Fields(graph), " "), `"from": "site", "from_kind": "load_balancer", "to": "`+name+`"`) {
			t.Errorf("the graph has no edge to %s:\n%s", name, graph)
		}
	}
}

func TestACanaryGetsItsShareOfRequests(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	port := porttest.Reserve(t)
	h.ok("project", "create", "shop", "-m", fileOf(t, balanced(3, port, "1", ", canary_weight: 20", "")), "--wait")
	before := h.membersUp("shop", "front", 3)
	h.ok("-j", "shop", "project", "update", "-m", fileOf(t, balanced(3, port, "2", ", canary_weight: 20", "")), "--force", "--canary", "1", "--wait")
	h.await("the canary has another weight", func() bool {
		weights := map[int]int{}
		for _, m := range h.balancer("shop", "front").Members {
			if m.State == mariposa.MemberUp {
				weights[m.Weight]++
			}
		}
		return len(weights) == 2
	})
	fresh, c := 0, &http.Client{Timeout: time.Minute}
	for range 200 {
		instance, err := fetch(c, fmt.Sprintf("http://127.0.0.1:%d/", port))
		must(t, err)
		if _, old := before[instance]; !old {
			fresh++
		}
	}
	if fresh < 30 || fresh > 50 { // weights are whole numbers
		t.Errorf("the canary got %d of 200 requests, want about 40", fresh)
	}
	h.ok("-j", "shop", "project", "reprovision", "--wait")
	for _, m := range h.membersUp("shop", "front", 3) {
		if m.Weight != 100 {
			t.Errorf("after the rollout: %+v", m)
		}
	}
}

// haproxy starts an HAProxy of a person, with a control socket and an empty backend.
func haproxy(t *testing.T, port int) (socket string) {
	t.Helper()
	dir := t.TempDir()
	socket = filepath.Join(dir, "s")
	write(t, filepath.Join(dir, "h.cfg"), fmt.Appendf(nil, `global
    stats socket %s mode 600 level admin
defaults
    mode http
    timeout connect 5s
    timeout client 1m
    timeout server 1m
frontend in
    bind 127.0.0.1:%d
    default_backend front
backend front
    server theirs 127.0.0.1:1 disabled
`, socket, port))
	cmd := launch(t, exec.Command("haproxy", "-db", "-f", filepath.Join(dir, "h.cfg")), &lockedBuffer{})
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("unix", socket); err == nil {
			_ = c.Close()
			return socket
		}
		if time.Now().After(end) {
			t.Fatal("HAProxy does not answer")
		}
	}
}

func TestAnExternalBalancerGetsTheMembers(t *testing.T) {
	t.Parallel()
	port := porttest.Reserve(t)
	socket := haproxy(t, port)
	h := newDevServer(t, "--balancer-address", socket)
	external := func(address string) string {
		return strings.Replace(balanced(2, 1, "1", "", ""), "listen: 1", "address: "+address, 1)
	}
	h.ok("project", "create", "shop", "-m", fileOf(t, external(socket)), "--wait")
	members := h.membersUp("shop", "front", 2)
	instance, err := fetch(&http.Client{Timeout: time.Minute}, fmt.Sprintf("http://127.0.0.1:%d/", port))
	must(t, err)
	if _, is := members[instance]; !is {
		t.Errorf("%s answered, and is none of %v", instance, members)
	}
	l := startLoad(t, fmt.Sprintf("http://127.0.0.1:%d/", port))
	h.ok("-j", "shop", "project", "reprovision", "--service", "web", "--wait")
	h.kill()
	h.start()
	h.membersUp("shop", "front", 2)
	l.ends(t)
	if state := command(t, socket, "show servers state front"); !strings.Contains(state, "theirs") {
		t.Errorf("a server that is not ours is gone:\n%s", state)
	}
	h.ok("project", "delete", "shop", "-f", "--yes", "--wait")
	h.await("only the server of the person is left", func() bool {
		state := command(t, socket, "show servers state front")
		return strings.Contains(state, "theirs") && strings.Count(strings.TrimSpace(state), "\n") == 2
	})

	// A socket that the operator has not allowed is not used.
	other := haproxy(t, porttest.Reserve(t))
	h.ok("project", "create", "shop", "-m", fileOf(t, external(other)))
	h.await("it says why it cannot start", func() bool {
		b := h.balancer("shop", "front")
		return strings.Contains(b.Reason, "--balancer-address") || slices.ContainsFunc(b.Instances, func(i contract.BalancerInstance) bool {
			one, err := h.Instance(t.Context(), i.ID)
			return err == nil && strings.Contains(one.Reason, "--balancer-address "+other)
		})
	})
	if state := command(t, other, "show servers state front"); strings.Count(strings.TrimSpace(state), "\n") != 2 {
		t.Errorf("its members were changed:\n%s", state)
	}
}

// With HAProxy, `make run` deploys the example behind a load balancer.
func TestTheExampleBehindALoadBalancerWorks(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	plain, text := string(read(t, "../../examples/hello/mariposa.yaml")), string(read(t, "../../examples/hello/balanced.yaml"))
	services := func(text string) string { return text[strings.Index(text, "\nservices:\n"):] }
	if !strings.HasPrefix(services(text), services(plain)) {
		t.Error("the services of mariposa.yaml and balanced.yaml differ")
	}
	port := porttest.Reserve(t)
	text = strings.NewReplacer("listen: 8081", "listen: "+itoa(port), "7101", itoa(porttest.Reserve(t))).Replace(text)
	h.ok("project", "create", "hello", "-m", fileOf(t, text), "--wait")
	h.membersUp("hello", "front", 3)
	r, err := (&http.Client{Timeout: time.Minute}).Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
	must(t, err)
	defer r.Body.Close()
	if b, err := io.ReadAll(r.Body); err != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(b), "hello") {
		t.Errorf("%d %s %v", r.StatusCode, b, err)
	}
	if out := h.ok("-j", "hello", "project", "version", "get", "current"); out != text {
		t.Errorf("the manifest is\n%s", out)
	}
}

func TestMakeRunSaysHowToGetALoadBalancer(t *testing.T) {
	t.Parallel()
	for haproxy, want := range map[string][]string{
		"": {"hello=examples/hello/mariposa.yaml", "echo \"HAProxy is not installed", "apt-get install haproxy"}, "/usr/sbin/haproxy": {"hello=examples/hello/balanced.yaml"},
	} {
		out, err := exec.CommandContext(t.Context(), "make", "-C", "../..", "-n", "run", "HAPROXY="+haproxy).CombinedOutput()
		must(t, err)
		for _, part := range want {
			if !strings.Contains(string(out), part) {
				t.Errorf("with HAProxy %q, it runs\n%s", haproxy, out)
			}
		}
	}
}
