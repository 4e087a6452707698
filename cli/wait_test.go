package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func TestWaitWithJSONLeavesTheAnswerAlone(t *testing.T) {
	t.Parallel()
	r := (&run{f: newHello(t, oneWeb).proxy(t)}).do(t, "project", "scale", "hello", "web=2", "--wait", "--json")
	var done contract.Changed
	err := json.Unmarshal([]byte(r.stdout), &done) // an error if anything follows
	r.expect(exitOK, err == nil, done.Name == "hello", done.Task != nil)
}

// The revision of the feed is read before the change is requested, so that a task that
// ends immediately is not missed.
func TestWaitLooksAtTheFeedBeforeItAsks(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb)
	f := s.proxy(t)
	(&run{f: f}).do(t, "project", "scale", "hello", "web=2", "--wait")
	lines := strings.Split(f.requests(), "\n")
	if len(lines) != 4 || lines[0] != "GET /v1/events?limit=1" || !strings.HasPrefix(lines[1], "PUT ") || lines[3] != "GET /v1/events?project="+s.helloID()+"&since=7" {
		t.Errorf("asked\n%s", f.requests())
	}
}

func TestWaitGoesOnAfterAGapInTheFeed(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	var thawing sync.WaitGroup
	s := newHello(t, oneWeb)
	s.act(contract.Action{Action: "freeze"}) // so that the task is not over before the gap
	f := s.proxy(t)
	f.feed(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			feedTooOld(w, r)
			return
		}
		thawing.Go(func() { s.thaw() })
		s.ServeHTTP(w, r)
	})
	r := (&run{f: f, stdin: wideWeb}).do(t, "project", "update", "hello", "-m", "-", "--force", "--wait")
	thawing.Wait()
	r.expect(exitOK, calls.Load() == 2, strings.Contains(r.stderr, "completed"))
}

// The server leaves out the object of an event that would be too long. Here the proxy
// does.
func TestWaitReadsATaskThatTheFeedOnlyNames(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb)
	f := s.proxy(t)
	f.feed(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(rewriting{w, withoutObject}, r)
	})
	(&run{f: f}).do(t, "project", "scale", "hello", "web=2", "--wait").expect(exitOK, strings.Contains(f.requests(), "GET /v1/queue/"))
}

// withoutObject removes the object from an event.
func withoutObject(line []byte) []byte {
	text, ok := bytes.CutPrefix(line, []byte("data: "))
	var event map[string]any
	if !ok || json.Unmarshal(text, &event) != nil {
		return line
	}
	delete(event, "object")
	text, _ = json.Marshal(event)
	return append(append([]byte("data: "), text...), '\n')
}

