package process_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/process"
)

// helper is an agent in its own process, which tests kill.
type helper struct {
	cmd     *exec.Cmd
	answers *bufio.Scanner
}

func startHelper(t *testing.T, root, id string, command ...string) *helper {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"agent", root, id}, command...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	h := &helper{cmd, bufio.NewScanner(out)}
	t.Cleanup(func() { h.kill() })
	return h
}

// answer is the result of the helper's Start.
func (h *helper) answer(t *testing.T) (o driver.Observed) {
	t.Helper()
	if !h.answers.Scan() {
		t.Fatalf("the agent said nothing: %v", h.answers.Err())
	}
	must(t, json.Unmarshal(h.answers.Bytes(), &o))
	return o
}

func (h *helper) kill() {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}

// awaitDeath waits until a failpoint has killed the helper.
func (h *helper) awaitDeath(t *testing.T) {
	t.Helper()
	timer := time.AfterFunc(drivertest.Limit, func() { t.Error("the agent was never killed"); _ = h.cmd.Process.Kill() })
	defer timer.Stop()
	for h.answers.Scan() {
	}
	_ = h.cmd.Wait()
}

const waitThenExit7 = "while [ ! -e go ]; do sleep 0.02; done; echo bye; exit 7"

func touch(t *testing.T, path string) {
	t.Helper()
	must(t, os.WriteFile(path, nil, 0o644))
}

func TestKilledAgentFindsItsInstancesAgain(t *testing.T) {
	t.Parallel()
	root, id := newRoot(t), drivertest.NewID()
	h := startHelper(t, root, id, "sh", "-c", waitThenExit7)
	before := h.answer(t)
	h.kill()

	a := open(t, process.Options{Root: root})
	after, ok := a.find(t, id)
	if !ok || !after.Running || after.PhysicalID != before.PhysicalID || !after.Started.Equal(before.Started) || after.Labels != labels {
		t.Fatalf("found %+v, was %+v", after, before)
	}
	touch(t, filepath.Join(root, id, "work", "go"))
	end := a.awaitEnd(t)
	if end.ID != id || end.ExitCode == nil || *end.ExitCode != 7 || end.Reason != "exited with code 7" {
		t.Errorf("its end was reported as %+v", end)
	}
}

func TestEndWhileNoAgentRunsIsFoundLater(t *testing.T) {
	t.Parallel()
	root, id := newRoot(t), drivertest.NewID()
	h := startHelper(t, root, id, "sh", "-c", waitThenExit7)
	o := h.answer(t)
	h.kill()
	touch(t, filepath.Join(root, id, "work", "go"))
	eventually(t, "its end is written down", func() bool {
		_, err := os.Stat(filepath.Join(root, id, "exit.json"))
		return err == nil
	})
	a := open(t, process.Options{Root: root})
	eventually(t, "it has ended", func() bool {
		found, _ := a.find(t, id)
		return !found.Running && found.ExitCode != nil && *found.ExitCode == 7 && found.PhysicalID == o.PhysicalID
	})
}

// runsOnce starts a sleeper that writes a line each time it is run.
var runsOnce = []string{"sh", "-c", "echo $$ >> runs; exec sleep 1000"}

// checkOne checks that exactly one process and one shim run, and returns the pid and how
// often the command was run in this directory.
func checkOne(t *testing.T, root, id string, o driver.Observed) {
	t.Helper()
	eventually(t, "one process and one shim", func() bool {
		pids, shims, err := process.Labelled(root)
		return err == nil && len(pids) == 1 && len(shims) == 1 && pids[0] == pidOf(t, o)
	})
	var runs []string
	eventually(t, "the run has left its line", func() bool {
		b, _ := os.ReadFile(filepath.Join(root, id, "work", "runs"))
		runs = strings.Fields(string(b))
		return len(runs) > 0
	})
	if inner := strconv.Itoa(innerPID(pidOf(t, o))); len(runs) != 1 || runs[0] != inner {
		t.Errorf("it was run as %v, and runs as %s", runs, inner)
	}
}

