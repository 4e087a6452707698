package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
	"mariposa/manifest"
)

var errStalled = errors.New("no progress")

// changeManifest submits a manifest, or one service of it. If that was submitted before, any task may
// roll it out, or none: then the command waits for the state instead of for a task.
func (a *app) changeManifest(cmd *cobra.Command, wait bool, service string, ask func(c *client.Client) (*contract.Changed, error)) error {
	var done *contract.Changed
	var c *client.Client
	err := a.change(cmd, wait, func(to *client.Client) (*contract.Changed, error) {
		var err error
		c = to
		done, err = ask(c)
		return done, err
	})
	if err != nil || !wait || done == nil || done.Task != nil && !done.Joined {
		return err
	}
	return a.awaitInForce(cmd.Context(), c, done, service)
}

// awaitInForce waits until the newest version of a project, or its definition of a service, is what
// runs.
func (a *app) awaitInForce(ctx context.Context, c *client.Client, done *contract.Changed, service string) error {
	newest, err := c.Version(ctx, done.ID, fmt.Sprint(done.Number))
	if err != nil {
		return err
	}
	w := &inForce{a: a, c: c, project: done.ID, name: done.Name, service: service, newest: newest, said: map[string]string{}, alike: map[string]bool{}, progress: time.Now()}
	for {
		over, err := w.look(ctx)
		if !over && err == nil {
			err = w.awaitNews(ctx)
		}
		var end exited
		switch {
		case interrupted(ctx, err):
			return withHint(errors.New("interrupted; the rollout continues"), "see `%s state`", a.commandPrefix(done.Name))
		case over || errors.As(err, &end):
			return err
		case mariposa.CodeOf(err) == mariposa.ResourceNotFound:
			return w.failed("it was deleted")
		case err != nil:
			if err = w.pause(ctx, err); err != nil {
				return err
			}
		}
	}
}

// inForce is the wait until a version is what runs.
type inForce struct {
	a                      *app
	c                      *client.Client
	project, name, service string
	newest                 *contract.Version

	looked   bool
	revision int64     // of the last look
	seen     string    // what was left to do at the last look
	progress time.Time // when that last changed
	said     map[string]string
	alike    map[string]bool // whether versions define services, or all of them, like the newest one
}

// look reads the state, says what has changed, and reports whether there is nothing more to wait for.
func (w *inForce) look(ctx context.Context) (over bool, err error) {
	state, err := w.c.State(ctx, w.project, w.service)
	if err != nil {
		return false, err
	}
	if len(state.Projects) == 0 {
		return true, w.failed("it was deleted")
	}
	p := &state.Projects[0]
	w.a.suggestIn(state.Projects)
	first := !w.looked
	w.looked, w.revision = true, state.Revision
	switch same, completed, err := w.compare(ctx, p.Version, w.service); {
	case err != nil:
		return false, err
	case !same:
		return true, w.failed("another version is in force" + prefixed(": ", p.Reason))
	case p.Goal == mariposa.GoalStopped && first && p.ReasonCode != mariposa.ReasonNoFallback:
		return true, nil
	case p.Goal != mariposa.GoalStarted:
		return true, w.failed("the project is " + string(p.Goal) + prefixed(": ", p.Reason))
	case completed: // what is wrong now is not its rollout
		w.conclude(ctx, false)
		return true, nil
	}
	left, held := "", false
	for i := range p.Services {
		s := &p.Services[i]
		if s.Status == mariposa.StatusFailed {
			return true, w.failed(s.Name + prefixed(": ", s.Reason))
		}
		if same, _, err := w.compare(ctx, s.Version, s.Name); err != nil {
			return false, err
		} else if !same && s.Goal > 0 {
			return true, w.failed(s.Name + " runs another version" + prefixed(": ", s.Reason))
		}
		held = held || s.Status == mariposa.StatusHeld
		if !isPending(s) {
			continue
		}
		left += fmt.Sprintln(s.Name, s.Status, s.Goal, s.Running, s.Healthy, s.Starting, s.Stopping, s.Outdated)
		if now := fmt.Sprintf("%s/%s is %s%s", p.Name, s.Name, s.Status, prefixed(": ", s.Reason)); w.said[s.Name] != now {
			w.a.note("%s", now)
			w.said[s.Name] = now
		}
	}
	if left != w.seen {
		w.seen, w.progress = left, time.Now()
	}
	if left == "" {
		w.conclude(ctx, held)
	}
	return left == "", nil
}

