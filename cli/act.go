package cli

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// change makes a change, prints the resulting task, and follows it if requested. With
// --quiet, it prints nothing but the task's id. It reads the revision of the feed before the
// request, so that it misses no event of the task.
func (a *app) change(cmd *cobra.Command, wait bool, ask func(c *client.Client) (*contract.Changed, error)) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	var since int64
	if wait {
		if since, err = c.Revision(cmd.Context()); err != nil {
			return err
		}
	}
	a.silent = a.global.table.quiet
	done, err := ask(c)
	if err != nil {
		return err
	}
	if done == nil {
		return nil // there was nothing to change
	}
	if a.global.json {
		err = a.printJSON(done)
	} else if done.Task != nil {
		if a.silent {
			fmt.Fprintln(a.env.Stdout, *done.Task)
		}
		a.say("task %s", *done.Task)
		a.printEnded(done)
		if len(done.NeedsApproval) > 0 {
			a.note("%s", a.suggest(done.Name, "", done.Reason))
		}
	}
	if err != nil || !wait || done.Task == nil {
		return err
	}
	return a.wait(cmd.Context(), c, *done.Task, since)
}

// printEnded lists the freezes and tasks that a change ended early, because somebody may rely on
// them.
func (a *app) printEnded(done *contract.Changed) {
	if len(done.Thawed) > 0 {
		a.note("this ends the freeze of %s", strings.Join(done.Thawed, ", "))
	}
	for _, t := range done.Ended {
		of := prefixed(" of ", strings.Join(t.Services, ", "))
		why := a.suggest(done.Name, "", t.Reason)
		switch {
		case t.State != mariposa.TaskQueued:
			a.note("this terminates the %s%s, task %s%s", t.Task, of, t.ID, prefixed(": ", why))
		default:
			a.note("this cancels the queued %s%s, task %s%s%s", t.Task, of, t.ID, prefixed(": ", why), prefixed("; to run it again: ", t.ContinueWith))
		}
	}
}

var scaleWord = regexp.MustCompile(`^([a-z0-9]([-a-z0-9]*[a-z0-9])?)=([+-]?[0-9]+)$`)

func (a *app) projectScale() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: "scale [NAME] SERVICE=N|+N|-N...", Short: "Change the number of instances of services",
		Example: "  mariposa -j hello project scale web=5\n  mariposa project scale hello web=+2 backend=-1 --wait",
		Args:    argsBetween(1, math.MaxInt),
		RunE: func(cmd *cobra.Command, args []string) error {
			var named []string
			if !strings.Contains(args[0], "=") {
				named, args = args[:1], args[1:]
			}
			scales, err := readScales(args)
			if err != nil {
				return Usage(err)
			}
			name, err := a.projectName(named)
			if err != nil {
				return err
			}
			return a.change(cmd, wait, func(c *client.Client) (*contract.Changed, error) {
				done, err := c.Scale(cmd.Context(), name, scales)
				return a.printNothingToDo(name, "already at this scale", done, a.noServiceIn(cmd.Context(), c, name, err))
			})
		},
		ValidArgsFunction: a.scaleWords,
	}
	waitFlag(cmd, &wait)
	return cmd
}

func readScales(args []string) (map[string]string, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("no scale given: use SERVICE=N, such as web=5, web=+2 or web=-1")
	}
	scales := map[string]string{}
	for _, arg := range args {
		m := scaleWord.FindStringSubmatch(arg)
		if m == nil {
			return nil, fmt.Errorf("%q is not a scale: use SERVICE=N, such as web=5, web=+2 or web=-1", arg)
		}
		if _, twice := scales[m[1]]; twice {
			return nil, fmt.Errorf("the scale of %s is given more than once", m[1])
		}
		scales[m[1]] = m[3]
	}
	return scales, nil
}

// printNothingToDo prints that a change has nothing to do, and why.
func (a *app) printNothingToDo(name, why string, done *contract.Changed, err error) (*contract.Changed, error) {
	if err != nil {
		return nil, a.noProject(err)
	}
	if done.Task == nil && !a.global.json {
		a.say("%s: nothing to do%s", name, prefixed("; ", a.suggest(name, "", cmp.Or(done.Reason, why))))
	}
	return done, nil
}

func rollingFlag(cmd *cobra.Command, rolling *string) {
	cmd.Flags().StringVar(rolling, "rolling", "", "number of instances to replace at a time, such as 2 or 25% (default: update.rolling of each service)")
}

func canaryFlag(cmd *cobra.Command, canary *string) {
	cmd.Flags().StringVar(canary, "canary", "", "hold the rollout after this many new instances, such as 2 or 25% (default: update.canary of each service)")
}

// revertCanaryFlag is canaryFlag for a return to an older version, which ignores
// update.canary.
func revertCanaryFlag(cmd *cobra.Command, canary *string) {
	cmd.Flags().StringVar(canary, "canary", "", "hold the rollout after this many new instances, such as 2 or 25% (default: do not hold it)")
}

// checkAmounts checks flags, given as name and value, that are numbers or
// percentages.
func checkAmounts(pairs ...string) error {
	for n := 0; n+1 < len(pairs); n += 2 {
		flag, value := pairs[n], pairs[n+1]
		if amount, ok := mariposa.ParseAmount(value); value != "" && (!ok || amount.N == 0) {
			return Usage(fmt.Errorf("--%s must be a number of at least 1 or a percentage, such as 2 or 25%%, not %q", flag, value))
		}
	}
	return nil
}
