package main_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func web(scale int, greeting string) string {
	return fmt.Sprintf(`services:
  backend:
    compute_type: process
    command: [hello, backend]
    ports: [7101]
    update: {min_healthy: 0}
  web:
    compute_type: process
    command: [hello, web]
    scale: %d
    ports: [8080]
    depends_on: [backend]
    environment: {GREETING: %s, BACKEND: "127.0.0.1:1"}
    update: {rolling: 2, min_healthy: 0}
`, scale, greeting)
}

// greeting starts a server with scale web instances and returns their processes.
func greeting(t *testing.T, scale int, words string) (*devServer, map[string]int) {
	t.Helper()
	h := newDevServer(t)
	h.create("hello", web(scale, words))
	h.converged("hello", "web", scale)
	return h, h.pids("hello")
}

func TestAfterKill9TheSameProcessesRunOn(t *testing.T) {
	t.Parallel()
	h, before := greeting(t, 3, "hi")
	if len(before) != 4 {
		t.Fatalf("expected 4 processes, got %v", before)
	}
	for range 3 {
		h.kill()
		live(t, before)
		h.start()
		h.converged("hello", "web", 3)
		if after := h.pids("hello"); !maps.Equal(before, after) {
			t.Fatalf("pids changed over a crash: %v, then %v", before, after)
		}
	}
	h.realityMatches("hello")
}

func TestAKilledInstanceIsReplacedAndTheOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	h, before := greeting(t, 3, "hi")
	victim := slices.Sorted(maps.Keys(before))[2]
	must(t, syscall.Kill(before[victim], syscall.SIGKILL))
	h.replaced(before, victim)
	q, err := h.Queue(t.Context(), client.TaskFilter{All: true})
	must(t, err)
	repair := slices.IndexFunc(q.Tasks, func(task contract.Task) bool { return task.Origin == mariposa.OriginMariposa })
	if repair < 0 || q.Tasks[repair].Task != mariposa.TaskScale || !strings.Contains(q.Tasks[repair].Reason, victim) {
		t.Errorf("the repair is not a scale task of mariposa that names %s: %+v", victim, q.Tasks)
	}
	h.realityMatches("hello")
}

// replaced waits until another instance has replaced the victim, and checks that the
// others were not changed.
func (h *devServer) replaced(before map[string]int, victim string) {
	h.t.Helper()
	h.await("the victim is replaced", func() bool {
		now := h.pids("hello")
		return len(now) == len(before) && now[victim] == 0
	})
	delete(before, victim)
	h.runOn("hello", before)
}

func TestWhatDiesWhileTheServerIsAwayIsReplacedWhenItReturns(t *testing.T) {
	t.Parallel()
	h, before := greeting(t, 3, "hi")
	victim := slices.Sorted(maps.Keys(before))[1]
	h.kill()
	must(t, syscall.Kill(before[victim], syscall.SIGKILL))
	h.start()
	h.replaced(before, victim)
	h.realityMatches("hello")
}

// TestKill9AtAnyMoment repeatedly kills the server during starts, updates and scalings.
// Everything that was acknowledged must be reached in the end, without duplicate or
// orphaned instances.
func TestKill9AtAnyMoment(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("hello", web(4, "v0"))
	rng := rand.New(rand.NewPCG(1, 2))
	scale, acknowledged := 4, 1
	for i := range 10 {
		time.Sleep(time.Duration(rng.IntN(250)) * time.Millisecond) // kill at a random time
		scale = 1 + rng.IntN(6)
		c, err := h.UpdateManifest(t.Context(), "hello", []byte(web(scale, fmt.Sprintf("v%d", i+1))), client.Update{Force: true})
		if err != nil {
			t.Fatal(err)
		}
		acknowledged = c.Number
		time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
		h.kill()
		h.start()
	}
	h.await("the last acknowledged version is in force", func() bool {
		p, err := h.Project(t.Context(), "hello")
		return err == nil && p.Number == acknowledged
	})
	h.converged("hello", "web", scale)
	for name, i := range h.instances("hello") {
		if i.ServiceName == "web" && !slices.Contains(i.Environment, "GREETING=v10") {
			t.Errorf("%s runs an old version: %v", name, i.Environment)
		}
	}
	h.realityMatches("hello")
}

func TestSigtermEndsTheServerAndNotTheInstances(t *testing.T) {
	t.Parallel()
	h, before := greeting(t, 2, "hi")
	must(t, h.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-h.done:
	case <-time.After(limit):
		t.Fatal("it has not ended in time")
	}
	if h.code != 0 {
		t.Errorf("it exited with %d", h.code)
	}
	live(t, before)
	h.start()
}

func TestASecondOneOnTheSameFolderIsRefused(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	out, errs, code := h.mariposa("", "dev", "--listen", "127.0.0.1:0", "--data", h.dir)
	if code != 1 || !strings.Contains(errs, "already") && !strings.Contains(errs, "in use") {
		t.Errorf("a second dev: exit %d\n%s%s", code, out, errs)
	}
}

func TestInstancesDoNotSeeTheAgentsEnvironment(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("envs", "services: {env: {compute_type: process, command: [sh, -c, 'env; exec sleep 1000']}}")
	h.converged("envs", "env", 1)
	name := slices.Collect(maps.Keys(h.pids("envs")))[0]
	h.await("its log shows its environment", func() bool {
		out, _, _ := h.mariposa("", "instance", "logs", name)
		return strings.Contains(out, "MARIPOSA_NAME="+name)
	})
	if out, _, _ := h.mariposa("", "instance", "logs", name); strings.Contains(out, "hunter2") {
		t.Errorf("the agent's secret reached the instance:\n%s", out)
	}
}