// conclude says how a wait ended, unless there was none.
func (w *inForce) conclude(ctx context.Context, held bool) {
	if len(w.said) == 0 {
		return
	}
	if !held {
		w.a.note("%s: version %s is in force", w.name, versionOf(w.newest.Number, w.newest.Version))
	}
	w.a.printHeld(ctx, w.c, w.project, nil)
}

// isPending reports whether the rollout of a service is to go on. Nothing of a held one is, nor of one
// that is frozen or paused while it matches its definition.
func isPending(s *contract.ServiceState) bool {
	switch s.Status {
	case mariposa.StatusConverged, mariposa.StatusStopped, mariposa.StatusHeld:
		return false
	case mariposa.StatusFrozen, mariposa.StatusPaused:
		return s.Outdated > 0
	}
	return true
}

// compare reports whether a version has the manifest of the newest one, or defines a service alike,
// and whether it was fully rolled out once.
func (w *inForce) compare(ctx context.Context, version, service string) (same, completed bool, err error) {
	if version == "" {
		return false, false, nil // it was never started
	}
	key := version + " " + service
	if same, known := w.alike[key]; known {
		return same, false, nil
	}
	v, err := w.c.Version(ctx, w.project, version)
	if err != nil {
		return false, false, err
	}
	if same = v.Manifest == w.newest.Manifest; !same && service != "" {
		one, is := manifest.ServiceText([]byte(v.Manifest), service)
		other, was := manifest.ServiceText([]byte(w.newest.Manifest), service)
		same = is == was && bytes.Equal(one, other)
	}
	if !v.Completed { // otherwise there is nothing more to ask
		w.alike[key] = same
	}
	return same, v.Completed, nil
}

func (w *inForce) failed(why string) error {
	return Exit(exitFailed, withHint(fmt.Errorf("version %s of %s is not in force: %s", versionOf(w.newest.Number, w.newest.Version), w.name, why), "see `%s state`", w.a.commandPrefix(w.name)))
}

// stalls returns a context that ends if nothing changes for too long.
func (w *inForce) stalls(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, w.a.env.Stall-time.Since(w.progress), errStalled)
}

// awaitNews waits for something that the last look did not see.
func (w *inForce) awaitNews(ctx context.Context) error {
	ctx, cancel := w.stalls(ctx)
	defer cancel()
	for e, err := range w.c.Stream(ctx, client.StreamOptions{Since: w.revision, Project: w.project, Lost: w.a.printLost, Found: w.a.printFound}) {
		switch {
		case mariposa.CodeOf(err) == mariposa.TooOld:
			return nil
		case err != nil && !errors.Is(context.Cause(ctx), errStalled):
			return err
		case err == nil && e.Revision > w.revision:
			return nil
		}
	}
	if errors.Is(context.Cause(ctx), errStalled) {
		return w.failed("no progress for " + roughDuration(w.a.env.Stall))
	}
	return context.Cause(ctx)
}

// pause waits before a server that did not answer is asked again.
func (w *inForce) pause(ctx context.Context, why error) error {
	ctx, cancel := w.stalls(ctx)
	defer cancel()
	select {
	case <-ctx.Done():
		return withHint(fmt.Errorf("cannot follow the rollout any more, but it continues: %w", why), "see `%s state`", w.a.commandPrefix(w.name))
	case <-time.After(min(time.Second, w.a.env.Quiet)):
		return nil
	}
}
