package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func (a *app) queueCommand() *cobra.Command {
	return a.group("queue", "Show and terminate tasks; freeze and thaw projects",
		a.queueList(), a.queueShow(), a.queueTerminate(), a.newActionCommand("freeze"), a.newActionCommand("thaw"))
}

func (a *app) queueList() *cobra.Command {
	var f client.TaskFilter
	cmd := a.ofProjects(&cobra.Command{
		Use: "list", Short: "List open tasks, newest first",
		Example: "  mariposa queue list\n  mariposa -j shop queue list --all --state failed --limit 20",
	}, func(ctx context.Context, c *client.Client, project string) error {
		if f.Limit < 0 {
			return Usage(errLimit)
		}
		f.Project = project
		all, err := c.Queue(ctx, f)
		return show(a, all, a.noServiceIn(ctx, c, project, err), func() { a.printTasks(all) })
	})
	cmd.Flags().BoolVar(&f.All, "all", false, "include tasks that have ended")
	cmd.Flags().IntVar(&f.Limit, "limit", 100, "only the newest N, or 0 for all")
	cmd.Flags().StringVar(&f.Service, "service", "", "only tasks of this service")
	cmd.Flags().StringVar(&f.State, "state", "", "only tasks in this state: "+strings.Join(taskStates, ", "))
	complete(cmd, "service", a.every(serviceNames))
	complete(cmd, "state", oneOf(taskStates))
	return cmd
}

var taskStates = words([]mariposa.TaskState{mariposa.TaskQueued, mariposa.TaskActive, mariposa.TaskCompleted, mariposa.TaskFailed, mariposa.TaskTerminated})

var errLimit = errors.New("--limit must be a number of at least 0; 0 means all")

func (a *app) printTasks(all *contract.Tasks) {
	t := newTable("TASK", "ID+", "WHAT", "STATE", "DONE?", "LEFT?", "BY", "ORIGIN+", "AUTHOR+", "AGE", "REASON?").keyed("ID").ifEmpty("no tasks").sparing("AGE", "LEFT", "BY", "DONE")
	short := shortIDs(all.Tasks)
	for n, task := range all.Tasks {
		t.add(text(short[n]), text(task.ID), text(describeTask(&task)), word(task.State), text(done(&task)), text(a.leftOf(&task)), text(cmp.Or(task.Author, string(task.Origin))),
			text(string(task.Origin)), text(dashIfEmpty(task.Author)), text(a.age(task.Created)), text(a.suggest(task.ProjectName, "", taskReason(&task))))
	}
	a.printTable(t)
	if all.Marker != "" {
		a.note("there are more tasks: use --limit N to show more, or --limit 0 to show all")
	}
}

// taskReason returns why a task exists, and what it waits for.
func taskReason(t *contract.Task) string {
	if t.Waits == "" || strings.HasSuffix(t.Reason, t.Waits) {
		return t.Reason
	}
	return strings.TrimPrefix(t.Reason+"; "+withWaits(t.Waits), "; ")
}

// shortIDs returns prefixes of task ids, long enough to distinguish the tasks.
func shortIDs(tasks []contract.Task) []string {
	// The first 13 characters are the time in milliseconds.
	const least, step = 13, 5
	var short []string
	for length := least; ; length += step {
		short = short[:0]
		known := map[string]bool{}
		for _, t := range tasks {
			id := t.ID[:min(length, len(t.ID))]
			short, known[id] = append(short, id), true
		}
		if len(known) == len(tasks) || length >= 36 {
			return short
		}
	}
}

// done formats the progress of a task.
func done(t *contract.Task) string {
	if t.Progress.Total == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", t.Progress.Done, t.Progress.Total)
}

// leftOf formats the approximate remaining time of a task.
func (a *app) leftOf(t *contract.Task) string {
	if d := remaining(t, a.now()); d > 0 {
		return roughAge(d)
	}
	return "-"
}

func (a *app) queueShow() *cobra.Command {
	var limit int
	cmd := a.withClient(&cobra.Command{
		Use: "show TASK", Short: "Show a task and its newest steps", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(taskIDs),
		Long: "Show a task and its newest steps. TASK is its id or the beginning of its id.",
	}, func(ctx context.Context, c *client.Client, args []string) error {
		if limit < 0 {
			return Usage(errLimit)
		}
		id, err := a.taskRef(ctx, c, args[0])
		if err != nil {
			return err
		}
		t, err := c.TaskSteps(ctx, id, limit)
		return show(a, t, cmp.Or(a.noTask(err), a.checkColumns(a.stepTable("", nil))), func() { a.printTask(t) })
	})
	cmd.Flags().IntVar(&limit, "limit", 200, "only the newest N steps, or 0 for all")
	return cmd
}

// noTask adds a hint to a "not found" error.
func (a *app) noTask(err error) error {
	return notFound(err, a.samePrefix()+" queue list --all")
}