func TestAnInterruptedWaitSaysThatTheTaskGoesOn(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := newTeamServer(t)
	f := s.proxy(t)
	s.whenTold(f, `"total":1`, cancel)
	r := (&run{f: f, ctx: ctx, stdin: slowWeb}).do(t, "project", "create", "hello", "-m", "-", "--wait")
	if r.code != exitError || !strings.Contains(r.stderr, "interrupted; the task continues") || !strings.Contains(r.stderr, "queue show "+s.lastTask()) {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
}

// On a terminal the bar grows, whatever events come in between.
func TestTheBarShowsHowFarAndHowLong(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	now := noon
	a := &app{env: Env{
		Stderr: &out, Terminal: func(any) bool { return true }, Size: func(any) (int, int) { return 90, 30 }, Getenv: func(string) string { return "" },
		Now: func() time.Time { now = now.Add(time.Second); return now },
	}.withDefaults()}
	show := a.progress()
	show.task(ptr(task(mariposa.TaskQueued, 0, 0)), noon)
	show.task(ptr(task(mariposa.TaskActive, 0, 100)), noon.Add(2*time.Second))
	quarter := task(mariposa.TaskActive, 25, 100)
	quarter.ETA = after(41 * time.Second)
	show.task(&quarter, noon.Add(11*time.Second))
	show.projectStatus(mariposa.StatusBlocked, "web: no node has room for it, and a very long story follows that no terminal can hold", noon.Add(12*time.Second))
	show.trouble("lost the server; retrying in 1s")
	show.projectStatus(mariposa.StatusConverging, "", noon.Add(20*time.Second)) // it progresses again, and the earlier reason is cleared
	show.task(ptr(task(mariposa.TaskActive, 99, 100)), noon.Add(21*time.Second))
	show.task(ptr(task(mariposa.TaskCompleted, 100, 100)), noon.Add(60*time.Second))
	show.end()
	show.end()
	golden(t, "wait-bar", visible(strings.ReplaceAll(out.String(), "\r", "\n\r")))
}

// faster lets bob update hello just before the next update arrives.
func (s *realServer) faster(f *proxy, bob *client.Client) {
	s.t.Helper()
	_, err := s.PutProjectUser(context.WithoutCancel(s.t.Context()), "hello", "bob", mariposa.RoleDeployer)
	must(s.t, err)
	first := sync.OnceFunc(func() {
		_, err := bob.UpdateManifest(context.Background(), "hello", []byte(bobsManifest), client.Update{Force: true, Message: "tune the database"})
		if err != nil {
			s.t.Error(err)
		}
		s.quiet()
	})
	f.on("PUT /v1/projects/hello/manifest", func(w http.ResponseWriter, r *http.Request) {
		first()
		s.ServeHTTP(w, r)
	})
}

// A refusal for another reason is shown unchanged. A real server refuses an update while
// it deletes the project, which takes too short a time for a test to meet.
func TestARefusedUpdateIsNotAlwaysOvertaken(t *testing.T) {
	t.Parallel()
	s := newHello(t, firstManifest, secondManifest)
	two, err := s.Client.Version(t.Context(), "hello", "2")
	must(t, err)
	f := s.proxy(t).on("PUT /v1/projects/hello/manifest", refuse(http.StatusConflict, mariposa.Conflict, "project hello is being deleted"))
	for _, previous := range []string{"2", two.Version, two.Version[:7]} {
		r := (&run{f: f, stdin: changedManifest}).do(t, "project", "update", "hello", "-m", "-", "--previous", previous)
		r.expect(exitError, r.stderr == "mariposa: project hello is being deleted\n")
	}
}

const (
	firstManifest   = "services:\n  web: {compute_type: dummy, scale: 1}\n"
	secondManifest  = "services:\n  web: {compute_type: dummy, scale: 2}\n"
	failingManifest = "services:\n  web: {compute_type: dummy, scale: 2, dummy: {fail_prop: \"yes\"}, update: {min_healthy: 0, on_failure: rollback}}\n"
	changedManifest = "services:\n  web: {compute_type: dummy, scale: 3}\n  db: {compute_type: dummy}\n"
	bobsManifest    = "services:\n  web: {compute_type: dummy, scale: 3}\n  db: {compute_type: dummy, scale: 2}\n"
)

func TestUpdateShowsWhatItChanges(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	bob := s.clientOf("bob")
	for _, c := range []struct {
		name, manifest, answer string
		file                   string // in place of the manifest that most submit
		args                   string
		tty, faster            bool
		put                    bool // something was submitted
	}{
		{name: "pipe", manifest: changedManifest},
		{name: "pipe-yes", manifest: changedManifest, args: "--yes"},
		{name: "pipe-previous", manifest: changedManifest, args: "--previous TWO", put: true},
		{name: "yes", answer: "y\n", tty: true, put: true},
		{name: "no", answer: "\n", tty: true},
		{name: "not-asked", args: "--yes", tty: true, put: true},
		{name: "same", file: secondManifest, tty: true, put: true},
		{name: "same-json", file: secondManifest, tty: true, args: "--json", put: true},
		{name: "same-again", file: failingManifest, tty: true, put: true},
		{name: "overtaken-previous", manifest: changedManifest, args: "--previous ONE", put: true},
		{name: "overtaken-by-itself", manifest: secondManifest, args: "--previous ONE", put: true},
		{name: "overtaken-org", manifest: changedManifest, args: "-o ann --previous ONE", put: true},
		{name: "overtaken-again", answer: "y\ny\n", tty: true, faster: true, put: true},
		{name: "overtaken-no", answer: "y\n\n", tty: true, faster: true, put: true},
		{name: "overtaken-previous-again", answer: "y\n", args: "--previous ONE", tty: true, put: true},
		{name: "overtaken-same", file: bobsManifest, answer: "y\n", tty: true, faster: true, put: true},
		{name: "overtaken-not-asked", args: "--yes", tty: true, faster: true, put: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			second := secondManifest
			if c.name == "same-again" {
				second = failingManifest
			}
			s.again(t, firstManifest, second)
			f := s.proxy(t)
			if c.faster {
				s.faster(f, bob)
			}
			r := &run{f: f, tty: c.tty, stdin: c.manifest + c.answer, home: t.TempDir()}
			file := "-"
			if c.manifest == "" {
				keep(t, r.home, "m.yaml", cmp.Or(c.file, changedManifest))
				file = r.home + "/m.yaml"
			}
			args := strings.Fields(strings.NewReplacer("ONE", s.version("1"), "TWO", s.version("2")).Replace(c.args))
			r.do(t, append([]string{"project", "update", "hello", "-m", file}, args...)...)
			r.golden("update-" + c.name)
			if put := strings.Contains(f.requests(), "PUT "); put != c.put {
				t.Errorf("submitted: %v", put)
			}
			if c.put && c.args == "" && !strings.Contains(f.requests(), "previous="+s.version("2")) {
				t.Errorf("not based on the version shown:\n%s", f.requests())
			}
		})
	}
}

