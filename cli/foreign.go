package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// listForeign prints the foreign containers of a node, or of all.
func (a *app) listForeign(ctx context.Context, c *client.Client, node string) error {
	all, err := c.ForeignContainers(ctx, node)
	return show(a, all, notFound(err, "mariposa node list"), func() {
		t := newTable("CONTAINER", "ID", "NODE", "IMAGE", "STATE", "PORTS?", "ADDRESSES?", "AGE").ifEmpty("no foreign containers")
		for _, it := range all.Containers {
			var ports []string
			for _, p := range it.Ports {
				ports = append(ports, strconv.Itoa(p))
			}
			t.add(cell{dashIfEmpty(it.Name), bold}, text(shortContainer(it.ID)), text(it.NodeName), text(it.Image), text(it.State),
				text(dashIfEmpty(strings.Join(ports, ","))), text(dashIfEmpty(strings.Join(it.Addresses, ","))), text(a.age(it.Created)))
		}
		a.printTable(t)
		for _, m := range all.Missing {
			a.note("node %s: %s", m.NodeName, m.Reason)
		}
	})
}

// shortContainer returns the id of a container as Docker shows it.
func shortContainer(id string) string { return id[:min(12, len(id))] }

func (a *app) instanceAdopt() *cobra.Command {
	var node, name string
	cmd := &cobra.Command{
		Use: "adopt CONTAINER", Short: "Make a container that Mariposa did not create an unmanaged instance", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(foreignNames),
		Long: "Make a container that Mariposa did not create an unmanaged instance of a project. It is not\nrestarted and keeps its configuration. From then on, the instance can be shown, stopped,\n" +
			"started and removed like any other. `instance rm` removes the container.\n\n" +
			"Name the container by its name or the beginning of its id, as in `instance list --foreign`.\nThis is for installation admins. To take quarantined instances back, use `node adopt`.",
		Example: "  mariposa instance list --foreign\n  mariposa -j shop instance adopt postgres --node n1 --name db",
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, project, err := a.onProject(nil)
		if err != nil {
			return err
		}
		on, ref := node, args[0]
		if on == "" {
			if on, ref, err = findForeign(cmd.Context(), c, ref); err != nil {
				return err
			}
		}
		done, err := c.AdoptContainer(cmd.Context(), on, ref, contract.ContainerAdoption{Project: project, Name: name})
		if err != nil {
			return notFound(err, "mariposa instance list --foreign")
		}
		return changed(a, done, nil, "container %s is now instance %s of project %s", args[0], done.Name, project)
	}
	cmd.Flags().StringVar(&node, "node", "", "the node of the container (default: the only one that has it)")
	cmd.Flags().StringVar(&name, "name", "", "name of the instance (default: the name of the container)")
	complete(cmd, "node", a.every(nodeNames))
	flagAliases(cmd, nodeAliases)
	return cmd
}

// findForeign finds the node of a container, which must be the only one of its name.
func findForeign(ctx context.Context, c *client.Client, ref string) (node, id string, err error) {
	all, err := c.ForeignContainers(ctx, "")
	if err != nil {
		return "", "", err
	}
	found := slices.DeleteFunc(slices.Clone(all.Containers), func(it contract.ForeignContainer) bool { return it.Name != ref })
	if len(found) == 0 && len(ref) >= 4 {
		found = slices.DeleteFunc(all.Containers, func(it contract.ForeignContainer) bool { return !strings.HasPrefix(it.ID, ref) })
	}
	switch {
	case len(found) == 1 && len(all.Missing) > 0: // another node may have one, too
		return "", "", fmt.Errorf("node %s has a container %s, but not all containers are known (node %s: %s): name the node with --node", found[0].NodeName, ref, all.Missing[0].NodeName, all.Missing[0].Reason)
	case len(found) == 1:
		return found[0].Node, found[0].ID, nil
	case len(found) == 0:
		return "", "", withHint(mariposa.Errorf(mariposa.ResourceNotFound, "no node has a foreign container %q", ref), "see `mariposa instance list --foreign`")
	}
	var nodes []string
	for _, it := range found {
		nodes = append(nodes, it.NodeName+" ("+shortContainer(it.ID)+")")
	}
	return "", "", fmt.Errorf("several containers match %q, on %s: name the node with --node, or use the id", ref, strings.Join(nodes, " and "))
}

// foreignNames completes the names of foreign containers.
func foreignNames(ctx context.Context, c *client.Client, _ string) []string {
	all, err := c.ForeignContainers(ctx, "")
	return each(err, func() []contract.ForeignContainer { return all.Containers }, func(it contract.ForeignContainer) string { return it.Name })
}