func TestAgentKilledAtEachStageOfStart(t *testing.T) {
	t.Parallel()
	for _, point := range []string{
		"made self", "written self", "placed self", "spawned self",
		"born parent", "forked parent", "noted parent",
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			root, id := newRoot(t), drivertest.NewID()
			setFailpoint(t, root, point)
			startHelper(t, root, id, runsOnce...).awaitDeath(t)
			a := open(t, process.Options{Root: root})
			o := a.start(t, instance(id, runsOnce...))
			checkOne(t, root, id, o)
		})
	}
}

func setFailpoint(t *testing.T, root, point string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(root, ".failpoint"), []byte(point), 0o644))
}

func TestAgentKilledWhileItStartsAgain(t *testing.T) {
	t.Parallel()
	a, root, id := newAgent(t)
	a.start(t, sh(id, "exit 4"))
	a.awaitEnd(t)
	must(t, a.Close())
	setFailpoint(t, root, "again self")
	startHelper(t, root, id, runsOnce...).awaitDeath(t)
	a = open(t, process.Options{Root: root})
	if o, ok := a.find(t, id); !ok || o.Running || o.ExitCode == nil || *o.ExitCode != 4 {
		t.Errorf("found %+v, want the end of its earlier run", o)
	}
	checkOne(t, root, id, a.start(t, instance(id, runsOnce...)))
}

func TestARestartCountsOnceItHasComeUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		point string
		runs  bool
	}{
		{"again self", false}, {"spawned self", true}, {"born parent", true}, {"forked parent", true}, {"noted parent", true},
	} {
		t.Run(c.point, func(t *testing.T) {
			t.Parallel()
			a, root, id := newAgent(t)
			a.start(t, instance(id, "sleep", "1000"))
			before := a.stop(t, id, drivertest.Limit)
			_ = a.Close()
			setFailpoint(t, root, c.point)
			startHelper(t, root, id, runsOnce...).awaitDeath(t)
			a = open(t, process.Options{Root: root})
			o, _ := a.find(t, id)
			if o.Running != c.runs || (o.ManualRestarts == 1) != c.runs || o.Started.Equal(before.Started) == c.runs {
				t.Errorf("found %+v, was %+v", o, before)
			}
		})
	}
}

func TestShimKilledAtEachStageOfStart(t *testing.T) {
	t.Parallel()
	stages := []string{"born", "forked", "noted"}
	if isolation == process.IsolationRequired {
		stages = append(stages, "init") // which kills the first process of its namespaces
	}
	for _, stage := range stages {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			a, root, id := newAgent(t)
			setFailpoint(t, root, stage+" self")
			if o, err := a.tryStart(t, instance(id, runsOnce...)); err == nil || o.Running {
				t.Fatalf("Start answered %+v, %v", o, err)
			}
			checkNothing(t, root)
			checkOne(t, root, id, a.start(t, instance(id, runsOnce...)))
		})
	}
}

func checkNothing(t *testing.T, root string) {
	t.Helper()
	pids, shims, err := process.Labelled(root)
	if err != nil || len(pids)+len(shims) > 0 {
		t.Errorf("processes are left: %v %v (%v)", pids, shims, err)
	}
	list, err := os.ReadDir(root)
	for _, f := range list {
		if f.Name() != ".lock" {
			t.Errorf("left in the root: %s", f.Name())
		}
	}
	if err != nil {
		t.Error(err)
	}
}

func TestShimAndAgentKilledInTheMiddleOfStart(t *testing.T) {
	t.Parallel()
	root, id := newRoot(t), drivertest.NewID()
	setFailpoint(t, root, "forked hang")
	h := startHelper(t, root, id, runsOnce...)
	var shims []int
	eventually(t, "the command runs and its shim hangs", func() bool {
		_, err := os.Stat(filepath.Join(root, id, "work", "runs"))
		_, shims, _ = process.Labelled(root)
		return err == nil && len(shims) == 1
	})
	h.kill()
	killNow(t, shims[0])
	a := open(t, process.Options{Root: root})
	if o, _ := a.find(t, id); o.Running || o.Reason != "its supervisor was killed" {
		t.Errorf("found %+v", o)
	}
	if pids, _, _ := process.Labelled(root); len(pids) > 0 {
		t.Errorf("the orphan %v still runs", pids)
	}
}

