package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func (a *app) projectPlan() *cobra.Command {
	var source manifestSource
	var rolling, canary string
	cmd := a.projectArgument(&cobra.Command{
		Use: "plan [NAME] [-m FILE | --compose FILE]", Short: "Show what would be done, without changing anything",
		Long: "Show what would be done, step by step with reasons, if you submitted a manifest; without a\nmanifest, show what would be done now. The plan assumes that every step succeeds. Nothing is\nchanged.\n\n" +
			"If the project does not exist yet, the plan shows what would be created.",
		Example: "  mariposa -j shop project plan -m shop.yaml\n  mariposa -j shop project plan --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkAmounts("rolling", rolling, "canary", canary); err != nil {
				return err
			}
			if err := source.check(); err != nil {
				return err
			}
			given := source.flags()
			if given == "" && rolling+canary != "" {
				return Usage(errors.New("--rolling and --canary apply to a new manifest: name its file with -m"))
			}
			name, err := a.projectName(args)
			if err != nil {
				return err
			}
			var text []byte
			if given != "" {
				if text, err = a.readSource(cmd.Context(), &source, name); err != nil {
					return err
				}
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			apply := prefixed(a.commandPrefix(name)+" project update", given) + prefixed(" --rolling ", rolling) + prefixed(" --canary ", canary)
			p, err := c.Plan(cmd.Context(), name, text, rolling, canary)
			if isNew, create, fault := a.planNew(cmd.Context(), c, name, text, err); isNew {
				return show(a, create, fault, func() {
					a.note("project %s does not exist yet", name)
					a.printPlan(create, name, a.commandPrefix("")+" project create "+name+given)
				})
			}
			return show(a, p, a.noProject(a.noManifest(cmd.Context(), c, name, given, err)), func() {
				a.printPlan(p, name, apply)
				if len(p.Steps)+len(p.Waits) == 0 {
					a.printHeldServices(cmd.Context(), c, name)
				}
			})
		},
	})
	documentFlag(cmd, &source.file, "manifest")
	source.add(cmd)
	rollingFlag(cmd, &rolling)
	canaryFlag(cmd, &canary)
	return cmd
}

// planNew returns the plan of a project that does not exist yet. It returns false if
// something else is missing.
func (a *app) planNew(ctx context.Context, c *client.Client, name string, text []byte, err error) (bool, *contract.Plan, error) {
	if mariposa.CodeOf(err) != mariposa.ResourceNotFound || len(text) == 0 {
		return false, nil, nil
	}
	if _, there := c.Project(ctx, name); mariposa.CodeOf(there) != mariposa.ResourceNotFound {
		return false, nil, nil // something else was not found
	}
	plan, err := c.PlanNew(ctx, name, text)
	return true, plan, err
}

// noManifest explains that a plan of a project that does not exist yet requires a
// manifest.
func (a *app) noManifest(ctx context.Context, c *client.Client, name, given string, err error) error {
	if mariposa.CodeOf(err) != mariposa.ResourceNotFound || given != "" {
		return err
	}
	if _, there := c.Project(ctx, name); mariposa.CodeOf(there) != mariposa.ResourceNotFound {
		return err
	}
	file := "FILE"
	if _, missing := os.Stat(manifestName); missing == nil {
		file = manifestName
	}
	return withHint(err, "see `%[1]s project list`; to plan a new project, name its manifest: `%[1]s project plan %[2]s -m %[3]s`", a.commandPrefix(""), name, file)
}

// printPlan prints the changes of resources, then the steps in order, then what would
// have to wait. apply is the command that applies the plan, if there is one.
func (a *app) printPlan(p *contract.Plan, name, apply string) {
	steps := planTable(p.Steps)
	if a.checkColumns(resourceTable(nil), steps) != nil {
		return
	}
	if len(p.Resources) > 0 {
		a.printTable(resourceTable(p.Resources))
	}
	if len(p.Steps) > 0 {
		fmt.Fprintln(a.env.Stdout)
		a.printTable(steps)
	}
	if len(p.Waits) > 0 {
		fmt.Fprintln(a.env.Stdout)
		a.say("waits")
		for _, w := range p.Waits {
			a.say("  %s", a.suggest(name, "", w))
		}
	}
	a.printPlanNotes(p, name, apply)
}

