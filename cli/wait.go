package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// wait follows a task to its end, using only the feed. It reads the feed from a revision
// before the task was created, so that it sees all events of the task.
func (a *app) wait(ctx context.Context, c *client.Client, id string, since int64) error {
	task, err := c.Task(ctx, id)
	if err != nil {
		return err
	}
	f := &follower{a: a, c: c, id: id, project: task.Project, name: task.ProjectName, show: &serialDisplay{display: a.progress()}}
	defer f.show.end()
	// The task just read may be newer than the start of the feed. If it were shown first,
	// progress would go backwards. It is shown when the feed reaches it.
	stop := f.watchWaits(ctx)
	task, err = f.follow(ctx, since)
	stop()
	f.show.end()
	switch {
	case interrupted(ctx, err):
		return withHint(errors.New("interrupted; the task continues"), "see `%s queue show %s`", a.commandPrefix(""), id)
	case err != nil:
		return withHint(fmt.Errorf("cannot follow the task any more, but it continues: %w", err), "see `%s queue show %s`", a.commandPrefix(""), id)
	case task.State == mariposa.TaskCompleted:
		a.printHowToGoOn(ctx, c, task)
		return nil
	case settledFreeze(task):
		return nil
	}
	a.printFailedLogs(ctx, c, task)
	return Exit(exitFailed, withHint(fmt.Errorf("%s %s%s", describeTask(task), task.State, endReason(task)), "see `%s queue show %s`", a.commandPrefix(""), id))
}

// endReason explains how a task ended.
func endReason(t *contract.Task) string {
	why := prefixed(": ", t.Reason)
	reported := t.ReasonCode == mariposa.ReasonTakenOver || t.ReasonCode == mariposa.ReasonEndedBy || t.ReasonCode == mariposa.ReasonTerminatedBy
	if t.EndedBy != "" && !reported {
		why += " (ended by " + t.EndedBy + ")"
	}
	return why
}

// isOver reports whether there is nothing more to wait for. A freeze stays active
// until the thaw; waiting for one ends when its scope has settled.
func isOver(t *contract.Task) bool { return t.State.Ended() || settledFreeze(t) }

// settledFreeze reports whether a task is a freeze whose scope has settled.
func settledFreeze(t *contract.Task) bool {
	return t.Task == mariposa.TaskFreeze && taskVerb(t) == string(mariposa.TaskFreeze) &&
		t.State == mariposa.TaskActive && t.Progress.Done >= t.Progress.Total
}

// printHowToGoOn lists the services that a completed task left partly rolled out on
// purpose, and how to continue. Errors are ignored, because the output is only additional
// help.
func (a *app) printHowToGoOn(ctx context.Context, c *client.Client, t *contract.Task) {
	if t.Task != mariposa.TaskReprovision && t.Task != mariposa.TaskStart || t.Project == "" {
		return // other tasks have no rollout
	}
	a.printHeld(ctx, c, t.Project, t.Services)
}

// printHeld lists the services of a project that are held at a canary, and how to continue. No
// services means all.
func (a *app) printHeld(ctx context.Context, c *client.Client, project string, services []string) {
	state, err := c.State(ctx, project, "")
	if err != nil {
		return
	}
	for _, p := range state.Projects {
		for _, s := range p.Services {
			if s.Status != mariposa.StatusHeld || len(services) > 0 && !slices.Contains(services, s.Name) {
				continue
			}
			a.note("%s/%s is held%s", p.Name, s.Name, prefixed(": ", a.suggest(p.Name, "", s.Reason)))
			a.note("  continue with  %s project reprovision --service %s   # --count N: only N more", a.commandPrefix(p.Name), s.Name)
			a.note("  undo with      %s project revert", a.commandPrefix(p.Name))
		}
	}
}

// A follower reads the events of one task from the feed.
type follower struct {
	a       *app
	c       *client.Client
	id      string
	project string // its id, because the name may be reused before the task ends
	name    string
	show    display
	news    atomic.Bool // the feed had something about the task since the last look
}

