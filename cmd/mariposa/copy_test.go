package main_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mariposa"
)

// A copied data directory does not take a node over: not by itself, and not if somebody
// says that it was moved while the original is in use.
func TestACopyOfADataDirectoryDoesNotTakeTheNodeOver(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	a.env = []string{"MARIPOSA_DATA=" + a.data}
	agent := a.agentWith(a.joinToken())
	first := a.awaitNode("node-a", mariposa.NodeRunning)
	a.create("hello", "services: {web: {compute_type: process, scale: 2, command: [sleep, '1000']}}")
	a.converged("hello", "web", 2)
	before := a.pids("hello")

	copied := filepath.Join(t.TempDir(), "copy")
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", a.dir, copied).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
	run := []string{"agent", "--server", a.url, "--data", copied, "--name", "other"}
	_, errs, code := finish(t, program(t.Context(), copied, nil, run...), "")
	if code != 1 || !strings.Contains(errs, "copied or moved") || !strings.Contains(errs, "--moved") {
		t.Errorf("exit %d: %s", code, errs)
	}
	moved := a.launch(nil, append(run, "--moved")...)
	a.await("the copy is told why", func() bool {
		return strings.Contains(a.out.String(), "node node-a runs with another data directory (its agent connected from 127.0.0.1")
	})
	a.await("people are told", func() bool {
		n := a.nodeNamed("node-a")
		return n != nil && n.CopyRefused != nil && strings.HasPrefix(n.CopyRefused.From, "127.0.0.1")
	})
	if out := a.ok("node", "show", "node-a"); !strings.Contains(out, "an agent there uses a copy of this node's data directory") {
		t.Errorf("node show says\n%s", out)
	}
	if out := a.ok("events"); strings.Count(out, "node node-a was copied (an agent at 127.0.0.1") != 1 {
		t.Errorf("the events are\n%s", out)
	}
	_ = agent.Process.Kill()
	_ = agent.Wait()
	a.agentWith("")
	a.await("the original is back", func() bool {
		n := a.nodeNamed("node-a")
		return n != nil && n.Status == mariposa.NodeRunning && strings.Count(a.out.String(), "node connected") == 2
	})
	over := make(chan int, 1)
	go func() {
		_ = moved.Wait()
		over <- moved.ProcessState.ExitCode()
	}()
	select {
	case code := <-over: // it does not wait until it can take the node over
		if code != 1 {
			t.Errorf("the copy ended with %d", code)
		}
	case <-time.After(limit):
		t.Fatal("the copy goes on")
	}
	if _, errs, code := finish(t, program(t.Context(), copied, nil, run...), ""); code != 1 || !strings.Contains(errs, "copied or moved") {
		t.Errorf("the next time it ended with %d: %s", code, errs)
	}
	if n := a.nodeNamed("node-a"); n == nil || n.ID != first.ID {
		t.Errorf("the node is now %+v", n)
	}
	a.converged("hello", "web", 2)
	a.runOn("hello", before)
	live(t, before)
}
