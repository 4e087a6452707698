package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
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
		a.projectVersions(), a.projectVersion(), a.projectDelete(), a.projectScale(),
		a.projectAct("start", "Bring a stopped project back"),
		a.projectAct("stop", "Stop all instances of a project; it stays known"),
		a.projectAct("reprovision", "Make all instances anew, batch by batch"))
}

func (a *app) projectList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the projects", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := c.Projects(cmd.Context(), "")
			if err != nil {
				return err
			}
			if a.global.json {
				return a.printJSON(all)
			}
			if len(all.Projects) == 0 {
				a.note("no projects yet: make one with `mariposa project create NAME -m FILE`")
				return nil
			}
			t := newTable("NAME", "VERSION", "GOAL", "STATUS", "SERVICES", "AGE", "REASON")
			for _, p := range all.Projects {
				t.add(cell{p.Name, bold}, text(versionOf(p.Number, p.Version)), text(string(p.Goal)), word(p.Status),
					number(len(p.Services)), text(a.age(p.Created)), text(p.Reason))
			}
			a.printTable(t)
			return nil
		},
	}
}

func (a *app) projectCreate() *cobra.Command {
	var file, message string
	var wait bool
	cmd := &cobra.Command{
		Use: "create NAME -m FILE", Short: "Make a project from a manifest", Args: takes(1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			manifest, err := a.readManifest(file)
			if err != nil {
				return err
			}
			return a.change(cmd, wait, func(c *client.Client) (*contract.Changed, error) {
				done, err := c.CreateProject(cmd.Context(), args[0], manifest, message)
				if err == nil && !a.global.json {
					a.say("%s: version %s", args[0], versionOf(done.Number, done.Version))
				}
				return done, err
			})
		},
	}
	manifestFlag(cmd, &file)
	cmd.Flags().StringVar(&message, "message", "", "why, for those who read the versions later")
	waitFlag(cmd, &wait)
	return cmd
}

func (a *app) projectShow() *cobra.Command {
	return a.aProject(&cobra.Command{
		Use: "show [NAME]", Short: "Show what a project should be and what it is",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, name, err := a.onProject(args)
			if err != nil {
				return err
			}
			p, err := c.Project(cmd.Context(), name)
			if err != nil {
				return a.noProject(err)
			}
			if a.global.json {
				return a.printJSON(p)
			}
			state, err := c.State(cmd.Context(), p.ID, "")
			if err != nil {
				return err
			}
			a.facts("name", p.Name, "id", p.ID, "organization", p.Organization, "version", versionOf(p.Number, p.Version),
				"goal", string(p.Goal), "status", word(p.Status), "reason", p.Reason, "created", a.stamp(p.Created), "author", p.Author)
			for _, s := range state.Projects {
				if len(s.Services) > 0 {
					fmt.Fprintln(a.env.Stdout)
					a.printTable(serviceTable(s.Services))
				}
			}
			return nil
		},
	})
}

func (a *app) projectVersions() *cobra.Command {
	return a.aProject(&cobra.Command{
		Use: "versions [NAME]", Short: "List the versions of a project, newest first",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, name, err := a.onProject(args)
			if err != nil {
				return err
			}
			all, err := c.Versions(cmd.Context(), name)
			if err != nil {
				return a.noProject(err)
			}
			if a.global.json {
				return a.printJSON(all)
			}
			t := newTable("NUMBER", "VERSION", "AGE", "AUTHOR", "COMPLETED", "CHANGED", "TAGS", "MESSAGE")
			for _, v := range all.Versions {
				t.add(number(v.Number), text(v.Version), text(a.age(v.Created)), text(dash(v.Author)), text(yes(v.Completed)),
					text(dash(strings.Join(v.ServicesChanged, ","))), text(dash(strings.Join(v.Tags, ","))), text(v.Message))
			}
			a.printTable(t)
			return nil
		},
	})
}

func (a *app) projectVersion() *cobra.Command {
	return a.group("version", "Look at single versions of a project", &cobra.Command{
		Use: "get VERSION", Short: "Print the manifest of a version, as it was submitted", Args: takes(1, 1),
		ValidArgsFunction: first(a.versionNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, name, err := a.onProject(nil)
			if err != nil {
				return err
			}
			v, err := c.Version(cmd.Context(), name, args[0])
			if err != nil {
				return a.noProject(err)
			}
			if a.global.json {
				return a.printJSON(v)
			}
			a.note("version %s of %s, %s%s%s", versionOf(v.Number, v.Version), name, a.stamp(v.Created), prefixed(" by ", v.Author), prefixed(": ", v.Message))
			_, err = io.WriteString(a.env.Stdout, v.Manifest)
			return err
		},
	})
}

