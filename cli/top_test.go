package cli

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// crowd is a server with several projects and tasks.
func crowd(t *testing.T) *fake {
	t.Helper()
	s := helloState()
	for _, name := range []string{"calm", "idle", "shop"} {
		s.Projects = append(s.Projects, contract.ProjectState{
			Name: name, Goal: mariposa.GoalStarted, Status: mariposa.StatusConverged, Services: []contract.ServiceState{{Name: "web", Goal: 3, Running: 3, Status: mariposa.StatusConverged}},
		})
	}
	s.Projects[2].Goal, s.Projects[2].Status, s.Projects[2].Services[0].Running = mariposa.GoalStopped, mariposa.StatusStopped, 0
	rolling := task(mariposa.TaskActive, 3, 12)
	rolling.Task, rolling.ETA = mariposa.TaskReprovision, after(11*time.Minute)
	waits := task(mariposa.TaskQueued, 0, 0)
	waits.Reason = "ann scaled web to 2; waits for task a1 (reprovision, active)"
	f := world(t).give("GET /v1/state", s).give("GET /v1/queue", contract.Tasks{Tasks: []contract.Task{frozen(0, 0), waits, rolling}})
	nodes := helloNodes()
	nodes[0].Reserved = mariposa.Resources{MilliCPU: 1980, Memory: 6 << 30}
	return f.give("GET /v1/nodes", contract.Nodes{Nodes: nodes})
}

func TestTopIsALiveScreen(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f := crowd(t)
	f.feed(func(w http.ResponseWriter, r *http.Request) {
		writeEvents(w, r, append(life(mariposa.TaskCompleted, ""), projectEvent(15, "converged", ""))...)
		<-r.Context().Done()
	})
	out := &until{text: "hello is converged", done: cancel}
	r := (&run{f: f, ctx: ctx, out: out, tty: true}).do(t, "top")
	if r.code != exitOK {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
	got := r.tidy(out.String())
	if !strings.HasPrefix(got, "\x1b[?1049h\x1b[?25l") || strings.Count(got, "\x1b[?25h\x1b[?1049l") != 1 {
		t.Errorf("the screen is not given back: %q", got)
	}
	screens := strings.Split(got, "\x1b[H")
	golden(t, "top-screen", visible(regexp.MustCompile(`SERVER +`).ReplaceAllString(screens[len(screens)-1], "SERVER ")))
}

func TestTopEndsAfterSoManyLooks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args  string
		tty   bool
		looks int
	}{{"top -n 2", true, 2}, {"top -n 3", false, 3}, {"top -n 3 --json", false, 3}, {"top", false, 1}, {"top -n 1", true, 1}} {
		f, looked := crowd(t), make(chan struct{}, 10)
		s := helloState()
		f.on("GET /v1/state", func(w http.ResponseWriter, _ *http.Request) {
			looked <- struct{}{}
			writeJSON(w, s)
		})
		f.feed(func(w http.ResponseWriter, r *http.Request) { // something new after each look
			for rev := int64(8); ; rev++ {
				select {
				case <-looked:
					writeEvents(w, r, projectEvent(rev, "converging", ""))
				case <-r.Context().Done():
					return
				}
			}
		})
		r := (&run{f: f, tty: c.tty}).do(t, strings.Fields(c.args)...)
		if n := strings.Count(f.requests(), "GET /v1/state"); r.code != exitOK || n != c.looks {
			t.Errorf("%s: exit %d after %d looks: %s", c.args, r.code, n, r.stderr)
		}
		if pages := strings.Count(r.stdout, "1 not at rest"); !c.tty && !strings.Contains(c.args, "json") && pages != c.looks {
			t.Errorf("%s: %d pages", c.args, pages)
		}
		if c.looks == 3 && strings.Contains(c.args, "json") && strings.Count(r.stdout, "\n") != 3 {
			t.Errorf("%s: printed %s", c.args, r.stdout)
		}
	}
}

