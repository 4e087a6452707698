package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// snapshotPoll is how often the progress of a snapshot is read.
const snapshotPoll = time.Second

// snapshotCommand groups the commands for snapshots. Without one of them, it creates a snapshot;
// its plural lists.
func (a *app) snapshotCommand() *cobra.Command {
	create := a.snapshotCreate()
	list := a.snapshotList()
	g := a.group("snapshot", "Save the state of an instance, and list and delete what was saved", create, list, a.instanceRestore(), a.snapshotRemove())
	g.Use = "snapshot INSTANCE [SNAPSHOT]"
	g.Long = "Save the state of an instance (`instance snapshot INSTANCE`), and list and delete what was\nsaved. Only virtual machines have snapshots."
	g.Example = "  mariposa instance snapshot db.1 before-upgrade\n  mariposa instance snapshot list db.1\n  mariposa instance restore db.1 before-upgrade"
	without := g.RunE
	g.RunE = func(cmd *cobra.Command, args []string) error {
		run := create
		if slices.Contains(groupAliases["snapshot"], cmd.CalledAs()) {
			run = list
		}
		if len(args) == 0 {
			return without(cmd, args)
		}
		if err := checkArgs(run, args); err != nil {
			return err
		}
		run.SetContext(cmd.Context())
		return run.RunE(run, args)
	}
	g.ValidArgsFunction = a.wordsFrom(instanceNames)
	return g
}

func (a *app) snapshotCreate() *cobra.Command {
	cmd := &cobra.Command{
		Use: "create INSTANCE [SNAPSHOT]", Short: "Save the state of an instance", ValidArgsFunction: a.wordsFrom(instanceNames), Args: argsBetween(1, 2),
		Long: "Save the state of an instance. Without a name, the snapshot is named after the time.\n\n" +
			"A snapshot of a running instance includes its memory; the instance is paused meanwhile.\nVolumes are not part of a snapshot, so stop an instance with volumes first.",
	}
	return a.withClient(cmd, func(ctx context.Context, c *client.Client, args []string) error {
		name := ""
		if len(args) > 1 {
			name = args[1]
		}
		return a.changeSnapshot(ctx, c, args[0], "saved as snapshot %s", func(id string) (*contract.SnapshotChanged, error) { return c.CreateSnapshot(ctx, id, name) })
	})
}

func (a *app) instanceRestore() *cobra.Command {
	var sure bool
	cmd := &cobra.Command{
		Use: "restore INSTANCE SNAPSHOT", Short: "Return an instance to a snapshot", ValidArgsFunction: a.wordsFrom(instanceNames), Args: argsBetween(2, 2),
		Long: "Return an instance to a snapshot. Its current state is lost.\n\n" +
			"A snapshot with memory needs a running instance, which continues where it was. One without\nmemory needs a stopped instance.",
		Example: "  mariposa instance restore db.1 before-upgrade",
	}
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask for confirmation")
	return a.withClient(cmd, func(ctx context.Context, c *client.Client, args []string) error {
		if err := a.confirm(ctx, fmt.Sprintf("return %s to snapshot %s and lose its current state?", args[0], args[1]), sure); err != nil {
			return err
		}
		return a.changeSnapshot(ctx, c, args[0], "restored from snapshot %s", func(id string) (*contract.SnapshotChanged, error) { return c.RestoreSnapshot(ctx, id, args[1]) })
	})
}

func (a *app) snapshotRemove() *cobra.Command {
	cmd := &cobra.Command{Use: "rm INSTANCE SNAPSHOT", Short: "Delete a snapshot", ValidArgsFunction: a.wordsFrom(instanceNames), Args: argsBetween(2, 2)}
	return a.withClient(cmd, func(ctx context.Context, c *client.Client, args []string) error {
		return a.changeSnapshot(ctx, c, args[0], "has no snapshot %s any more", func(id string) (*contract.SnapshotChanged, error) { return c.DeleteSnapshot(ctx, id, args[1]) })
	})
}

func (a *app) snapshotList() *cobra.Command {
	cmd := &cobra.Command{Use: "list INSTANCE", Short: "List the snapshots of an instance", ValidArgsFunction: a.wordsFrom(instanceNames), Args: argsBetween(1, 1)}
	return a.withClient(cmd, func(ctx context.Context, c *client.Client, args []string) error {
		id, err := a.instanceRef(ctx, c, args[0])
		if err != nil {
			return err
		}
		all, err := c.Snapshots(ctx, id)
		return show(a, all, notFound(err, a.samePrefix()+" instance list"), func() {
			t := newTable("NAME", "STATE", "AGE", "MEMORY?", "REASON?").ifEmpty("no snapshots")
			for _, s := range all.Snapshots {
				age := "-"
				if !s.Created.IsZero() {
					age = a.age(s.Created)
				}
				memory := "-" // it was stopped
				if s.Memory > 0 {
					memory = roughBytes(s.Memory)
				}
				t.add(cell{s.Name, bold}, word(s.State), text(age), text(memory), text(s.Reason))
			}
			a.printTable(t)
		})
	})
}

// changeSnapshot changes a snapshot and waits for the result.
func (a *app) changeSnapshot(ctx context.Context, c *client.Client, instance, effect string, do func(id string) (*contract.SnapshotChanged, error)) error {
	id, err := a.instanceRef(ctx, c, instance)
	if err != nil {
		return err
	}
	done, err := do(id)
	if err != nil {
		return notFound(err, a.samePrefix()+" instance list")
	}
	if err := a.awaitSnapshot(ctx, c, id, done); err != nil {
		return err
	}
	return changed(a, done, nil, "%s "+effect, done.InstanceName, done.Name)
}

// awaitSnapshot waits for a change that takes longer than a request.
func (a *app) awaitSnapshot(ctx context.Context, c *client.Client, id string, done *contract.SnapshotChanged) error {
	for said := false; done.State == mariposa.SnapshotCreating || done.State == mariposa.SnapshotRestoring || done.State == mariposa.SnapshotDeleting; {
		if !said {
			said = true
			a.note("%s snapshot %s takes a while; it continues if you interrupt this command", done.State, done.Name)
		}
		select {
		case <-ctx.Done():
			return Exit(130, nil)
		case <-time.After(snapshotPoll):
		}
		all, err := c.Snapshots(ctx, id)
		if err != nil {
			return err
		}
		n := slices.IndexFunc(all.Snapshots, func(s mariposa.Snapshot) bool { return s.Name == done.Name })
		switch {
		case n < 0 && done.State == mariposa.SnapshotDeleting:
			done.State = "deleted"
		case n < 0:
			return errors.New("there is no snapshot " + done.Name + ": the agent of the node was restarted meanwhile; try again")
		case all.Snapshots[n].State == mariposa.SnapshotFailed:
			return fmt.Errorf("%s snapshot %s of %s failed: %s", done.State, done.Name, done.InstanceName, all.Snapshots[n].Reason)
		default:
			done.State = all.Snapshots[n].State
		}
	}
	return nil
}