func (a *app) projectDelete() *cobra.Command {
	var force, wait bool
	cmd := a.aProject(&cobra.Command{
		Use: "delete [NAME]", Short: "Delete a project; with -f, what it runs is stopped first",
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := a.projectName(args)
			if err != nil {
				return err
			}
			var gone *contract.Changed
			err = a.change(cmd, wait, func(c *client.Client) (*contract.Changed, error) {
				done, err := c.DeleteProject(cmd.Context(), name, force)
				gone = done
				switch {
				case mariposa.CodeOf(err) == mariposa.Conflict && !force:
					err = hinted(err, "`mariposa project delete %s -f` stops what it runs, then deletes it", name)
				case err != nil:
					err = a.noProject(err)
				case !a.global.json && done.Task == nil:
					a.say("%s: deleted", name)
				case !a.global.json:
					a.say("%s: stopping what it runs; then it is gone", name)
				}
				return done, err
			})
			if err != nil || !wait || gone == nil || gone.ID == "" {
				return err
			}
			return a.debts(cmd.Context(), gone.ID)
		},
	})
	cmd.Flags().BoolVarP(&force, "force", "f", false, "stop what it runs first")
	waitFlag(cmd, &wait)
	return cmd
}

// debts tells what a deleted project has left on nodes that cannot be reached.
func (a *app) debts(ctx context.Context, project string) error {
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
	a.note("%s left on %s %s, out of reach now; what is left goes when its node comes back", many(n, "instance is", "instances are"), where, strings.Join(slices.Sorted(maps.Keys(on)), ", "))
	return nil
}

func (a *app) projectSet() *cobra.Command {
	return &cobra.Command{
		Use: "set NAME", Short: "Choose the project that commands mean when none is named", Args: takes(1, 1),
		ValidArgsFunction: first(a.projectNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			p, err := c.Project(cmd.Context(), args[0])
			if err != nil {
				return a.noProject(err)
			}
			saved, err := a.readProfile()
			if err != nil {
				return err
			}
			saved.Project = p.Name
			if err := a.writeProfile(saved); err != nil {
				return err
			}
			if a.global.json {
				return a.printJSON(p)
			}
			a.say("commands that name no project mean %s from now on", p.Name)
			return nil
		},
	}
}

// onProject is a client and the project that is meant.
func (a *app) onProject(args []string) (*client.Client, string, error) {
	name, err := a.projectName(args)
	if err != nil {
		return nil, "", err
	}
	c, err := a.connect()
	return c, name, err
}

// noProject adds to a "not found" where to look.
func (a *app) noProject(err error) error {
	if mariposa.CodeOf(err) == mariposa.ResourceNotFound {
		return hinted(err, "see `mariposa project list`")
	}
	return err
}

// maxManifest is well above what the server takes; it is here so that a wrong
// file, such as a disk, is not read to its end.
const maxManifest = 16 << 20

// readManifest reads a manifest from a file, or from standard input for "-".
func (a *app) readManifest(name string) ([]byte, error) {
	if name == "" {
		return nil, Usage(errors.New("which manifest? Give its file with -m, or - for standard input"))
	}
	in, shown := a.env.Stdin, "standard input"
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("the manifest cannot be read: %w", err)
		}
		defer f.Close()
		in, shown = f, name
	}
	a.file = shown
	all, err := io.ReadAll(io.LimitReader(in, maxManifest+1))
	if err != nil {
		return nil, fmt.Errorf("the manifest cannot be read: %w", err)
	}
	if len(bytes.TrimSpace(all)) == 0 {
		return nil, fmt.Errorf("the manifest is empty: %s has nothing in it", shown)
	}
	if len(all) > maxManifest {
		return nil, fmt.Errorf("%s is longer than %d MiB: that is no manifest", shown, maxManifest>>20)
	}
	return all, nil
}

func manifestFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "manifest", "m", "", "file of the manifest; - reads standard input")
	if err := cmd.MarkFlagFilename("manifest", "yaml", "yml", "json"); err != nil {
		panic(err) // the flag is a line above
	}
}

func waitFlag(cmd *cobra.Command, wait *bool) {
	cmd.Flags().BoolVar(wait, "wait", false, "follow the task to its end; exit with 3 if it fails")
}

func yes(b bool) string {
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
