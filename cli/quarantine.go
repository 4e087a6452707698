package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// countQuarantined returns how many instances of a node are in quarantine: of many, the
// server names only some.
func countQuarantined(n *contract.Node) int { return max(n.QuarantinedCount, len(n.Quarantined)) }

func (a *app) quarantineTable(all []mariposa.Quarantined) *table {
	t := newTable("QUARANTINED", "NAME", "PROJECT", "SERVICE", "SLOT", "VERSION", "TYPE", "STATE", "SINCE", "PHYSICAL ID?", "REASON?")
	for _, q := range all {
		service, slot, version := "", "", ""
		if o := q.Origin; o != nil && o.ServiceName != "" {
			service, slot, version = o.ServiceName, strconv.Itoa(o.Slot), strconv.Itoa(o.Number)
		}
		t.add(text(q.ID), text(dashIfEmpty(q.Name)), text(dashIfEmpty(q.Project)), text(dashIfEmpty(service)), text(dashIfEmpty(slot)), text(dashIfEmpty(version)),
			text(string(q.Compute)), word(q.State), text(a.age(q.Since)), text(dashIfEmpty(q.PhysicalID)), text(q.Reason))
	}
	return t
}

func (a *app) nodePurge() *cobra.Command {
	var only []string
	var sure bool
	cmd := a.onNode("purge", "Remove the quarantined instances of a node", func(ctx context.Context, c *client.Client, node string) error {
		if err := a.confirmPurge(ctx, c, node, only, sure); err != nil {
			return err
		}
		done, err := c.ActOnNode(ctx, node, contract.NodeAction{Action: "purge", Instances: only})
		return show(a, done, err, func() {
			a.say("%s%s", done.Name, cmp.Or(prefixed(": ", done.Reason), " is removing its quarantined instances"))
		})
	})
	cmd.Long = "Stop and remove the quarantined instances of a node, with their data. This cannot be undone; to\ntake them back instead, use `mariposa node adopt`.\n\n" +
		"On a terminal, you are asked to type the node's name, unless you add --yes. Elsewhere, they are\nremoved without a question."
	cmd.Example = "  mariposa node purge n7\n  mariposa node purge n7 --instance 0198c0de-1f2e-7a3b-8c4d-5e6f7a8b9c0d --yes"
	cmd.Flags().StringSliceVar(&only, "instance", nil, "only these instances, by id (default: all)")
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask for confirmation")
	return cmd
}

// confirmPurge asks the user to confirm what a purge destroys. Without a terminal it does
// not ask: scripts purge nodes with this command alone.
func (a *app) confirmPurge(ctx context.Context, c *client.Client, node string, only []string, sure bool) error {
	if sure || !a.interactive() {
		return nil
	}
	n, err := c.Node(ctx, node)
	if err != nil {
		return err
	}
	total, running := 0, 0
	for _, q := range n.Quarantined {
		if len(only) > 0 && !slices.Contains(only, q.ID) {
			continue
		}
		total++
		if q.State == mariposa.StateRunning {
			running++
		}
	}
	known := total
	if len(only) == 0 {
		total = max(total, n.QuarantinedCount)
	}
	if total == 0 {
		return nil // the server says what it makes of that
	}
	does := fmt.Sprintf("removes %s of node %s and all data in them", plural(total, "quarantined instance", "quarantined instances"), n.Name)
	if running > 0 && known < total {
		does += fmt.Sprintf("; %d of the first %d are still running", running, known)
	} else if running > 0 {
		does += "; " + plural(running, "of them is still running", "of them are still running")
	}
	return a.confirmName(ctx, n.Name, does, false)
}

func (a *app) nodeAdopt() *cobra.Command {
	var all, replace, unverified bool
	cmd := &cobra.Command{
		Use: "adopt NODE [INSTANCE...]", Short: "Take quarantined instances back into the slots they came from", Args: argsBetween(1, 1000), ValidArgsFunction: a.wordsFrom(nodeNames),
		Long: "Take quarantined instances back into the slots they came from, without restarting them: after\na restore, those that the restored state does not know. Name them by id or name, or use --all.\n\n" +
			"An instance can be adopted if its service and version are still in force and its service\nneeds it. If its slot was refilled meanwhile, --replace removes the newer instance instead.\n\n" +
			"Servers sign where an instance came from when they assign it to a node. Without a valid\nsignature, the node may have made it up, and the instance is adopted only with --unverified.",
	}
	cmd.Flags().BoolVar(&all, "all", false, "adopt every quarantined instance that can be adopted")
	cmd.Flags().BoolVar(&replace, "replace", false, "remove the instances that have taken their slots since")
	cmd.Flags().BoolVar(&unverified, "unverified", false, "trust what the node says about where the named instances came from, without a signature")
	return a.withClient(cmd, func(ctx context.Context, c *client.Client, args []string) error {
		ask := contract.NodeAction{Action: "adopt", Instances: args[1:], Replace: replace, Unverified: unverified}
		switch named := len(args) > 1; {
		case all && unverified:
			return Usage(errors.New("--unverified needs the names of the instances: check each of them first, then name them instead of --all"))
		case named == all:
			return Usage(errors.New("name the instances to adopt, or use --all for every one"))
		case all:
			ask.Instances = nil
		}
		done, err := a.adopt(ctx, c, args[0], ask)
		return show(a, done, notFound(err, "mariposa node show "+args[0]), func() {
			for _, it := range done.Adoptions {
				if it.Adopted {
					a.say("%s adopted", cmp.Or(it.Name, it.ID))
				} else {
					a.say("%s not adopted: %s", cmp.Or(it.Name, it.ID), it.Reason)
				}
			}
			a.say("%s: %s", done.Name, done.Reason)
		})
	})
}

// adopt adopts quarantined instances, with as many requests as it takes: each adopts a
// limited number.
func (a *app) adopt(ctx context.Context, c *client.Client, node string, ask contract.NodeAction) (*contract.Changed, error) {
	var before []contract.Adoption
	for requests := 1; ; requests++ {
		done, err := c.ActOnNode(ctx, node, ask)
		if err != nil {
			if len(before) > 0 {
				err = fmt.Errorf("%s adopted; the rest failed: %w", plural(len(before), "instance was", "instances were"), err)
			}
			return done, err
		}
		adopted := slices.DeleteFunc(slices.Clone(done.Adoptions), func(it contract.Adoption) bool { return !it.Adopted })
		if done.Remaining == 0 || len(adopted) == 0 {
			done.Adoptions = append(before, done.Adoptions...)
			if len(before) > 0 {
				done.Reason = fmt.Sprintf("%s in %d requests; the last one: %s", plural(len(before)+len(adopted), "instance adopted", "instances adopted"), requests, done.Reason)
			}
			return done, nil
		}
		before = append(before, adopted...)
		ask.Instances = slices.DeleteFunc(ask.Instances, func(name string) bool {
			return slices.ContainsFunc(adopted, func(it contract.Adoption) bool { return it.ID == name || it.Name == name })
		})
	}
}
