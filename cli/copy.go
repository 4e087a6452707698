package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

func (a *app) projectCopy() *cobra.Command {
	var to contract.Copy
	var wait bool
	cmd := a.inProject(&cobra.Command{
		Use: "copy [PROJECT] NEW-NAME", Short: "Make a new project of a project's newest manifest",
		Long:    "Make a new project of a project's newest manifest.\n\nNo metadata comes along but the keys that --meta names; secrets need a role that may read\nthem. What the new project requires and does not get, it waits for.",
		Example: "  mariposa project copy shop shop-test --meta mode --to-org test",
	}, 1, nil)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		to.Name = args[len(args)-1]
		project, err := a.projectName(args[:len(args)-1])
		if err != nil {
			return err
		}
		return a.change(cmd, wait, func(c *client.Client) (*contract.Changed, error) {
			done, err := c.CopyProject(cmd.Context(), project, to)
			if err == nil && !a.global.json {
				a.say("%s: a copy of %s, %s", to.Name, project, versionWords(done))
				a.printConsequences(cmd.Context(), c, cmp.Or(to.Organization, a.organizationFlag()), to.Name, done)
			}
			return done, a.noProject(err)
		})
	}
	cmd.Flags().StringSliceVar(&to.Metadata, "meta", nil, "a metadata key whose value comes along; may be given again")
	cmd.Flags().StringVar(&to.Organization, "to-org", "", "the organization that gets it (default: the same one)")
	complete(cmd, "meta", a.every(metaKeys))
	complete(cmd, "to-org", a.every(orgNames))
	waitFlag(cmd, &wait)
	return cmd
}

func (a *app) projectRename() *cobra.Command {
	return a.inProject(&cobra.Command{
		Use: "rename [PROJECT] NEW-NAME", Short: "Give a project another name; its instances run on",
		Long:    "Give a project another name.\n\nNothing of it restarts: what was made under the old name keeps it where a manifest says\n{{ .project.name }}, until it is made anew. The old name is free at once.",
		Example: "  mariposa project rename shop store",
	}, 1, func(ctx context.Context, c *client.Client, project string, args []string) error {
		before, err := c.Project(ctx, project)
		if err != nil {
			return err
		}
		done, err := c.RenameProject(ctx, before.ID, args[0])
		err = changed(a, done, err, "project %s is called %s now", before.Name, args[0])
		if err != nil {
			return err
		}
		if sel, _ := a.selected(); sel.isCurrent(*before) {
			return a.changeSelection(func(s *selection) { s.Project = args[0] })
		}
		return nil
	})
}

func (a *app) projectMove() *cobra.Command {
	var sure bool
	cmd := a.inProject(&cobra.Command{
		Use: "move [PROJECT] ORG", Short: "Give a project to another organization; its instances run on", ValidArgsFunction: a.last(projectNames, orgNames),
		Aliases: []string{"transfer"},
		Long:    "Give a project to another organization.\n\nIt goes with its history, metadata and secrets, and nothing of it restarts. Roles that were\ngiven in the project itself stay; what people may do as members follows the organization.",
	}, 1, func(ctx context.Context, c *client.Client, project string, args []string) error {
		p, err := c.Project(ctx, project)
		if err != nil {
			return err
		}
		does := fmt.Sprintf("gives project %s of %s to organization %s, with its metadata and secrets", p.Name, p.OrganizationName, args[0])
		if ok, err := a.confirmName(ctx, p.Name, does, sure); err != nil || !ok {
			return err
		}
		done, err := c.MoveProject(ctx, p.ID, args[0])
		err = changed(a, done, err, "%s belongs to %s now", p.Name, args[0])
		if err == nil && !a.global.json {
			a.note("from now on it is found with -o %s", args[0])
		}
		return err
	})
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask")
	return cmd
}