// until is a writer that calls done once it has seen a text.
type until struct {
	seen strings.Builder
	text string
	done func()
}

func (u *until) Write(p []byte) (int, error) {
	n, err := u.seen.Write(p)
	if strings.Contains(u.String(), u.text) {
		u.done()
	}
	return n, err
}

func (u *until) String() string { return u.seen.String() }

func TestADeletedProjectSaysWhatItLeavesOnNodesOutOfReach(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, web string
		lost      []string
		says      string
	}{
		{"nothing", "2", nil, ""},
		{"one", "2", []string{"node2"}, "1 instance is left on unknown node node2 and will be removed when the node comes back\n"},
		{"more", "3", []string{"node1", "node2"}, "3 instances are left on unknown nodes node1, node2 and will be removed when the node comes back\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newHello(t, "services:\n  web: {compute_type: dummy, scale: "+c.web+", reschedule: {never: true}}\n")
			for _, node := range c.lost {
				_, err := s.ActOnNode(t.Context(), node, contract.NodeAction{Action: "lose"})
				must(t, err)
				s.awaitDocument("/v1/nodes/"+node, `"status": ?"unknown"`)
			}
			id, f := s.helloID(), s.proxy(t)
			r := (&run{f: f}).do(t, "project", "delete", "hello", "-f", "--yes", "--wait")
			r.expect(exitOK, strings.HasSuffix(r.stderr, "\n"+c.says), strings.Contains(f.requests(), "GET /v1/instances?project="+id))
		})
	}
}

// The reason of a task is shown once, and its progress only if it changed.
func TestProgressIsNotSaidTwice(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := &lines{a: &app{env: Env{Now: func() time.Time { return noon }}}, w: &out}
	for _, done := range []int{0, 0, 1, 1, 2} {
		step := task(mariposa.TaskActive, done, 2)
		l.task(&step, noon)
	}
	const want = "12:00:00 scale hello/web: 0 of 2 done (ann scaled web to 2)\n12:00:00 scale hello/web: 1 of 2 done\n12:00:00 scale hello/web: 2 of 2 done\n"
	if out.String() != want {
		t.Errorf("printed\n%swant\n%s", out.String(), want)
	}
}