// planTable lists steps. If they are all about scales, the change of the scale already says so.
func planTable(steps []contract.PlanStep) *table {
	t := newTable("", "STEP", "INSTANCE", "VERSION?", "REASON?")
	explain := slices.ContainsFunc(steps, func(s contract.PlanStep) bool { return s.Reason != "" && s.ReasonCode != mariposa.ReasonScale })
	for n, s := range steps {
		if !explain {
			s.Reason = ""
		}
		t.add(cell{fmt.Sprint(n + 1), dim}, cell{s.Step, changes[s.Step]}, text(cmp.Or(s.InstanceName, s.Slot, s.Service)), text(dashIfEmpty(versionOf(s.Number, s.Version))), text(s.Reason))
	}
	return t
}

// printPlanNotes explains the plan on standard error.
func (a *app) printPlanNotes(p *contract.Plan, name, apply string) {
	shared := countChanges(p.Resources, "network", "volume")
	switch all := countChanges(p.Resources, "service", "network", "volume"); {
	case len(p.Steps)+len(p.Waits) > 0:
		a.note("%s if all succeed%s; nothing was changed", plural(len(p.Steps), "step", "steps"), prefixed("; changes of ", shared))
	case all != "":
		a.note("%s: no instance is created, replaced or removed; changes of %s; nothing was changed", name, all)
	default:
		a.note("%s: nothing to do", name)
	}
	if !p.Complete && len(p.Waits) == 0 {
		a.note("there are more steps than shown")
	}
	if len(p.Missing) > 0 {
		a.note("it would wait for required metadata that is not set: %s", strings.Join(p.Missing, ", "))
	}
	if apply != "" && a.file != stdinName {
		a.note("apply it with `%s`", apply)
	}
}

// countChanges counts the resources of each kind that a plan changes: 1 network and 2
// volumes.
func countChanges(all []contract.PlanResource, kinds ...string) string {
	var counts []string
	for _, kind := range kinds {
		n := 0
		for _, r := range all {
			if r.Kind == kind && r.Change != "unchanged" {
				n++
			}
		}
		if n > 0 {
			counts = append(counts, plural(n, kind, kind+"s"))
		}
	}
	return strings.Join(counts, " and ")
}

// printHeldServices lists the services that the plan does not change because they are
// held or have failed. Errors are ignored, because the output is only additional help.
func (a *app) printHeldServices(ctx context.Context, c *client.Client, name string) {
	state, err := c.State(ctx, name, "")
	if err != nil {
		return
	}
	for _, p := range state.Projects {
		for _, s := range p.Services {
			switch s.Status {
			case mariposa.StatusFrozen, mariposa.StatusPaused, mariposa.StatusHeld, mariposa.StatusFailed:
				a.note("%s/%s is %s%s", p.Name, s.Name, s.Status, prefixed(": ", a.suggest(p.Name, p.OrganizationName, s.Reason)))
			}
		}
	}
}

// changes are the styles of changes and steps.
var changes = map[string]style{"create": good, "update": busy, "scale": busy, "replace": busy, "remove": bad, "delete": bad, "keep": dim, "collect": dim, "unchanged": dim}

func resourceTable(all []contract.PlanResource) *table {
	t := newTable("RESOURCE", "CHANGE", "SCALE", "FIELDS?")
	for _, r := range all {
		scale := fmt.Sprint(r.After)
		if r.Kind != "service" {
			scale = "-"
		} else if r.Before != r.After {
			scale = fmt.Sprintf("%d → %d", r.Before, r.After)
		}
		name := r.Name
		if r.Kind != "service" {
			name = r.Kind + " " + r.Name
		}
		words := fieldWords(r.Fields)
		if r.Follows != "" {
			words = "follows " + r.Follows + prefixed("; ", words)
		}
		if r.Retried {
			words = "retried" + prefixed("; ", words)
		}
		t.add(cell{name, bold}, cell{r.Change, changes[r.Change]}, text(scale), text(words))
	}
	return t
}

// fieldWords lists the changed fields in one line.
func fieldWords(fields []contract.FieldDiff) string {
	var all []string
	for _, f := range fields {
		f.Before, f.After = fieldValue(f.Field, f.Before), fieldValue(f.Field, f.After)
		switch {
		case f.Before == "" && f.After == "":
			all = append(all, f.Field)
		case f.Before == "":
			all = append(all, fmt.Sprintf("%s: %s", f.Field, f.After))
		case f.After == "":
			all = append(all, fmt.Sprintf("%s: %s → not set", f.Field, f.Before))
		default:
			all = append(all, fmt.Sprintf("%s: %s → %s", f.Field, f.Before, f.After))
		}
	}
	return strings.Join(all, "; ")
}

// fieldValue returns the value of a field for people: sizes with a unit.
func fieldValue(field, value string) string {
	if n, err := strconv.ParseInt(value, 10, 64); err == nil && field == "memory" {
		return sizeOfBytes(n)
	}
	return value
}
