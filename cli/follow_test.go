package cli

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	tea "charm.land/bubbletea/v2"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

const (
	slowWeb     = "services:\n  web: {compute_type: dummy, dummy: {wait_secs: 3600}}\n"
	wideWeb     = "services:\n  web: {compute_type: dummy, scale: 3, update: {min_healthy: 0}}\n"
	wideWebNext = "services:\n  web: {compute_type: dummy, scale: 3, environment: {V: \"2\"}, update: {min_healthy: 0}}\n"
	failingWeb  = "services:\n  web: {compute_type: dummy, dummy: {fail_prop: \"yes\"}, update: {min_healthy: 0, on_failure: rollback}}\n"
	oneWeb      = "services:\n  web: {compute_type: dummy, update: {min_healthy: 0}}\n"
)

// beside returns a function that calls do on a goroutine, which ends before the test does.
func (s *realServer) beside(do func()) func() {
	var all sync.WaitGroup
	s.t.Cleanup(all.Wait)
	return func() { all.Go(do) }
}

// whenFollowed calls do once somebody follows the feed.
func (s *realServer) whenFollowed(f *proxy, do func()) {
	start := s.beside(do)
	f.feed(func(w http.ResponseWriter, r *http.Request) {
		start()
		s.ServeHTTP(w, r)
	})
}

// whenTold calls do once an event with a text has been passed on.
func (s *realServer) whenTold(f *proxy, text string, do func()) {
	start := s.beside(do)
	f.feed(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(&listening{ResponseWriter: w, text: text, do: sync.OnceFunc(start)}, r)
	})
}

type listening struct {
	http.ResponseWriter
	text string
	do   func()
}

func (l *listening) Write(p []byte) (int, error) {
	n, err := l.ResponseWriter.Write(p)
	l.Flush()
	if strings.Contains(string(p), l.text) {
		l.do()
	}
	return n, err
}

func (l *listening) Flush() { l.ResponseWriter.(http.Flusher).Flush() }

// scaleTo scales web.
func (s *realServer) scaleTo(n string) {
	s.t.Helper()
	_, err := s.Scale(context.WithoutCancel(s.t.Context()), "hello", map[string]string{"web": n})
	must(s.t, err)
}

// slowHello makes a project whose web takes an hour to start, and returns the task.
func (s *realServer) slowHello(t *testing.T) string {
	t.Helper()
	s.again(t)
	done, err := s.CreateProject(t.Context(), "hello", []byte(slowWeb), "")
	must(t, err)
	s.awaitDocument("/v1/instances?project=hello", `"state": ?"provisioning"`)
	return *done.Task
}

