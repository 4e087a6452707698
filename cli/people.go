package cli

import (
	"cmp"
	"context"
	"errors"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
)

func (a *app) projectUsers() *cobra.Command {
	return a.inProject(&cobra.Command{Use: "users [PROJECT]", Short: "List who may do what in a project, and why", Aliases: []string{"people", "collaborators"}}, 0,
		func(ctx context.Context, c *client.Client, project string, _ []string) error {
			all, err := c.ProjectUsers(ctx, project)
			return show(a, all, err, func() {
				for n := range all.Members {
					m := &all.Members[n]
					m.Via = cmp.Or(m.Via, "in the project")
				}
				a.printTable(memberTable(all.Members))
			})
		})
}

func (a *app) projectAddUser() *cobra.Command {
	var role string
	cmd := a.inProject(&cobra.Command{
		Use: "add-user [PROJECT] USER --role ROLE", Short: "Give a user a role in a project, in place of any before", Aliases: []string{"share", "invite"},
		ValidArgsFunction: a.last(projectNames, userNames),
		Example:           "  mariposa project add-user shop ann --role operator\n  mariposa -j shop project share ci --role deployer",
	}, 1, func(ctx context.Context, c *client.Client, project string, args []string) error {
		if role == "" {
			return Usage(errors.New("as what? Say it with --role"))
		}
		if err := checkRole("role", role, projectRoles); err != nil {
			return err
		}
		done, err := c.PutProjectUser(ctx, project, args[0], mariposa.Role(role))
		err = unknownUser(err, "mariposa user list", func() error { _, err := c.Project(ctx, project); return err })
		return changed(a, done, err, "%s is %s of %s", args[0], role, project)
	})
	roleFlag(cmd, &role, "role", "", "what the user becomes", projectRoles)
	return cmd
}

func (a *app) projectRemoveUser() *cobra.Command {
	return a.inProject(&cobra.Command{
		Use: "rm-user [PROJECT] USER", Short: "Take a user's own role in a project away", Aliases: []string{"unshare", "remove-user"}, ValidArgsFunction: a.last(projectNames, userNames),
		Long: "Take a user's own role in a project away.\n\nWhat they may do as members or owners of the project's organization stays.",
	}, 1, func(ctx context.Context, c *client.Client, project string, args []string) error {
		done, err := c.RemoveProjectUser(ctx, project, args[0])
		err = unknownUser(err, a.commandPrefix(project)+" project users", func() error { _, err := c.Project(ctx, project); return err })
		return changed(a, done, err, "%s has no role of their own in %s any more", args[0], project)
	})
}

// unknownUser adds a hint about users to a "not found" error if look finds the
// object that the role is for: the server's answer does not say which of the two is
// missing.
func unknownUser(err error, list string, look func() error) error {
	if mariposa.CodeOf(err) == mariposa.ResourceNotFound && look() == nil {
		return notFound(err, list)
	}
	return err
}
