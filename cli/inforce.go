package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
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
	newest, err := c.Version(ctx, done.ID, done.Version)
	if err != nil {
		return err
	}
	w := &inForce{a: a, c: c, project: done.ID, name: done.Name, service: service, newest: newest, said: map[string]string{}}
	for {
		over, err := w.look(ctx)
		if !over && err == nil {
			err = w.awaitNews(ctx)
		}
		switch {
		case interrupted(ctx, err):
			return withHint(errors.New("interrupted; the rollout continues"), "see `%s state`", a.commandPrefix(done.Name))
		case over || err != nil:
			return err
		}
	}
}

// inForce is the wait until a version is what runs.
type inForce struct {
	a                      *app
	c                      *client.Client
	project, name, service string
	newest                 *contract.Version
	inForce                string // the version with the same manifest that was in force at the last look

	revision int64     // of the last look
	held     bool      // people keep the rollout from going on
	least    int       // the fewest instances that were left to replace or start so far
	progress time.Time // when there were fewer than ever before
	said     map[string]string
}

// look reads the state, says what has changed, and reports whether there is nothing more to wait for.
func (w *inForce) look(ctx context.Context) (over bool, err error) {
	state, err := w.c.State(ctx, w.project, w.service)
	if err != nil {
		return false, err
	}
	if len(state.Projects) == 0 {
		return true, w.failed("the project was deleted")
	}
	p := &state.Projects[0]
	w.a.suggestIn(state.Projects)
	w.revision = state.Revision
	if same, err := w.hasManifest(ctx, p.Version); err != nil {
		return false, err
	} else if !same {
		return true, w.failed("another version is in force" + prefixed(": ", p.Reason))
	}
	if p.Goal != mariposa.GoalStarted {
		return true, nil
	}
	waits, left := 0, 0
	w.held = false
	for i := range p.Services {
		s := &p.Services[i]
		if s.Status == mariposa.StatusFailed {
			return true, w.failed(s.Name + prefixed(": ", s.Reason))
		}
		if !isPending(s) {
			continue
		}
		waits++
		left += s.Outdated + max(0, s.Goal-s.Running)
		w.held = w.held || s.Frozen || s.Paused
		if now := fmt.Sprintf("%s/%s is %s%s", p.Name, s.Name, s.Status, prefixed(": ", s.Reason)); w.said[s.Name] != now {
			w.a.note("%s", now)
			w.said[s.Name] = now
		}
	}
	if w.progress.IsZero() || w.held || left < w.least {
		w.least, w.progress = left, time.Now()
	}
	if waits == 0 && len(w.said) > 0 {
		w.a.note("%s: version %s is in force", w.name, versionOf(w.newest.Number, w.newest.Version))
		w.a.printHeld(ctx, w.c, w.project, nil)
	}
	return waits == 0, nil
}

// isPending reports whether the rollout of a service is to go on. Nothing of a held one is, nor of one
// that is frozen or paused while it matches its definition.
func isPending(s *contract.ServiceState) bool {
	switch s.Status {
	case mariposa.StatusConverged, mariposa.StatusStopped, mariposa.StatusHeld:
		return false
	case mariposa.StatusFrozen, mariposa.StatusPaused:
		return s.Outdated > 0 || s.Running != s.Goal
	}
	return true
}

// hasManifest reports whether a version has the manifest of the newest one.
func (w *inForce) hasManifest(ctx context.Context, version string) (bool, error) {
	if version == "" {
		return false, nil // it was never started
	}
	if version == w.newest.Version || version == w.inForce {
		return true, nil
	}
	v, err := w.c.Version(ctx, w.project, version)
	if err != nil || v.Manifest != w.newest.Manifest {
		return false, err
	}
	w.inForce = version
	return true, nil
}

func (w *inForce) failed(why string) error {
	return Exit(exitFailed, withHint(fmt.Errorf("version %s of %s is not in force: %s", versionOf(w.newest.Number, w.newest.Version), w.name, why), "see `%s state`", w.a.commandPrefix(w.name)))
}

// awaitNews waits for something that the last look did not see. Only what people hold back may take
// any time. Instances that fail again and again are not progress.
func (w *inForce) awaitNews(ctx context.Context) error {
	if !w.held {
		limited, cancel := context.WithTimeoutCause(ctx, w.a.env.Stall-time.Since(w.progress), errStalled)
		defer cancel()
		ctx = limited
	}
	for e, err := range w.c.Stream(ctx, client.StreamOptions{Since: w.revision, Project: w.project, Lost: w.a.printLost, Found: w.a.printFound}) {
		switch {
		case mariposa.CodeOf(err) == mariposa.TooOld:
			return nil
		case err != nil && !errors.Is(context.Cause(ctx), errStalled):
			return err
		case e.Revision > w.revision:
			return nil
		}
	}
	if errors.Is(context.Cause(ctx), errStalled) {
		return w.failed("no progress for " + roughDuration(w.a.env.Stall))
	}
	return context.Cause(ctx)
}
