package cli

import (
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// A reason is shown only while it explains something: why an instance was created, while
// it is being created; why it is removed, while it is being removed.
func TestInstancesAreSortedAndShowOnlyCurrentReasons(t *testing.T) {
	t.Parallel()
	instance := func(service, slot string, state mariposa.State, goal mariposa.Goal, code mariposa.ReasonCode, reason string) contract.Instance {
		return contract.Instance{ServiceName: service, Slot: slot, State: state, Health: mariposa.HealthUnknown, Goal: goal, Created: noon, Reason: reason, ReasonCode: code, Managed: true}
	}
	running, gone := mariposa.GoalRunning, mariposa.GoalGone
	all := []contract.Instance{
		instance("web", "web.10", mariposa.StateProvisioning, running, mariposa.ReasonScale, "scale is 4"),
		instance("web", "web.2", mariposa.StateRunning, running, mariposa.ReasonReplacesFailed, "replaces web.2-00cd34 (exited with 1)"),
		instance("web", "web.9", mariposa.StateProvisioning, running, mariposa.ReasonReplacesLost, "replaces web.9-00cd34"),
		instance("backend", "backend.1", mariposa.StateStopping, gone, mariposa.ReasonScale, "scale is 0"),
		instance("web", "web.4", mariposa.StateRunning, running, mariposa.ReasonDrains, "replaces web.4-00cd34, to drain node n1"),
		instance("web", "web.5", mariposa.StateProvisioning, running, mariposa.ReasonDrains, "replaces web.5-00cd34, to drain node n1"),
		instance("web", "web.6", mariposa.StateStopping, gone, mariposa.ReasonDrains, "its node n1 is being drained"),
		instance("web", "web.3", mariposa.StateFailed, running, mariposa.ReasonReported, "exited with 2"),
	}
	slices.SortFunc(all, bySlot)
	var lines []string
	for _, i := range all {
		lines = append(lines, i.Slot+": "+troubleOf(i))
	}
	if got := strings.Join(lines, "\n"); got != "backend.1: scale is 0\nweb.2: \nweb.3: exited with 2\nweb.4: \nweb.5: replaces web.5-00cd34, to drain node n1\nweb.6: its node n1 is being drained\nweb.9: replaces web.9-00cd34\nweb.10: " {
		t.Error(got)
	}
}

func TestInstancesOfANodeAndOfServices(t *testing.T) {
	t.Parallel()
	f := newHello(t, wideWeb).proxy(t)
	everywhere := (&run{f: f}).do(t, "-j", "hello", "ps", "--columns", "node", "--no-header")
	everywhere.expect(exitOK, everywhere.stdout != "")
	for _, node := range []string{"node1", "node2"} {
		r := (&run{f: f}).do(t, "-j", "hello", "ps", "--node", node, "--columns", "node", "--no-header")
		r.expect(exitOK, r.stdout == strings.Repeat(node+"\n", strings.Count(everywhere.stdout, node)))
	}
	r := (&run{f: f}).do(t, "-j", "hello", "ps", "web", "nosuch")
	r.expect(exitError, r.stdout == "", r.stderr == "mariposa: project hello has no service \"nosuch\"; it has web\n")
}

// An unknown column is an error before anything is printed or changed, even if there is
// nothing to print.
func TestAnUnknownColumnIsNamedBeforeAnythingIsPrinted(t *testing.T) {
	t.Parallel()
	s := newHello(t, helloManifest, louderManifest)
	full, empty := s.proxy(t), newRealServer(t).proxy(t)
	for _, line := range []string{"queue list", "node list", "project list", "state", "volume list", "network list"} {
		checkUnknownColumn(t, full, line)
		checkUnknownColumn(t, empty, line)
	}
	for _, line := range []string{
		"-j hello ps", "project show hello", "node show node2", "queue show " + s.lastTask(), "project plan hello", "project versions hello", "project graph hello", "project tag list hello",
		"-j hello meta list", "instance list", "org list", "user list", "token list", "package list", "org members acme", "org quota acme", "events --audit", "-j hello network show inner",
	} {
		checkUnknownColumn(t, full, line)
	}
	slow := s.slowHello(t)
	checkUnknownColumn(t, full, "queue terminate "+s.nameOf(slow))
	if strings.Contains(full.requests(), "DELETE ") {
		t.Error("something was changed")
	}
}

func checkUnknownColumn(t *testing.T, f *proxy, line string) {
	t.Helper()
	r := (&run{f: f}).do(t, append(strings.Fields(line), "--columns", "bogus")...)
	first, rest, _ := strings.Cut(r.stderr, "\n")
	if r.code != exitUsage || r.stdout != "" || rest != "" || !strings.HasPrefix(first, `mariposa: there is no column "bogus"; available columns: `) {
		t.Errorf("%s: exit %d\n%s%s", line, r.code, r.stdout, r.stderr)
	}
}

// Columns of both tables of a command can be named.
func TestColumnsArePickedFromEveryTableOfACommand(t *testing.T) {
	t.Parallel()
	r := (&run{f: newHello(t, oneWeb).proxy(t), stdin: strings.ReplaceAll(oneWeb, "dummy,", "dummy, scale: 2,")}).
		do(t, "project", "plan", "hello", "-m", "-", "--columns", "resource,step", "--no-header")
	r.expect(exitOK, strings.Contains(r.stdout, "web\n"), strings.HasSuffix(r.stdout, "\ncreate\n"))
}

func TestEventsShowAStopOnce(t *testing.T) {
	t.Parallel()
	s := newHello(t, wideWeb)
	_, err := s.Scale(t.Context(), "hello", map[string]string{"web": "1"})
	must(t, err)
	s.quiet()
	r := (&run{f: s.proxy(t)}).do(t, "-j", "hello", "events")
	r.expect(exitOK, strings.Count(r.stdout, "is stopping") == 2, strings.Count(r.stdout, "(scale is 1)") >= 2)
}
