package cli

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func converged() contract.State {
	s := helloState()
	s.Revision = 20
	s.Projects[0].Status, s.Projects[0].Reason = mariposa.StatusConverged, ""
	s.Projects[0].Services[1] = contract.ServiceState{Name: "web", Goal: 2, Running: 2, Healthy: 2, Status: mariposa.StatusConverged}
	return s
}

func TestWatchWithoutATerminalTellsLineByLine(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f := world(t).stream(append(life(mariposa.TaskCompleted, ""), projectEvent(15, "converged", ""))...)
	out := &until{text: "hello is converged", done: cancel}
	r := (&run{f: f, ctx: ctx, out: out}).do(t, "state", "-w", "-j", "hello")
	if r.code != exitOK {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
	golden(t, "watch-pipe", out.String())
}

// The last screen, after all that happened has been drawn.
func TestWatchOnATerminalRedrawsAndCleansUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f := world(t)
	f.feed(func(w http.ResponseWriter, r *http.Request) {
		f.give("GET /v1/state", converged())
		writeEvents(w, r, append(life(mariposa.TaskCompleted, ""), projectEvent(15, "converged", ""))...)
		<-r.Context().Done()
	})
	out := &until{text: "hello is converged", done: cancel}
	r := (&run{f: f, ctx: ctx, out: out, tty: true}).do(t, "state", "-w")
	if r.code != exitOK {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
	got := r.tidy(out.String())
	if !strings.HasPrefix(got, "\x1b[?1049h\x1b[?25l") || strings.Count(got, "\x1b[?25h\x1b[?1049l") != 1 {
		t.Error("the terminal is not given back as it was")
	}
	screens := strings.Split(got, "\x1b[H")
	golden(t, "watch-screen", visible(regexp.MustCompile(`SERVER +`).ReplaceAllString(screens[len(screens)-1], "SERVER ")))
}

// Where the view is part of a server, ending it ends more than the view.
func TestWatchForOthersDoesNotSayWhatEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f := world(t)
	c, err := client.New(client.Options{URL: f.url, Token: secret})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	out := &until{text: "Ctrl-C to end", done: cancel}
	if err := Watch(ctx, c, "hello", out, true); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "Ctrl-C to end") || strings.Contains(out.String(), "nothing else") {
		t.Errorf("drew %q", out.String())
	}
}

func TestWatchShowsWhatNeedsALookWhenThereIsNoRoom(t *testing.T) {
	t.Parallel()
	s := contract.State{}
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		s.Projects = append(s.Projects, contract.ProjectState{Name: name, Status: mariposa.StatusConverged, Services: []contract.ServiceState{{Name: "web", Status: mariposa.StatusConverged}}})
	}
	s.Projects[5].Status, s.Projects[5].Reason = mariposa.StatusBlocked, strings.Repeat("no node has room ", 20)
	c, err := client.New(client.Options{URL: "http://server:1"})
	if err != nil {
		t.Fatal(err)
	}
	a := &app{env: Env{Now: func() time.Time { return noon }, Terminal: func(any) bool { return false }}.filled()}
	w := a.watcher(c, "", "")
	w.state, w.latest = &s, []string{"one", "two", "three", "four", "five"}
	for _, size := range [][2]int{{60, 14}, {20, 6}, {5, 2}, {1, 1}} {
		lines := w.picture(size[0], size[1], "lost it")
		if len(lines) > size[1] {
			t.Errorf("%d lines for a height of %d", len(lines), size[1])
		}
		for _, line := range lines {
			if n := len([]rune(line)); n > size[0] {
				t.Errorf("%d characters for a width of %d: %q", n, size[0], line)
			}
		}
	}
	golden(t, "watch-small", strings.Join(w.picture(60, 14, "lost it"), "\n")+"\n")
}

func TestWatchEndsWithItsProject(t *testing.T) {
	t.Parallel()
	for _, tty := range []bool{false, true} {
		f := world(t)
		f.feed(func(w http.ResponseWriter, r *http.Request) {
			f.on("GET /v1/state", refuse(mariposa.ResourceNotFound, "there is no such project"))
			writeEvents(w, r, projectEvent(8, "deleted", "nothing of it is left"))
			<-r.Context().Done()
		})
		out := &until{text: "\x00"}
		if r := (&run{f: f, tty: tty, out: out}).do(t, "state", "-w", "-j", "hello"); r.code != exitOK {
			t.Errorf("exit %d: %s", r.code, r.stderr)
		}
		if !strings.Contains(out.String(), "hello is deleted") && !strings.Contains(out.String(), "the project is gone") {
			t.Errorf("got %q", out.String())
		}
	}
}

func TestWatchSurvivesAGapInTheFeed(t *testing.T) {
	t.Parallel()
	for _, tty := range []bool{false, true} {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var calls atomic.Int64
		f := world(t)
		f.feed(func(w http.ResponseWriter, r *http.Request) {
			if calls.Add(1) == 1 {
				f.give("GET /v1/state", converged())
				refuse(mariposa.TooOld, "the feed begins at 20")(w, r)
				return
			}
			if r.Header.Get("Last-Event-ID") == "" {
				t.Errorf("went on at %s", r.Header.Get("Last-Event-ID"))
			}
			writeEvents(w, r, projectEvent(21, "held", "3 of 12"))
			<-r.Context().Done()
		})
		out := &until{text: "3 of 12", done: cancel}
		if r := (&run{f: f, ctx: ctx, out: out, tty: tty}).do(t, "state", "-w"); r.code != exitOK {
			t.Errorf("exit %d: %s", r.code, r.stderr)
		}
	}
}

func TestWatchOfNothingIsAnError(t *testing.T) {
	t.Parallel()
	f := world(t).on("GET /v1/state", refuse(mariposa.ResourceNotFound, "there is no project hallo"))
	if r := (&run{f: f}).do(t, "state", "-w", "-j", "hallo"); r.code != exitError || !strings.Contains(r.stderr, "project list") {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
}
