package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// deletion contains the options of `project delete`.
type deletion struct {
	force, volumes, sure bool
}

func (a *app) projectRemove() *cobra.Command {
	var d deletion
	var wait bool
	cmd := a.projectArgument(&cobra.Command{
		Use: "rm [NAME]", Short: "Delete a project; with -f, stop its instances first",
		Long: "Delete a project with its versions and metadata. With -f, its instances are stopped first.\n\nOn a terminal, you are asked to type the project's name. Elsewhere, --yes is required.\n\n" +
			"Volumes are kept and move to the organization (`volume list -A`, `volume rm`). With\n--volumes they are deleted too, with all data in them.",
		Example: "  mariposa project rm shop\n  mariposa project rm shop -f --volumes --yes --wait",
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := a.projectName(args)
			if err != nil {
				return err
			}
			var gone *contract.Changed
			err = a.change(cmd, wait, func(c *client.Client) (*contract.Changed, error) {
				gone, err = a.deleteProject(cmd.Context(), c, name, d)
				return gone, err
			})
			if err != nil || !wait || gone.ID == "" {
				return err
			}
			return a.printOrphans(cmd.Context(), gone.ID)
		},
	})
	cmd.Flags().BoolVarP(&d.force, "force", "f", false, "stop its instances first")
	cmd.Flags().BoolVar(&d.volumes, "volumes", false, "delete its volumes too, with all data in them")
	cmd.Flags().BoolVarP(&d.sure, "yes", "y", false, "do not ask for confirmation")
	waitFlag(cmd, &wait)
	return cmd
}

// deleteProject deletes a project after confirmation.
func (a *app) deleteProject(ctx context.Context, c *client.Client, name string, d deletion) (*contract.Changed, error) {
	p, err := c.Project(ctx, name)
	if err != nil {
		return nil, a.noProject(err)
	}
	running, err := countRunning(ctx, c, p.ID)
	if err != nil {
		return nil, err
	}
	useForce := func(err error) error {
		return withHint(err, "`%s project rm %s -f` stops them, then deletes it", a.commandPrefix(""), name)
	}
	switch { // the server would refuse too, but only after the user has typed the name
	case d.sure:
	case p.Role != "" && p.Role.Rank() < mariposa.RoleAdmin.Rank():
		return nil, mariposa.Errorf(mariposa.Forbidden, "Permission denied: deleting %s requires the %s role; your role is %s", p.Name, mariposa.RoleAdmin, p.Role)
	case running > 0 && !d.force:
		return nil, useForce(mariposa.Errorf(mariposa.Conflict, "project %s still has %s", p.Name, plural(running, "running instance", "running instances")))
	}
	if err := a.confirmName(ctx, p.Name, d.consequences(p, running), d.sure); err != nil {
		return nil, err
	}
	remove := c.DeleteProject
	if d.volumes {
		remove = c.DeleteWithVolumes
	}
	done, err := remove(ctx, p.ID, d.force)
	switch {
	case mariposa.CodeOf(err) == mariposa.Conflict && !d.force:
		return nil, useForce(err)
	case err != nil:
		return nil, a.noProject(err)
	case a.global.json:
	case done.Task == nil:
		a.say("%s: deleted", p.Name)
	default:
		a.say("%s: stopping its instances, then deleting it%s", p.Name, prefixed("; ", a.suggest(p.Name, p.OrganizationName, done.Reason)))
	}
	return done, nil
}

// consequences describes what a deletion destroys.
func (d deletion) consequences(p *contract.Project, running int) string {
	what := fmt.Sprintf("deletes project %s with its versions and metadata", p.Name)
	if running > 0 {
		what += fmt.Sprintf(", and stops %s", plural(running, "instance", "instances"))
	}
	if d.volumes {
		return what + "; its volumes and all data in them are deleted too"
	}
	return what
}

// countRunning counts the instances of a project that run, or may run.
func countRunning(ctx context.Context, c *client.Client, project string) (n int, err error) {
	for i, err := range c.Instances(ctx, client.InstanceFilter{Project: project}) {
		if err != nil {
			return 0, err
		}
		switch i.State {
		case mariposa.StateDestroyed, mariposa.StateStopped, mariposa.StateFailed:
		default:
			n++
		}
	}
	return n, nil
}

// printOrphans prints what a deleted project left on unknown nodes.
func (a *app) printOrphans(ctx context.Context, project string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	n, on := 0, map[string]bool{}
	for i, err := range c.Instances(ctx, client.InstanceFilter{Project: project}) {
		if err != nil {
			return err
		}
		n, on[cmp.Or(i.NodeName, i.Node)] = n+1, true
	}
	if n == 0 {
		return nil
	}
	where := "node"
	if len(on) > 1 {
		where = "nodes"
	}
	a.note("%s left on unknown %s %s and will be removed when the node comes back", plural(n, "instance is", "instances are"), where, strings.Join(slices.Sorted(maps.Keys(on)), ", "))
	return nil
}
