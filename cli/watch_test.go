package cli

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// Where the view is part of a server, ending it ends more than the view.
func TestWatchForOthersDoesNotSayWhatEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f := newHello(t, oneWeb).proxy(t)
	c, err := client.New(client.Options{URL: f.url, Token: secret})
	must(t, err)
	defer c.Close()
	out := &until{text: "Ctrl-C to stop", done: cancel}
	if err := Watch(ctx, c, "hello", "", out, true); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "Ctrl-C to stop") || strings.Contains(out.String(), "only this view") {
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
	w := shown(t, nil, false, watching(&s))
	w.latest = []string{"one", "two", "three", "four", "five"}
	golden(t, "watch-small", w.tells(streamNews{lost: "lost it"}, window(60, 14))+"\n")
}

func TestLiveViewsEndWithTheirProject(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	for _, c := range []struct {
		args, says string
		tty        bool
	}{{"state -w -j hello", "hello was deleted", false}, {"state -w -j hello", "the project was deleted", true}, {"top -j hello", "the project was deleted", true}} {
		s.again(t, oneWeb)
		f := s.proxy(t)
		s.whenFollowed(f, func() {
			if _, err := s.DeleteProject(context.Background(), "hello", true); err != nil {
				t.Error(err)
			}
		})
		out := &until{text: "\x00"}
		(&run{f: f, tty: c.tty, out: out}).do(t, strings.Fields(c.args)...).expect(exitOK, strings.Contains(out.String(), c.says))
	}
}

func TestWatchSurvivesAGapInTheFeed(t *testing.T) {
	t.Parallel()
	s := newHello(t, oneWeb)
	for n, tty := range []bool{false, true} {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var calls atomic.Int64
		last := strconv.Itoa(n + 4) // each round needs another text to wait for
		var scaling sync.WaitGroup
		f := s.proxy(t)
		f.feed(func(w http.ResponseWriter, r *http.Request) {
			if calls.Add(1) == 1 {
				s.scaleTo(strconv.Itoa(n + 2))
				s.quiet()
				feedTooOld(w, r)
				return
			}
			if r.Header.Get("Last-Event-ID") == "" {
				t.Errorf("went on at %s", r.Header.Get("Last-Event-ID"))
			}
			if calls.Load() == 2 {
				scaling.Go(func() { s.scaleTo(last) })
			}
			s.ServeHTTP(w, r)
		})
		out := &until{text: "ann scaled web to " + last, done: cancel}
		(&run{f: f, ctx: ctx, out: out, tty: tty}).do(t, "state", "-w").expect(exitOK)
		scaling.Wait()
		s.quiet()
	}
}

func TestLiveViewsOfNothingAreErrors(t *testing.T) {
	t.Parallel()
	f := newTeamServer(t).proxy(t)
	for _, args := range []string{"state -w -j hallo", "top -j hallo"} {
		r := (&run{f: f}).do(t, strings.Fields(args)...)
		r.expect(exitError, strings.Contains(r.stderr, "project list"))
	}
}
