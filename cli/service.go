package cli

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

func (a *app) serviceCommand() *cobra.Command {
	return a.group("service", "Show, change and control the services of a project",
		a.serviceList(), a.serviceShow(), a.serviceAdd(), a.serviceUpdate(), a.serviceRemove(), a.serviceScale(),
		a.serviceAction("start"), a.serviceAction("stop"), a.serviceAction("reprovision"),
		a.serviceVersions(), a.serviceInstances(), a.serviceHealth(), a.serviceLogs())
}

func (a *app) serviceList() *cobra.Command {
	return a.ofProject(&cobra.Command{Use: "list", Short: "List the services of a project", Args: argsBetween(0, 0)},
		func(ctx context.Context, c *client.Client, project string, _ []string) error {
			all, err := c.Services(ctx, project)
			return show(a, all, a.noProject(err), func() {
				t := newTable("SERVICE", "TYPE", "IMAGE?", "GOAL", "RUNNING", "STATUS", "REASON?")
				for _, s := range all.Services {
					t.add(cell{s.Name, bold}, text(string(s.ComputeType)), text(dashIfEmpty(s.Image)), number(s.Goal), number(s.Running), word(s.Status), text(serviceNotes(s.ServiceState)))
				}
				a.printTable(t)
			})
		})
}

// onService creates a command for one service of the selected project.
func (a *app) onService(cmd *cobra.Command, run func(ctx context.Context, c *client.Client, project, service string) error) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = argsBetween(1, 1), a.wordsFrom(serviceNames)
	return a.ofProject(cmd, func(ctx context.Context, c *client.Client, project string, args []string) error {
		return a.noServiceIn(ctx, c, project, run(ctx, c, project, args[0]))
	})
}

func (a *app) serviceShow() *cobra.Command {
	return a.onService(&cobra.Command{Use: "show SERVICE", Short: "Show the desired and actual state of a service"}, func(ctx context.Context, c *client.Client, project, service string) error {
		s, err := c.Service(ctx, project, service)
		return show(a, s, err, func() {
			a.facts("service", cell{s.Name, bold}, "id", s.ID, "project", s.ProjectName, "compute type", string(s.ComputeType), "image", s.Image, "version", versionOf(s.Number, s.Version),
				"status", word(s.Status), "reason", serviceNotes(s.ServiceState), "goal", s.Goal, "running", s.Running, "starting", s.Starting, "stopping", s.Stopping, "failed", s.Failed,
				"depends on", strings.Join(s.DependsOn, ", "))
		})
	})
}

// updated is the verb of serviceEdit for a change of an existing service.
const updated = "updated"

// serviceEdit creates a command that changes one service in the manifest.
func (a *app) serviceEdit(cmd *cobra.Command, verb string, edit func(ctx context.Context, c *client.Client, project, service string, u client.Update) (*contract.Changed, error)) *cobra.Command {
	var u client.Update
	var wait bool
	cmd.Args = argsBetween(1, 1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkAmounts("rolling", u.Rolling, "canary", u.Canary); err != nil {
			return err
		}
		project, err := a.projectName(nil)
		if err != nil {
			return err
		}
		return a.changeManifest(cmd, wait, args[0], func(c *client.Client) (*contract.Changed, error) {
			before := 0
			if verb == updated && !a.global.json { // it may change nothing
				p, err := c.Project(cmd.Context(), project)
				if err != nil {
					return nil, a.noProject(err)
				}
				before = p.Number
			}
			done, err := edit(cmd.Context(), c, project, args[0], u)
			switch {
			case err != nil || a.global.json:
			case done.Joined:
				a.say("%s: service %s is already like this in %s; its task is still open", project, args[0], versionWords(done))
			case done.Number == before && done.Task == nil:
				a.say("%s: nothing to do; service %s is already like this in %s", project, args[0], versionWords(done))
			case done.Number == before:
				a.say("%s: service %s is already like this in %s; its rollout is retried", project, args[0], versionWords(done))
			default:
				a.say("%s: service %s is %s, %s", project, args[0], verb, versionWords(done))
			}
			if err == nil && !a.global.json {
				a.explain(project, done)
			}
			return done, a.noServiceIn(cmd.Context(), c, project, err)
		})
	}
	f := cmd.Flags()
	f.StringVar(&u.Previous, "previous", "", "change the service only if this is the newest version")
	f.StringVar(&u.Message, "message", "", "description of the change, shown in the list of versions")
	if verb != "removed" {
		rollingFlag(cmd, &u.Rolling)
		canaryFlag(cmd, &u.Canary)
	}
	waitFlag(cmd, &wait)
	return cmd
}