// Who does not run the installation sees the rest.
func TestTopWithoutNodesForThoseWhoMayNotSeeThem(t *testing.T) {
	t.Parallel()
	f := crowd(t).on("GET /v1/nodes", refuse(mariposa.Forbidden, "only who runs the installation sees nodes"))
	r := (&run{f: f}).do(t, "top")
	if r.code != exitOK || strings.Contains(r.stdout, "NODE") || !strings.Contains(r.stdout, "reprovision hello/web") {
		t.Errorf("exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
	nothing := world(t).give("GET /v1/state", contract.State{}).give("GET /v1/queue", contract.Tasks{}).give("GET /v1/nodes", contract.Nodes{})
	if r := (&run{f: nothing}).do(t, "top"); r.code != exitOK || r.stdout != "0 projects, 0 of 0 running, 0 open tasks\n" || !strings.Contains(r.stderr, "project create") {
		t.Errorf("exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
	if r := (&run{f: crowd(t).on("GET /v1/nodes", refuse(mariposa.Throttled, "slow down"))}).do(t, "top"); r.code != exitError {
		t.Errorf("another refusal: exit %d", r.code)
	}
}

func TestTopOfOneProjectEndsWithIt(t *testing.T) {
	t.Parallel()
	f := world(t)
	f.feed(func(w http.ResponseWriter, r *http.Request) {
		f.on("GET /v1/state", refuse(mariposa.ResourceNotFound, "there is no such project"))
		writeEvents(w, r, projectEvent(8, "deleted", "nothing of it is left"))
		<-r.Context().Done()
	})
	out := &until{text: "\x00"}
	if r := (&run{f: f, tty: true, out: out}).do(t, "top", "-j", "hello"); r.code != exitOK || !strings.Contains(out.String(), "the project is gone") {
		t.Errorf("exit %d: %s%s", r.code, out.String(), r.stderr)
	}
	nobody := world(t).on("GET /v1/state", refuse(mariposa.ResourceNotFound, "there is no project hallo"))
	if r := (&run{f: nobody}).do(t, "top", "-j", "hallo"); r.code != exitError || !strings.Contains(r.stderr, "project list") {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
}

func TestTopFitsAnyWindow(t *testing.T) {
	t.Parallel()
	c, err := client.New(client.Options{URL: "http://server:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a := &app{env: Env{Now: func() time.Time { return noon }, Terminal: func(any) bool { return false }}.filled()}
	rapid.Check(t, func(t *rapid.T) {
		o := &overview{a: a, c: c, now: overviewNow{State: &contract.State{}}}
		for range rapid.IntRange(0, 40).Draw(t, "projects") {
			o.now.State.Projects = append(o.now.State.Projects, contract.ProjectState{Name: "shop", Status: mariposa.StatusBlocked, Reason: strings.Repeat("no node has room ", 9)})
		}
		for range rapid.IntRange(0, 40).Draw(t, "tasks") {
			o.now.Tasks = append(o.now.Tasks, task(mariposa.TaskActive, rapid.IntRange(0, 9).Draw(t, "done"), 5))
		}
		for range rapid.IntRange(0, 40).Draw(t, "nodes") {
			o.now.Nodes = append(o.now.Nodes, helloNodes()...)
		}
		for range rapid.IntRange(0, latestEvents).Draw(t, "events") {
			o.latest = append(o.latest, strings.Repeat("something happened ", 9))
		}
		width, height := rapid.IntRange(1, 200).Draw(t, "width"), rapid.IntRange(1, 80).Draw(t, "height")
		lines := o.picture(width, height, "lost the server")
		if len(lines) > height {
			t.Fatalf("%d lines for a height of %d", len(lines), height)
		}
		for _, line := range lines {
			if n := len([]rune(line)); n > width {
				t.Fatalf("%d characters for a width of %d: %q", n, width, line)
			}
		}
	})
}

func TestRoomIsSharedAmongThoseWhoWantIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		room := rapid.IntRange(-5, 100).Draw(t, "room")
		wants := rapid.SliceOfN(rapid.IntRange(0, 60), 1, 5).Draw(t, "wants")
		total, wanted := 0, 0
		for n, got := range shares(room, wants) {
			if got < min(wants[n], max(0, room)/len(wants)) || got > wants[n] {
				t.Fatalf("%d wants %d and gets %d", n, wants[n], got)
			}
			total, wanted = total+got, wanted+wants[n]
		}
		if total != min(wanted, max(0, room)) {
			t.Fatalf("%d of %d given to %v", total, room, wants)
		}
	})
}