func TestWhatTheReasonSaysIsNotSaidTwice(t *testing.T) {
	t.Parallel()
	for code, wanted := range map[mariposa.ReasonCode]string{
		mariposa.ReasonCounts:         "so it is",
		mariposa.ReasonOutdated:       "so it is; 2 unknown",
		mariposa.ReasonOutdatedValues: "so it is; 2 unknown",
		mariposa.ReasonNoNode:         "so it is; 2 unknown; 4 outdated",
		"":                            "so it is; 2 unknown; 4 outdated",
	} {
		if got := serviceNotes(contract.ServiceState{Reason: "so it is", ReasonCode: code, Outdated: 4, Unknown: 2}); got != wanted {
			t.Errorf("%s became %q", code, got)
		}
	}
	for _, c := range []struct {
		code mariposa.ReasonCode
		want string
	}{{mariposa.ReasonEndedBy, ": ended by task t2"}, {mariposa.ReasonThawed, ": ended by task t2 (ended by t2)"}} {
		if got := endReason(&contract.Task{Reason: "ended by task t2", ReasonCode: c.code, EndedBy: "t2"}); got != c.want {
			t.Errorf("%s became %q", c.code, got)
		}
	}
}

// While a version waits for a thaw, a command that waits for another task says so, as the
// state does.
func TestAWaitInAFrozenProjectNamesTheVersionThatWaits(t *testing.T) {
	t.Parallel()
	s := newHello(t, groupManifest)
	ctx := t.Context()
	_, err := s.Act(ctx, "hello", contract.Action{Action: "freeze"})
	must(t, err)
	s.awaitDocument("/v1/projects/hello", `"status": ?"frozen"`)
	both := strings.ReplaceAll(groupManifest, "compute_type: dummy", "compute_type: dummy, environment: {A: b}")
	_, err = s.UpdateManifest(ctx, "hello", []byte(both), client.Update{Force: true})
	must(t, err)
	r := (&run{f: s.proxy(t)}).do(t, "-j", "hello", "project", "scale", "web=4", "--wait")
	r.expect(exitOK, !strings.Contains(r.stderr, "nothing would change"))
	s.awaitDocument("/v1/projects/hello", `"status": ?"frozen"`) // web has converged
	r = (&run{f: s.proxy(t)}).do(t, "-j", "hello", "project", "show")
	r.expect(exitOK, strings.Contains(r.stdout, "backend is frozen: version 2 waits for the thaw"))
}

// The error about a freeze suggests a command that works as it is.
func TestTerminatingAFreezeSuggestsAThawThatWorks(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	ctx := t.Context()
	_, err := s.CreateProject(ctx, "hello", []byte(groupManifest), "")
	must(t, err)
	s.quiet()
	for _, c := range []struct {
		args     string
		services []string
		want     string
	}{
		{"queue terminate TASK --yes", nil, "end it with `mariposa -o ann -j hello project thaw`\n"},
		{"-j hello queue terminate TASK --yes", []string{"web"}, "end it with `mariposa -j hello project thaw --service web`\n"},
	} {
		freeze, err := s.Act(ctx, "hello", contract.Action{Action: "freeze", Services: c.services})
		must(t, err)
		s.awaitDocument("/v1/queue/"+*freeze.Task, `"state": ?"active"`)
		f := s.proxy(t)
		r := (&run{f: f}).do(t, strings.Fields(strings.ReplaceAll(c.args, "TASK", *freeze.Task))...)
		r.expect(exitError, strings.Contains(r.stderr, c.want))
		_, command, _ := strings.Cut(strings.TrimSuffix(strings.TrimSpace(r.stderr), "`"), "end it with `mariposa ")
		(&run{f: f}).do(t, append(strings.Fields(command), "--wait")...).expect(exitOK)
	}
}