func (a *app) serviceAdd() *cobra.Command {
	var file string
	cmd := a.serviceEdit(&cobra.Command{
		Use: "add SERVICE -m FILE", Short: "Add a service to the manifest of a project", ValidArgsFunction: cobra.NoFileCompletions,
		Long:    "Add a service to the manifest of a project. The file contains the keys of the service, such\nas image and scale. This creates a new version; all other lines of the manifest stay\nunchanged.",
		Example: "  mariposa -j shop service add cache -m cache.yaml --wait\n  echo 'image: redis:8' | mariposa -j shop service add cache -m -",
	}, "added", func(ctx context.Context, c *client.Client, project, service string, u client.Update) (*contract.Changed, error) {
		def, err := a.readDocument(file, "definition")
		if err != nil {
			return nil, err
		}
		return c.AddService(ctx, project, service, def, u)
	})
	documentFlag(cmd, &file, "definition")
	return cmd
}

func (a *app) serviceUpdate() *cobra.Command {
	var file string
	cmd := a.serviceEdit(&cobra.Command{
		Use: "update SERVICE -m FILE", Short: "Replace a service in the manifest of a project", ValidArgsFunction: a.wordsFrom(serviceNames),
		Long: "Replace a service in the manifest of a project. The file contains all keys of the service.\nThis creates a new version; all other lines of the manifest stay unchanged.",
	}, updated, func(ctx context.Context, c *client.Client, project, service string, u client.Update) (*contract.Changed, error) {
		def, err := a.readDocument(file, "definition")
		if err != nil {
			return nil, err
		}
		return c.UpdateService(ctx, project, service, def, u)
	})
	documentFlag(cmd, &file, "definition")
	return cmd
}

func (a *app) serviceRemove() *cobra.Command {
	var sure bool
	cmd := a.serviceEdit(&cobra.Command{
		Use: "rm SERVICE", Short: "Remove a service from the manifest of a project, and its instances", ValidArgsFunction: a.wordsFrom(serviceNames),
		Long: "Remove a service from the manifest of a project, and its instances.\n\n" +
			"On a terminal, you are asked to type the name of the service. Elsewhere, --yes is required.",
	}, "removed", func(ctx context.Context, c *client.Client, project, service string, u client.Update) (*contract.Changed, error) {
		s, err := c.Service(ctx, project, service)
		if err != nil {
			return nil, err
		}
		does := fmt.Sprintf("removes service %s from %s, and stops %s", s.Name, project, plural(s.Running, "instance", "instances"))
		if err := a.confirmName(ctx, s.Name, does, sure); err != nil {
			return nil, err
		}
		return c.DeleteService(ctx, project, service, u)
	})
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

func (a *app) serviceScale() *cobra.Command {
	cmd := a.projectScale()
	run := cmd.RunE
	cmd.Use, cmd.Short, cmd.Args = "scale SERVICE N|+N|-N", "Change the number of instances of a service", argsBetween(1, math.MaxInt)
	cmd.Example = "  mariposa -j shop service scale web 5\n  mariposa -j shop service scale web=+2 --wait"
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 2 && !strings.Contains(args[0], "=") {
			args = []string{args[0] + "=" + args[1]}
		}
		return run(cmd, args)
	}
	return cmd
}

// serviceActions describe the actions on services.
var serviceActions = map[string]string{
	"start": "Start stopped services.",
	"stop": "Stop all instances of services. Scales and versions stay as they are; `service start` starts\nthe services again.\n\n" +
		"Each instance gets its stop signal and has `stop.timeout` seconds to exit.\n\n" +
		"With --version, stop only the instances of that version. A service that also runs other\nversions keeps those: its scale becomes their number, and a rollout in progress is held.",
	"reprovision": "Replace the instances of services with new ones in batches: all of them, or those that match\nevery filter (--version, --image, --instance, --node).\n\n" +
		"While the rollout of a service is held (a canary), the flags decide what happens:\n\n  no flags      finish the held rollout; nothing else is replaced\n  --count N     replace N more instances, then hold again\n  a filter      update the matching instances to the newest version; the rest stays held\n  --all         replace every instance, including those already at the new version",
}

