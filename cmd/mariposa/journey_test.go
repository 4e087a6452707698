package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// TestTheReadmesThreeThings does what the README suggests to try first.
func TestTheReadmesThreeThings(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	// Other tests run at the same time and also use the fixed port of the example.
	port := 20000 + os.Getpid()%10000
	text := strings.ReplaceAll(string(read(t, "../../examples/hello/mariposa.yaml")), "7101", fmt.Sprint(port))
	file := fileOf(t, text)
	h.ok("project", "create", "hello", "-m", file, "--wait")
	if out := h.ok("-j", "hello", "state"); !strings.Contains(out, "converged") {
		t.Errorf("state after create --wait:\n%s", out)
	}
	greet := func(how string) func() bool { // a process listens shortly after it has started
		return func() bool {
			for _, i := range h.instances("hello") {
				if i.ServiceName != "web" {
					continue
				}
				if _, text := endpoint(t, "http://"+i.Addresses[0], ""); !strings.Contains(text, how) {
					return false
				}
			}
			return true
		}
	}
	h.await("all to greet", greet(`"greeting":"hello"`))
	h.ok("-j", "hello", "project", "scale", "web=5", "--wait")
	if out := h.ok("-j", "hello", "instance", "list"); strings.Count(out, "web.") != 5 {
		t.Errorf("after scaling to 5:\n%s", out)
	}
	write(t, file, []byte(strings.Replace(text, "GREETING: hello", "GREETING: good morning", 1)))
	h.ok("-j", "hello", "project", "update", "-m", file, "--previous", "1", "--wait")
	h.converged("hello", "web", 5)
	h.await("all to greet the new way", greet("good morning"))
	h.ok("-j", "hello", "project", "delete", "-f", "--yes", "--wait")
	h.await("nothing is left", func() bool { return len(h.processes()) == 0 })
}

func TestARollingUpdateNeverGoesBelowItsScale(t *testing.T) {
	t.Parallel()
	h, _ := greeting(t, 3, "one")
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
	h, before := greeting(t, 3, "one")
	bad := strings.NewReplacer("[hello, web]", "[sh, -c, exit 3]", "rolling: 2, min_healthy: 0", "rolling: 2, min_healthy: 1").Replace(web(3, "two"))
	_, errs, code := h.mariposa("", "-j", "hello", "project", "update", "-m", fileOf(t, bad), "--force", "--wait")
	if code != 3 || !strings.Contains(errs, "exited with code 3") {
		t.Errorf("waiting for a bad version: exit %d, %s", code, errs)
	}
	h.runOn("hello", before)
	s := h.state("hello")
	if s.Status != mariposa.StatusFailed || !strings.Contains(s.Reason, "exited with code 3") {
		t.Errorf("state: %s, %q", s.Status, s.Reason)
	}
}

// A start used to count as completed as soon as a process ran, even if it exited
// immediately.
func TestAStartThatEndsAtOnceFails(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	file := fileOf(t, "services: {web: {compute_type: process, command: [sh, -c, exit 4]}}")
	_, errs, code := h.mariposa("", "project", "create", "bad", "-m", file, "--wait")
	if code != 3 || !strings.Contains(errs, "failed to start 3 times") || !strings.Contains(errs, "exited with code 4") {
		t.Errorf("exit %d, %s", code, errs)
	}
	all, err := h.Versions(t.Context(), "bad")
	if err != nil || len(all.Versions) != 1 || all.Versions[0].Completed {
		t.Errorf("the version counts as completed: %+v, %v", all, err)
	}
}

func TestACrashLoopBacksOffAndSaysSo(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
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
	h := newDevServer(t, "--dummy-nodes", "3")
	h.ok("project", "create", "dummies", "-m", "../../examples/dummies/mariposa.yaml", "--wait")
	if s := h.state("dummies"); s.Status != mariposa.StatusConverged {
		t.Errorf("%+v", s)
	}
}

func TestTwentyThousandDummiesConvergeInSeconds(t *testing.T) {
	h := newDevServer(t, "--dummy-nodes", "20")
	h.await("the nodes have joined", func() bool {
		n, err := h.Nodes(t.Context())
		return err == nil && len(n.Nodes) == 21
	})
	began := time.Now()
	h.create("many", "services: {d: {compute_type: dummy, scale: 20000}}")
	h.converged("many", "d", 20000)
	t.Logf("20,000 dummies in %s", time.Since(began))
	// Dummies live in the server, so nothing is left to remove one by one.
	h.kill()
	must(t, os.Remove(filepath.Join(h.dir, "mariposa.db")))
}

func TestServerAndAgentApart(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	first := a.agent("--rack", "r1", "--trait", "ssd=yes")
	a.create("hello", web(2, "hi"))
	a.converged("hello", "web", 2)
	before := a.pids("hello")
	end(first) // SIGKILL: the instances must not be affected
	again := time.Now()
	a.agent("--rack", "r1", "--trait", "ssd=yes")
	a.await("the node is heard of again", func() bool {
		n, err := a.Node(t.Context(), "node-a")
		return err == nil && n.Status == mariposa.NodeRunning && n.LastHeartbeat != nil && n.LastHeartbeat.After(again) && n.Traits["ssd"] == "yes"
	})
	a.converged("hello", "web", 2)
	a.runOn("hello", before)
	a.must(a.DeleteProject(t.Context(), "hello", true))
	a.await("nothing is left", func() bool {
		all, err := a.Projects(t.Context(), "")
		return err == nil && len(all.Projects) == 0 && len(a.processes()) == 0
	})
}
