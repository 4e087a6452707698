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
	return a.inProject(&cobra.Command{Use: "users [PROJECT]", Short: "List users, their roles in a project and where the roles come from", Aliases: []string{"people", "collaborators"}}, 0,
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
		Use: "add-user [PROJECT] USER --role ROLE", Short: "Give a user a role in a project, replacing any previous one", Aliases: []string{"share", "invite"},
		ValidArgsFunction: a.last(projectNames, userNames),
		Example:           "  mariposa project add-user shop ann --role operator\n  mariposa -j shop project share ci --role deployer",
	}, 1, func(ctx context.Context, c *client.Client, project string, args []string) error {
		if role == "" {
			return Usage(errors.New("no role given: use --role"))
		}
		if err := checkRole("role", role, projectRoles); err != nil {
			return err
		}
		done, err := c.PutProjectUser(ctx, project, args[0], mariposa.Role(role))
		err = unknownUser(err, "mariposa user list", func() error { _, err := c.Project(ctx, project); return err })
		return changed(a, done, err, "%s is now %s of %s", args[0], withArticle(role), project)
	})
	roleFlag(cmd, &role, "role", "", "role of the user", projectRoles)
	return cmd
}

func (a *app) projectRemoveUser() *cobra.Command {
	return a.inProject(&cobra.Command{
		Use: "rm-user [PROJECT] USER", Short: "Remove the role that a user has in a project", Aliases: []string{"unshare", "remove-user"}, ValidArgsFunction: a.last(projectNames, userNames),
		Long: "Remove the role that a user has in the project itself.\n\n" +
			"Roles that come from membership in the organization of the project stay.",
	}, 1, func(ctx context.Context, c *client.Client, project string, args []string) error {
		done, err := c.RemoveProjectUser(ctx, project, args[0])
		err = unknownUser(err, a.commandPrefix(project)+" project users", func() error { _, err := c.Project(ctx, project); return err })
		return changed(a, done, err, "%s no longer has a direct role in %s", args[0], project)
	})
}

// unknownUser adds a hint about users to a "not found" error if look finds the other
// object: the server does not say which of the two is missing.
func unknownUser(err error, list string, look func() error) error {
	if mariposa.CodeOf(err) == mariposa.ResourceNotFound && look() == nil {
		return notFound(err, list)
	}
	return err
}
