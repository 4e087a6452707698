package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func (a *app) queueTerminate() *cobra.Command {
	var sure, wait bool
	cmd := a.asks(&cobra.Command{
		Use: "terminate TASK", Short: "End a task; what it was at is kept as it is", Args: takes(1, 1),
		Aliases: []string{"cancel"}, ValidArgsFunction: a.wordsFrom(taskIDs),
		Long: "End a task. A task is named by its id, or the beginning of it.\n\n" +
			"Of an active one no further step begins, what is half-made is finished or removed, and its\nscope is frozen. The goal stays: the answer says how to go on towards it, and how to take\nback what was done. " +
			"Of one that waits, its change is dropped and nothing is frozen.\n\nWith --wait, it returns once all has settled.",
	}, func(ctx context.Context, c *client.Client, args []string) error { return a.terminate(ctx, c, args[0], sure, wait) })
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask")
	waitFlag(cmd, &wait)
	return cmd
}

func (a *app) terminate(ctx context.Context, c *client.Client, ref string, sure, wait bool) error {
	id, err := a.taskRef(ctx, c, ref)
	if err != nil {
		return err
	}
	t, err := c.TaskSteps(ctx, id, 1)
	if err != nil {
		return a.noTask(err)
	}
	if ok, err := a.confirm(ctx, "terminate "+whatOpen(t)+"?", sure || t.State.Ended()); err != nil || !ok {
		return err
	}
	var since int64
	if wait {
		if since, err = c.Revision(ctx); err != nil {
			return err
		}
	}
	ended, err := c.TerminateTask(ctx, id)
	if err := show(a, ended, a.noTask(err), func() { a.printTerminated(t, ended) }); err != nil {
		return err
	}
	if !wait || ended.Freeze == nil {
		return nil
	}
	return a.wait(ctx, c, *ended.Freeze, since)
}

// whatOpen is an open task with what its end means.
func whatOpen(t *contract.Task) string {
	if t.State == mariposa.TaskQueued {
		return what(t) + ", which has not begun"
	}
	far := ""
	if t.Progress.Total > 0 {
		far = fmt.Sprintf("%d of %d done; ", t.Progress.Done, t.Progress.Total)
	}
	return what(t) + " (" + far + "its scope will be frozen)"
}

// printTerminated says where the scope of a terminated task stands, and how to go
// on from there.
func (a *app) printTerminated(t *contract.Task, ended *contract.Terminated) {
	again := "go on with"
	if ended.Freeze == nil {
		again = "ask again with"
		a.say("%s is terminated; nothing was frozen", what(t))
	} else {
		a.say("%s is terminated; its scope is frozen by task %s", what(t), *ended.Freeze)
	}
	if len(ended.Goal) > 0 {
		table := newTable("SERVICE", "GOAL", "RUNNING")
		for _, name := range slices.Sorted(maps.Keys(ended.Goal)) {
			running := number(ended.Actual[name])
			if ended.Actual[name] != ended.Goal[name] {
				running.style = busy
			}
			table.add(text(name), number(ended.Goal[name]), running)
		}
		a.printTable(table)
	}
	a.facts(again, ended.ContinueWith, "take back with", ended.UndoWith)
}
