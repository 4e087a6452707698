package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

func (a *app) queueCommand() *cobra.Command {
	return a.group("queue", "Look at the tasks that change things", a.queueList(), a.queueShow())
}

func (a *app) queueList() *cobra.Command {
	var f client.TaskFilter
	var everywhere bool
	cmd := &cobra.Command{
		Use: "list", Short: "List the tasks that wait or are at work", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if f.Project, err = a.anyProject(everywhere); err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Queue(cmd.Context(), f)
			if err != nil {
				return a.noProject(err)
			}
			if a.global.json {
				return a.printJSON(all)
			}
			if len(all.Tasks) == 0 {
				a.note("no tasks")
				return nil
			}
			t := newTable("TASK", "WHAT", "STATE", "DONE", "ORIGIN", "AUTHOR", "AGE", "REASON")
			for _, task := range all.Tasks {
				t.add(text(task.ID), text(what(&task)), word(task.State), text(done(&task)), text(string(task.Origin)),
					text(dash(task.Author)), text(a.age(task.Created)), text(task.Reason))
			}
			a.printTable(t)
			return nil
		},
	}
	cmd.Flags().BoolVar(&f.All, "all", false, "those that have ended too")
	cmd.Flags().IntVar(&f.Limit, "limit", 100, "only the newest so many; 0: all")
	cmd.Flags().StringVar(&f.Service, "service", "", "only tasks of this service")
	cmd.Flags().StringVar(&f.State, "state", "", "only tasks in this state")
	complete(cmd, "service", a.serviceNames)
	everywhereFlag(cmd, &everywhere)
	return cmd
}

func done(t *contract.Task) string {
	if t.Progress.Total == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", t.Progress.Done, t.Progress.Total)
}

func (a *app) queueShow() *cobra.Command {
	return &cobra.Command{
		Use: "show TASK", Short: "Show a task and its newest steps", Args: takes(1, 1),
		ValidArgsFunction: first(a.taskIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			id, err := taskRef(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			t, err := c.Task(cmd.Context(), id)
			if err != nil {
				return err
			}
			if a.global.json {
				return a.printJSON(t)
			}
			a.facts("task", t.ID, "what", what(t), "component", t.Component, "state", word(t.State), "reason", t.Reason, "waits for", strings.Join(t.WaitsFor, ", "), "ended by", t.EndedBy,
				"done", done(t), "origin", string(t.Origin), "author", t.Author, "version", t.Version,
				"created", a.stamp(t.Created), "started", a.stampOf(t.Started), "finished", a.stampOf(t.Finished), "took", took(t))
			a.printSteps(t.Steps)
			return nil
		},
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
