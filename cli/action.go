package cli

import (
	"context"
	"errors"
	"maps"

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
		short: "Bring a stopped project back, or some of its services", whyNothing: "it is started", flags: []string{"version", "rolling", "canary"},
		long:    "Bring a stopped project back, or with --service some of its services.\n\nWith --version the project is started at that version: an older one becomes current again\nas a new version, as with `project revert`.",
		example: "  mariposa project start shop --wait\n  mariposa -j shop project start --service web\n  mariposa -j shop project start --version 3",
	},
	"stop": {
		short: "Stop all instances of a project, or of some services; it stays known", whyNothing: "it is stopped", flags: []string{"version"},
		long: "Stop all instances of a project, or with --service those of some services. Scales and\nversions stay as they are, and `project start` brings it back.\n\n" +
			"Each instance gets its stop signal and the time that `stop.timeout` says.\n\n" +
			"With --version, only instances of that version are stopped. A service that also runs other\nversions keeps those; their number becomes its scale, and a rollout that is under way is\nheld.",
		example: "  mariposa project stop shop --wait\n  mariposa -j shop project stop --service web\n  mariposa -j shop project stop --version 7 --wait",
	},
	"reprovision": {
		short: "Make instances anew, batch by batch; a rollout that is held goes on", whyNothing: "it has nothing that could be made anew",
		flags: []string{"rolling", "count", "filters", "all"},
		long: "Replace instances with new ones, batch by batch: all of them, or those that match every filter.\n\n" +
			"While a rollout is held (a canary), a plain reprovision finishes it and touches nothing else.\nWith --count it replaces that many more instances and holds again. With --service, what is\nheld of the named " +
			"services continues, and the rest of them is replaced. With filters, what\nmatches is brought to the newest version, and the rest stays held. With --all everything is\nreplaced, also what is at the new version already.",
		example: "  mariposa -j shop project reprovision --all --wait\n  mariposa -j shop project reprovision --service web --rolling 25% --wait\n  mariposa -j shop project reprovision --node n7\n" +
			"  mariposa -j shop project reprovision --version 3 --count 2",
	},
	"freeze": {
		short: "Let nothing of a project change, whatever happens", whyNothing: "it is frozen",
		long: "Let nothing of a project change, or with --service of some services.\n\nWhat is under way is settled first: what never served goes, what was told to stop ends. Then\nnothing is made, " +
			"removed or repaired until `project thaw`. `mariposa state` says what would\nbe done after it. A start, stop, scale or reprovision by an operator lifts the freeze of\nwhat it names; a new manifest waits for the thaw.\n\n" +
			"With --wait, it returns once all has settled.",
	},
	"thaw": {
		short: "End a freeze and go on", whyNothing: "nothing of it is frozen",
		long: "End a freeze, of a project or with --service of some services, and go on towards the goal.\n\nWith --wait, it returns once reality matches the goal again.",
	},
	"pause": {
		short: "Hold the rollouts of a project; repairs go on", whyNothing: "it is paused",
		long: "Hold the rollouts of a project, or with --service of some services, until `project resume`.\nUnlike with a freeze, what fails meanwhile is repaired, at the version it had.",
	},
	"resume": {
		short: "Let paused rollouts go on", whyNothing: "nothing of it is paused",
	},
	"converge": {
		short: "Try again now, whatever back-off there is", whyNothing: "it is converged",
		long: "Try again now: what keeps failing and waits before its next try does not, this once. What\nfails again waits longer still.",
	},
	"accept": {
		short: "Make what runs now the goal",
		long: "Make what runs now the goal: as many instances as there are of each service, at the newest\nversion among them. What was under way is no longer wanted, so nothing is made or removed.\n\n" +
			"A way to say \"leave it like that\" after a terminated or failed rollout; then thaw.",
	},
}

// An actionOptions holds the flag values of an actionCommand.
type actionOptions struct {
	services        []string
	version         string
	rolling, canary string // canary: or count, for a reprovision

	image            string
	instances, nodes []string
	all              bool
}

// newActionCommand creates the command for an action.
func (a *app) newActionCommand(action string) *cobra.Command {
	o := actionCommands[action]
	o.action = action
	var w actionOptions
	var wait bool
	cmd := a.projectArgument(&cobra.Command{Use: action + " [NAME]", Short: o.short, Long: o.long, Example: o.example})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := w.check(o); err != nil {
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
			switch { // what was not found may be something other than the project
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
	f.StringSliceVar(&w.services, "service", nil, "only this service; may be given again")
	complete(cmd, "service", a.every(serviceNames))
	for _, flag := range o.flags {
		switch flag {
		case "version":
			f.StringVar(&w.version, "version", "", map[string]string{"start": "start at this version", "stop": "only instances of this version"}[o.action])
			complete(cmd, "version", a.every(versionNames))
		case "rolling":
			rollingFlag(cmd, &w.rolling)
		case "canary":
			canaryFlag(cmd, &w.canary)
		case "count":
			f.StringVar(&w.canary, "count", "", "so many, like 2 or 25%, then hold; of a rollout that is held, so many further")
		case "all":
			f.BoolVar(&w.all, "all", false, "replace everything, though a rollout is held")
		case "filters":
			f.StringVar(&w.version, "version", "", "only instances made from this version")
			f.StringVar(&w.image, "image", "", "only instances of this image")
			f.StringSliceVar(&w.instances, "instance", nil, "only this instance, by name, slot or id; may be given again")
			f.StringSliceVar(&w.nodes, "node", nil, "only instances on this node; may be given again")
			complete(cmd, "version", a.every(versionNames))
			complete(cmd, "instance", a.every(instanceNames))
			complete(cmd, "node", a.every(nodeNames))
		}
	}
}

func (w actionOptions) check(o actionCommand) error {
	hold := "count"
	if o.action == "start" {
		hold = "canary"
		switch {
		case w.version != "" && len(w.services) > 0:
			return Usage(errors.New("a version is started as a whole: leave --service out, or --version"))
		case w.version == "" && w.rolling+w.canary != "":
			return Usage(errors.New("--rolling and --canary are for a start at another version: name it with --version"))
		}
	}
	if w.all && (w.version+w.image != "" || len(w.instances)+len(w.nodes) > 0) {
		return Usage(errors.New("--all replaces everything: leave it out, or the filters"))
	}
	return checkAmounts("rolling", w.rolling, hold, w.canary)
}

// actionOf turns the flags into the API's request.
func (a *app) actionOf(ctx context.Context, c *client.Client, o actionCommand, project string, w actionOptions) (contract.Action, error) {
	ask := contract.Action{Action: o.action, Services: w.services, Version: w.version, Rolling: client.Amount(w.rolling)}
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