// The frames of a progress bar before its last one, and the lines about a task before its
// end: which of them a command shows depends on how fast the server is.
var (
	earlierFrames = regexp.MustCompile(`(?:␍[^␍\n]*␛\[K)*(␍[^␍\n]*␛\[K)`)
	earlierLines  = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d .*(?:: queued \(.*|: \d+ of \d+ done|: failed \d+ times in a row.*)\n`)
)

// goldenOfEnd compares a run with its golden file, without the progress on the way.
func (r *run) goldenOfEnd(name string) *run {
	r.t.Helper()
	golden(r.t, name, earlierLines.ReplaceAllString(earlierFrames.ReplaceAllString(r.story(), "$1"), ""))
	return r
}

func TestWaitFollowsATaskToItsEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, args string
		tty        bool
		code       int
	}{
		{"completed", "project scale hello web=2 --wait", false, exitOK},
		{"completed-terminal", "project scale hello web=2 --wait", true, exitOK},
		{"failed", "project update hello -m FILE --force --wait", false, exitFailed},
		{"failed-terminal", "project update hello -m FILE --force --wait", true, exitFailed},
		{"freeze", "project freeze hello --wait", false, exitOK},
		{"freeze-terminal", "project freeze hello --wait", true, exitOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newTeamServer(t)
			s.again(t, oneWeb)
			r := &run{f: s.proxy(t), tty: c.tty, home: t.TempDir()}
			keep(t, r.home, "FILE", failingWeb)
			r.do(t, strings.Fields(strings.ReplaceAll(c.args, "FILE", r.home+"/FILE"))...)
			r.goldenOfEnd("wait-"+c.name).expect(c.code, strings.Contains(r.stdout, "task 0198"))
		})
	}
	t.Run("terminated", func(t *testing.T) {
		t.Parallel()
		s := newTeamServer(t)
		s.again(t)
		f := s.proxy(t)
		s.whenTold(f, `"total":1`, func() {
			s.awaitDocument("/v1/instances?project=hello", `"state": ?"provisioning"`)
			q, err := s.Queue(context.Background(), client.TaskFilter{Project: "hello"})
			if err == nil {
				_, err = s.TerminateTask(context.Background(), q.Tasks[0].ID)
			}
			if err != nil {
				t.Error(err)
			}
		})
		r := (&run{f: f, stdin: slowWeb}).do(t, "project", "create", "hello", "-m", "-", "--wait")
		r.goldenOfEnd("wait-terminated").expect(exitFailed)
	})
}

func TestWaitSaysHowToGoOnFromACanary(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.again(t, wideWeb)
	f := s.proxy(t)
	r := (&run{f: f, stdin: wideWebNext}).do(t, "-o", "ann", "project", "update", "hello", "-m", "-", "--force", "--canary", "1", "--wait")
	r.goldenOfEnd("wait-held").expect(exitOK, strings.Contains(f.requests(), "canary=1"))
}

func TestTerminatingAsksAPerson(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	for _, c := range []struct {
		name, answer string
		args         []string
		queued, ends bool
	}{
		{name: "queued", answer: "y\n", queued: true, ends: true},
		{name: "yes", answer: "y\n", ends: true},
		{name: "no", answer: "\n"},
		{name: "not-asked", args: []string{"--yes"}, ends: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var id string
			if c.queued {
				s.again(t, oneWeb)
				_, err := s.Act(t.Context(), "hello", contract.Action{Action: "freeze"})
				must(t, err)
				done, err := s.UpdateManifest(t.Context(), "hello", []byte(wideWeb), client.Update{Force: true})
				must(t, err)
				id = *done.Task
				s.awaitDocument("/v1/queue/"+id, `"waits_for": ?\["0`)
			} else {
				id = s.slowHello(t)
			}
			f := s.proxy(t)
			r := (&run{f: f, tty: true, stdin: c.answer}).do(t, append([]string{"queue", "terminate", s.nameOf(id)}, c.args...)...)
			code := exitOK
			if !c.ends {
				code = exitError
			}
			r.golden("terminate-"+c.name).expect(code, strings.Contains(f.requests(), "DELETE ") == c.ends)
		})
	}
}

// Ended instances are kept for inspection and do not clutter the list of running
// ones.
func TestWhatHasEndedIsListedOnRequest(t *testing.T) {
	t.Parallel()
	sc := script{files: map[string]string{"MANIFEST": oneWeb, "FILE": "compute_type: dummy\n"}, lines: []string{
		hello, "! -j hello instance create shell -m FILE", `~ /v1/instances/shell "state": ?"running"`, "! instance stop shell", `~ /v1/instances/shell "state": ?"stopped"`,
		"! instance crash hello/web.1", `~ /v1/instances?project=hello&service=web "state": ?"stopped".*"state": ?"running"|"state": ?"running".*"state": ?"stopped"`,
		"instance list", "instance list --all", "instance list --state stopped", "instance list --json", "! -j hello project scale web=0", "! instance rm shell", "~ /v1/instances?project=hello !shell", "instance list",
	}}
	golden(t, "instance-list-ended", sc.story(t, newTeamServer(t)))
}

func TestAQueueIsShownWithWhatIsLeft(t *testing.T) {
	t.Parallel()
	sc := script{stuck: true, files: map[string]string{"MANIFEST": oneWeb, "SLOW": slowWeb}, lines: []string{
		hello + " --wait", "! -j hello project scale web=2 --wait", "! project freeze hello --wait", "! project create slow -m SLOW", `~ /v1/instances?project=slow "state": ?"provisioning"`, "! project create slower -m SLOW", `~ /v1/instances?project=slower "state": ?"provisioning"`, "! queue terminate $task0 --yes",
		`~ /v1/queue?project=slower "task": ?"freeze".*"done": ?1`, "queue list --all --limit 4", "queue show $task2",
	}}
	golden(t, "queue-left", sc.story(t, newTeamServer(t)))
}

