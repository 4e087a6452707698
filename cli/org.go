package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func (a *app) orgCommand() *cobra.Command {
	return a.group("org", "Manage organizations, their members, quotas and policies",
		a.orgList(), a.orgCreate(), a.orgShow(), a.orgSet(), a.orgUnset(), a.orgUpdate(), a.orgRename(), a.orgDelete(),
		a.orgMembers(), a.orgAdd(), a.orgRemove(), a.orgLeave(), a.orgQuota(), a.orgPolicy(), a.orgRegistry())
}

// onOrg creates a command for one organization: the first argument, or else the
// organization from -o or the profile. The given number of other arguments follows.
func (a *app) onOrg(cmd *cobra.Command, words int, run func(ctx context.Context, c *client.Client, org string, args []string) error) *cobra.Command {
	cmd.Args = argsBetween(words, words+1)
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = a.wordsFrom(orgNames)
	}
	return a.withClient(cmd, func(ctx context.Context, c *client.Client, given []string) error {
		org, args := "", given
		if len(args) > words {
			org, args = args[0], args[1:]
		} else {
			s, err := a.locate()
			if err != nil {
				return err
			}
			if org = s.org; org == "" {
				return Usage(withHint(errors.New("no organization given"), "name one with -o or MARIPOSA_ORG, or set a default with `mariposa org set ORG`; `mariposa org list` shows yours"))
			}
		}
		err := run(ctx, c, org, args)
		if why := a.explainOrganization(); why != "" && mariposa.CodeOf(err) == mariposa.ResourceNotFound && len(given) <= words {
			return withHint(err, "%s; see `mariposa org list`", why)
		}
		return noOrg(err)
	})
}

// noOrg adds a hint to a "not found" error, unless it already has one.
func noOrg(err error) error { return notFound(err, "mariposa org list") }

func (a *app) orgList() *cobra.Command {
	return a.withClient(&cobra.Command{Use: "list", Short: "List the organizations that you can see", Args: argsBetween(0, 0)},
		func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.Organizations(ctx)
			return show(a, all, err, func() {
				sel, _ := a.selected() // a damaged profile was already reported when connecting
				t := newTable("NAME", "YOUR ROLE", "BASE ROLE", "MEMBERS", "PROJECTS", "AGE")
				for _, o := range all.Organizations {
					t.add(markCurrent(o.Name, sel.Org == o.Name), text(dashIfEmpty(string(o.Role))), text(baseRole(o)), number(o.Members), number(o.Projects), text(a.age(o.Created)))
				}
				a.printTable(t)
			})
		})
}

// baseRole returns the role of an organization's members in its projects.
func baseRole(o contract.Organization) string {
	if o.Personal {
		return "(personal)"
	}
	return dashIfEmpty(string(o.BaseRole))
}

func (a *app) orgCreate() *cobra.Command {
	var base string
	cmd := a.withClient(&cobra.Command{Use: "create NAME", Short: "Create an organization; you become its owner", Args: argsBetween(1, 1), ValidArgsFunction: cobra.NoFileCompletions},
		func(ctx context.Context, c *client.Client, args []string) error {
			if err := checkRole("base-role", base, baseRoles); err != nil {
				return err
			}
			done, err := c.CreateOrganization(ctx, contract.NewOrganization{Name: args[0], BaseRole: mariposa.Role(base)})
			return changed(a, done, err, "organization %s is created; you are its owner", args[0])
		})
	baseRoleFlag(cmd, &base)
	return cmd
}

var (
	projectRoles = words(mariposa.Roles)
	baseRoles    = append([]string{string(mariposa.RoleNone)}, projectRoles...)
	orgRoles     = []string{string(mariposa.OrgOwner), string(mariposa.OrgMember)}
)

func words[T ~string](all []T) []string {
	var texts []string
	for _, w := range all {
		texts = append(texts, string(w))
	}
	return texts
}

// roleFlag adds a flag that accepts the given roles.
func roleFlag(cmd *cobra.Command, role *string, name, standard, usage string, roles []string) {
	cmd.Flags().StringVar(role, name, standard, usage+": "+strings.Join(roles, ", "))
	complete(cmd, name, oneOf(roles))
}

func baseRoleFlag(cmd *cobra.Command, base *string) {
	roleFlag(cmd, base, "base-role", "", "role of every member in every project (default viewer)", baseRoles)
}

func checkRole(flag, role string, roles []string) error {
	if role != "" && !slices.Contains(roles, role) {
		return Usage(fmt.Errorf("--%s must be one of %s, not %q", flag, strings.Join(roles, ", "), role))
	}
	return nil
}

