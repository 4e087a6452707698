package cli

import (
	"context"
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
	"mariposa/contract"
)

// Watch shows goal and reality of a project, or of all for an empty name, until
// the context ends, which is no error: on a terminal as a screen that redraws
// itself, elsewhere as a line per change.
func Watch(ctx context.Context, c *client.Client, project string, stdout io.Writer, isTTY bool) error {
	a := &app{env: Env{Stdout: stdout, Terminal: func(any) bool { return isTTY }}.filled()}
	w := a.watcher(c, project, "")
	w.footer = "Ctrl-C to end" // what ends with the view is the caller's affair
	return w.run(ctx)
}

// A watcher is one live view. An event is only a sign that something changed;
// what is shown is read anew, at most ten times a second.
type watcher struct {
	a                *app
	c                *client.Client
	project, service string
	tell             *narrator
	footer           string

	state   *contract.State
	gone    bool // the project watched is no more
	latest  []string
	trouble string
	took    time.Duration // how long the last look took
}

// latestEvents is how many events the screen keeps.
const latestEvents = 10

func (a *app) watcher(c *client.Client, project, service string) *watcher {
	return &watcher{
		a: a, c: c, project: project, service: service, tell: newNarrator(a.env.Now),
		footer: "Ctrl-C ends this view and nothing else",
	}
}

func (w *watcher) run(ctx context.Context) error {
	if err := w.look(ctx); err != nil {
		return quietly(ctx, err)
	}
	if w.project != "" && w.service == "" && len(w.state.Projects) == 1 {
		w.project = w.state.Projects[0].ID // the name may be another's before we are done
	}
	if w.a.env.Terminal(w.a.env.Stdout) && !w.a.global.json && w.a.env.Getenv("TERM") != "dumb" {
		return quietly(ctx, w.screen(ctx))
	}
	return quietly(ctx, w.lines(ctx))
}

// quietly makes an interruption a good end.
func quietly(ctx context.Context, err error) error {
	if interrupted(ctx, err) {
		return nil
	}
	return err
}

// look reads the state anew.
func (w *watcher) look(ctx context.Context) error {
	began := time.Now()
	s, err := w.c.State(ctx, w.project, w.service)
	w.took = time.Since(began)
	if w.state != nil && mariposa.CodeOf(err) == mariposa.ResourceNotFound {
		w.gone = true
		return nil
	}
	if err != nil {
		return err
	}
	w.gone = w.state != nil && w.project != "" && len(s.Projects) == 0
	w.state = s
	return nil
}

// lines tells each change in a line, first what is.
func (w *watcher) lines(ctx context.Context) error {
	for {
		if err := w.describe(); err != nil {
			return err
		}
		err := w.tellAll(ctx)
		if mariposa.CodeOf(err) != mariposa.TooOld {
			return err
		}
		// The feed no longer has our place: say what is now, and go on from there.
		if err := w.look(ctx); err != nil {
			return err
		}
	}
}

func (w *watcher) describe() error {
	if w.a.global.json {
		return w.a.printLine(w.state)
	}
	for _, p := range w.state.Projects {
		fmt.Fprintln(w.a.env.Stdout, plain(fmt.Sprintf("%s %s is %s%s", clockOf(w.a.env.Now, time.Time{}), p.Name, p.Status, bracketed(p.Reason))))
		for _, s := range p.Services {
			fmt.Fprintln(w.a.env.Stdout, plain(fmt.Sprintf("%s %s/%s is %s, %d of %d running%s", clockOf(w.a.env.Now, time.Time{}), p.Name, s.Name, s.Status, s.Running, s.Goal, bracketed(aside(s)))))
		}
	}
	return nil
}

func (w *watcher) tellAll(ctx context.Context) error {
	for e, err := range w.c.Stream(ctx, client.StreamOptions{Since: w.state.Revision, Project: w.project, Lost: w.a.lost, Found: w.a.found}) {
		if err != nil {
			return err
		}
		if w.service != "" && e.ServiceName != w.service {
			continue
		}
		if w.a.global.json {
			if err := w.look(ctx); err != nil {
				return err
			}
			err = w.a.printLine(w.state)
		} else if w.tell.fresh(e) {
			_, err = fmt.Fprintln(w.a.env.Stdout, w.tell.line(e))
		}
		if err != nil || w.ended(e) {
			return err
		}
	}
	return nil
}

// ended reports whether an event is the last of the project watched.
func (w *watcher) ended(e client.Event) bool {
	return w.gone || w.project != "" && e.Kind == "project.deleted" && e.Project == w.project
}

// news is what the stream brings to the screen.
type news struct {
	event *client.Event
	lost  string // the connection's trouble; empty: it is well
	err   error  // the stream's end
}

