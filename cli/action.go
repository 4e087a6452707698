package cli

import (
	"context"
	"errors"
	"maps"
	"strings"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

// An actionCommand is a command that requests a change of a project's state.
type actionCommand struct {
	action, short, long, example string

	whyNothing string   // why there may be nothing to do
	flags      []string // flags in addition to --service and --wait
}

// actionCommands are the commands that need no more than an action and some flags.
var actionCommands = map[string]actionCommand{
	"start": {
		short: "Start a stopped project or some of its services", whyNothing: "it is already started", flags: []string{"version", "rolling", "canary"},
		long: "Start a stopped project, or some of its services with --service.\n\n" +
			"With --version, start the project at that version. Like `project revert`, this creates a new\nversion with the content of the old one.",
		example: "  mariposa project start shop --wait\n  mariposa -j shop project start --service web\n  mariposa -j shop project start --version 3",
	},
	"stop": {
		short: "Stop all instances of a project or of some services", whyNothing: "it is already stopped", flags: []string{"version"},
		long: "Stop all instances of a project, or those of some services with --service. Scales and\nversions stay as they are; `project start` starts the project again.\n\n" +
			"Each instance gets its stop signal and has `stop.timeout` seconds to exit.\n\n" +
			"With --version, stop only the instances of that version. A service that also runs other\nversions keeps those: its scale becomes their number, and a rollout in progress is held.",
		example: "  mariposa project stop shop --wait\n  mariposa -j shop project stop --service web\n  mariposa -j shop project stop --version 7 --wait",
	},
	"reprovision": {
		short: "Replace instances in batches, or continue a held rollout", whyNothing: "it has no instances to replace",
		flags: []string{"rolling", "count", "filters", "all"},
		long: "Replace instances with new ones in batches: all of them, or those that match every filter\n(--version, --image, --instance, --node).\n\n" +
			"While a rollout is held (a canary), the flags decide what happens:\n\n" +
			"  no flags      finish the held rollout; nothing else is replaced\n  --count N     replace N more instances, then hold again\n  --service S   finish the rollout of S if it is held; otherwise replace the instances of S\n  a filter      update the matching instances to the newest version; the rest stays held\n  --all         replace every instance, including those already at the new version",
		example: "  mariposa -j shop project reprovision --all --wait\n  mariposa -j shop project reprovision --service web --rolling 25% --wait\n  mariposa -j shop project reprovision --node n7\n" +
			"  mariposa -j shop project reprovision --version 3 --count 2",
	},
	"freeze": {
		short: "Stop all changes and repairs of a project until the thaw", whyNothing: "it is already frozen",
		long: "Freeze a project, or some of its services with --service: nothing is started, removed or\nrepaired until `project thaw`.\n\n" +
			"Changes in progress settle first: new instances that have never served are removed, and\ninstances that are stopping finish stopping. `mariposa state` shows what will happen after\nthe thaw.\n\n" +
			"A start, stop, scale or reprovision by an operator ends the freeze of the services that it\nnames. A new manifest waits for the thaw.\n\n" +
			"With --wait, the command returns when everything has settled.",
	},
	"thaw": {
		short: "End a freeze and continue", whyNothing: "nothing is frozen",
		long: "End the freeze of a project, or of some services with --service, and continue towards the\ndesired state.\n\n" +
			"With --wait, the command returns when the actual state matches the desired state.",
	},
	"pause": {
		short: "Pause the rollouts of a project; repairs continue", whyNothing: "it is already paused",
		long: "Pause the rollouts of a project, or of some services with --service, until `project resume`.\nUnlike with a freeze, instances that fail are still repaired, at the version they had.",
	},
	"resume": {
		short: "Resume paused rollouts", whyNothing: "nothing is paused",
	},
	"converge": {
		short: "Retry now, without waiting for the back-off", whyNothing: "it is already converged",
		flags: []string{"reschedule-now"},
		long: "Retry now: failed rollouts are tried again, and services that are backing off start their\nnext attempt immediately. If it fails, they wait longer before the one after that.\n\n" +
			"With --reschedule-now, instances on nodes that are lost now are replaced without waiting:\nneither for the time that the services set (reschedule.after), nor for the return of many\nnodes that were lost at once. It requires an operator. Services with reschedule.never are\nnot affected. To give up a node for all projects, use `node reschedule-now`.",
	},
	"accept": {
		short: "Make the actual state the desired state",
		long: "Make the actual state the desired state: each service keeps the number of instances that it\nhas now, at the newest version among them. Changes in progress are dropped and queued tasks\nend, so nothing is started or removed.\n\n" +
			"Use it to keep things as they are after a terminated or failed rollout; then thaw the\nproject.",
	},
}

// An actionOptions contains the flag values of an actionCommand.
type actionOptions struct {
	services        []string
	version         string
	rolling, canary string // for a reprovision, canary is the count

	image            string
	instances, nodes []string
	all              bool
	rescheduleNow    bool
}

// newActionCommand creates the command for an action.
func (a *app) newActionCommand(action string) *cobra.Command {
	o := actionCommands[action]
	o.action = action
	var w actionOptions
	var wait bool
	cmd := a.projectArgument(&cobra.Command{Use: action + " [NAME]", Short: o.short, Long: o.long, Example: o.example})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := w.check(o, cmd.Flags().Lookup("service").Hidden); err != nil {
			return err
		}
		name, err := a.projectName(args)
		if err != nil {
			return err
		}
		return a.change(cmd, wait, func(c *client.Client) (*contract.Changed, error) {
			ask, err := a.actionOf(cmd.Context(), c, o, name, w)
			if err != nil {
				return nil, err
			}
			done, err := c.Act(cmd.Context(), name, ask)
			switch { // the missing object may not be the project
			case len(w.nodes) > 0:
				err = notFound(err, a.commandPrefix(name)+" instance list")
			case len(w.services) > 0:
				err = notFound(err, a.commandPrefix(name)+" state")
			case w.version != "":
				err = notFound(err, a.commandPrefix(name)+" project versions")
			}
			return a.printNothingToDo(name, o.whyNothing, done, err)
		})
	}
	a.addActionFlags(cmd, o, &w)
	waitFlag(cmd, &wait)
	if action == "reprovision" {
		names := maps.Clone(nodeAliases)
		names["canary"] = "count"
		flagAliases(cmd, names)
	}
	return cmd
}

