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
	return a.group("node", "Show, drain, accept and remove nodes; create join tokens",
		a.nodeList(), a.nodeShow(), a.nodeDrain(),
		a.nodeUndrain(),
		a.nodeAct("reserve", "Keep new instances away from a node", "takes no new instances"),
		a.nodeAct("unreserve", "Let a reserved node take instances again", "takes instances again"),
		a.nodeRescheduleNow(),
		a.nodeAct("lose", "Disconnect a dummy node, for tests", "is disconnected"),
		a.nodeAct("restore", "Reconnect a dummy node, for tests", "can connect again"),
		a.nodeAdopt(), a.nodePurge(), a.nodeRemove(), a.nodeAccept(), a.nodeReject(), a.nodeRotateKey(), a.joinToken())
}

func (a *app) nodeList() *cobra.Command {
	return a.withClient(&cobra.Command{Use: "list", Short: "List nodes", Args: argsBetween(0, 0)}, func(ctx context.Context, c *client.Client, _ []string) error {
		all, err := c.Nodes(ctx)
		return show(a, all, err, func() {
			t := newTable("NAME", "STATUS", "INSTANCES", "CAPACITY", "RESERVED?", "RACK?", "DC?", "DRIVERS", "SEEN", "QUARANTINE?", "REASON?").ifEmpty("no nodes yet: start `mariposa agent` on one")
			for _, n := range all.Nodes {
				t.add(cell{n.Name, bold}, nodeStatus(&n), number(n.Instances), text(amountOf(n.Capacity, "any")), text(amountOf(n.Reserved, "-")),
					text(dashIfEmpty(n.Rack)), text(dashIfEmpty(n.DC)), text(drivers(n)), text(a.ageOf(n.LastHeartbeat)), count(countQuarantined(&n), bad), text(n.Reason))
			}
			a.printTable(t)
			a.notePending(all.Nodes)
			if all.Storm != nil {
				hint := ""
				if all.Storm.Waiting > 0 {
					hint = "; to replace those of a node now, run `mariposa node reschedule-now NODE`"
				}
				a.note("%s%s", all.Storm.Text, hint)
			}
		})
	})
}

// notePending says how to decide on pending nodes.
func (a *app) notePending(all []contract.Node) {
	n := 0
	for i := range all {
		if all[i].Status == mariposa.NodePending {
			n++
		}
	}
	switch {
	case n == 1:
		a.note("1 node is pending: run `mariposa node accept NODE --fingerprint SHA256:…` with the fingerprint in the log of its agent, or `mariposa node reject NODE`")
	case n > 1:
		a.note("%d nodes are pending: run `mariposa node accept NODE --fingerprint SHA256:…` with the fingerprint in the log of the node's agent, or `mariposa node reject NODE`", n)
	}
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
		return show(a, n, cmp.Or(err, a.checkColumns(a.quarantineTable(nil))), func() {
			a.facts("name", n.Name, "id", n.ID, "status", nodeStatus(n), "reason", n.Reason, "instances", n.Instances,
				"capacity", amountOf(n.Capacity, "any"), "reserved", amountOf(n.Reserved, "nothing"), "rack", n.Rack, "dc", n.DC, "traits", sorted(n.Traits),
				"drivers", drivers(*n), "dummy", yesOrNo(n.Dummy), "replica", n.Replica, "last heartbeat", cmp.Or(a.stampOf(n.LastHeartbeat), "not known at the moment"),
				"address", n.Address, "key", n.Fingerprint, "key rotation", a.keyRotation(n), "joined without a token", tokenless(n), "refused copy", a.refusedCopy(n))
			a.printMachine(n.Machine)
			a.printDrain(n)
			a.printOffers(n)
			if len(n.Quarantined) == 0 {
				return
			}
			fmt.Fprintln(a.env.Stdout)
			a.printTable(a.quarantineTable(n.Quarantined))
			if total := countQuarantined(n); total > len(n.Quarantined) {
				a.note("%d of %d instances in quarantine are shown", len(n.Quarantined), total)
			}
			a.note("they keep running until you take them back with `mariposa node adopt %s --all`, or remove them with `mariposa node purge %s`", n.Name, n.Name)
		})
	})
}