// serviceAction creates the command for an action on services.
func (a *app) serviceAction(action string) *cobra.Command {
	cmd := a.newActionCommand(action)
	run := cmd.RunE
	cmd.Use, cmd.Short = action+" SERVICE...", map[string]string{"start": "Start stopped services", "stop": "Stop all instances of services", "reprovision": "Replace the instances of services in batches"}[action]
	cmd.Long, cmd.Example = serviceActions[action], ""
	cmd.Args, cmd.ValidArgsFunction = argsBetween(1, math.MaxInt), a.every(serviceNames)
	hidden := []string{"service"}
	if action == "start" { // they are for a start of the whole project
		hidden = append(hidden, "version", "rolling", "canary")
	}
	for _, flag := range hidden {
		cmd.Flags().Lookup(flag).Hidden = true
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, name := range args {
			if err := cmd.Flags().Set("service", name); err != nil {
				return err
			}
		}
		return run(cmd, nil)
	}
	return cmd
}

func (a *app) serviceVersions() *cobra.Command {
	return a.onService(&cobra.Command{Use: "versions SERVICE", Short: "List the versions that changed a service, newest first"}, func(ctx context.Context, c *client.Client, project, service string) error {
		all, err := c.Versions(ctx, project)
		if err != nil {
			return err
		}
		all.Versions = slices.DeleteFunc(all.Versions, func(v contract.Version) bool { return !slices.Contains(v.ServicesChanged, service) })
		return show(a, all, nil, func() { a.printVersions(all) })
	})
}

func (a *app) serviceInstances() *cobra.Command {
	cmd := a.psCommand()
	cmd.Use, cmd.Short, cmd.Args = "instances SERVICE...", "List the instances of services", argsBetween(1, math.MaxInt)
	cmd.Long = "List the instances of services, sorted by service and slot. With --all, include ended\ninstances that are kept for inspection."
	cmd.Example = "  mariposa -j shop service instances web\n  mariposa -j shop service instances web db --all"
	return cmd
}

func (a *app) serviceLogs() *cobra.Command {
	cmd := a.logsCommand()
	cmd.Use, cmd.Short, cmd.Args = "logs SERVICE...", "Print the logs of services; with -f, follow them", argsBetween(1, math.MaxInt)
	cmd.Long = "Print the logs of the instances of services." + strings.TrimPrefix(cmd.Long, logsOfProject)
	cmd.Example = "  mariposa -j shop service logs web\n  mariposa -j shop service logs web db -f\n  mariposa -j shop service logs web --since 10m --timestamps"
	return cmd
}

func (a *app) serviceHealth() *cobra.Command {
	cmd := a.ofProject(&cobra.Command{
		Use: "health [SERVICE]", Short: "Show the health checks of services and their results",
		Long:    "Show the health checks of all services, or of one, and for each instance whether they pass. A\nresult is shown as of its last change.",
		Example: "  mariposa -j shop service health\n  mariposa -j shop service health web",
		Args:    argsBetween(0, 1),
	}, func(ctx context.Context, c *client.Client, project string, args []string) error {
		service := strings.Join(args, "")
		doc, err := c.HealthChecks(ctx, project, service)
		return show(a, doc, a.noServiceIn(ctx, c, project, err), func() { a.printHealth(doc) })
	})
	cmd.ValidArgsFunction = a.wordsFrom(serviceNames)
	return cmd
}

// printHealth prints a line for each check of each instance.
func (a *app) printHealth(doc *contract.HealthChecks) {
	t := newTable("INSTANCE", "CHECK", "HEALTH", "SINCE", "REASON?")
	unchecked := 0
	for _, s := range doc.Services {
		if len(s.HealthChecks) == 0 {
			unchecked++
		}
		for _, i := range s.Instances {
			for _, c := range i.Checks {
				t.add(cell{i.Slot, bold}, text(c.Name), word(c.Health), text(a.age(c.Since)), text(c.Reason))
			}
			if len(i.Checks) == 0 {
				t.add(cell{i.Slot, bold}, text("-"), word(i.Health), text("-"), text(string(i.State)))
			}
		}
	}
	t.empty = "no instance is checked"
	if unchecked == len(doc.Services) {
		t.empty = "no service has health checks; declare them under healthchecks in the manifest"
	}
	a.printTable(t)
}