func TestHungShimIsGivenUp(t *testing.T) {
	t.Parallel()
	root, id := newRoot(t), drivertest.NewID()
	setFailpoint(t, root, "born hang")
	h := startHelper(t, root, id, runsOnce...)
	awaitHang(t, root)
	h.kill()
	a := open(t, process.Options{Root: root})
	if o, ok := a.find(t, id); !ok || o.Running || o.Reason != "it never started" {
		t.Errorf("found %+v", o)
	}
	checkOne(t, root, id, a.start(t, instance(id, runsOnce...)))
}

// awaitHang waits until a failpoint has stopped the one shim.
func awaitHang(t *testing.T, root string) {
	t.Helper()
	eventually(t, "its shim hangs", func() bool {
		_, shims, _ := process.Labelled(root)
		if len(shims) != 1 {
			return false
		}
		b, _ := os.ReadFile("/proc/" + strconv.Itoa(shims[0]) + "/stat")
		return strings.Contains(string(b), ") T ")
	})
}

func TestStartIsBoundedByItsContext(t *testing.T) {
	t.Parallel()
	a, root, id := newAgent(t)
	setFailpoint(t, root, "born hang")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		awaitHang(t, root)
		cancel()
	}()
	o, err := a.Start(ctx, instance(id, runsOnce...))
	if !errors.Is(err, context.Canceled) || o.Running {
		t.Errorf("Start answered %+v, %v", o, err)
	}
	checkNothing(t, root)
}

func TestKilledShimTakesItsProcessesAlong(t *testing.T) {
	t.Parallel()
	a, root, id := newAgent(t)
	a.start(t, sh(id, "setsid sleep 1000 & env -i sleep 1000 & sleep 1000 & echo up; wait"))
	awaitLog(t, a, id, "up")
	var pids, shims []int
	eventually(t, "all of them run", func() bool {
		pids, shims, _ = process.Labelled(root)
		return len(pids) >= 3 && len(shims) == 1
	})
	kill(t, shims[0], syscall.SIGKILL)
	end := a.awaitEnd(t)
	if end.ID != id || end.Running || end.Reason != "its supervisor was killed" || end.ExitCode != nil {
		t.Errorf("its end was reported as %+v", end)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d lives on", pid)
		}
	}
	a.start(t, instance(id, "sleep", "1000"))
}

// TestWhatDiesSlowlyIsAwaited kills the shim of an instance with a process that has no
// label and a lot of memory to release, so that it dies long after the main process whose
// session identifies it.
func TestWhatDiesSlowlyIsAwaited(t *testing.T) {
	t.Parallel()
	root, id := newRoot(t), drivertest.NewID()
	a := open(t, process.Options{Root: root})
	o := a.start(t, sh(id, `{ head -c 300000000 /dev/zero; echo up >&2; sleep 1000; } | env -i tail -c 300000000 & echo $!; wait`))
	slow := outerPID(t, o, awaitLog(t, a, id, "up")[0])
	_, shims, _ := process.Labelled(root)
	kill(t, shims[0], syscall.SIGKILL)
	if end := a.awaitEnd(t); end.Reason != "its supervisor was killed" {
		t.Errorf("its end was reported as %+v", end)
	}
	if alive(slow) {
		t.Errorf("process %d lives on", slow)
	}
}

func TestKilledInitTakesItsProcessesAlong(t *testing.T) {
	t.Parallel()
	a, root, id := newAgent(t)
	o := a.start(t, sh(id, "setsid sleep 1000 & env -i sleep 1000 & echo $!; echo up; wait"))
	child := outerPID(t, o, awaitLog(t, a, id, "up")[0])
	kill(t, process.Inits(root)[0], syscall.SIGKILL)
	if end := a.awaitEnd(t); end.ID != id || end.Running || end.Reason != "killed by signal 9" || *end.ExitCode != 137 {
		t.Errorf("its end was reported as %+v", end)
	}
	if alive(child) || alive(pidOf(t, o)) {
		t.Error("a process lives on")
	}
	a.start(t, instance(id, "sleep", "1000"))
}

