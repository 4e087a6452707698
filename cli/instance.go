package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func (a *app) instanceCommand() *cobra.Command {
	return a.group("instance", "Show instances and their logs; create, restart and remove single ones",
		a.instanceList(), a.instanceShow(), a.instanceLogs(), a.instanceExec(), a.snapshotCommand(), a.instanceRestore(), a.instanceCreate(), a.instanceAdopt(),
		a.instanceAct("start", "Start a stopped unmanaged instance", "is starting"),
		a.instanceAct("stop", "Stop an unmanaged instance and keep it", "is stopping"),
		a.instanceAct("restart", "Restart an instance in place", "is restarting"),
		a.instanceAct("replace", "Replace an instance of a service with a new one", "is being replaced"),
		a.instanceRemove(), a.instanceCrash(),
		a.instanceHealth("sicken", "Make the health checks of a dummy instance fail, for tests", "fail"),
		a.instanceHealth("heal", "Make the health checks of a dummy instance pass again", "pass"))
}

func (a *app) instanceList() *cobra.Command {
	var f client.InstanceFilter
	var ended, foreign bool
	cmd := a.ofProjects(&cobra.Command{
		Use: "list", Short: "List instances",
		Long: "List instances. Ended instances that are kept for inspection (`stop.preservestopped`) are\nshown with --all or --state; `instance show` and `instance logs` work for them, too.\n\n" +
			"With --foreign, list the containers on all nodes that Mariposa did not create. It never\ntouches them; `instance adopt` makes one an instance.",
	}, func(ctx context.Context, c *client.Client, project string) error {
		if foreign {
			if f.Service != "" || f.State != "" || ended {
				return Usage(errors.New("--foreign lists containers that belong to no project: use it only with --node"))
			}
			return a.listForeign(ctx, c, f.Node)
		}
		f.Project = project
		all, err := c.AllInstances(ctx, f)
		if err != nil {
			return a.noInstances(ctx, c, f, err)
		}
		if len(all.Instances) == 0 && f.Service != "" && project == "" {
			if err := a.checkAnyService(ctx, c, f.Service); err != nil {
				return err
			}
		}
		kept := 0
		if !ended && f.State == "" {
			before := len(all.Instances)
			all.Instances = slices.DeleteFunc(all.Instances, isKept)
			kept = before - len(all.Instances)
		}
		return show(a, all, nil, func() { a.printInstances(all.Instances, project, kept) })
	})
	cmd.Flags().StringVar(&f.Service, "service", "", "only instances of this service")
	cmd.Flags().StringVar(&f.Node, "node", "", "only instances on this node")
	cmd.Flags().StringVar(&f.State, "state", "", "only instances in this state")
	cmd.Flags().BoolVar(&ended, "all", false, "include ended instances that are kept for inspection")
	cmd.Flags().BoolVar(&foreign, "foreign", false, "list the containers that Mariposa did not create instead")
	complete(cmd, "service", a.every(serviceNames))
	complete(cmd, "node", a.every(nodeNames))
	complete(cmd, "state", oneOf(instanceStates))
	flagAliases(cmd, nodeAliases)
	return cmd
}

// noInstances explains a "not found" error of a list of instances: the project, the node
// or the service may be missing.
func (a *app) noInstances(ctx context.Context, c *client.Client, f client.InstanceFilter, err error) error {
	if f.Node != "" && mariposa.CodeOf(err) == mariposa.ResourceNotFound {
		without := f
		without.Node = ""
		if _, other := c.AllInstances(ctx, without); other == nil {
			return notFound(err, "mariposa node list")
		}
	}
	return a.noServiceIn(ctx, c, f.Project, err)
}

// checkAnyService checks that some project has a service.
func (a *app) checkAnyService(ctx context.Context, c *client.Client, service string) error {
	all, err := c.State(ctx, "", "")
	if err != nil {
		return err
	}
	for _, p := range all.Projects {
		if slices.ContainsFunc(p.Services, func(s contract.ServiceState) bool { return s.Name == service || s.ID == service }) {
			return nil
		}
	}
	return withHint(mariposa.Errorf(mariposa.ResourceNotFound, "no project has a service %q", service), "see `%s state`", a.commandPrefix(""))
}

