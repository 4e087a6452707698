package cli

import (
	"context"

	"github.com/spf13/cobra"

	"mariposa/client"
)

func (a *app) serverList() *cobra.Command {
	return a.withClient(&cobra.Command{
		Use: "list", Short: "List the replicas of the server that are alive", Args: argsBetween(0, 0),
		Long: "List the replicas of the server that are alive, with the address that each publishes\n(--advertise) and the number of nodes and shards it has. The one that answered is marked.",
	}, func(ctx context.Context, c *client.Client, _ []string) error {
		all, err := c.Replicas(ctx)
		return show(a, all, err, func() {
			t := newTable("NAME", "URL", "VERSION", "ALIVE", "NODES", "SHARDS", "ANSWERED")
			for _, r := range all.Replicas {
				alive, answered := "-", ""
				if r.Since != nil {
					alive = a.age(*r.Since)
				}
				if r.Self {
					answered = "this one"
				}
				t.add(cell{r.Name, bold}, text(dashIfEmpty(r.URL)), text(dashIfEmpty(r.Version)), text(alive), number(r.Sessions), number(r.Shards), text(answered))
			}
			a.printTable(t)
		})
	})
}
