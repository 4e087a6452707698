package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"mariposa"
	"mariposa/cli"
	"mariposa/client"
	"mariposa/contract"
	"mariposa/reason"
)

// downFlags are the flags of `mariposa dev --down`.
type downFlags struct {
	down, purge, sure bool
	dataFlag          string // flag for the same data directory, with a leading space; empty: the default
}

func (f *downFlags) add(to *pflag.FlagSet) {
	to.BoolVar(&f.down, "down", false, "delete every project, wait until all instances are removed, list what is left, and exit")
	to.BoolVar(&f.purge, "purge", false, "with --down: also delete all volumes, the store, its keys and tokens")
	to.BoolVarP(&f.sure, "yes", "y", false, "with --down: do not ask for confirmation")
}

func (f downFlags) check() error {
	if !f.down && (f.purge || f.sure) {
		return cli.Usage(errors.New("--purge and --yes require --down"))
	}
	return nil
}

// checkConfirmed refuses before anything starts what nobody can confirm.
func (f downFlags) checkConfirmed(ctx context.Context, stdin io.Reader, stderr io.Writer) error {
	if f.sure || cli.Interactive(stdin, stderr) {
		return nil
	}
	does := "stops and deletes all projects"
	if f.purge {
		does += ", and deletes all volumes with their data, the store, keys and tokens"
	}
	return cli.ConfirmName(ctx, stdin, stderr, "", does, false)
}

// requireData returns an error if there is no store. Without this check, --down would
// create one.
func requireData(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "mariposa.db")); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no store in %s, so there is nothing to take down: name its directory with --data", dir)
	}
	return nil
}

// down deletes every project and waits until the last instance is removed.
func (d *dev) down(ctx context.Context, f downFlags, stdin io.Reader, stdout, stderr io.Writer) error {
	projects, err := d.openProjects(ctx)
	if err != nil {
		return err
	}
	if err := d.confirmDown(ctx, f, projects, stdin, stderr); err != nil {
		return err
	}
	remove := d.client.DeleteProject
	if f.purge {
		remove = d.client.DeleteWithVolumes
	}
	for _, p := range projects {
		fmt.Fprintf(stdout, "deleting %s\n", p.Name)
		if _, err := remove(ctx, p.ID, true); err != nil {
			return err
		}
	}
	if err := d.awaitInstances(ctx, stdout); err != nil {
		return err
	}
	if f.purge {
		if err := d.purgeVolumes(ctx, stdout); err != nil {
			return err
		}
	}
	return d.printLeftovers(ctx, f, stdout)
}

// awaitInstances waits until no instance is left. If that takes a while, it prints what
// it waits for.
func (d *dev) awaitInstances(ctx context.Context, stdout io.Writer) error {
	began, said := time.Now(), ""
	return awaitNone(ctx, func() (int, error) {
		left, err := d.client.AllInstances(ctx, client.InstanceFilter{})
		if err != nil {
			return 0, err
		}
		if waits := describeWait(left.Instances); waits != said && time.Since(began) > 2*time.Second {
			said = waits
			fmt.Fprint(stdout, waits)
		}
		return len(left.Instances), nil
	})
}

// describeWait lists the nodes that the removal of instances waits for, one per line, and
// says how to continue without a node that does not return.
func describeWait(left []contract.Instance) string {
	counts, unknown := map[string]int{}, map[string]bool{}
	for i := range left {
		node := cmp.Or(left[i].NodeName, left[i].Node)
		counts[node]++
		unknown[node] = unknown[node] || left[i].State == mariposa.StateUnknown
	}
	var b strings.Builder
	for _, node := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "waiting for the removal of %s", reason.Many(counts[node], "instance"))
		switch {
		case node == "":
			b.WriteString(", not on any node yet\n")
		case unknown[node]:
			fmt.Fprintf(&b, " on node %s, which is not connected: start it again, or remove the node and its instances in another terminal with `mariposa node rm %s --force`\n", node, node)
		default:
			fmt.Fprintf(&b, " on node %s\n", node)
		}
	}
	return b.String()
}

