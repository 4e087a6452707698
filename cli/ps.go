package cli

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// psCommand lists the instances of a project.
func (a *app) psCommand() *cobra.Command {
	var ended bool
	var node string
	cmd := a.ofProject(&cobra.Command{
		Use: "ps [SERVICE...]", Short: "List the instances of a project", ValidArgsFunction: a.every(serviceNames),
		Long: "List the instances of a project, or of some of its services, sorted by service and slot.\nWith --all, include ended instances that are kept for inspection. To list the instances of\nall projects, use `instance list`.",
	}, func(ctx context.Context, c *client.Client, project string, args []string) error {
		f := client.InstanceFilter{Project: project, Node: node}
		all, err := c.AllInstances(ctx, f)
		if err != nil {
			return a.noInstances(ctx, c, f, err)
		}
		if len(args) > 0 {
			p, err := c.Project(ctx, project)
			if err != nil {
				return a.noProject(err)
			}
			if err := checkServices(p, args, all.Instances); err != nil {
				return err
			}
		}
		all.Instances = slices.DeleteFunc(all.Instances, func(i contract.Instance) bool { return len(args) > 0 && !slices.Contains(args, i.ServiceName) })
		slices.SortStableFunc(all.Instances, bySlot)
		kept := 0
		if !ended {
			before := len(all.Instances)
			all.Instances = slices.DeleteFunc(all.Instances, isKept)
			kept = before - len(all.Instances)
		}
		return show(a, all, nil, func() { a.printInstances(all.Instances, project, kept) })
	})
	cmd.Flags().BoolVarP(&ended, "all", "a", false, "include ended instances that are kept for inspection")
	cmd.Flags().StringVar(&node, "node", "", "only instances on this node")
	complete(cmd, "node", a.every(nodeNames))
	flagAliases(cmd, nodeAliases)
	return cmd
}

// checkServices checks that a project has the services that a command names, or still
// has instances of them.
func checkServices(p *contract.Project, services []string, all []contract.Instance) error {
	for _, name := range services {
		if !slices.Contains(p.Services, name) && !slices.ContainsFunc(all, func(i contract.Instance) bool { return i.ServiceName == name }) {
			return mariposa.UnknownService(p.Name, name, p.Services)
		}
	}
	return nil
}

// bySlot orders instances by service, then by the number of their slot.
func bySlot(x, y contract.Instance) int {
	return cmp.Or(strings.Compare(x.ServiceName, y.ServiceName), cmp.Compare(slotNumber(x.Slot), slotNumber(y.Slot)), x.Created.Compare(y.Created))
}

// slotNumber returns the number of a slot; 0 without one.
func slotNumber(slot string) int {
	n, _ := strconv.Atoi(slot[strings.LastIndexByte(slot, '.')+1:]) // an unmanaged instance has no slot
	return n
}

// projectInstances is psCommand as a subcommand of project.
func (a *app) projectInstances() *cobra.Command {
	cmd := a.psCommand()
	cmd.Use = "instances [SERVICE...]"
	return cmd
}
