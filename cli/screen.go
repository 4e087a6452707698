package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"mariposa"
	"mariposa/client"
)

// A view is what a screen shows.
type view interface {
	look(ctx context.Context) error // reads what is shown anew
	asOf() int64                    // the revision of the last look
	hear(e client.Event)            // an event, in order
	over() bool                     // what is shown is no more
	// picture is all of it as lines, none wider and no more than there is room
	// for. Trouble is the connection's.
	picture(width, height int, trouble string) []string
	// page prints the last look whole: where the screen was, or where there is none.
	page() error
}

// A screen shows a view live. An event is only a sign that something changed; what
// is shown is read anew, so often at most.
type screen struct {
	a       *app
	c       *client.Client
	project string // whose events are of interest; empty: everybody's
	pace    time.Duration
	ticks   bool // time alone changes the picture
	paper   bool // no terminal: a page per look
	looks   int  // end after so many; 0: when interrupted
	view    view

	trouble string
	took    time.Duration // how long the last look took
}

// hasScreen reports whether the answer goes to a terminal that can be drawn on.
func (a *app) hasScreen() bool {
	return a.env.Terminal(a.env.Stdout) && !a.global.json && a.env.Getenv("TERM") != "dumb"
}

// news is what the stream brings to the screen.
type news struct {
	event *client.Event
	lost  string // the connection's trouble; empty: it is well
	err   error  // the stream's end
}

// run draws until interrupted, on a screen of its own, so that what was there
// before comes back whatever happens. The view has been looked at once.
func (s *screen) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	out := s.a.env.Stdout
	feed, done := make(chan news), make(chan struct{})
	defer func() {
		cancel()
		<-done
		if !s.paper {
			fmt.Fprint(out, "\x1b[?25h\x1b[?1049l")
			err = errors.Join(err, s.view.page())
		}
	}()
	if !s.paper {
		fmt.Fprint(out, "\x1b[?1049h\x1b[?25l")
	}
	go func() {
		defer close(done)
		s.pump(ctx, feed)
	}()
	s.remember(ctx)
	return s.loop(ctx, feed)
}

func (s *screen) loop(ctx context.Context, feed <-chan news) error {
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()

	if err := s.draw(); err != nil {
		return err
	}
	var due <-chan time.Time // when to look and draw again
	for looked := 1; s.looks == 0 || looked < s.looks; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case n := <-feed:
			if n.err != nil {
				return n.err
			}
			s.take(n)
			if due == nil {
				due = time.After(max(s.pace, 2*s.took)) // what takes long to read is read less often
			}
		case <-due:
			due = nil
			looked++
			if err := s.look(ctx); err != nil && mariposa.CodeOf(err) != mariposa.Unavailable {
				return err
			}
			if err := s.draw(); err != nil || s.view.over() {
				return err
			}
		case <-resized:
			s.drawAgain()
		case <-tick.C:
			if s.ticks {
				s.drawAgain()
			}
		}
	}
	return nil
}

func (s *screen) look(ctx context.Context) error {
	began := time.Now()
	err := s.view.look(ctx)
	s.took = time.Since(began)
	return err
}

// pump hands the stream on, until the context ends or the server refuses.
func (s *screen) pump(ctx context.Context, feed chan<- news) {
	send := func(n news) bool {
		select {
		case feed <- n:
			return true
		case <-ctx.Done():
			return false
		}
	}
	since := s.view.asOf()
	o := client.StreamOptions{Project: s.project}
	o.Lost = func(err error, _ time.Duration) { send(news{lost: err.Error()}) }
	o.Found = func() { send(news{}) }
	for {
		o.Since = since
		var last error
		for e, err := range s.c.Stream(ctx, o) {
			if last = err; err == nil && !send(news{event: &e}) {
				return
			}
		}
		if mariposa.CodeOf(last) != mariposa.TooOld {
			send(news{err: last})
			return
		}
		// The screen reads everything anew on any news, so a gap does no harm.
		var err error
		if since, err = s.c.Revision(ctx); err != nil {
			send(news{err: err})
			return
		}
		send(news{})
	}
}

// remember begins with what happened last. It is a help, so it may fail.
func (s *screen) remember(ctx context.Context) {
	page, err := s.c.LatestEvents(ctx, s.project, 3*latestEvents)
	if err != nil {
		return
	}
	for _, e := range page.Events {
		if e.Revision <= s.view.asOf() { // the stream brings the others
			s.view.hear(e)
		}
	}
}

func (s *screen) take(n news) {
	if s.trouble = n.lost; n.event != nil {
		s.view.hear(*n.event)
	}
}

// draw shows the last look.
func (s *screen) draw() error {
	if s.paper {
		return s.view.page()
	}
	s.drawAgain()
	return nil
}

// drawAgain writes the whole screen at once, so that it does not flicker. What is on
// paper stays as it is.
func (s *screen) drawAgain() {
	if s.paper {
		return
	}
	width, height := s.a.env.Size(s.a.env.Stdout)
	var b strings.Builder
	b.WriteString("\x1b[H")
	all := s.view.picture(width, height, s.trouble)
	for n, line := range all {
		b.WriteString(line + "\x1b[K")
		if n < len(all)-1 {
			b.WriteString("\r\n")
		}
	}
	b.WriteString("\x1b[J")
	_, _ = io.WriteString(s.a.env.Stdout, b.String()) // a terminal that is gone ends us by other means
}

// latestEvents is how many events a screen keeps.
const latestEvents = 10

// A chronicle keeps the latest events as lines.
type chronicle struct {
	tell    *narrator
	service string // only of this one; empty: all
	latest  []string
}

// hear adds an event to the latest ones.
func (h *chronicle) hear(e client.Event) {
	line := h.tell.line(e)
	if !h.tell.fresh(e) || h.service != "" && e.ServiceName != h.service {
		return
	}
	h.latest = append(h.latest, line)
	h.latest = slices.Delete(h.latest, 0, max(0, len(h.latest)-latestEvents))
}

// lines are the newest that there is room for.
func (h *chronicle) lines(width, room int) []string {
	var all []string
	for _, line := range h.latest[max(0, len(h.latest)-max(0, room)):] {
		all = append(all, cut(line, width))
	}
	return all
}