// addActionFlags adds the flags of an action to its command.
func (a *app) addActionFlags(cmd *cobra.Command, o actionCommand, w *actionOptions) {
	f := cmd.Flags()
	f.StringSliceVar(&w.services, "service", nil, "only this service (repeatable)")
	complete(cmd, "service", a.every(serviceNames))
	for _, flag := range o.flags {
		switch flag {
		case "version":
			f.StringVar(&w.version, "version", "", map[string]string{"start": "start the project at this version", "stop": "stop only instances of this version"}[o.action])
			complete(cmd, "version", a.every(versionNames))
		case "rolling":
			rollingFlag(cmd, &w.rolling)
		case "canary":
			revertCanaryFlag(cmd, &w.canary) // of a start at another version
		case "count":
			f.StringVar(&w.canary, "count", "", "replace this many instances, such as 2 or 25%, then hold; for a held rollout: this many more")
		case "all":
			f.BoolVar(&w.all, "all", false, "replace every instance, even if a rollout is held")
		case "reschedule-now":
			f.BoolVar(&w.rescheduleNow, "reschedule-now", false, "also replace the instances on lost nodes now")
		case "filters":
			f.StringVar(&w.version, "version", "", "only instances of this version")
			f.StringVar(&w.image, "image", "", "only instances with this image")
			f.StringSliceVar(&w.instances, "instance", nil, "only this instance, by name, slot or id (repeatable)")
			f.StringSliceVar(&w.nodes, "node", nil, "only instances on this node (repeatable)")
			complete(cmd, "version", a.every(versionNames))
			complete(cmd, "instance", a.every(instanceNames))
			complete(cmd, "node", a.every(nodeNames))
		}
	}
}

// check checks the flags. The services may be the arguments of the command instead of a
// flag.
func (w actionOptions) check(o actionCommand, ofServices bool) error {
	hold := "count"
	if o.action == "start" {
		hold = "canary"
		switch {
		case w.version != "" && len(w.services) > 0:
			return Usage(errors.New("--version starts the whole project and cannot be combined with --service"))
		case w.version == "" && w.rolling+w.canary != "":
			return Usage(errors.New("--rolling and --canary apply to a start at another version: name it with --version"))
		}
	}
	if w.all && len(w.services) > 0 && !ofServices {
		return Usage(withHint(errors.New("--all replaces every instance of every service and cannot be combined with --service"),
			"to replace every instance of some services, use `service reprovision %s --all`", strings.Join(w.services, " ")))
	}
	if w.all && (w.version+w.image != "" || len(w.instances)+len(w.nodes) > 0) {
		return Usage(errors.New("--all replaces every instance and cannot be combined with --version, --image, --instance or --node"))
	}
	return checkAmounts("rolling", w.rolling, hold, w.canary)
}

// actionOf turns the flags into the API's request.
func (a *app) actionOf(ctx context.Context, c *client.Client, o actionCommand, project string, w actionOptions) (contract.Action, error) {
	ask := contract.Action{Action: o.action, Services: w.services, Version: w.version, Rolling: client.Amount(w.rolling), RescheduleNow: w.rescheduleNow}
	if o.action != "reprovision" {
		ask.Canary = client.Amount(w.canary)
		return ask, nil
	}
	ask.Version, ask.Count, ask.All = "", client.Amount(w.canary), w.all
	if w.version+w.image == "" && len(w.instances)+len(w.nodes) == 0 {
		return ask, nil
	}
	var ids []string
	for _, word := range w.instances {
		id, err := a.instanceIn(ctx, c, project, word)
		if err != nil {
			return ask, err
		}
		ids = append(ids, id)
	}
	ask.Filters = &contract.Filters{Version: w.version, Image: w.image}
	if len(ids) > 0 {
		ask.Filters.Instance = inJSON(ids)
	}
	if len(w.nodes) > 0 {
		ask.Filters.Node = inJSON(w.nodes)
	}
	return ask, nil
}
