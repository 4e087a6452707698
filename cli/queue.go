package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func (a *app) queueCommand() *cobra.Command {
	return a.group("queue", "Look at the tasks that change things, end them, hold everything still",
		a.queueList(), a.queueShow(), a.queueTerminate(), a.order("freeze"), a.order("thaw"))
}

func (a *app) queueList() *cobra.Command {
	var f client.TaskFilter
	var everywhere bool
	cmd := &cobra.Command{
		Use: "list", Short: "List the tasks that wait or are at work, newest first", Args: takes(0, 0),
		Example: "  mariposa queue list\n  mariposa -j shop queue list --all --state failed --limit 20",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if f.Limit < 0 {
				return Usage(errors.New("--limit is a number from 0 on; 0 means all"))
			}
			if f.Project, err = a.anyProject(everywhere); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Queue(cmd.Context(), f)
			return show(a, all, a.noProject(err), func() { a.printTasks(all) })
		},
	}
	cmd.Flags().BoolVar(&f.All, "all", false, "those that have ended too")
	cmd.Flags().IntVar(&f.Limit, "limit", 100, "only the newest so many; 0: all")
	cmd.Flags().StringVar(&f.Service, "service", "", "only tasks of this service")
	cmd.Flags().StringVar(&f.State, "state", "", "only tasks in this state: "+strings.Join(taskStates, ", "))
	complete(cmd, "service", a.serviceNames)
	complete(cmd, "state", func(*cobra.Command, []string) []string { return taskStates })
	everywhereFlag(cmd, &everywhere)
	return cmd
}

var taskStates = []string{
	string(mariposa.TaskQueued), string(mariposa.TaskActive), string(mariposa.TaskCompleted), string(mariposa.TaskFailed), string(mariposa.TaskTerminated),
}

func (a *app) printTasks(all *contract.Tasks) {
	if len(all.Tasks) == 0 {
		a.note("no tasks")
		return
	}
	t := newTable("TASK", "WHAT", "STATE", "DONE", "LEFT", "ORIGIN", "AUTHOR", "AGE", "REASON")
	for _, task := range all.Tasks {
		t.add(text(task.ID), text(what(&task)), word(task.State), text(done(&task)), text(a.leftOf(&task)), text(string(task.Origin)),
			text(dash(task.Author)), text(a.age(task.Created)), text(task.Reason))
	}
	a.printTable(t)
	if all.Marker != "" {
		a.note("there are more: --limit says how many to show, 0 all of them")
	}
}

// done is how far a task is.
func done(t *contract.Task) string {
	if t.Progress.Total == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", t.Progress.Done, t.Progress.Total)
}

// leftOf is how long a task takes yet, roughly.
func (a *app) leftOf(t *contract.Task) string {
	if d := left(t, a.env.Now()); d > 0 {
		return rough(d)
	}
	return "-"
}

func (a *app) queueShow() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "show TASK", Short: "Show a task and its newest steps", Args: takes(1, 1),
		Long:              "Show a task and its newest steps. A task is named by its id, or the beginning of it.",
		ValidArgsFunction: first(a.taskIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return Usage(errors.New("--limit is a number from 0 on; 0 means all"))
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			id, err := a.taskRef(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			t, err := c.TaskSteps(cmd.Context(), id, limit)
			return show(a, t, a.noTask(err), func() { a.printTask(t) })
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 200, "only the newest so many steps; 0: all")
	return cmd
}

// noTask adds to a "not found" where to look.
func (a *app) noTask(err error) error {
	if mariposa.CodeOf(err) == mariposa.ResourceNotFound {
		return hinted(err, "see `%s queue list --all`", a.calling(""))
	}
	return err
}

func (a *app) printTask(t *contract.Task) {
	eta := ""
	if d := left(t, a.env.Now()); d > 0 {
		eta = fmt.Sprintf("%s left, until %s", roughly(d), clockOf(a.env.Now, *t.ETA))
	}
	a.facts("task", t.ID, "what", what(t), "kind", string(t.Task), "component", t.Component, "state", word(t.State), "reason", t.Reason,
		"waits for", strings.Join(t.WaitsFor, ", "), "ended by", t.EndedBy, "done", done(t), "eta", eta,
		"origin", string(t.Origin), "author", t.Author, "version", t.Version,
		"created", a.stamp(t.Created), "started", a.stampOf(t.Started), "finished", a.stampOf(t.Finished), "took", took(t))
	a.printSteps(t.Steps)
	if t.Marker != "" {
		a.note("there are older steps: --limit says how many to show, 0 all of them")
	}
}

func (a *app) printSteps(steps []contract.TaskStep) {
	if len(steps) == 0 {
		return
	}
	fmt.Fprintln(a.env.Stdout)
	t := newTable("TIME", "STEP", "INSTANCE", "NODE", "RESULT", "REASON")
	for _, s := range steps {
		t.add(text(clockOf(a.env.Now, s.At)), text(s.Step), text(cmp.Or(s.InstanceName, s.Instance)), text(dash(cmp.Or(s.NodeName, s.Node))), word(s.Result), text(s.Reason))
	}
	a.printTable(t)
}
