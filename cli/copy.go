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
		Use: "copy [PROJECT] NEW-NAME", Short: "Create a project from the newest manifest of another one",
		Long: "Create a project from the newest manifest of another one.\n\n" +
			"Metadata is not copied, except for the keys that --meta names. Copying a secret requires a\nrole that can read it. The new project waits for required metadata that it does not get.",
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
				a.say("%s: copied from %s, %s", to.Name, project, versionWords(done))
				a.printConsequences(cmd.Context(), c, cmp.Or(to.Organization, a.organizationFlag()), to.Name, done)
			}
			return done, a.noProject(err)
		})
	}
	cmd.Flags().StringSliceVar(&to.Metadata, "meta", nil, "metadata key to copy (repeatable)")
	cmd.Flags().StringVar(&to.Organization, "to-org", "", "organization of the new project (default: the same one)")
	complete(cmd, "meta", a.every(metaKeys))
	complete(cmd, "to-org", a.every(orgNames))
	waitFlag(cmd, &wait)
	return cmd
}

func (a *app) projectRename() *cobra.Command {
	return a.inProject(&cobra.Command{
		Use: "rename [PROJECT] NEW-NAME", Short: "Rename a project; its instances keep running",
		Long: "Rename a project. The old name is available immediately.\n\n" +
			"Nothing restarts. Instances that use {{ .project.name }} keep the old name until they are\nreplaced.",
		Example: "  mariposa project rename shop store",
	}, 1, func(ctx context.Context, c *client.Client, project string, args []string) error {
		before, err := c.Project(ctx, project)
		if err != nil {
			return err
		}
		done, err := c.RenameProject(ctx, before.ID, args[0])
		err = changed(a, done, err, "project %s is now called %s", before.Name, args[0])
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
		Use: "move [PROJECT] ORG", Short: "Move a project to another organization; its instances keep running", ValidArgsFunction: a.last(projectNames, orgNames),
		Aliases: []string{"transfer"},
		Long: "Move a project to another organization, with its history, metadata and secrets. Nothing\nrestarts.\n\n" +
			"Roles that were given in the project itself stay. Roles that come from membership follow the\nnew organization.",
	}, 1, func(ctx context.Context, c *client.Client, project string, args []string) error {
		p, err := c.Project(ctx, project)
		if err != nil {
			return err
		}
		does := fmt.Sprintf("moves project %s from %s to organization %s, with its metadata and secrets", p.Name, p.OrganizationName, args[0])
		if err := a.confirmName(ctx, p.Name, does, sure); err != nil {
			return err
		}
		done, err := c.MoveProject(ctx, p.ID, args[0])
		err = changed(a, done, err, "%s now belongs to %s", p.Name, args[0])
		if err == nil && !a.global.json {
			a.note("use -o %s to find it", args[0])
		}
		return err
	})
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask for confirmation")
	return cmd
}
