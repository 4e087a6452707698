package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
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

// A watcher is a live view of goal and reality.
type watcher struct {
	a                *app
	c                *client.Client
	project, service string
	chronicle
	footer string

	state *contract.State
	gone  bool // the project watched is no more
}

func (a *app) watcher(c *client.Client, project, service string) *watcher {
	return &watcher{
		a: a, c: c, project: project, service: service, chronicle: chronicle{tell: newNarrator(a.env.Now), service: service},
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
	if w.a.hasScreen() {
		s := &screen{a: w.a, c: w.c, project: w.project, pace: redraw, view: w}
		return quietly(ctx, s.run(ctx))
	}
	return quietly(ctx, w.tellLines(ctx))
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
	s, err := w.c.State(ctx, w.project, w.service)
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

func (w *watcher) asOf() int64 { return w.state.Revision }

func (w *watcher) over() bool { return w.gone }

// tellLines tells each change in a line, first what is.
func (w *watcher) tellLines(ctx context.Context) error {
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
		fmt.Fprintln(w.a.env.Stdout, plain(fmt.Sprintf("%s %s is %s%s", clockOf(w.a.env.Now, time.Time{}), p.Name, p.Status, bracketed(wholly(p)))))
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

// picture is the state as far as there is room, then the latest events.
func (w *watcher) picture(width, height int, trouble string) []string {
	p := w.a.paint(w.a.env.Stdout)
	lines := w.a.headline(p, w.c, trouble, width)
	if len(w.state.Projects) == 0 {
		lines = append(lines, p.in(dim, cut("no projects yet", width)))
	} else {
		lines = append(lines, w.fitted(p, width, height-len(lines)-min(latestEvents, max(3, height/3))-2)...)
	}
	lines = append(lines, "")
	lines = append(lines, w.lines(width, height-len(lines)-1)...)
	if len(lines) < height {
		lines = append(lines, p.in(dim, cut(w.footer, width)))
	}
	return lines[:min(len(lines), max(height, 1))]
}

// headline says where we look and when, and below it what is wrong with the
// connection.
func (a *app) headline(p paint, c *client.Client, trouble string, width int) []string {
	head := "mariposa at " + c.URL() + "   " + clockOf(a.env.Now, time.Time{})
	return []string{p.in(bold, cut(head, width)), p.in(bad, cut(plain(trouble), width))}
}

// fitted is the state in at most so many lines. Where not all has room, what is
// not as it should be goes first.
func (w *watcher) fitted(p paint, width, room int) []string {
	all := stateTable(w.state.Projects).lines(p, width)
	if len(all) <= max(room, 2) {
		return all
	}
	all = stateTable(troubledFirst(w.state.Projects)).lines(p, width)
	keep := max(room-1, 2)
	return append(all[:keep:keep], p.in(dim, cut(fmt.Sprintf("… and %s: make the window higher, or choose a project with -j", many(len(all)-keep, "line more", "lines more")), width)))
}

// troubledFirst puts what needs a look before the rest.
func troubledFirst(projects []contract.ProjectState) []contract.ProjectState {
	order := slices.Clone(projects)
	slices.SortStableFunc(order, func(x, y contract.ProjectState) int { return rank(x) - rank(y) })
	return order
}

func rank(p contract.ProjectState) int {
	if settled(p) {
		return 1
	}
	return 0
}

// page leaves the last state behind, where the screen was.
func (w *watcher) page() error {
	switch {
	case w.gone:
		_, err := fmt.Fprintln(w.a.env.Stdout, "the project is gone")
		return err
	case len(w.state.Projects) > 0:
		w.a.printTable(stateTable(w.state.Projects))
	}
	return nil
}
