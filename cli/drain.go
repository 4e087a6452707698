package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// nodeDrain returns the command `node drain`.
func (a *app) nodeDrain() *cobra.Command {
	var deadline string
	var force, dryRun, wait bool
	cmd := &cobra.Command{
		Use: "drain NODE", Short: "Move all instances off a node, and keep new ones away", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(nodeNames),
		Long: "Move all instances off a node, and keep new ones away.\n\n" +
			"Instances are replaced on other nodes within the limits of their services: a start-first\nservice starts the new instance first, a stop-first service stops the old one first.\n" +
			"Instances that have volumes on the node, and those of frozen or paused services, stay; the\ntask and `node show` say so. So do instances that belong to no service, unless --force\nremoves them.\n\n" +
			"With --dry-run, TO is the node that the placer would choose now, if nothing else changes\nmeanwhile.\n\n" +
			"The drain is a task: see `queue show`, stop it with `queue terminate`. The node takes no\nnew instances until `node undrain`.",
		Example: "  mariposa node drain host-7 --dry-run\n  mariposa node drain host-7 --deadline 10m --wait",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ask := contract.NodeAction{Action: "drain", Force: force, DryRun: dryRun}
		if cmd.Flags().Changed("deadline") {
			seconds, err := readDeadline(deadline)
			if err != nil {
				return Usage(err)
			}
			ask.Deadline = &seconds
		}
		if dryRun {
			return a.forecastDrain(cmd.Context(), args[0], ask)
		}
		return notFound(a.change(cmd, wait, func(c *client.Client) (*contract.Changed, error) {
			done, err := c.ActOnNode(cmd.Context(), args[0], ask)
			if err == nil && !a.global.json {
				a.say("%s %s%s", done.Name, drainEffect(done), prefixed(": ", done.Reason))
			}
			return done, err
		}), "mariposa node list")
	}
	cmd.Flags().StringVar(&deadline, "deadline", "1h", "stop the drain after this time, even if instances are left, such as 10m; none: never")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also remove instances that belong to no service")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would be moved, and what cannot be")
	waitFlag(cmd, &wait)
	return cmd
}

// drainsNode reports whether a task is the drain of a node, and not the part of it in a
// project.
func drainsNode(t *contract.Task) bool {
	return t.Component == mariposa.DrainComponent && t.Project == ""
}

func drainEffect(done *contract.Changed) string {
	if done.Task == nil {
		return "is unchanged"
	}
	return "is being drained"
}

// nodeUndrain returns the command `node undrain`.
func (a *app) nodeUndrain() *cobra.Command {
	cmd := a.onNode("undrain", "Let a drained node take instances again", func(ctx context.Context, c *client.Client, node string) error {
		done, err := c.ActOnNode(ctx, node, contract.NodeAction{Action: "undrain"})
		effect := "takes instances again"
		if err == nil && done.Reason != "" {
			effect = "is unchanged"
		}
		return a.printNodeChange(done, err, effect)
	})
	cmd.Long = "Let a drained node take instances again. If the drain is in progress, it ends: what has been\nmoved stays where it is."
	return cmd
}

// readDeadline reads the deadline of a drain, in seconds; 0: none.
func readDeadline(text string) (float64, error) {
	if text == "none" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("--deadline %s: give a time such as 10m or 1h, or none", text)
	}
	return d.Seconds(), nil
}

// forecastDrain shows what a drain would do.
func (a *app) forecastDrain(ctx context.Context, node string, ask contract.NodeAction) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	done, err := c.ActOnNode(ctx, node, ask)
	if err == nil && done.Drain == nil {
		err = errors.New("the server does not know dry runs of drains: upgrade it")
	}
	return show(a, done, notFound(cmp.Or(err, a.checkColumns(a.drainTable(&contract.DrainForecast{}))), "mariposa node list"), func() {
		a.printTable(a.drainTable(done.Drain))
		if n := len(done.Drain.Stays); n > 0 {
			a.note("%d of %d instances cannot be moved now; a drain would wait for them until its deadline", n, done.Drain.Total)
		}
	})
}

// drainTable lists the instances on a node that is drained.
func (a *app) drainTable(f *contract.DrainForecast) *table {
	t := newTable("INSTANCE", "PROJECT", "TO", "REASON?").ifEmpty("the node has no instances")
	for _, m := range f.Moves {
		to := cmp.Or(m.ToName, m.To, "-")
		if m.Removed {
			to = "removed"
		}
		t.add(cell{m.Name, bold}, text(dashIfEmpty(m.ProjectName)), text(to), text(""))
	}
	for _, m := range f.Stays {
		t.add(cell{m.Name, bold}, text(dashIfEmpty(m.ProjectName)), cell{"stays", bad}, text(a.suggest(m.ProjectName, "", m.Reason)))
	}
	return t
}

// nodeRescheduleNow returns the command `node reschedule-now`.
func (a *app) nodeRescheduleNow() *cobra.Command {
	return a.withClient(&cobra.Command{
		Use: "reschedule-now [NODE...]", Short: "Replace the instances of lost nodes without waiting", ValidArgsFunction: a.wordsFrom(nodeNames),
		Long: "Replace the instances of lost nodes without waiting: neither for the time that their\nservices set (reschedule.after), nor for the return of many nodes that were lost at once.\n" +
			"Without names, for all nodes whose status is unknown.\n\n" +
			"If a node comes back, its instances that were replaced are removed. Services with\nreschedule.never are not affected.",
	}, func(ctx context.Context, c *client.Client, names []string) error {
		if len(names) == 0 {
			all, err := c.Nodes(ctx)
			if err != nil {
				return err
			}
			for _, n := range all.Nodes {
				if n.Status == mariposa.NodeUnknown {
					names = append(names, n.Name)
				}
			}
		}
		for _, name := range names {
			done, err := c.ActOnNode(ctx, name, contract.NodeAction{Action: "reschedule-now"})
			if err := a.printNodeChange(done, notFound(err, "mariposa node list"), "is given up: its instances are replaced now, unless they are frozen, have volumes there, or belong to no service"); err != nil {
				return err
			}
		}
		if len(names) == 0 {
			a.note("no node is lost")
		}
		return nil
	})
}

// nodeStatus returns the status of a node for tables: a drain that is not complete is
// shown with it.
func nodeStatus(n *contract.Node) cell {
	c := word(n.Status)
	switch {
	case n.Drain != nil && n.Drain.State == mariposa.DrainActive:
		c.text += ", draining"
	case n.Drain != nil && n.Drain.State == mariposa.DrainStopped:
		c.text += ", drain stopped"
	case !n.Eligible && n.Status == mariposa.NodeRunning:
		c.text += ", reserved"
	}
	return c
}

// printDrain prints the drain of a node.
func (a *app) printDrain(n *contract.Node) {
	d := n.Drain
	if d == nil {
		return
	}
	until := "none"
	if d.Deadline != nil {
		until = a.stamp(*d.Deadline)
	}
	fmt.Fprintln(a.env.Stdout)
	a.facts("drain", string(d.State), "by", d.By, "since", a.stamp(d.Since), "deadline", until, "task", d.Task, "instances left", d.Left)
	for _, m := range d.Stays {
		a.note("%s", a.suggest(m.ProjectName, "", strings.TrimSpace(m.Reason)))
	}
}
