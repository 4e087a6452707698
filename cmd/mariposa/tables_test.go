package main_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mariposa/client"
)

// These tests check the output of commands, on a terminal and elsewhere.

// prints runs a command on a terminal and returns its output.
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

// homeless is a service that no node can run, with a long reason.
const homeless = "services: {web: {compute_type: dummy, scale: 3}, far: {compute_type: process, command: [sleep, '100'], memory: 9000g, depends_on: [web]}}\n"

func TestTablesFitTheTerminal(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
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
	h := newDevServer(t)
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
	h := newDevServer(t)
	h.create("shop", homeless)
	var out string
	h.await("far cannot run, and web has been up for long enough", func() bool {
		out = h.ok("queue", "list")
		return strings.Contains(out, "waits: far: no node")
	})
	if strings.Contains(out, "LEFT") {
		t.Errorf("a task that waits for a node has an estimate:\n%s", out)
	}
	task := strings.TrimSpace(h.ok("queue", "list", "-q"))
	if out := h.ok("queue", "show", task); !strings.Contains(out, "waits for  far: no node") || strings.Contains(out, "eta") {
		t.Errorf("and shown so:\n%s", out)
	}
}

func TestATaskHasNoStepsAfterItsEnd(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.ok("project", "create", "shop", "-m", fileOf(t, "services: {web: {compute_type: dummy, scale: 2}}\n"), "--wait")
	task := strings.TrimSpace(h.ok("queue", "list", "--all", "-q"))
	steps := func() int {
		full, err := h.TaskSteps(t.Context(), task, 0)
		must(t, err)
		return len(full.Steps)
	}
	before := steps()
	if before < 4 { // two were requested and started
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
	h := newDevServer(t)
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

func TestEventsAreToldOnceInSentences(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.ok("project", "create", "shop", "-m", fileOf(t, "services: {web: {compute_type: dummy, scale: 2}, db: {compute_type: dummy}}\n"), "--wait")
	middle := itoa(int(h.revision()))
	h.ok("-j", "shop", "project", "freeze", "--wait")
	h.ok("-j", "shop", "project", "thaw", "--wait")
	h.ok("-j", "shop", "project", "scale", "web=3", "--wait")
	all := h.ok("-j", "shop", "events", "--since", "1h")
	seen := map[string]bool{}
	for line := range strings.Lines(all) {
		what := strings.TrimSpace(line[len("15:04:05"):])
		if strings.Contains(what, "service.") || strings.Contains(what, "project.") || strings.Contains(what, "instance.") {
			t.Errorf("a kind is not put into words: %s", what)
		}
		if seen[what] && strings.Contains(what, "shop/web.") {
			t.Errorf("told twice: %s", what)
		}
		seen[what] = true
	}
	if strings.Contains(all, "was updated by") {
		t.Errorf("what the task says is repeated:\n%s", all)
	}
	for _, want := range []string{"shop/web is ", "freeze shop is active", "thaw shop completed", "shop/web is frozen"} {
		if !strings.Contains(all, want) {
			t.Errorf("nothing says %q:\n%s", want, all)
		}
	}
	later := h.ok("-j", "shop", "events", "--since", middle)
	if strings.Contains(later, "was created") || !strings.Contains(later, "thaw shop completed") {
		t.Errorf("since revision %s:\n%s", middle, later)
	}
	if out := h.ok("-j", "shop", "events", "--since", "1h", "--limit", "3", "--json"); strings.Count(out, `"kind"`) != 3 || !strings.Contains(out, `"service.converged"`) {
		t.Errorf("the newest three are:\n%s", out)
	}
	if out := h.ok("-j", "shop", "events", "--limit", "2"); strings.Count(out, "\n") > 2 {
		t.Errorf("the newest two are:\n%s", out)
	}
	out := h.ok("-j", "shop", "events", "--service", "db", "--since", "1h")
	if strings.Contains(out, "web") || !strings.Contains(out, "shop/db.1-") {
		t.Errorf("of db:\n%s", out)
	}
	h.wants(2, "or an age such as 12h", "events", "--since", "soon")
	var stdout lockedBuffer
	cmd := launch(t, program(t.Context(), h.dir, []string{"MARIPOSA_DATA=" + h.dir}, "-j", "shop", "events", "-f", "--since", "1h", "--service", "db", "--limit", "1"), &stdout)
	defer end(cmd)
	h.await("the last of the past is told", func() bool { return stdout.String() != "" })
	h.ok("-j", "shop", "project", "scale", "db=2", "--wait")
	h.await("it is told", func() bool { return strings.Contains(stdout.String(), "shop/db.2-") })
	if strings.Contains(stdout.String(), "web") {
		t.Errorf("of db, live:\n%s", stdout.String())
	}
}

func (h *devServer) revision() int64 {
	h.t.Helper()
	n, err := h.Revision(h.t.Context())
	must(h.t, err)
	return n
}

func TestTopShowsUsageFillsTheHeightAndQuits(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.ok("project", "create", "shop", "-m", fileOf(t, "services: {web: {compute_type: process, command: [sleep, '1000']}}\n"), "--wait")
	h.await("the memory is measured", func() bool {
		out := h.ok("top")
		return strings.Contains(out, "shop/web") && strings.Contains(out, "iB")
	})
	for i := range 30 {
		h.ok("-j", "shop", "meta", "set", "key="+itoa(i))
	}
	x := newTerminal(t, 50, 100)
	before := x.settings()
	cmd := x.runs(h, filepath.Join(binaries, "mariposa"), "top")
	x.shows(ownScreen)
	x.shows("MEMORY")
	x.shows("version 24 of shop") // enough versions to fill the window
	x.shows("version 31 of shop")
	x.types("q")
	x.shows(oldScreen)
	x.ended(cmd, 0, before)
}