func TestWhatPeopleHoldBackIsShownWhateverTheStatus(t *testing.T) {
	t.Parallel()
	const manifest = `services:
  api: {compute_type: dummy, scale: 2, update: {min_healthy: 0}}
  db: {compute_type: dummy}
  job: {compute_type: dummy}
  new: {compute_type: dummy, scale: 3, update: {min_healthy: 0}}
`
	s := newTeamServer(t)
	sc := script{files: map[string]string{"MANIFEST": manifest, "NEXT": strings.Replace(manifest, "scale: 3", "scale: 3, environment: {V: 2}", 1)}, lines: []string{
		hello, "! project update hello -m NEXT --force --canary 1", "! project freeze hello --service db", "! project pause hello --service job", "! instance crash hello/db.1", "~ /v1/state would be replaced", "state",
	}}
	golden(t, "state-held", sc.story(t, s))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out := &until{text: "hello/new is", done: cancel}
	(&run{f: s.proxy(t), ctx: ctx, out: out}).do(t, "state", "-w").expect(exitOK)
	golden(t, "watch-held", out.String())
}

func TestEventsAreSentences(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.again(t, oneWeb)
	s.scaleTo("2")
	s.quiet()
	for _, c := range []struct {
		args  string
		lines int
	}{
		{"--limit 3", 3},
		{"--since 1 --limit 3", 3},
		{"--since 2020-01-01 --service web --limit 2", 2},
		{"--since 1 --limit 3 --json", 0},
	} {
		f := s.proxy(t)
		r := (&run{f: f}).do(t, append(strings.Fields("-j hello events"), strings.Fields(c.args)...)...)
		if r.expect(exitOK, strings.Count(f.requests(), "\n") < 5); c.lines > 0 && strings.Count(r.stdout, "\n") != c.lines {
			t.Errorf("%s prints\n%s", c.args, r.stdout)
		}
		if c.lines == 0 && strings.Count(r.stdout, `"kind"`) != 3 {
			t.Errorf("%s prints\n%s", c.args, r.stdout)
		}
	}
	(&run{f: s.proxy(t)}).do(t, "-j", "hello", "events", "--limit", "-1").expect(exitUsage)
	latest := (&run{f: s.proxy(t)}).do(t, "-j", "hello", "events").golden("events").stdout
	if since := (&run{f: s.proxy(t)}).do(t, "-j", "hello", "events", "--since", "1"); since.stdout != latest {
		t.Errorf("since a revision: %s", since.stdout)
	}
}

// Those who follow see what happens from then on, line by line.
func TestEventsFollowUntilInterrupted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, args, until string }{
		{"events-f", "-j hello events -f", " completed in"}, {"events-f--json", "-j hello events -f --json", "task.completed"}, {"watch-pipe", "state -w -j hello", "12:00:00 hello is converged"},
	} {
		s := newTeamServer(t)
		s.again(t, oneWeb)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		out := &until{text: c.until, done: cancel}
		f := s.proxy(t)
		s.whenFollowed(f, func() { s.scaleTo("2") })
		(&run{f: f, ctx: ctx, out: out}).do(t, strings.Fields(c.args)...).expect(exitOK)
		golden(t, c.name, aRevision.ReplaceAllString(upTo(out.String(), c.until), "${1}7"))
		s.quiet()
	}
}

// upTo cuts a text after the line that has a word: how much more is printed before a
// command ends is chance.
func upTo(text, word string) string {
	before, after, _ := strings.Cut(text, word)
	rest, _, _ := strings.Cut(after, "\n")
	return before + word + rest + "\n"
}

// The last screen, after all that happened has been drawn.
func TestLiveScreensShowStateAndEvents(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.again(t, oneWeb)
	for _, c := range []struct {
		name string
		set  func(a *app, c *client.Client) *screen
	}{{"watch-screen", watching(nil)}, {"top-screen", overlooking(overviewNow{})}} {
		f := s.proxy(t)
		view := shown(t, f, true, c.set)
		before, err := s.Revision(t.Context())
		must(t, err)
		s.scaleTo("2")
		s.quiet()
		s.atRest("hello", mariposa.StatusConverged)
		through, err := client.New(client.Options{URL: f.url, Token: secret})
		must(t, err)
		defer through.Close()
		news, err := through.Events(t.Context(), client.EventFilter{Project: "hello", Since: before})
		must(t, err)
		var msgs []tea.Msg
		for i := range news.Events {
			msgs = append(msgs, streamNews{event: &news.Events[i]})
		}
		got := view.tells(append(append(msgs, window(100, 30)), view.read())...)
		golden(t, c.name, visible(strings.ReplaceAll(got, f.url, "http://SERVER"))+"\n")
		s.scaleTo("1")
		s.quiet()
	}
}