var instanceStates = []string{
	string(mariposa.StatePending), string(mariposa.StateProvisioning), string(mariposa.StateRunning), string(mariposa.StateDraining), string(mariposa.StateStopping),
	string(mariposa.StateStopped), string(mariposa.StateFailed), string(mariposa.StateUnknown),
}

// isKept reports whether an instance has ended and is kept only for inspection.
func isKept(i contract.Instance) bool {
	return i.Managed && i.Goal == mariposa.GoalHalted && (i.State == mariposa.StateStopped || i.State == mariposa.StateFailed)
}

// printInstances prints instances, and the number of those not shown.
func (a *app) printInstances(all []contract.Instance, project string, kept int) {
	a.printTable(a.instanceTable(all, project).ifEmpty("no instances"))
	if kept > 0 {
		a.note("%s kept for inspection: use --all to show %s", plural(kept, "ended instance is", "ended instances are"), map[bool]string{true: "it", false: "them"}[kept == 1])
	}
}

// instanceTable lists instances. If they are all of one project, it omits the project's
// name.
func (a *app) instanceTable(all []contract.Instance, project string) *table {
	project = "PROJECT" + map[bool]string{true: requestMark, false: usefulMark}[project != ""]
	t := newTable("NAME", "INSTANCE+", "ID+", project, "STATE", "HEALTH?", "NODE?", "ADDRESSES?", "VERSION?", "RESTARTS?", "AGE", "REASON?").keyed("INSTANCE")
	names := slotNames(all)
	for n, i := range all {
		t.add(cell{names[n], bold}, text(i.Name), text(i.ID), text(dashIfEmpty(i.ProjectName)), word(i.State), health(i.Health), text(dashIfEmpty(i.NodeName)), text(dashIfEmpty(strings.Join(i.Addresses, ","))),
			text(dashIfEmpty(versionOf(i.Number, i.Version))), count(i.Restarts, bad), text(a.age(i.Created)), text(a.suggest(i.ProjectName, "", troubleOf(i))))
	}
	return t
}

// slotNames names instances by their slots if that is unambiguous: web.1 instead of
// web.1-ab12cd. Unmanaged instances have no slot.
func slotNames(all []contract.Instance) []string {
	key := func(i contract.Instance) string { return i.Project + "/" + i.Slot }
	uses := map[string]int{}
	for _, i := range all {
		uses[key(i)]++
	}
	var names []string
	for _, i := range all {
		if i.Slot == "" || uses[key(i)] > 1 {
			names = append(names, i.Name)
		} else {
			names = append(names, i.Slot)
		}
	}
	return names
}

// troubleOf returns the reason of an instance if it explains something now. The reason why
// an instance was created matters only while it is being created.
func troubleOf(i contract.Instance) string {
	if i.Goal != mariposa.GoalRunning {
		return i.Reason
	}
	switch i.ReasonCode {
	case mariposa.ReasonScale:
		return ""
	case mariposa.ReasonReplacesFailed, mariposa.ReasonReplacesUnhealthy, mariposa.ReasonReplacesLost, mariposa.ReasonVersionReplaces, mariposa.ReasonFollowReplaces, mariposa.ReasonInPlace, mariposa.ReasonDrains:
		if i.State != mariposa.StatePending && i.State != mariposa.StateProvisioning {
			return ""
		}
	}
	return i.Reason
}

// health formats a health. An unknown health is dimmed: without a health check it is not
// a problem.
func health(h mariposa.Health) cell {
	if h == mariposa.HealthUnknown {
		return cell{string(h), dim}
	}
	return word(h)
}

// knownHealth formats a health, or nothing if there is no health check.
func knownHealth(h mariposa.Health) cell {
	if h == mariposa.HealthUnknown {
		return cell{}
	}
	return word(h)
}

