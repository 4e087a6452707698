package cli

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

func (a *app) namesCommand() *cobra.Command {
	var node string
	cmd := a.ofProject(&cobra.Command{
		Use: "names", Short: "Show what the DNS names of a project resolve to",
		Long: "Show the DNS names of the services of a project, the addresses and ports that they resolve to\n" +
			"right now, and why one does not resolve. Each instance is shown at the address that it has on its own node.\n" +
			"With --node, show what processes on that node get.",
		Example: "  mariposa -j shop names\n  mariposa -j shop names --node n2",
		Args:    argsBetween(0, 0),
	}, func(ctx context.Context, c *client.Client, project string, _ []string) error {
		doc, err := c.Names(ctx, project, node)
		return show(a, doc, err, func() { a.printNames(doc) })
	})
	cmd.Flags().StringVar(&node, "node", "", "what processes on this node get")
	complete(cmd, "node", a.every(nodeNames))
	flagAliases(cmd, nodeAliases)
	return cmd
}

func (a *app) printNames(doc *contract.Names) {
	t := newTable("NAME", "ADDRESS", "PORTS", "INSTANCE", "NODE", "REASON?").ifEmpty("no services, so no names")
	for i := range doc.Names {
		n := &doc.Names[i]
		if len(n.Targets) == 0 {
			t.add(cell{n.Name, bold}, cell{"-", dim}, cell{"-", dim}, cell{"-", dim}, cell{"-", dim}, text(n.Reason))
		}
		for _, target := range n.Targets {
			var ports []string
			for _, p := range target.Ports {
				ports = append(ports, strconv.Itoa(p))
			}
			t.add(cell{n.Name, bold}, text(target.Address), text(dashIfEmpty(list(ports))), text(target.InstanceName), text(target.NodeName), text(""))
		}
	}
	a.printTable(t)
}