// screen draws until interrupted, on a screen of its own, so that what was there
// before comes back whatever happens.
func (w *watcher) screen(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	out := w.a.env.Stdout
	fmt.Fprint(out, "\x1b[?1049h\x1b[?25l")
	feed, done := make(chan news), make(chan struct{})
	defer func() {
		cancel()
		<-done
		fmt.Fprint(out, "\x1b[?25h\x1b[?1049l")
		w.farewell()
	}()
	go func() {
		defer close(done)
		w.pump(ctx, feed)
	}()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)

	w.remember(ctx)
	w.draw()
	var due <-chan time.Time // when to look and draw again
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case n := <-feed:
			if n.err != nil {
				return n.err
			}
			w.take(n)
			if due == nil {
				due = time.After(max(redraw, 2*w.took)) // a large state is read less often
			}
		case <-due:
			due = nil
			if err := w.look(ctx); err != nil && mariposa.CodeOf(err) != mariposa.Unavailable {
				return err
			}
			if w.draw(); w.gone {
				return nil
			}
		case <-resized:
			w.draw()
		}
	}
}

// pump hands the stream on, until the context ends or the server refuses.
func (w *watcher) pump(ctx context.Context, feed chan<- news) {
	send := func(n news) bool {
		select {
		case feed <- n:
			return true
		case <-ctx.Done():
			return false
		}
	}
	since := w.state.Revision
	o := client.StreamOptions{Project: w.project}
	o.Lost = func(err error, _ time.Duration) { send(news{lost: err.Error()}) }
	o.Found = func() { send(news{}) }
	for {
		o.Since = since
		var last error
		for e, err := range w.c.Stream(ctx, o) {
			if last = err; err == nil && !send(news{event: &e}) {
				return
			}
		}
		if mariposa.CodeOf(last) != mariposa.TooOld {
			send(news{err: last})
			return
		}
		// The screen reads the state anew on any news, so a gap does no harm.
		var err error
		if since, err = w.c.Revision(ctx); err != nil {
			send(news{err: err})
			return
		}
		send(news{})
	}
}

// remember begins with what happened last. It is a help, so it may fail.
func (w *watcher) remember(ctx context.Context) {
	page, err := w.c.LatestEvents(ctx, w.project, 3*latestEvents)
	if err != nil {
		return
	}
	for _, e := range page.Events {
		if e.Revision <= w.state.Revision { // the stream brings the others
			w.keep(e)
		}
	}
}

func (w *watcher) take(n news) {
	if w.trouble = n.lost; n.event != nil {
		w.keep(*n.event)
	}
}

// keep adds an event to the latest ones.
func (w *watcher) keep(e client.Event) {
	line := w.tell.line(e)
	if !w.tell.fresh(e) || w.service != "" && e.ServiceName != w.service {
		return
	}
	w.latest = append(w.latest, line)
	w.latest = slices.Delete(w.latest, 0, max(0, len(w.latest)-latestEvents))
}

// draw writes the whole screen at once, so that it does not flicker.
func (w *watcher) draw() {
	width, height := w.a.env.Size(w.a.env.Stdout)
	var b strings.Builder
	b.WriteString("\x1b[H")
	all := w.picture(width, height)
	for n, line := range all {
		b.WriteString(line + "\x1b[K")
		if n < len(all)-1 {
			b.WriteString("\r\n")
		}
	}
	b.WriteString("\x1b[J")
	_, _ = io.WriteString(w.a.env.Stdout, b.String()) // a terminal that is gone ends us by other means
}

// picture is the screen as lines: the state as far as there is room, then the
// latest events.
func (w *watcher) picture(width, height int) []string {
	p := w.a.paint(w.a.env.Stdout)
	head := cut("mariposa at "+w.c.URL()+"   "+clockOf(w.a.env.Now, time.Time{}), width)
	lines := []string{p.in(bold, head), ""}
	if w.trouble != "" {
		lines[1] = p.in(bad, cut(plain(w.trouble), width))
	}
	if len(w.state.Projects) == 0 {
		lines = append(lines, p.in(dim, cut("no projects yet", width)))
	} else {
		lines = append(lines, w.fitted(p, width, height-len(lines)-min(latestEvents, max(3, height/3))-2)...)
	}
	lines = append(lines, "")
	room := max(0, height-len(lines)-1)
	for _, line := range w.latest[max(0, len(w.latest)-room):] {
		lines = append(lines, cut(line, width))
	}
	if len(lines) < height {
		lines = append(lines, p.in(dim, cut(w.footer, width)))
	}
	return lines[:min(len(lines), max(height, 1))]
}

// fitted is the state in at most so many lines. Where not all has room, what is
// not as it should be goes first.
func (w *watcher) fitted(p paint, width, room int) []string {
	all := stateTable(w.state.Projects).lines(p, width)
	if len(all) <= max(room, 2) {
		return all
	}
	order := slices.Clone(w.state.Projects)
	slices.SortStableFunc(order, func(x, y contract.ProjectState) int { return rank(x) - rank(y) })
	all = stateTable(order).lines(p, width)
	keep := max(room-1, 2)
	return append(all[:keep:keep], p.in(dim, cut(fmt.Sprintf("… and %s: make the window higher, or choose a project with -j", many(len(all)-keep, "line more", "lines more")), width)))
}

func rank(p contract.ProjectState) int {
	if settled(p) {
		return 1
	}
	return 0
}

// farewell leaves the last state behind, where the screen was.
func (w *watcher) farewell() {
	if w.gone {
		fmt.Fprintln(w.a.env.Stdout, "the project is gone")
		return
	}
	if len(w.state.Projects) > 0 {
		w.a.printTable(stateTable(w.state.Projects))
	}
}