// onInstance creates a command for one instance.
func (a *app) onInstance(use, short string, run func(ctx context.Context, c *client.Client, id string) error) *cobra.Command {
	return a.onOne(&cobra.Command{
		Use: use + " INSTANCE", Short: short, ValidArgsFunction: a.wordsFrom(instanceNames),
		Long: short + ".\n\nName an instance by its name (web.2-ab12cd), its slot (web.2) or the beginning of its id.",
	}, a.instanceRef, "instance list", run)
}

func (a *app) instanceShow() *cobra.Command {
	return a.onInstance("show", "Show an instance", func(ctx context.Context, c *client.Client, id string) error {
		i, err := c.Instance(ctx, id)
		return show(a, i, err, func() {
			a.facts("name", i.Name, "id", i.ID, "project", i.ProjectName, "service", i.ServiceName, "slot", i.Slot,
				"state", word(i.State), "health", knownHealth(i.Health), "goal", string(i.Goal), "reason", a.suggest(i.ProjectName, "", troubleOf(*i)), "node", i.NodeName,
				"addresses", strings.Join(i.Addresses, ", "), "version", versionOf(i.Number, i.Version), "compute type", string(i.ComputeType), "physical id", i.PhysicalID,
				"created", a.stamp(i.Created), "started", a.stampOf(i.Started), "finished", a.stampOf(i.Finished), "exit code", exitCodeOf(i), "restarts", i.Restarts,
				"command", strings.Join(i.Command, " "), "volumes", mountsOf(i.Volumes), "details", sorted(i.Details), "usage", usageOf(i.Usage))
			for n, e := range i.Environment {
				if n == 0 {
					a.say("environment")
				}
				a.say("  %s", e)
			}
		})
	})
}

// usageOf lists the known resource usage of an instance.
func usageOf(u mariposa.Usage) string {
	var parts []string
	if u.CPU != nil {
		parts = append(parts, fmt.Sprintf("%.2f s of cpu", *u.CPU))
	}
	for _, f := range []struct {
		n    *int64
		what string
	}{{u.Memory, "of memory"}, {u.NetworkIn, "received"}, {u.NetworkOut, "sent"}, {u.DiskRead, "read from disk"}, {u.DiskWritten, "written to disk"}, {u.Log, "of log"}} {
		if f.n != nil {
			parts = append(parts, roughBytes(*f.n)+" "+f.what)
		}
	}
	return strings.Join(parts, ", ")
}

// mountsOf lists volumes in the manifest's format.
func mountsOf(all []mariposa.Mount) string {
	var list []string
	for _, m := range all {
		list = append(list, m.Name+":"+m.Path)
	}
	return strings.Join(list, ", ")
}

func exitCodeOf(i *contract.Instance) string {
	if i.ExitCode == nil {
		return ""
	}
	return fmt.Sprint(*i.ExitCode)
}

func (a *app) instanceLogs() *cobra.Command {
	var o client.LogOptions
	cmd := a.onInstance("logs", "Print the log of an instance", func(ctx context.Context, c *client.Client, id string) error {
		if a.global.json {
			return a.printLogJSON(ctx, c, id, o)
		}
		logs, err := a.openOne(ctx, c, id, o)
		if err != nil {
			return err
		}
		defer logs.Close()
		_, err = io.Copy(a.env.Stdout, logs)
		if interrupted(ctx, err) || ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("the connection to the server broke in the middle of the log: %w", err)
		}
		return err
	})
	a.logFlags(cmd, &o, -1)
	return cmd
}

// instanceHealth makes the health checks of a dummy pass or fail.
func (a *app) instanceHealth(action, short, effect string) *cobra.Command {
	return a.onInstance(action, short, func(ctx context.Context, c *client.Client, id string) error {
		done, err := c.ActOnInstance(ctx, id, action)
		return show(a, done, err, func() { a.say("the health checks of %s will %s", done.Name, effect) })
	})
}

func (a *app) instanceCrash() *cobra.Command {
	return a.onInstance("crash", "Crash a dummy instance, for tests", func(ctx context.Context, c *client.Client, id string) error {
		done, err := c.ActOnInstance(ctx, id, "crash")
		return show(a, done, err, func() { a.say("%s will crash", done.Name) })
	})
}
