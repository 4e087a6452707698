package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// wait follows a task to its end, by the feed alone. The feed is read from a
// place before the task was made, so its whole life is in it.
func (a *app) wait(ctx context.Context, c *client.Client, id string, since int64) error {
	task, err := c.Task(ctx, id)
	if err != nil {
		return err
	}
	f := &follower{c: c, id: id, project: task.Project, name: task.ProjectName, show: a.progress()}
	defer f.show.end()
	// What we just read may be newer than where the feed begins. Showing it first
	// would let progress run backwards; it is shown when the feed gets there.
	task, err = f.follow(ctx, since)
	f.show.end()
	switch {
	case interrupted(ctx, err):
		return hinted(errors.New("interrupted; the task goes on"), "see `mariposa queue show %s`", id)
	case err != nil:
		return hinted(fmt.Errorf("lost sight of the task, which goes on: %w", err), "see `mariposa queue show %s`", id)
	case task.State == mariposa.TaskCompleted:
		return nil
	}
	return taskFailed{hinted(fmt.Errorf("%s %s%s", what(task), task.State, because(task)), "see `mariposa queue show %s`", id)}
}

// because is why a task ended as it did.
func because(t *contract.Task) string {
	why := prefixed(": ", t.Reason)
	if t.EndedBy != "" {
		why += " (ended by " + t.EndedBy + ")"
	}
	return why
}

// A follower reads the feed for what concerns one task.
type follower struct {
	c       *client.Client
	id      string
	project string // its id: a name may be free again before the task ends
	name    string
	show    display
}

// display shows how far a task is. It is told of each change, in order.
type display interface {
	task(t *contract.Task, at time.Time)
	fares(how mariposa.Status, why string, at time.Time) // the project, meanwhile
	trouble(why string)                                  // with the connection; empty: it is over
	end()                                                // idempotent
}

func (f *follower) follow(ctx context.Context, since int64) (*contract.Task, error) {
	for {
		task, err := f.read(ctx, since)
		if mariposa.CodeOf(err) != mariposa.TooOld && mariposa.CodeOf(err) != mariposa.ResourceNotFound {
			return task, err
		}
		// The feed has moved past us, or the project is gone: look again.
		gone := err
		if since, err = f.c.Revision(ctx); err != nil {
			return nil, err
		}
		if task, err = f.c.Task(ctx, f.id); err != nil {
			return nil, err
		}
		f.show.task(task, time.Time{})
		if task.State.Ended() {
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
		f.show.trouble(fmt.Sprintf("%v; trying again in %v", err, again.Round(100*time.Millisecond)))
	}
	o.Found = func() { f.show.trouble("") }
	for e, err := range f.c.Stream(ctx, o) {
		if err != nil {
			return nil, err
		}
		if e.Subject() == "project" && styles[e.Verb()] != none { // how it fares, not what was asked of it
			f.show.fares(mariposa.Status(e.Verb()), e.Reason, e.Time)
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
		task.ProjectName = cmp.Or(task.ProjectName, f.name) // nobody knows the name of a deleted project
		f.show.task(task, e.Time)
		if task.State.Ended() {
			return task, nil
		}
	}
	return nil, context.Cause(ctx)
}