func (a *app) printTask(t *contract.Task) {
	eta := ""
	if d := remaining(t, a.now()); d > 0 {
		eta = fmt.Sprintf("%s left, until %s", roughDuration(d), clockOf(a.env.Now, *t.ETA))
	}
	a.facts("task", t.ID, "what", describeTask(t), "component", t.Component, "state", word(t.State), "reason", a.suggest(t.ProjectName, "", strings.TrimSuffix(strings.TrimSuffix(t.Reason, t.Waits), "; ")),
		"waits for", a.suggest(t.ProjectName, "", strings.TrimPrefix(t.Waits, "waits for ")), "waits until", a.stampOf(t.WaitsUntil), "ended by", t.EndedBy, "done", done(t), "eta", eta,
		"origin", string(t.Origin), "author", t.Author, "version", versionOf(t.Number, t.Version),
		"created", a.stamp(t.Created), "started", a.stampOf(t.Started), "finished", a.stampOf(t.Finished), "took", took(t))
	a.printSteps(t.ProjectName, t.Steps)
	if t.Marker != "" {
		a.note("there are older steps: use --limit N to show more, or --limit 0 to show all")
	}
}

func (a *app) printSteps(project string, steps []contract.TaskStep) {
	if len(steps) == 0 {
		return
	}
	fmt.Fprintln(a.env.Stdout)
	a.printTable(a.stepTable(project, steps))
}

func (a *app) stepTable(project string, steps []contract.TaskStep) *table {
	t := newTable("TIME", "STEP", "INSTANCE", "NODE?", "RESULT", "REASON?")
	for _, s := range steps {
		t.add(text(clockOf(a.env.Now, s.At)), text(s.Step), text(cmp.Or(s.InstanceName, s.Instance)), text(dashIfEmpty(cmp.Or(s.NodeName, s.Node))), word(s.Result), text(a.suggest(project, "", s.Reason)))
	}
	return t
}

func (a *app) queueTerminate() *cobra.Command {
	var sure, wait bool
	cmd := a.withClient(&cobra.Command{
		Use: "terminate TASK", Short: "Terminate a task; the services of an active task are frozen", Args: argsBetween(1, 1),
		ValidArgsFunction: a.wordsFrom(taskIDs),
		Long: "Terminate a task. TASK is its id or the beginning of its id.\n\n" +
			"If the task is active, it starts no further steps. Whatever is half finished is completed or\nremoved, and the scope of the task is frozen. The desired state stays: the output shows the\ncommands that continue or undo the change.\n\n" +
			"If the task is queued, its change is dropped, and nothing is frozen.\n\n" +
			"If the task drains a node, nothing is frozen either: what has been moved stays where it is,\nand the node gets no new instances until `node undrain`.\n\n" +
			"With --wait, the command returns when everything has settled.",
	}, func(ctx context.Context, c *client.Client, args []string) error {
		return a.terminate(ctx, c, args[0], sure, wait)
	})
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask for confirmation")
	waitFlag(cmd, &wait)
	return cmd
}

func (a *app) terminate(ctx context.Context, c *client.Client, ref string, sure, wait bool) error {
	if err := a.checkColumns(goalTable(nil, nil)); err != nil {
		return err
	}
	id, err := a.taskRef(ctx, c, ref)
	if err != nil {
		return err
	}
	t, err := c.TaskSteps(ctx, id, 1)
	if err != nil {
		return a.noTask(err)
	}
	if err := a.confirm(ctx, "terminate "+describeOpenTask(t)+"?", sure || t.State.Ended()); err != nil {
		return err
	}
	var since int64
	if wait {
		if since, err = c.Revision(ctx); err != nil {
			return err
		}
	}
	ended, err := c.TerminateTask(ctx, id)
	err = a.suggestForTask(ctx, c, t, err)
	if err := show(a, ended, a.noTask(err), func() { a.printTerminated(t, ended) }); err != nil {
		return err
	}
	if !wait || ended.Freeze == nil {
		return nil
	}
	return a.wait(ctx, c, *ended.Freeze, since)
}

// describeOpenTask describes an open task and the effect of terminating it.
func describeOpenTask(t *contract.Task) string {
	if t.State == mariposa.TaskQueued {
		return describeTask(t) + ", which has not started"
	}
	far := ""
	if t.Progress.Total > 0 {
		far = fmt.Sprintf("%d of %d done; ", t.Progress.Done, t.Progress.Total)
	}
	effect := "its scope will be frozen"
	if drainsNode(t) {
		effect = "what is left stays, and the node gets no new instances"
	}
	return describeTask(t) + " (" + far + effect + ")"
}

// printTerminated prints the state of a terminated task's scope, and the commands to
// continue.
func (a *app) printTerminated(t *contract.Task, ended *contract.Terminated) {
	again := "continue with"
	switch {
	case drainsNode(t):
		a.say("%s is terminated; what is left stays, and the node gets no new instances", describeTask(t))
	case ended.Freeze == nil:
		again = "run again with"
		a.say("%s is terminated; nothing was frozen", describeTask(t))
	default:
		a.say("%s is terminated; its scope is frozen by task %s", describeTask(t), *ended.Freeze)
	}
	if len(ended.Goal) > 0 {
		a.printTable(goalTable(ended.Goal, ended.Actual))
	}
	undo := ""
	if ended.UndoWith != nil {
		undo = *ended.UndoWith
	}
	a.facts(again, ended.ContinueWith, "undo with", undo)
}

// goalTable compares how many instances services should have with how many they have.
func goalTable(goal, actual map[string]int) *table {
	t := newTable("SERVICE", "GOAL", "RUNNING")
	for _, name := range slices.Sorted(maps.Keys(goal)) {
		running := number(actual[name])
		if actual[name] != goal[name] {
			running.style = busy
		}
		t.add(text(name), number(goal[name]), running)
	}
	return t
}
