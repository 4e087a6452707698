package main_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mariposa/client"
)

// These tests look at what commands print, at a terminal and elsewhere.

// prints runs a command at a terminal and returns what it prints there.
func (x *terminal) prints(h *devServer, env string, args ...string) string {
	x.t.Helper()
	const end = "@end"
	cmd := x.runs(h, "sh", "-c", env+" "+filepath.Join(binaries, "mariposa")+" "+strings.Join(args, " ")+"; echo @'end'")
	_ = x.ours.SetReadDeadline(time.Now().Add(limit))
	buf := make([]byte, 4096)
	for !strings.Contains(x.showing.String(), end) {
		n, err := x.ours.Read(buf)
		if err != nil {
			x.t.Fatalf("%v never ended: %q", args, x.showing.String())
		}
		x.showing.Write(buf[:n])
	}
	out, _, _ := strings.Cut(x.showing.String(), end)
	x.showing.Reset()
	must(x.t, cmd.Wait())
	return strings.ReplaceAll(out, "\r\n", "\n")
}

// widest returns the width of the widest line, of ASCII text.
func widest(text string) int {
	width := 0
	for line := range strings.Lines(text) {
		width = max(width, len(strings.TrimRight(line, "\n")))
	}
	return width
}

// homeless is a service that no node can run, with a long reason for it.
const homeless = "services: {web: {compute_type: dummy, scale: 3}, far: {compute_type: process, command: [sleep, '100'], memory: 9000g, depends_on: [web]}}\n"

func TestTablesFitTheTerminal(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.create("shop", homeless)
	h.await("web runs and far cannot", func() bool {
		for _, s := range h.state("shop").Services {
			if s.Name == "web" && s.Running < 3 || s.Name == "far" && s.Status != "blocked" {
				return false
			}
		}
		return len(h.state("shop").Services) == 2
	})
	x := newTerminal(t, 24, 80)
	for _, args := range []string{"-j shop state", "-j shop queue list", "-j shop ps", "instance list", "project list", "-j shop project versions", "node list"} {
		all := append(strings.Fields(args), "--no-color")
		if out := x.prints(h, "", all...); widest(out) > 80 {
			t.Errorf("%s does not fit into 80 columns:\n%s", args, out)
		}
	}
	if out := x.prints(h, "COLUMNS=60", "-j shop state --no-color"); widest(out) > 60 {
		t.Errorf("COLUMNS=60 is not kept to:\n%s", out)
	}
	if out := x.prints(h, "", "-j shop state --no-color --wide"); widest(out) <= 80 {
		t.Errorf("--wide folds:\n%s", out)
	}
	if out := h.ok("-j", "shop", "state"); strings.Count(out, "\n") != 4 {
		t.Errorf("what is piped is folded:\n%s", out)
	}
}

func TestTablesSayNothingThatGoesWithoutSaying(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.create("shop", "services: {web: {compute_type: dummy, scale: 3}}\n")
	h.converged("shop", "web", 3)
	out := h.ok("-j", "shop", "ps")
	for _, word := range []string{"HEALTH", "REASON", "scale is 3", "RESTARTS", "PROJECT"} {
		if strings.Contains(out, word) {
			t.Errorf("%s is shown although all is well:\n%s", word, out)
		}
	}
	p, err := h.Project(t.Context(), "shop")
	must(t, err)
	if !strings.Contains(out, "web.2 ") || !strings.Contains(out, "1 ("+p.Version[:7]+")") {
		t.Errorf("slots and versions are not shown in short:\n%s", out)
	}
	names := h.instances("shop")
	for line := range strings.Lines(h.ok("-j", "shop", "ps", "-q")) {
		if _, known := names[strings.TrimSpace(line)]; !known {
			t.Errorf("-q prints %q, which names no instance", line)
		}
	}
	if out := h.ok("-j", "shop", "ps", "--columns", "name,health,reason,id"); !strings.Contains(out, "unknown") {
		t.Errorf("--columns does not pick any column:\n%s", out)
	}
	if out := h.ok("-j", "shop", "ps", "--wide"); !strings.Contains(out, "HEALTH") || !strings.Contains(out, "PROJECT") {
		t.Errorf("--wide does not show every column:\n%s", out)
	}
	if out := h.ok("-j", "shop", "instance", "show", "web.1"); strings.Contains(out, "scale is") || strings.Contains(out, "health ") {
		t.Errorf("an instance that is well says:\n%s", out)
	}
	task := strings.TrimSpace(h.ok("queue", "list", "--all", "-q"))
	out = h.ok("queue", "list", "--all")
	short := strings.Fields(strings.Split(out, "\n")[1])[0]
	if len(task) != 36 || len(short) >= 36 || !strings.HasPrefix(task, short) {
		t.Errorf("task %s is listed so:\n%s", task, out)
	}
	if out := h.ok("queue", "show", short); !strings.Contains(out, task) {
		t.Errorf("%s does not find %s:\n%s", short, task, out)
	}
}

func TestTheQueueSaysWhatATaskWaitsFor(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.create("shop", homeless)
	h.await("far cannot run", func() bool {
		s := h.state("shop").Services
		return len(s) == 2 && s[0].Status == "blocked" && s[1].Running == 3
	})
	out := h.ok("queue", "list")
	if !strings.Contains(out, "no node") || strings.Contains(out, "LEFT") {
		t.Errorf("a task that waits for a node is listed so:\n%s", out)
	}
	task := strings.TrimSpace(h.ok("queue", "list", "-q"))
	if out := h.ok("queue", "show", task); !strings.Contains(out, "waits for  far: no node") || strings.Contains(out, "eta") {
		t.Errorf("and shown so:\n%s", out)
	}
}

func TestATaskHasNoStepsAfterItsEnd(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.ok("project", "create", "shop", "-m", fileOf(t, "services: {web: {compute_type: dummy, scale: 2}}\n"), "--wait")
	task := strings.TrimSpace(h.ok("queue", "list", "--all", "-q"))
	steps := func() int {
		full, err := h.TaskSteps(t.Context(), task, 0)
		must(t, err)
		return len(full.Steps)
	}
	before := steps()
	if before < 4 { // two were asked for and came up
		t.Errorf("it took %d steps", before)
	}
	for name := range h.instances("shop") {
		h.ok("instance", "crash", name)
	}
	h.await("both are repaired", func() bool {
		all, err := h.Queue(t.Context(), client.TaskFilter{All: true, State: "completed"})
		must(t, err)
		return len(all.Tasks) > 1 && h.state("shop").Status == "converged"
	})
	if after := steps(); after != before {
		t.Errorf("it had %d steps when it ended, and has %d:\n%s", before, after, h.ok("queue", "show", task))
	}
}

func TestTheQueueCallsAThawAThaw(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.create("shop", dummies)
	h.converged("shop", "d", 1)
	for _, word := range []string{"freeze", "thaw", "pause", "resume"} {
		h.ok("project", word, "shop", "--wait")
		task := strings.Fields(h.ok("queue", "list", "--all", "-q", "--limit", "1"))[0]
		if out := h.ok("queue", "list", "--all", "--limit", "1"); !strings.Contains(out, word+" shop") {
			t.Errorf("a %s is listed so:\n%s", word, out)
		}
		out := h.ok("queue", "show", task)
		if !strings.Contains(out, word+" shop") || word != "freeze" && strings.Contains(out, "freeze") {
			t.Errorf("a %s is shown so:\n%s", word, out)
		}
	}
}
