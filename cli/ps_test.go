package cli

import (
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// A reason is shown only while it explains something: why an instance was made, while it
// is being made; why it goes, while it goes.
func TestInstancesAreSortedAndShowOnlyReasonsOfNow(t *testing.T) {
	t.Parallel()
	instance := func(service, slot string, state mariposa.State, goal mariposa.Goal, code mariposa.ReasonCode, reason string) contract.Instance {
		return contract.Instance{
			ID: "i-" + slot, Name: slot + "-00ab12", Slot: slot, Project: helloID, ProjectName: "hello", ServiceName: service, Version: hashTwo, Number: 2, Node: nodeOne, NodeName: "node1",
			State: state, Health: mariposa.HealthUnknown, Goal: goal, Created: noon, Reason: reason, ReasonCode: code, Managed: true,
		}
	}
	running, gone := mariposa.GoalRunning, mariposa.GoalGone
	f := world(t).give("GET /v1/instances", contract.Instances{Instances: []contract.Instance{
		instance("web", "web.10", mariposa.StateProvisioning, running, mariposa.ReasonScale, "scale is 4"),
		instance("web", "web.2", mariposa.StateRunning, running, mariposa.ReasonReplacesFailed, "replaces web.2-00cd34 (exited with 1)"),
		instance("web", "web.9", mariposa.StateProvisioning, running, mariposa.ReasonReplacesLost, "replaces web.9-00cd34"),
		instance("backend", "backend.1", mariposa.StateStopping, gone, mariposa.ReasonScale, "scale is 0"),
		instance("web", "web.3", mariposa.StateFailed, running, mariposa.ReasonReported, "exited with 2"),
	}})
	r := (&run{f: f}).do(t, "-j", "hello", "ps", "--columns", "name,reason", "--no-header")
	want := "backend.1  scale is 0\nweb.2\nweb.3      exited with 2\nweb.9      replaces web.9-00cd34\nweb.10\n"
	r.expect(exitOK, r.stdout == want)

	(&run{f: f}).do(t, "-j", "hello", "ps", "--node", "node2").expect(exitOK, strings.Contains(f.requests(), "GET /v1/instances?node=node2&project=hello"))

	r = (&run{f: f}).do(t, "-j", "hello", "ps", "web", "nosuch")
	r.expect(exitError, r.stdout == "", r.stderr == "mariposa: project hello has no service \"nosuch\"; it has backend, web\n")
}

// A column that does not exist is named before anything is printed, even if there is
// nothing to print.
func TestAnUnknownColumnIsNamedBeforeAnythingIsPrinted(t *testing.T) {
	t.Parallel()
	full, empty := world(t), newFake(t)
	empty.give("GET /v1/instances", contract.Instances{}).give("GET /v1/queue", contract.Tasks{}).give("GET /v1/nodes", contract.Nodes{}).give("GET /v1/projects", contract.Projects{}).
		give("GET /v1/state", contract.State{}).give("GET /v1/volumes", contract.Volumes{}).give("GET /v1/networks", contract.Networks{})
	for _, line := range []string{"-j hello ps", "queue list", "node list", "project list", "state", "volume list", "network list"} {
		for _, f := range []*fake{full, empty} {
			checkUnknownColumn(t, f, line)
		}
	}
	for _, line := range []string{
		"project show hello", "node show node2", "queue show " + taskOne, "queue terminate " + taskOne, "project plan hello", "project versions hello", "project graph hello", "project tag list hello",
		"-j hello meta list", "instance list", "org list", "user list", "token list", "package list", "org members acme", "org quota acme", "events --audit", "network show backend",
	} {
		checkUnknownColumn(t, full, line)
	}
	if strings.Contains(full.requests(), "DELETE ") {
		t.Error("something was changed")
	}
}

func checkUnknownColumn(t *testing.T, f *fake, line string) {
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
	f := world(t).give("POST /v1/projects/hello/plan", contract.Plan{
		Version: hashTwo, Complete: true, Resources: []contract.PlanResource{{Kind: "service", Name: "web", Change: "update"}},
		Steps: []contract.PlanStep{{Step: "create", InstanceName: "web.2", Reason: "scale is 2"}},
	})
	r := (&run{f: f}).do(t, "project", "plan", "hello", "--columns", "resource,step", "--no-header")
	r.expect(exitOK, strings.Contains(r.stdout, "web\n"), strings.HasSuffix(r.stdout, "\ncreate\n"))
}

func TestStoppingIsToldOnce(t *testing.T) {
	t.Parallel()
	i := helloInstances()[0]
	i.State, i.Reason = mariposa.StateStopping, "scale is 1"
	why := instanceEvent(8, "stopping", i, "scale is 1")
	i.Reason = ""
	f := world(t).give("GET /v1/events", contract.Events{Revision: 9, Events: []contract.Event{why, instanceEvent(9, "stopping", i, "")}})
	r := (&run{f: f}).do(t, "-j", "hello", "events")
	r.expect(exitOK, strings.Count(r.stdout, "is stopping") == 1, strings.Contains(r.stdout, "(scale is 1)"))
}