func (a *app) orgShow() *cobra.Command {
	return a.onOrg(&cobra.Command{Use: "show [ORG]", Short: "Show an organization"}, 0,
		func(ctx context.Context, c *client.Client, org string, _ []string) error {
			o, err := c.Organization(ctx, org)
			return show(a, o, err, func() {
				a.facts("name", cell{o.Name, bold}, "id", o.ID, "personal", wordIf("yes", o.Personal), "your role", string(o.Role), "base role", string(o.BaseRole),
					"members", o.Members, "projects", o.Projects, "created", a.stamp(o.Created))
			})
		})
}

func (a *app) orgUpdate() *cobra.Command {
	var base string
	cmd := a.onOrg(&cobra.Command{Use: "update [ORG] --base-role ROLE", Short: "Change the role of the members in all projects of an organization"}, 0,
		func(ctx context.Context, c *client.Client, org string, _ []string) error {
			if base == "" {
				return Usage(errors.New("nothing to change: use --base-role"))
			}
			if err := checkRole("base-role", base, baseRoles); err != nil {
				return err
			}
			done, err := c.UpdateOrganization(ctx, org, contract.OrganizationChange{BaseRole: mariposa.Role(base)})
			return changed(a, done, err, "members of %s now have the role %s in its projects", org, base)
		})
	baseRoleFlag(cmd, &base)
	return cmd
}

func (a *app) orgRename() *cobra.Command {
	return a.onOrg(&cobra.Command{Use: "rename [ORG] NEW-NAME", Short: "Rename an organization"}, 1,
		func(ctx context.Context, c *client.Client, org string, args []string) error {
			done, err := c.UpdateOrganization(ctx, org, contract.OrganizationChange{Name: args[0]})
			return changed(a, done, err, "organization %s is now called %s", org, args[0])
		})
}

func (a *app) orgDelete() *cobra.Command {
	return a.withClient(&cobra.Command{Use: "rm ORG", Short: "Delete an organization that has no projects left", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(orgNames)},
		func(ctx context.Context, c *client.Client, args []string) error {
			done, err := c.DeleteOrganization(ctx, args[0])
			return noOrg(changed(a, done, err, "organization %s is deleted", args[0]))
		})
}

func (a *app) orgMembers() *cobra.Command {
	return a.onOrg(&cobra.Command{Use: "members [ORG]", Short: "List the members of an organization"}, 0,
		func(ctx context.Context, c *client.Client, org string, _ []string) error {
			all, err := c.Members(ctx, org)
			return show(a, all, err, func() { a.printTable(memberTable(all.Members)) })
		})
}

func memberTable(members []contract.Member) *table {
	t := newTable("USER", "ROLE")
	if slices.ContainsFunc(members, func(m contract.Member) bool { return m.Via != "" }) {
		t.columns = append(t.columns, column{head: "AS"})
	}
	for _, m := range members {
		t.add([]cell{{m.UserName, bold}, text(m.Role), text(m.Via)}[:len(t.columns)]...)
	}
	return t
}

func (a *app) orgAdd() *cobra.Command {
	var role string
	cmd := a.onOrg(&cobra.Command{
		Use: "add-member [ORG] USER", Aliases: []string{"add"}, Short: "Add a member to an organization, or change the role of a member", ValidArgsFunction: a.last(orgNames, userNames),
		Example: "  mariposa -o shop org add ann\n  mariposa org add shop ann --role owner",
	}, 1, func(ctx context.Context, c *client.Client, org string, args []string) error {
		if err := checkRole("role", role, orgRoles); err != nil {
			return err
		}
		done, err := c.PutMember(ctx, org, args[0], mariposa.OrgRole(role))
		err = unknownUser(err, "mariposa user list", func() error { _, err := c.Organization(ctx, org); return err })
		return changed(a, done, err, "%s is now %s of %s", args[0], withArticle(role), org)
	})
	roleFlag(cmd, &role, "role", string(mariposa.OrgMember), "role of the user", orgRoles)
	return cmd
}

func (a *app) orgRemove() *cobra.Command {
	return a.onOrg(&cobra.Command{Use: "rm-member [ORG] USER", Short: "Remove a member from an organization", Aliases: []string{"remove-member", "remove"}, ValidArgsFunction: a.last(orgNames, userNames)}, 1,
		func(ctx context.Context, c *client.Client, org string, args []string) error {
			done, err := c.RemoveMember(ctx, org, args[0])
			err = unknownUser(err, "mariposa org members "+org, func() error { _, err := c.Organization(ctx, org); return err })
			return changed(a, done, err, "%s is no longer a member of %s", args[0], org)
		})
}

func (a *app) orgLeave() *cobra.Command {
	return a.onOrg(&cobra.Command{Use: "leave [ORG]", Short: "Leave an organization"}, 0,
		func(ctx context.Context, c *client.Client, org string, _ []string) error {
			who, err := c.Whoami(ctx)
			if err != nil {
				return err
			}
			done, err := c.RemoveMember(ctx, org, who.Name)
			return changed(a, done, err, "you are no longer a member of %s", org)
		})
}
