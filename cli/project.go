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

func (a *app) projectCommand() *cobra.Command {
	return a.group("project", "Make, change, watch over and delete projects",
		a.projectList(), a.projectCreate(), a.projectShow(), a.projectSet(), a.projectUpdate(),
		a.projectVersions(), a.projectVersion(), a.projectTag(), a.projectRevert(), a.projectCopy(), a.projectRename(), a.projectMove(), a.projectDelete(),
		a.projectUsers(), a.projectAddUser(), a.projectRemoveUser(), a.projectScale(), a.projectPlan(), a.projectGraph(),
		a.newActionCommand("start"), a.newActionCommand("stop"), a.newActionCommand("reprovision"), a.newActionCommand("freeze"), a.newActionCommand("thaw"),
		a.newActionCommand("pause"), a.newActionCommand("resume"), a.newActionCommand("converge"), a.newActionCommand("accept"))
}

func (a *app) projectList() *cobra.Command {
	return a.withClient(&cobra.Command{Use: "list", Short: "List the projects", Args: argsBetween(0, 0)}, func(ctx context.Context, c *client.Client, _ []string) error {
		all, err := c.Projects(ctx, "")
		return show(a, all, err, func() {
			if len(all.Projects) == 0 {
				a.noProjectsYet()
				return
			}
			t := newTable("NAME", "ORGANIZATION", "VERSION", "GOAL", "STATUS", "SERVICES", "AGE", "REASON")
			for _, p := range all.Projects {
				t.add(cell{p.Name, bold}, text(cmp.Or(p.OrganizationName, p.Organization)), text(versionOf(p.Number, p.Version)), text(string(p.Goal)), word(p.Status),
					number(len(p.Services)), text(a.age(p.Created)), text(p.Reason))
			}
			a.printTable(t)
		})
	})
}

func (a *app) noProjectsYet() {
	a.note("no projects yet: make one with `%s project create NAME -m FILE`", a.commandPrefix(""))
}

func (a *app) projectShow() *cobra.Command {
	return a.inProject(&cobra.Command{Use: "show [NAME]", Short: "Show what a project should be and what it is"}, 0,
		func(ctx context.Context, c *client.Client, name string, _ []string) error {
			p, err := c.Project(ctx, name)
			if err != nil || a.global.json {
				return show(a, p, err, nil)
			}
			state, err := c.State(ctx, p.ID, "")
			if err != nil {
				return err
			}
			a.facts("name", p.Name, "id", p.ID, "organization", cmp.Or(p.OrganizationName, p.Organization), "you are", string(p.Role), "version", versionOf(p.Number, p.Version),
				"goal", string(p.Goal), "status", word(p.Status), "reason", p.Reason, "created", a.stamp(p.Created), "author", p.Author, "stored", storedOf(p.Stored))
			for _, s := range state.Projects {
				if len(s.Services) > 0 {
					fmt.Fprintln(a.env.Stdout)
					a.printTable(serviceTable(s.Services))
				}
			}
			return nil
		})
}

// storedOf says how much of a project is stored, and how much may be.
func storedOf(s *contract.Stored) string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("%s of %s (versions %s, metadata %s); events %s of %s",
		roughBytes(s.Total), roughBytes(s.Limit), roughBytes(s.Versions), roughBytes(s.Metadata), roughBytes(s.Events), roughBytes(s.EventsLimit))
}

func (a *app) projectDelete() *cobra.Command {
	var force, volumes, wait bool
	cmd := a.projectArgument(&cobra.Command{
		Use: "delete [NAME]", Short: "Delete a project; with -f, what it runs is stopped first",
		Long: "Delete a project. With -f, what it runs is stopped first.\n\nIts volumes are kept: they belong to its organization then (`volume list -A`, `volume rm`).\nWith --volumes they go with it, and all that is in them.",
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := a.projectName(args)
			if err != nil {
				return err
			}
			var gone *contract.Changed
			err = a.change(cmd, wait, func(c *client.Client) (*contract.Changed, error) {
				remove := c.DeleteProject
				if volumes {
					remove = c.DeleteWithVolumes
				}
				done, err := remove(cmd.Context(), name, force)
				gone = done
				switch {
				case mariposa.CodeOf(err) == mariposa.Conflict && !force:
					err = withHint(err, "`%s project delete %s -f` stops what it runs, then deletes it", a.commandPrefix(""), name)
				case err != nil:
					err = a.noProject(err)
				case !a.global.json && done.Task == nil:
					a.say("%s: deleted", name)
				case !a.global.json:
					a.say("%s: stopping what it runs; then it is gone%s", name, prefixed("; ", done.Reason))
				}
				return done, err
			})
			if err != nil || !wait || gone == nil || gone.ID == "" {
				return err
			}
			return a.printOrphans(cmd.Context(), gone.ID)
		},
	})
	cmd.Flags().BoolVarP(&force, "force", "f", false, "stop what it runs first")
	cmd.Flags().BoolVar(&volumes, "volumes", false, "delete its volumes too, with all that is in them")
	waitFlag(cmd, &wait)
	return cmd
}

// printOrphans prints what a deleted project left on unreachable nodes.
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
	a.note("%s left on %s %s, out of reach now; what is left goes when its node comes back", plural(n, "instance is", "instances are"), where, strings.Join(slices.Sorted(maps.Keys(on)), ", "))
	return nil
}

func (a *app) projectSet() *cobra.Command {
	return a.withClient(&cobra.Command{
		Use: "set NAME", Short: "Choose the project that commands mean when none is named", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(projectNames),
	}, func(ctx context.Context, c *client.Client, args []string) error {
		p, err := c.Project(ctx, args[0])
		if err != nil {
			return a.noProject(err)
		}
		saved, err := a.readProfile()
		if err != nil {
			return err
		}
		saved.Project = p.Name
		return changed(a, p, a.writeProfile(saved), "commands that name no project mean %s from now on", p.Name)
	})
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

// noProject adds a hint to a "not found" error, unless it already has one.
func (a *app) noProject(err error) error {
	return notFound(err, a.commandPrefix("")+" project list")
}

func waitFlag(cmd *cobra.Command, wait *bool) {
	cmd.Flags().BoolVar(wait, "wait", false, "follow the task to its end; exit with 3 if it fails")
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
	return strings.Join(all, ",")
}
