package main_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// Unmanaged instances belong to no service. Users create and remove them, and Mariposa
// does not change them.

// single returns an instance by name, and false if there is none.
func (h *devServer) single(project, name string) (contract.Instance, bool) {
	h.t.Helper()
	i, ok := h.instances(project)[name]
	return i, ok
}

// singleRuns waits until an instance runs and returns its process.
func (h *devServer) singleRuns(project, name string, not ...int) int {
	h.t.Helper()
	pid := 0
	h.await(name+" runs", func() bool {
		i, ok := h.single(project, name)
		pid = atoi(i.Details["pid"])
		return ok && !slices.Contains(not, pid) && i.State == mariposa.StateRunning && pid != 0 && alive(pid)
	})
	return pid
}

func (h *devServer) becomes(project, name string, state mariposa.State) contract.Instance {
	h.t.Helper()
	var i contract.Instance
	h.await(name+" is "+string(state), func() bool {
		i, _ = h.single(project, name)
		return i.State == state
	})
	return i
}

func TestASingleInstanceIsMadeStoppedStartedAndRemovedByPeople(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", "services: {web: {compute_type: process, command: [sleep, '1000'], scale: 2}}\nmetadata: {word: {default: hello}, unset: {}}")
	h.converged("shop", "web", 2)
	h.env = []string{"MARIPOSA_PROJECT=shop"}
	var made contract.Changed
	out := h.ok("--json", "instance", "create", "probe", "--compute-type", "process", "--env", "WORD={{ .meta.word }}", "--", "sh", "-c", "echo I say $WORD; exec sleep 1000")
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.ID == "" || made.Name != "probe" {
		t.Fatalf("%v: %s", err, out)
	}
	first := h.singleRuns("shop", "probe")
	if i, _ := h.single("shop", "probe"); i.Managed || i.Slot != "" || i.ServiceName != "" || i.ID != made.ID || i.Goal != mariposa.GoalRunning {
		t.Errorf("%+v", i)
	}
	if w := environ(t, first)["WORD"]; w != "hello" {
		t.Errorf("it was given %q", w)
	}
	h.await("its log can be read", func() bool { return strings.Contains(h.ok("instance", "logs", "probe"), "I say hello") })
	if out := h.ok("instance", "list"); !strings.Contains(out, "probe") || strings.Count(out, "web.") != 2 {
		t.Errorf("instance list:\n%s", out)
	}
	if out := h.ok("instance", "show", "probe"); !strings.Contains(out, made.ID) || !strings.Contains(out, "WORD=hello") {
		t.Errorf("instance show:\n%s", out)
	} else if !strings.Contains(out, "s of cpu, ") || !strings.Contains(out, "of memory") || strings.Contains(out, "received") {
		t.Errorf("what a process takes of cpu and memory is known, of the network unknown:\n%s", out)
	}
	shown := func() (i contract.Instance) {
		must(t, json.Unmarshal([]byte(h.ok("--json", "instance", "show", "probe")), &i))
		return i
	}
	if u := shown().Usage; u.At.IsZero() || u.CPU == nil || u.Memory == nil || *u.Memory < 4096 || u.NetworkIn != nil {
		t.Errorf("it takes %+v", u)
	}
	h.cannot("already", "instance", "create", "probe", "--compute-type", "process", "--", "true")

	h.cannot("meta.unset", "instance", "create", "early", "--compute-type", "process", "--env", "WORD={{ .meta.unset }}", "--", "true")

	h.ok("instance", "stop", "probe")
	stopped := h.becomes("shop", "probe", mariposa.StateStopped)
	if alive(first) || stopped.Goal != mariposa.GoalHalted || stopped.ID != made.ID {
		t.Errorf("stopped, it is %+v", stopped)
	}
	if i := shown(); i.Usage != (mariposa.Usage{}) {
		t.Errorf("stopped, it takes %+v", i.Usage)
	}
	if out := h.ok("instance", "logs", "probe"); !strings.Contains(out, "I say hello") {
		t.Errorf("stopped, its log is lost: %q", out)
	}
	h.cannot("start it instead", "instance", "restart", "probe")
	h.kill()
	h.start()
	if i := h.becomes("shop", "probe", mariposa.StateStopped); i.ID != made.ID {
		t.Errorf("after kill -9 it is %+v", i)
	}
	h.ok("instance", "start", "probe")
	second := h.singleRuns("shop", "probe", first)
	h.ok("instance", "restart", "probe")
	third := h.singleRuns("shop", "probe", first, second)
	i, _ := h.single("shop", "probe")
	if i.ID != made.ID || alive(second) {
		t.Errorf("restarted, it is %s with pids %d, %d, %d", i.ID, first, second, third)
	}
	h.kill()
	h.start()
	if pid := h.singleRuns("shop", "probe"); pid != third {
		t.Errorf("after kill -9 it has pid %d, not %d", pid, third)
	}
	h.cannot("", "instance", "replace", "probe")

	h.ok("instance", "rm", "probe")
	h.await("it is gone", func() bool { _, there := h.single("shop", "probe"); return !there && !alive(third) })
	if _, err := os.Stat(filepath.Join(h.dir, "node", "instances", made.ID)); err == nil {
		t.Error("its folder is left")
	}
	h.converged("shop", "web", 2)
	h.realityMatches("shop")
}

