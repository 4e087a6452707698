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

func (a *app) nodeCommand() *cobra.Command {
	return a.group("node", "Show, approve and remove nodes; create join tokens",
		a.nodeList(), a.nodeShow(),
		a.nodeAct("lose", "Disconnect a dummy node, for tests", "is disconnected"),
		a.nodeAct("restore", "Reconnect a dummy node, for tests", "can connect again"),
		a.nodePurge(), a.nodeRemove(), a.nodeApprove(), a.nodeReject(), a.joinToken())
}

func (a *app) nodeList() *cobra.Command {
	return a.withClient(&cobra.Command{Use: "list", Short: "List nodes", Args: argsBetween(0, 0)}, func(ctx context.Context, c *client.Client, _ []string) error {
		all, err := c.Nodes(ctx)
		return show(a, all, err, func() {
			t := newTable("NAME", "STATUS", "INSTANCES", "CAPACITY", "RESERVED?", "RACK?", "DC?", "DRIVERS", "SEEN", "QUARANTINE?", "REASON?").ifEmpty("no nodes yet: start `mariposa agent` on one")
			for _, n := range all.Nodes {
				t.add(cell{n.Name, bold}, word(n.Status), number(n.Instances), text(amountOf(n.Capacity, "any")), text(amountOf(n.Reserved, "-")),
					text(dashIfEmpty(n.Rack)), text(dashIfEmpty(n.DC)), text(drivers(n)), text(a.age(n.LastHeartbeat)), count(len(n.Quarantined), bad), text(n.Reason))
			}
			a.printTable(t)
		})
	})
}

// amountOf formats an amount of resources. nothing is the text for zero.
func amountOf(r mariposa.Resources, nothing string) string {
	var all []string
	if r.Instances != 0 {
		all = append(all, fmt.Sprintf("%d inst", r.Instances))
	}
	if r.MilliCPU != 0 {
		all = append(all, fmt.Sprintf("%g cpu", float64(r.MilliCPU)/1000))
	}
	if r.Memory != 0 {
		all = append(all, fmt.Sprintf("%.4g GiB", float64(r.Memory)/(1<<30)))
	}
	return cmp.Or(strings.Join(all, ", "), nothing)
}

func drivers(n contract.Node) string {
	return list(words(n.Drivers))
}

// onNode creates a command for one node.
func (a *app) onNode(use, short string, run func(ctx context.Context, c *client.Client, node string) error) *cobra.Command {
	return a.withClient(&cobra.Command{Use: use + " NODE", Short: short, Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(nodeNames)},
		func(ctx context.Context, c *client.Client, args []string) error {
			return notFound(run(ctx, c, args[0]), "mariposa node list")
		})
}

func (a *app) nodeShow() *cobra.Command {
	return a.onNode("show", "Show a node", func(ctx context.Context, c *client.Client, node string) error {
		n, err := c.Node(ctx, node)
		return show(a, n, cmp.Or(err, a.checkColumns(quarantineTable(nil))), func() {
			a.facts("name", n.Name, "id", n.ID, "status", word(n.Status), "reason", n.Reason, "instances", n.Instances,
				"capacity", amountOf(n.Capacity, "any"), "reserved", amountOf(n.Reserved, "nothing"), "rack", n.Rack, "dc", n.DC, "traits", sorted(n.Traits),
				"drivers", drivers(*n), "dummy", yesOrNo(n.Dummy), "replica", n.Replica, "last heartbeat", a.stamp(n.LastHeartbeat),
				"address", n.Address, "key", n.Fingerprint)
			a.printOffers(n)
			if len(n.Quarantined) == 0 {
				return
			}
			fmt.Fprintln(a.env.Stdout)
			a.printTable(quarantineTable(n.Quarantined))
			a.note("they keep running until you remove them with `mariposa node purge %s`", n.Name)
		})
	})
}

func quarantineTable(all []mariposa.Quarantined) *table {
	t := newTable("QUARANTINED", "NAME", "PROJECT", "TYPE", "STATE", "PHYSICAL ID?", "REASON?")
	for _, q := range all {
		t.add(text(q.ID), text(dashIfEmpty(q.Name)), text(dashIfEmpty(q.Project)), text(string(q.Compute)), word(q.State), text(dashIfEmpty(q.PhysicalID)), text(q.Reason))
	}
	return t
}

// printOffers prints how a node runs instances, and which kinds it cannot run.
func (a *app) printOffers(n *contract.Node) {
	for _, kind := range slices.Sorted(maps.Keys(n.Offers)) {
		o := n.Offers[kind]
		fmt.Fprintln(a.env.Stdout)
		facts := []any{"compute type", string(kind)}
		if o.Unavailable != "" {
			facts = append(facts, "not available", o.Unavailable)
		}
		for _, name := range slices.Sorted(maps.Keys(o.Details)) {
			facts = append(facts, strings.ReplaceAll(name, "_", " "), o.Details[name])
		}
		a.facts(facts...)
	}
}

// nodeAct creates a command for an action on a node.
func (a *app) nodeAct(action, short, effect string) *cobra.Command {
	return a.onNode(action, short, func(ctx context.Context, c *client.Client, node string) error {
		done, err := c.ActOnNode(ctx, node, contract.NodeAction{Action: action})
		return a.printNodeChange(done, err, effect)
	})
}

func (a *app) nodePurge() *cobra.Command {
	var only []string
	cmd := a.onNode("purge", "Remove the quarantined instances of a node", func(ctx context.Context, c *client.Client, node string) error {
		done, err := c.ActOnNode(ctx, node, contract.NodeAction{Action: "purge", Instances: only})
		return show(a, done, err, func() {
			a.say("%s%s", done.Name, cmp.Or(prefixed(": ", done.Reason), " is removing its quarantined instances"))
		})
	})
	cmd.Flags().StringSliceVar(&only, "instance", nil, "only these instances, by id (default: all)")
	return cmd
}

func (a *app) nodeRemove() *cobra.Command {
	var force bool
	cmd := a.onNode("rm", "Remove a node that will not come back", func(ctx context.Context, c *client.Client, node string) error {
		done, err := c.DeleteNode(ctx, node, force)
		return a.printNodeChange(done, err, "is removed")
	})
	cmd.Long = "Remove a node that will not come back. Its status must be unknown.\n\n" +
		"If instances are assigned to the node or volumes are on it, --force is required: they are\ndropped with the node. Instances are then started on other nodes, with empty volumes.\n\n" +
		"If the node comes back after all, it joins as a new one. Whatever it still runs keeps\nrunning in quarantine (`node show`, `node purge`), and the directories of its volumes are\nnot touched."
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also drop the instances and volumes on the node")
	return cmd
}

// printNodeChange prints the result of a change to a node.
func (a *app) printNodeChange(done *contract.Changed, err error, effect string) error {
	return show(a, done, err, func() { a.say("%s %s%s", done.Name, effect, prefixed(": ", done.Reason)) })
}
