package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

// psCommand lists the instances of a project.
func (a *app) psCommand() *cobra.Command {
	var ended bool
	cmd := a.ofProject(&cobra.Command{
		Use: "ps [SERVICE...]", Short: "List the instances of a project", ValidArgsFunction: a.every(serviceNames),
		Long: "List the instances of a project, or of some of its services. With --all, include ended\ninstances that are kept for inspection. To list the instances of all projects, use\n`instance list`.",
	}, func(ctx context.Context, c *client.Client, project string, args []string) error {
		all, err := c.AllInstances(ctx, client.InstanceFilter{Project: project})
		if err != nil {
			return a.noProject(err)
		}
		all.Instances = slices.DeleteFunc(all.Instances, func(i contract.Instance) bool { return len(args) > 0 && !slices.Contains(args, i.ServiceName) })
		kept := 0
		if !ended {
			before := len(all.Instances)
			all.Instances = slices.DeleteFunc(all.Instances, isKept)
			kept = before - len(all.Instances)
		}
		return show(a, all, nil, func() { a.printInstances(all.Instances, project, kept) })
	})
	cmd.Flags().BoolVarP(&ended, "all", "a", false, "include ended instances that are kept for inspection")
	return cmd
}

// projectInstances is psCommand as a subcommand of project.
func (a *app) projectInstances() *cobra.Command {
	cmd := a.psCommand()
	cmd.Use = "instances [SERVICE...]"
	return cmd
}