// display shows the progress of a task. It receives each change, in order.
type display interface {
	task(t *contract.Task, at time.Time)
	projectStatus(how mariposa.Status, why string, at time.Time) // status of the project during the task
	trouble(why string)                                          // connection trouble; empty: it is over
	waiting(why, how string)                                     // what the task waits for, and how that is put; empty: it goes on
	end()                                                        // idempotent
}

func (f *follower) follow(ctx context.Context, since int64) (*contract.Task, error) {
	for {
		task, err := f.read(ctx, since)
		if mariposa.CodeOf(err) != mariposa.TooOld && mariposa.CodeOf(err) != mariposa.ResourceNotFound {
			return task, err
		}
		// The feed no longer contains our revision, or the project is deleted: read the
		// task again.
		gone := err
		if since, err = f.c.Revision(ctx); err != nil {
			return nil, err
		}
		if task, err = f.c.Task(ctx, f.id); err != nil {
			return nil, err
		}
		f.show.task(f.withHints(ctx, task), time.Time{})
		if isOver(task) {
			return task, nil
		}
		if mariposa.CodeOf(gone) == mariposa.ResourceNotFound {
			return nil, gone
		}
	}
}

func (f *follower) read(ctx context.Context, since int64) (*contract.Task, error) {
	o := client.StreamOptions{Since: since, Project: f.project}
	o.Lost = func(err error, again time.Duration) {
		f.show.trouble(fmt.Sprintf("%v; retrying in %v", err, again.Round(100*time.Millisecond)))
	}
	o.Found = func() { f.show.trouble("") }
	for e, err := range f.c.Stream(ctx, o) {
		if err != nil {
			return nil, err
		}
		if e.Subject() == "project" && styles[e.Verb()] != none { // a status, not a request
			f.show.projectStatus(mariposa.Status(e.Verb()), f.a.suggest(f.name, "", f.reasonOf(ctx, &e)), e.Time)
		}
		if e.Subject() != "task" || e.Task != f.id {
			continue
		}
		task := e.AsTask()
		if task == nil || task.ID != f.id {
			if task, err = f.c.Task(ctx, f.id); err != nil {
				return nil, err
			}
		}
		f.news.Store(true)
		task.ProjectName = cmp.Or(task.ProjectName, f.name) // the event no longer has the name of a deleted project
		f.show.task(f.withHints(ctx, task), e.Time)
		if isOver(task) {
			return task, nil
		}
	}
	return nil, context.Cause(ctx)
}

// reasonOf returns the reason of a project's status. An event does not know which versions
// wait for a thaw, so the reason of a freeze is read from the project.
func (f *follower) reasonOf(ctx context.Context, e *client.Event) string {
	if mariposa.Status(e.Verb()) != mariposa.StatusFrozen {
		return e.Reason
	}
	if p, err := f.c.Project(ctx, f.project); err == nil && p.Status == mariposa.StatusFrozen {
		return p.Reason
	}
	return e.Reason
}

// withHints adds the flags to the commands in the reason of a task. To a task that waits
// for a thaw it adds how to request it, because nothing else ends the wait.
func (f *follower) withHints(ctx context.Context, t *contract.Task) *contract.Task {
	more := *t
	more.Reason = f.a.suggest(t.ProjectName, "", t.Reason)
	if t.State != mariposa.TaskQueued {
		return &more
	}
	for _, id := range t.WaitsFor {
		if o, err := f.c.Task(ctx, id); err == nil && o.Task == mariposa.TaskFreeze {
			more.Reason += "; end the freeze with `" + f.a.commandPrefix(t.ProjectName) + " project thaw" + serviceFlags(o.Services) + "`"
			break
		}
	}
	return &more
}

// serviceFlags formats services as command-line flags.
func serviceFlags(services []string) string {
	var b strings.Builder
	for _, s := range services {
		b.WriteString(" --service " + s)
	}
	return b.String()
}