// openProjects returns the projects that are not being deleted already.
func (d *dev) openProjects(ctx context.Context) (open []contract.Project, err error) {
	all, err := d.client.Projects(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, p := range all.Projects {
		if p.Goal != mariposa.GoalDeleted {
			open = append(open, p)
		}
	}
	return open, nil
}

// confirmDown asks for confirmation before anything is deleted. The user types the name
// of a single project, "all" for several projects, or "purge" for a purge.
func (d *dev) confirmDown(ctx context.Context, f downFlags, projects []contract.Project, stdin io.Reader, stderr io.Writer) error {
	if len(projects) == 0 && !f.purge {
		return nil
	}
	var names []string
	for _, p := range projects {
		names = append(names, p.Name)
	}
	word, does := "all", ""
	switch len(names) {
	case 0:
	case 1:
		word, does = names[0], "stops and deletes project "+names[0]
	default:
		does = fmt.Sprintf("stops and deletes %d projects: %s", len(names), strings.Join(names, ", "))
	}
	if f.purge {
		word = "purge"
		if does != "" {
			does += "; it also "
		}
		does += "deletes all volumes with their data, and the store, keys and tokens in " + d.dir
	}
	return cli.ConfirmName(ctx, stdin, stderr, word, does, f.sure)
}

// purgeVolumes deletes the remaining volumes and waits until they are gone.
func (d *dev) purgeVolumes(ctx context.Context, stdout io.Writer) error {
	left, err := d.client.AllVolumes(ctx, client.VolumeFilter{})
	if err != nil {
		return err
	}
	for _, v := range left.Volumes {
		if v.Goal != mariposa.GoalKept {
			continue
		}
		fmt.Fprintf(stdout, "deleting volume %s\n", volumeName(v))
		if _, err := d.client.DeleteVolume(ctx, v.ID); err != nil && mariposa.CodeOf(err) != mariposa.ResourceNotFound {
			return err
		}
	}
	return awaitNone(ctx, func() (int, error) {
		left, err := d.client.AllVolumes(ctx, client.VolumeFilter{})
		if err != nil {
			return 0, err
		}
		return len(left.Volumes), nil
	})
}

// awaitNone waits until a count is zero.
func awaitNone(ctx context.Context, count func() (int, error)) error {
	for {
		n, err := count()
		if err != nil || n == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func volumeName(v contract.Volume) string { return cli.VolumeName(v) + " of " + cli.VolumeProject(v) }

// printLeftovers lists what is left after all projects are deleted.
func (d *dev) printLeftovers(ctx context.Context, f downFlags, stdout io.Writer) error {
	nodes, err := d.client.Nodes(ctx)
	if err != nil {
		return err
	}
	clean := true
	for _, n := range nodes.Nodes {
		if in := max(n.QuarantinedCount, len(n.Quarantined)); in > 0 {
			clean = false
			fmt.Fprintf(stdout, "node %s still has %s in quarantine, unknown to this store: see `mariposa node show %s`, then run `mariposa node purge %s`\n",
				n.Name, reason.Many(in, "instance"), n.Name, n.Name)
		}
	}
	if f.purge && !clean {
		return fmt.Errorf("the store in %s is kept: it is needed to remove the instances in quarantine", d.dir)
	}
	if f.purge {
		return nil
	}
	volumes, err := d.client.AllVolumes(ctx, client.VolumeFilter{})
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "All projects and their instances are deleted. What is left:")
	for _, v := range volumes.Volumes {
		fmt.Fprintf(stdout, "  volume %s\n", volumeName(v))
	}
	fmt.Fprintf(stdout, "  the store with its keys and tokens, in %s\n", d.dir)
	fmt.Fprintf(stdout, "`mariposa dev --down --purge%s` deletes that too.\n", f.dataFlag)
	return nil
}

// dataFiles are the files and directories that `mariposa dev` creates in its data
// directory.
var dataFiles = []string{
	"mariposa.db", "mariposa.db-wal", "mariposa.db-shm", "mariposa.db.lock", "secret.key", cli.TokenFile, "join.token", "replica", cli.URLFile, "node", "nodes",
}

// purgeData removes what `mariposa dev` created in its data directory, and the directory
// itself if it is empty then.
func purgeData(dir string, stdout io.Writer) error {
	for _, name := range dataFiles {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("cannot remove all of the data directory: %w", err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		fmt.Fprintf(stdout, "%s is kept: it contains files that Mariposa did not create\n", dir)
		return err
	}
	if err := os.Remove(dir); err != nil {
		return fmt.Errorf("cannot remove the data directory: %w", err)
	}
	fmt.Fprintln(stdout, "nothing is left")
	return nil
}