func TestInitKilledWhileNoAgentRuns(t *testing.T) {
	t.Parallel()
	a, root, id := newAgent(t)
	a.start(t, instance(id, "sleep", "1000"))
	must(t, a.Close())
	killNow(t, process.Inits(root)[0])
	eventually(t, "its end is written down", func() bool {
		_, err := os.Stat(filepath.Join(root, id, "exit.json"))
		return err == nil
	})
	a = open(t, process.Options{Root: root})
	if found := a.endOf(t, id); found.Reason != "killed by signal 9" {
		t.Errorf("found %+v", found)
	}
}

func TestHungInitIsGivenUp(t *testing.T) {
	t.Parallel()
	root, id := newRoot(t), drivertest.NewID()
	setFailpoint(t, root, "init hang")
	h := startHelper(t, root, id, runsOnce...)
	eventually(t, "its init hangs", func() bool {
		_, err := os.Stat(filepath.Join(root, ".failpoint"))
		return err != nil && len(process.Inits(root)) == 1
	})
	h.kill()
	a := open(t, process.Options{Root: root})
	if o, ok := a.find(t, id); !ok || o.Running || o.Reason != "it never started" {
		t.Errorf("found %+v", o)
	}
	checkOne(t, root, id, a.start(t, instance(id, runsOnce...)))
}

func TestShimKilledWhileNoAgentRuns(t *testing.T) {
	t.Parallel()
	a, root, id := newAgent(t)
	o := a.start(t, instance(id, "sleep", "1000"))
	_ = a.Close()
	_, shims, _ := process.Labelled(root)
	killNow(t, shims[0])
	a = open(t, process.Options{Root: root})
	found, _ := a.find(t, id)
	if found.Running || found.Reason != "its supervisor was killed" || found.PhysicalID != o.PhysicalID {
		t.Errorf("found %+v", found)
	}
	if alive(pidOf(t, o)) {
		t.Error("the orphan lives on")
	}
}

func TestRestartedMachineAndRecycledPids(t *testing.T) {
	t.Parallel()
	bystander := exec.CommandContext(t.Context(), "sleep", "1000")
	must(t, bystander.Start())
	t.Cleanup(func() { _ = bystander.Process.Kill(); _ = bystander.Wait() })
	for reason, change := range map[string]func(map[string]any){
		"the machine was restarted": func(s map[string]any) { s["boot"] = "another"; s["pid"] = bystander.Process.Pid },
		"its process disappeared":   func(s map[string]any) { s["pid"] = bystander.Process.Pid },
	} {
		t.Run(reason, func(t *testing.T) {
			a, root, id := newAgent(t)
			o := a.start(t, instance(id, "sleep", "1000"))
			_ = a.Close()
			_, shims, _ := process.Labelled(root)
			killNow(t, shims[0])
			killNow(t, pidOf(t, o))
			eventually(t, "nothing is left of it", func() bool {
				left, err := a.Leftovers(id)
				return err == nil && left+len(process.Inits(root)) == 0
			})
			changeJSON(t, filepath.Join(root, id, "state.json"), change)

			a = open(t, process.Options{Root: root})
			if found, _ := a.find(t, id); found.Running || found.Reason != reason || found.Finished.IsZero() {
				t.Errorf("found %+v", found)
			}
			a.stop(t, id, 0)
			a.start(t, instance(id, "sleep", "1000"))
			a.remove(t, id)
			if !alive(bystander.Process.Pid) {
				t.Error("a process that got the pid later was killed")
			}
		})
	}
}

func changeJSON(t *testing.T, path string, change func(map[string]any)) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	var v map[string]any
	must(t, json.Unmarshal(b, &v))
	change(v)
	if b, err = json.Marshal(v); err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	must(t, err)
}

func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	a, root, id := newAgent(t)
	a.start(t, sh(id, "exit 0"))
	a.awaitEnd(t)
	_ = a.Close()
	touch(t, filepath.Join(root, id, "spec.json"))
	a = open(t, process.Options{Root: root})
	if o, ok := a.find(t, id); !ok || o.Running || o.Reason != "its record cannot be read" {
		t.Errorf("found %+v", o)
	}
	a.start(t, instance(id, "sleep", "1000"))
}
