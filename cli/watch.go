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

// Watch shows the desired and actual state of a project, or of all projects if the name
// is empty, until the context ends, which is not an error. On a terminal it redraws a
// screen, elsewhere it prints a line per change. note is shown above.
func Watch(ctx context.Context, c *client.Client, project, note string, stdout io.Writer, isTTY bool) error {
	a := &app{env: Env{Stdout: stdout, Terminal: func(stream any) bool {
		return stream == any(stdout) && isTTY || stream != any(stdout) && isTerminal(stream)
	}}.withDefaults()}
	w := a.watcher(c, project, "")
	w.inside, w.note = true, note
	return w.run(ctx)
}

// A watcher is a live view of desired and actual state.
type watcher struct {
	a                *app
	c                *client.Client
	project, service string
	inside           bool   // part of a server
	note             string // shown above the state

	state *contract.State
	gone  bool // the watched project no longer exists
}

func (a *app) watcher(c *client.Client, project, service string) *watcher {
	return &watcher{a: a, c: c, project: project, service: service}
}

func (w *watcher) run(ctx context.Context) error {
	if err := readNow(ctx, w); err != nil {
		return ignoreInterrupt(ctx, err)
	}
	if w.project != "" && w.service == "" && len(w.state.Projects) == 1 {
		w.project = w.state.Projects[0].ID // the name may be reused meanwhile
	}
	if w.a.hasScreen() {
		s := &screen{a: w.a, c: w.c, project: w.project, service: w.service, pace: redraw, inside: w.inside, view: w}
		return ignoreInterrupt(ctx, s.run(ctx))
	}
	return ignoreInterrupt(ctx, w.printLines(ctx))
}

// ignoreInterrupt turns an interrupt into success.
func ignoreInterrupt(ctx context.Context, err error) error {
	if interrupted(ctx, err) {
		return nil
	}
	return err
}

// read reads the state again.
func (w *watcher) read(ctx context.Context) (show func(), err error) {
	s, err := w.c.State(ctx, w.project, w.service)
	if w.state != nil && mariposa.CodeOf(err) == mariposa.ResourceNotFound {
		return func() { w.gone = true }, nil
	}
	if err == nil && !w.a.global.json {
		w.a.suggestIn(s.Projects)
	}
	return func() {
		w.gone = w.state != nil && w.project != "" && len(s.Projects) == 0
		w.state = s
	}, err
}

func (w *watcher) asOf() int64 { return w.state.Revision }

func (w *watcher) over() bool { return w.gone }

// printLines prints the current state, then a line per change.
func (w *watcher) printLines(ctx context.Context) error {
	show := w.a.newNarrator()
	for {
		if err := w.describe(); err != nil {
			return err
		}
		err := w.followLines(ctx, show)
		if mariposa.CodeOf(err) != mariposa.TooOld {
			return err
		}
		// The feed no longer contains our revision: print the current state and continue
		// from there.
		if err := readNow(ctx, w); err != nil {
			return err
		}
	}
}

func (w *watcher) describe() error {
	if w.a.global.json {
		return w.a.printLine(w.state)
	}
	for _, p := range w.state.Projects {
		fmt.Fprintln(w.a.env.Stdout, plain(fmt.Sprintf("%s %s is %s%s", clockOf(w.a.env.Now, time.Time{}), p.Name, p.Status, bracketed(projectReason(p)))))
		for _, s := range p.Services {
			fmt.Fprintln(w.a.env.Stdout, plain(fmt.Sprintf("%s %s/%s is %s, %d of %d running%s", clockOf(w.a.env.Now, time.Time{}), p.Name, s.Name, s.Status, s.Running, s.Goal, bracketed(serviceNotes(s)))))
		}
	}
	return nil
}

func (w *watcher) followLines(ctx context.Context, show *narrator) error {
	for e, err := range w.c.Stream(ctx, client.StreamOptions{Since: w.state.Revision, Project: w.project, Lost: w.a.printLost, Found: w.a.printFound}) {
		if err != nil {
			return err
		}
		if w.service != "" && e.ServiceName != w.service {
			continue
		}
		if w.a.global.json {
			if err := readNow(ctx, w); err != nil {
				return err
			}
			err = w.a.printLine(w.state)
		} else if line, news := show.line(e); news && e.Kind != "task.progress" {
			_, err = fmt.Fprintln(w.a.env.Stdout, line)
		}
		if err != nil || w.ended(e) {
			return err
		}
	}
	return nil
}

// ended reports whether an event is the last one of the watched project.
func (w *watcher) ended(e client.Event) bool {
	return w.gone || w.project != "" && e.Kind == "project.deleted" && e.Project == w.project
}

func (w *watcher) summary() string {
	if len(w.state.Projects) == 0 {
		return "no projects yet"
	}
	return w.note
}

// sections returns the state. In a small window, projects that need attention come first.
func (w *watcher) sections() []section {
	if len(w.state.Projects) == 0 {
		return nil
	}
	return []section{{stateTable(w.state.Projects), "lines", func() *table { return stateTable(sortByTrouble(w.state.Projects)) }}}
}

// sortByTrouble puts projects that need attention first.
func sortByTrouble(projects []contract.ProjectState) []contract.ProjectState {
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

// page prints the last state after the screen is closed.
func (w *watcher) page() error {
	switch {
	case w.gone:
		_, err := fmt.Fprintln(w.a.env.Stdout, "the project was deleted")
		return err
	case len(w.state.Projects) > 0:
		w.a.printTable(stateTable(w.state.Projects))
	}
	return nil
}