// keyRotation formats a rotation of the key that is in progress; empty if there is none.
func (a *app) keyRotation(n *contract.Node) string {
	if n.KeyRotation == nil {
		return ""
	}
	return "asked for " + a.stamp(*n.KeyRotation) + "; the node has not connected with its new key yet"
}

// refusedCopy says that an agent came with a copy of the node's data directory; empty if none
// did.
func (a *app) refusedCopy(n *contract.Node) string {
	if n.CopyRefused == nil {
		return ""
	}
	return fmt.Sprintf("%s from %s: an agent there uses a copy of this node's data directory; stop it, or give it an empty data directory", a.stamp(n.CopyRefused.At), n.CopyRefused.From)
}

// tokenless says what is not known about a node that came without a join token.
func tokenless(n *contract.Node) string {
	if !n.Tokenless {
		return ""
	}
	return "its name and all facts are what the agent says"
}

// printMachine prints the facts of a node's machine.
func (a *app) printMachine(m *mariposa.Machine) {
	if m == nil {
		return
	}
	cpus := ""
	if m.CPUs > 0 {
		cpus = fmt.Sprint(m.CPUs) + prefixed(" × ", m.CPUModel)
	}
	booted := ""
	if !m.Booted.IsZero() {
		booted = a.stamp(m.Booted)
	}
	fmt.Fprintln(a.env.Stdout)
	a.facts("host name", m.Hostname, "system", m.OS, "kernel", m.Kernel, "architecture", m.Arch, "cpus", cpus, "memory", bytesOf(m.Memory),
		"booted", booted, "agent", m.Release)
	for _, d := range m.Disks {
		kind := "solid state"
		if d.Rotational {
			kind = "rotational"
		}
		a.facts("disk "+d.Name, bytesOf(d.Size)+", "+kind+prefixed(", ", d.Model))
	}
	for _, i := range m.NICs {
		speed := ""
		if i.Speed > 0 {
			speed = fmt.Sprintf("%d Mbit/s", i.Speed)
		}
		words := slices.DeleteFunc([]string{strings.Join(i.Addresses, " "), speed, i.MAC}, func(s string) bool { return s == "" })
		a.facts("network "+i.Name, cmp.Or(strings.Join(words, ", "), "no address"))
	}
}

// bytesOf formats a number of bytes; empty if it is zero.
func bytesOf(n int64) string {
	switch {
	case n <= 0:
		return ""
	case n >= 1<<40:
		return fmt.Sprintf("%.4g TiB", float64(n)/(1<<40))
	default:
		return fmt.Sprintf("%.4g GiB", float64(n)/(1<<30))
	}
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

func (a *app) nodeRemove() *cobra.Command {
	var force bool
	cmd := a.onNode("rm", "Remove a node, and revoke its key", func(ctx context.Context, c *client.Client, node string) error {
		done, err := c.DeleteNode(ctx, node, force)
		return a.printNodeChange(done, err, "is removed")
	})
	cmd.Long = "Remove a node and revoke its key. If the node is connected, its session ends at once, and its\nagent does not connect again until it is restarted.\n\n" +
		"--force is required for a connected node that has instances, and for a node that has volumes or\ninstances that are not replaced on other nodes yet: they are dropped with the node. The instances\nare then started on other nodes at once, with empty volumes, whatever `reschedule` says and\nhowever many nodes are lost. To move them first, use `mariposa node drain`.\n\n" +
		"Nothing is stopped on the machine itself. If the node comes back, with a join token or after\n`mariposa node accept`, it joins as a new one. Whatever it still runs is in quarantine then\n(`node show`, `node purge`), and the directories of its volumes are not touched."
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also drop the instances and volumes on the node")
	return cmd
}

// printNodeChange prints the result of a change to a node.
func (a *app) printNodeChange(done *contract.Changed, err error, effect string) error {
	return show(a, done, err, func() { a.say("%s %s%s", done.Name, effect, prefixed(": ", done.Reason)) })
}