func TestNobodyButPeopleTouchesASingleInstance(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", "services: {web: {compute_type: process, command: [sleep, '1000'], scale: 2, update: {min_healthy: 0}}}")
	h.converged("shop", "web", 2)
	h.env = []string{"MARIPOSA_PROJECT=shop"}
	// One has the name of a service, one the name of a future service, and one ends.
	for _, name := range []string{"web", "later"} {
		h.ok("instance", "create", name, "--compute-type", "process", "--", "sleep", "1000")
	}
	h.ok("instance", "create", "short", "--compute-type", "process", "--", "sh", "-c", "exit 5")
	pids := map[string]int{"web": h.singleRuns("shop", "web"), "later": h.singleRuns("shop", "later")}
	untouched := func(after string) {
		t.Helper()
		for name, pid := range pids {
			i, there := h.single("shop", name)
			if !there || i.Managed || atoi(i.Details["pid"]) != pid || !alive(pid) || i.Goal != mariposa.GoalRunning {
				t.Errorf("after %s, %s is %+v, alive: %v", after, name, i, alive(pid))
			}
		}
	}
	ended := h.becomes("shop", "short", mariposa.StateFailed)
	if ended.ExitCode == nil || *ended.ExitCode != 5 {
		t.Errorf("one that ended with 5: %+v", ended)
	}
	if s := h.state("shop"); s.Status != mariposa.StatusConverged || s.Services[0].Running != 2 || s.Services[0].Failed != 0 {
		t.Errorf("they count for the service: %+v", s)
	}
	for _, step := range []struct {
		name string
		args []string
		want int
	}{
		{"scaling to nothing", []string{"project", "scale", "web=0", "--wait"}, 0},
		{"scaling up", []string{"project", "scale", "web=3", "--wait"}, 3},
		{"a reprovision", []string{"project", "reprovision", "--wait"}, 3},
	} {
		h.ok(step.args...)
		h.converged("shop", "web", step.want)
		untouched(step.name)
	}
	h.ok("project", "update", "-m", fileOf(t, "services: {later: {compute_type: process, command: [sleep, '2000'], update: {min_healthy: 0}}}"), "--force", "--wait")
	h.converged("shop", "later", 1)
	untouched("a manifest with a service of its name, and without the other's")
	before := maps.Clone(pids)
	h.kill()
	h.start()
	h.converged("shop", "later", 1)
	untouched("kill -9")
	if n := len(h.pids("shop")); n != 3 {
		t.Errorf("%d processes, not 3", n)
	}
	if i, _ := h.single("shop", "short"); i.State != mariposa.StateFailed || i.ID != ended.ID {
		t.Errorf("one that ended is repaired: %+v", i)
	}
	h.ok("project", "stop", "--wait")
	h.await("the service is stopped", func() bool { return len(h.pids("shop")) == 2 })
	untouched("a stop of the project")
	h.cannot("", "project", "delete", "--yes")
	h.ok("project", "delete", "-f", "--yes", "--wait")
	h.await("they go with their project", func() bool { return len(h.processes()) == 0 })
	for name, pid := range before {
		if alive(pid) {
			t.Errorf("%s runs on", name)
		}
	}
}
