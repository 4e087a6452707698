package main_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// TestTheReadmesThreeThings does what the README tells a newcomer to try.
func TestTheReadmesThreeThings(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	manifest, err := os.ReadFile("../../examples/hello/mariposa.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// Other tests run beside this one: the fixed port of the example is theirs too.
	port := 20000 + os.Getpid()%10000
	text := strings.ReplaceAll(string(manifest), "7101", fmt.Sprint(port))
	file := filepath.Join(t.TempDir(), "hello.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ok := func(args ...string) string {
		t.Helper()
		out, errs, code := h.mariposa("", args...)
		if code != 0 {
			t.Fatalf("mariposa %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errs)
		}
		return out
	}
	ok("project", "create", "hello", "-m", file, "--wait")
	if out := ok("-j", "hello", "state"); !strings.Contains(out, "converged") {
		t.Errorf("state after create --wait:\n%s", out)
	}
	greet := func(how string) func() bool { // a process listens a moment after it has started
		return func() bool {
			for _, i := range h.instances("hello") {
				if i.ServiceName != "web" {
					continue
				}
				if text, err := ask(t, "http://"+i.Addresses[0]); err != nil || !strings.Contains(text, how) {
					return false
				}
			}
			return true
		}
	}
	h.await("all to greet", greet(`"greeting":"hello"`))
	ok("-j", "hello", "project", "scale", "web=5", "--wait")
	if out := ok("-j", "hello", "instance", "list"); strings.Count(out, "web.") != 5 {
		t.Errorf("after scaling to 5:\n%s", out)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(text, "GREETING: hello", "GREETING: good morning", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	ok("-j", "hello", "project", "update", "-m", file, "--yes", "--wait")
	h.converged("hello", "web", 5)
	h.await("all to greet the new way", greet("good morning"))
	ok("-j", "hello", "project", "delete", "-f", "--wait")
	h.await("nothing is left", func() bool { return len(h.processes()) == 0 })
}

// ask reads what an instance answers.
func ask(t *testing.T, url string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

func TestARollingUpdateNeverGoesBelowItsScale(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.create("hello", web(3, "one"))
	h.converged("hello", "web", 3)
	c, err := h.UpdateManifest(t.Context(), "hello", []byte(web(3, "two")), client.Update{Force: true})
	if err != nil || c.Task == nil {
		t.Fatalf("%+v, %v", c, err)
	}
	least := 3
	h.await("the task has ended", func() bool {
		for _, s := range h.state("hello").Services {
			if s.Name == "web" {
				least = min(least, s.Running)
			}
		}
		task, err := h.Task(t.Context(), *c.Task)
		return err == nil && task.State == mariposa.TaskCompleted
	})
	if least < 3 {
		t.Errorf("at one time only %d of 3 were running", least)
	}
	task, err := h.Task(t.Context(), *c.Task)
	if err != nil || len(task.Steps) == 0 || task.Progress.Done != task.Progress.Total {
		t.Errorf("the task shows no steps or is not done: %+v, %v", task, err)
	}
}

func TestABadVersionStopsByItselfAndLeavesTheOldOnesAlone(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.create("hello", web(3, "one"))
	h.converged("hello", "web", 3)
	before := h.pids("hello")
	bad := strings.NewReplacer("[hello, web]", "[sh, -c, exit 3]", "rolling: 2, min_healthy: 0", "rolling: 2, min_healthy: 1").Replace(web(3, "two"))
	file := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, code := h.mariposa("", "-j", "hello", "project", "update", "-m", file, "--force", "--wait")
	if code != 3 || !strings.Contains(errs, "exited with code 3") {
		t.Errorf("waiting for a bad version: exit %d, %s", code, errs)
	}
	after := h.pids("hello")
	for name, pid := range before {
		if after[name] != pid {
			t.Errorf("%s did not survive the bad version", name)
		}
	}
	s := h.state("hello")
	if s.Status != mariposa.StatusFailed || !strings.Contains(s.Reason, "exited with code 3") {
		t.Errorf("state: %s, %q", s.Status, s.Reason)
	}
}

func TestACrashLoopBacksOffAndSaysSo(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.create("loop", "services: {l: {compute_type: process, command: [sh, -c, 'exit 7']}, fine: {compute_type: dummy, scale: 2}}")
	var s contract.ServiceState
	h.await("it backs off", func() bool {
		for _, s = range h.state("loop").Services {
			if s.Name == "l" && s.Status == mariposa.StatusBackingOff && s.Backoff != nil && s.Backoff.Failures >= 3 {
				return true
			}
		}
		return false
	})
	if !strings.Contains(s.Reason, "exited with code 7") {
		t.Errorf("the reason does not say why: %q", s.Reason)
	}
	h.kill()
	h.start()
	h.await("the back-off is still there after a crash of the server", func() bool {
		for _, now := range h.state("loop").Services {
			if now.Name == "l" {
				return now.Backoff != nil && now.Backoff.Failures >= s.Backoff.Failures
			}
		}
		return false
	})
}

func TestTheDummiesExampleConverges(t *testing.T) {
	t.Parallel()
	h := newHouse(t, "--dummy-nodes", "3")
	out, errs, code := h.mariposa("", "project", "create", "dummies", "-m", "../../examples/dummies/mariposa.yaml", "--wait")
	if code != 0 {
		t.Fatalf("exit %d\n%s%s", code, out, errs)
	}
	if s := h.state("dummies"); s.Status != mariposa.StatusConverged {
		t.Errorf("%+v", s)
	}
}

func TestTwentyThousandDummiesConvergeInSeconds(t *testing.T) {
	h := newHouse(t, "--dummy-nodes", "20")
	h.await("the nodes have joined", func() bool {
		n, err := h.Nodes(t.Context())
		return err == nil && len(n.Nodes) == 21
	})
	began := time.Now()
	h.create("many", "services: {d: {compute_type: dummy, scale: 20000}}")
	h.converged("many", "d", 20000)
	t.Logf("20,000 dummies in %s", time.Since(began))
}

func TestServerAndAgentApart(t *testing.T) {
	t.Parallel()
	dir, nodeDir := t.TempDir(), t.TempDir()
	server := exec.Command(filepath.Join(binaries, "mariposa"), "server", "--store", "sqlite:"+filepath.Join(dir, "m.db"), "--listen", "127.0.0.1:0")
	out := &lockedBuffer{}
	server.Stdout, server.Stderr = out, out
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	h := &house{t: t, dir: nodeDir, out: out}
	var url string
	h.await("the server says where it is", func() bool {
		m := regexp.MustCompile(`http://\S+`).FindString(out.String())
		url = m
		return m != ""
	})
	token, err := os.ReadFile(filepath.Join(dir, "admin.token"))
	if err != nil {
		t.Fatal(err)
	}
	join, err := os.ReadFile(filepath.Join(dir, "join.token"))
	if err != nil {
		t.Fatal(err)
	}
	if h.Client, err = client.New(client.Options{URL: url, Token: strings.TrimSpace(string(token))}); err != nil {
		t.Fatal(err)
	}
	agent := func() *exec.Cmd {
		cmd := exec.Command(filepath.Join(binaries, "mariposa"), "agent", "--server", url, "--data", nodeDir, "--name", "node-a", "--rack", "r1", "--trait", "ssd=yes")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + nodeDir, "MARIPOSA_JOIN=" + strings.TrimSpace(string(join))}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	first := agent()
	h.create("hello", web(2, "hi"))
	h.converged("hello", "web", 2)
	before := h.pids("hello")
	_ = first.Process.Kill() // kill -9: the instances must not notice
	_ = first.Wait()
	second := agent()
	t.Cleanup(func() { _ = second.Process.Kill(); _ = second.Wait() })
	h.await("the node is heard of again", func() bool {
		n, err := h.Node(t.Context(), "node-a")
		return err == nil && n.Status == mariposa.NodeRunning && time.Since(n.LastHeartbeat) < 2*time.Second && n.Traits["ssd"] == "yes"
	})
	h.converged("hello", "web", 2)
	for name, pid := range h.pids("hello") {
		if before[name] != pid {
			t.Errorf("%s has another process after the agent came back", name)
		}
	}
	if _, err := h.DeleteProject(t.Context(), "hello", true); err != nil {
		t.Fatal(err)
	}
	h.await("nothing is left", func() bool { return len(h.processes()) == 0 })
}
