package cli

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// act lets ann act on hello, and waits until what she began has ended.
func (s *realServer) act(a contract.Action) {
	s.t.Helper()
	_, err := s.Act(context.WithoutCancel(s.t.Context()), "hello", a)
	must(s.t, err)
	s.quiet()
}

// thaw ends the freezes of hello, during a command.
func (s *realServer) thaw(services ...string) {
	if _, err := s.Act(context.Background(), "hello", contract.Action{Action: "thaw", Services: services}); err != nil {
		s.t.Error(err)
	}
}

// A task that has a freeze's kind but is none ends by itself.
func TestWaitForAThawEndsWithIt(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb)
	s.act(contract.Action{Action: "freeze"})
	r := (&run{f: s.proxy(t)}).do(t, "project", "thaw", "hello", "--wait")
	r.expect(exitOK, strings.Contains(r.stderr, "thaw hello: completed"))
}

// Only a thaw ends the wait for one, so the user is notified.
func TestWaitOnAFrozenScopeSaysHowToThaw(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb)
	s.act(contract.Action{Action: "freeze", Services: []string{"web"}})
	f := s.proxy(t)
	f.on("GET /v1/queue/"+s.lastTask(), func(w http.ResponseWriter, r *http.Request) { // the command asks what is frozen
		s.ServeHTTP(w, r)
		s.thaw("web")
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := (&run{f: f, ctx: ctx, stdin: wideWeb}).do(t, "project", "update", "hello", "-m", "-", "--force", "--wait")
	r.expect(exitOK, strings.Contains(r.stderr, "waits for the thaw of hello; end the freeze with `mariposa -j hello project thaw --service web`)"))
}

func TestATerminatedTaskCanBeWaitedFor(t *testing.T) {
	t.Parallel()
	s := newHello(t, waitingManifest)
	id := s.lastTask()
	r := (&run{f: s.proxy(t)}).do(t, "queue", "terminate", id, "--wait", "--yes")
	r.expect(exitOK, strings.Contains(r.stderr, "freeze hello: "+frozenPhrase))
	r = (&run{f: s.proxy(t)}).do(t, "queue", "terminate", id, "--wait", "--yes")
	r.expect(exitError, r.stdout == "", strings.Contains(r.stderr, "has already ended"))
}

// A revert that changes nothing says so. A revert that creates no version says what it
// does instead.
func TestARevertThatMakesNoVersionSaysWhatItDoes(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb, wideWeb)
	r := (&run{f: s.proxy(t)}).do(t, "-j", "hello", "project", "revert", "2")
	r.expect(exitOK, numberInOrder(r.stdout) == "hello: nothing to do; version 2 (c0de001) already has that content\n")
	s.again(t, waitingManifest)
	const why = "no version of hello ever completed: the project is stopped and its instances are removed\n"
	r = (&run{f: s.proxy(t)}).do(t, "-j", "hello", "project", "revert")
	r.expect(exitOK, numberInOrder(r.stdout) == "hello: "+why+"task 0198c000-0000-7000-8000-000000000001\n")
	s.quiet()
	r = (&run{f: s.proxy(t)}).do(t, "-j", "hello", "project", "revert")
	r.expect(exitOK, r.stdout == "hello: nothing to do; "+why)
}

// A plan without steps may mean that something is held.
func TestAPlanThatDoesNothingSaysWhatIsHeldBack(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb)
	s.act(contract.Action{Action: "pause", Services: []string{"web"}})
	r := (&run{f: s.proxy(t)}).do(t, "project", "plan", "hello")
	r.expect(exitOK, strings.Contains(r.stdout, "unchanged"), r.stderr == "hello: nothing to do\nhello/web is paused\n")
}

// The hint for a missing object names the command that lists such objects.
func TestWhatAnOrderDoesNotFindIsLookedForInTheRightPlace(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb)
	for args, see := range map[string]string{
		"hallo":                "mariposa project list",
		"hello --service nope": "mariposa -j hello state",
		"hello --node nope":    "mariposa -j hello instance list",
		"hello --version 99":   "mariposa -j hello project versions",
	} {
		r := (&run{f: s.proxy(t)}).do(t, append([]string{"project", "reprovision"}, strings.Fields(args)...)...)
		r.expect(exitError, strings.Contains(r.stderr, "see `"+see+"`"))
	}
	r := (&run{f: s.proxy(t)}).do(t, "project", "reprovision", "hello", "--image", "x")
	r.expect(exitOK, r.stdout == "hello: nothing to do; no instance matches the filter\n")
}

func TestNothingToDoSaysWhy(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb)
	for action, why := range map[string]string{"start": "it is already started", "thaw": "nothing is frozen", "resume": "nothing is paused", "converge": "it is already converged"} {
		r := (&run{f: s.proxy(t)}).do(t, "project", action, "hello", "--wait")
		r.expect(exitOK, r.stdout == "hello: nothing to do; "+why+"\n")
	}
}

// Tasks are described in the words people used to request them.
func TestTasksHaveTheWordsThatPeopleUse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind            mariposa.TaskKind
		component, want string
	}{
		{mariposa.TaskScale, "project", "scale"},
		{mariposa.TaskScale, "repair", "repair"},
		{mariposa.TaskScale, "cleanup", "cleanup"},
		{mariposa.TaskReprovision, "rollback", "rollback"},
		{mariposa.TaskScale, "converge", "converge"},
		{mariposa.TaskScale, "accept", "accept"},
		{mariposa.TaskFreeze, "freeze", "freeze"},
		{mariposa.TaskFreeze, "terminate", "freeze"},
		{mariposa.TaskFreeze, "thaw", "thaw"},
		{mariposa.TaskFreeze, "pause", "pause"},
		{mariposa.TaskFreeze, "resume", "resume"},
		{mariposa.TaskStop, "delete", "delete"},
		{mariposa.TaskStop, "project", "stop"},
		{mariposa.TaskReprovision, "instance", "replace"},
		{mariposa.TaskReprovision, "project", "reprovision"},
		{mariposa.TaskStart, "", "start"},
	} {
		if got := describeTask(&contract.Task{Task: c.kind, Component: c.component, ProjectName: "hello"}); got != c.want+" hello" {
			t.Errorf("a %s of %q is called %q", c.kind, c.component, got)
		}
	}
}

func TestAChangeSaysWhichTasksItEnds(t *testing.T) {
	t.Parallel()
	s := newHello(t, groupManifest)
	s.act(contract.Action{Action: "freeze"})
	_, err := s.UpdateManifest(t.Context(), "hello", []byte(groupLouder), client.Update{Force: true})
	must(t, err)
	s.awaitDocument("/v1/queue?project=hello", `"waits_for": ?\["0`)
	r := (&run{f: s.proxy(t)}).do(t, "project", "stop", "hello")
	want := "this terminates the freeze, task 0198c000-0000-7000-8000-000000000001: ann asked to freeze it\n" +
		"this cancels the queued reprovision of web, task 0198c000-0000-7000-8000-000000000002: version 2 was submitted; to run it again: mariposa -j hello project revert 2 --with-scale\n"
	r.expect(exitOK, numberInOrder(r.stderr) == want, numberInOrder(r.stdout) == "task 0198c000-0000-7000-8000-000000000001\n")
}
