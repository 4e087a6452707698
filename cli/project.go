package cli

import (
	"cmp"
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

func (a *app) projectCommand() *cobra.Command {
	return a.group("project", "Create, update, scale, inspect and delete projects",
		a.projectList(), a.projectCreate(), a.projectShow(), a.projectSet(), a.projectUnset(), a.projectUpdate(),
		a.projectVersions(), a.projectVersion(), a.projectTag(), a.projectRevert(), a.projectRefresh(), a.projectCopy(), a.projectRename(), a.projectMove(), a.projectRemove(),
		a.projectUsers(), a.projectAddUser(), a.projectRemoveUser(), a.projectScale(), a.projectInstances(), a.projectPlan(), a.projectGraph(),
		a.newActionCommand("start"), a.newActionCommand("stop"), a.newActionCommand("reprovision"), a.newActionCommand("freeze"), a.newActionCommand("thaw"),
		a.newActionCommand("pause"), a.newActionCommand("resume"), a.newActionCommand("converge"), a.newActionCommand("accept"))
}

func (a *app) projectList() *cobra.Command {
	return a.withClient(&cobra.Command{Use: "list", Short: "List projects", Args: argsBetween(0, 0)}, func(ctx context.Context, c *client.Client, _ []string) error {
		a.everywhere = true
		all, err := c.Projects(ctx, "")
		return show(a, all, err, func() {
			sel, _ := a.selected() // a damaged profile was already reported when connecting
			t := newTable("NAME", "ORGANIZATION?", "VERSION", "GOAL?", "STATUS", "SERVICES", "AGE", "REASON?").ifEmpty("%s", a.noProjectsListed()).sparing("AGE", "SERVICES")
			for _, p := range all.Projects {
				t.add(markCurrent(p.Name, sel.isCurrent(p)), text(cmp.Or(p.OrganizationName, p.Organization)), text(versionOf(p.Number, p.Version)), usualGoal(p.Goal), word(p.Status),
					number(len(p.Services)), text(a.age(p.Created)), text(a.suggest(p.Name, p.OrganizationName, p.Reason)))
			}
			a.printTable(t)
		})
	})
}

// usualGoal dims the goal that most projects have, because their status is more
// informative.
func usualGoal(g mariposa.ProjectGoal) cell {
	if g == mariposa.GoalStarted {
		return cell{string(g), dim}
	}
	return text(string(g))
}

func (a *app) noProjectsYet() string {
	return fmt.Sprintf("no projects yet: create one with `%s project create NAME -m FILE`", a.commandPrefix(""))
}

// noProjectsListed says that there are no projects, or in which organization there are none and
// how to list those of all.
func (a *app) noProjectsListed() string {
	s, err := a.locate()
	if err != nil || s.org == "" {
		return a.noProjectsYet()
	}
	said := fmt.Sprintf("no projects in organization %s yet: create one with `%s project create NAME -m FILE`", s.org, a.commandPrefix(""))
	switch {
	case a.fromEnv["org"]:
		return said + "; to list those of all organizations, unset MARIPOSA_ORG"
	case a.global.org == "":
		return said + "; to list those of all organizations, unset the default with `mariposa org unset`"
	}
	return said
}

func (a *app) projectShow() *cobra.Command {
	return a.inProject(&cobra.Command{Use: "show [NAME]", Short: "Show the desired and actual state of a project"}, 0,
		func(ctx context.Context, c *client.Client, name string, _ []string) error {
			p, err := c.Project(ctx, name)
			if err != nil || a.global.json {
				return show(a, p, err, nil)
			}
			state, err := c.State(ctx, p.ID, "")
			if err != nil {
				return err
			}
			if err := a.checkColumns(serviceTable(nil)); err != nil {
				return err
			}
			a.facts("name", p.Name, "id", p.ID, "organization", cmp.Or(p.OrganizationName, p.Organization), "your role", string(p.Role), "version", versionOf(p.Number, p.Version),
				"goal", string(p.Goal), "status", word(p.Status), reasonLabel(p), p.Reason, "created", a.stamp(p.Created), "author", p.Author, "stored", storedOf(p.Stored))
			for _, s := range state.Projects {
				if len(s.Services) > 0 {
					fmt.Fprintln(a.env.Stdout)
					a.printTable(serviceTable(s.Services))
				}
			}
			return nil
		})
}

// reasonLabel returns the label for the reason of a project. A version that waits for
// approval is not the reason for the status of the current version.
func reasonLabel(p *contract.Project) string {
	if p.Status == mariposa.StatusConverged && p.ReasonCode == mariposa.ReasonWaitsApproval {
		return "next version"
	}
	return "reason"
}

// storedOf formats how much data of a project is stored, and the limit.
func storedOf(s *contract.Stored) string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("%s of %s (versions %s, metadata %s); events %s of %s",
		roughBytes(s.Total), roughBytes(s.Limit), roughBytes(s.Versions), roughBytes(s.Metadata), roughBytes(s.Events), roughBytes(s.EventsLimit))
}

// onProject returns a client and the selected project.
func (a *app) onProject(args []string) (*client.Client, string, error) {
	name, err := a.projectName(args)
	if err != nil {
		return nil, "", err
	}
	c, err := a.connect()
	return c, name, err
}

// noProject adds a hint to a "not found" error, unless it already has one: which
// projects there are, and why they were looked for in an organization.
func (a *app) noProject(err error) error {
	list := a.commandPrefix("") + " project list"
	var known hint
	if why := a.explainOrganization(); why != "" && mariposa.CodeOf(err) == mariposa.ResourceNotFound && !errors.As(err, &known) {
		return withHint(err, "%s; see `%s`", why, list)
	}
	return notFound(err, list)
}

// noServiceIn explains a "not found" error: if the project exists, the error itself says
// which services it has.
func (a *app) noServiceIn(ctx context.Context, c *client.Client, project string, err error) error {
	if project == "" || mariposa.CodeOf(err) != mariposa.ResourceNotFound {
		return err
	}
	if _, missing := c.Project(ctx, project); missing != nil {
		return a.noProject(err)
	}
	return hint{error: err}
}

func waitFlag(cmd *cobra.Command, wait *bool) {
	cmd.Flags().BoolVar(wait, "wait", false, "wait until the task has ended; exit with 3 if it fails")
}

func yesOrNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

func sorted(m map[string]string) string {
	var all []string
	for k, v := range m {
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
