package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

func (a *app) networkCommand() *cobra.Command {
	return a.group("network", "Show and delete networks", a.networkList(), a.networkShow(), a.networkRemove())
}

func (a *app) networkList() *cobra.Command {
	return a.ofProjects(&cobra.Command{Use: "list", Short: "List networks"}, func(ctx context.Context, c *client.Client, project string) error {
		all, err := c.AllNetworks(ctx, project)
		return show(a, all, err, func() { a.printNetworks(all.Networks) })
	})
}

func (a *app) printNetworks(all []contract.Network) {
	t := newTable("NETWORK", "SHARED", "ORGANIZATION", "PROJECTS", "INSTANCES", "NODES", "AGE", "ID").ifEmpty("no networks")
	for _, n := range all {
		t.add(cell{n.Name, bold}, text(yesOrNo(n.Shared)), text(dashIfEmpty(n.OrganizationName)), text(list(projectsOn(n))), number(n.Instances), number(len(n.Nodes)), text(a.age(n.Created)), text(n.ID))
	}
	a.printTable(t)
}

func projectsOn(n contract.Network) (names []string) {
	for _, p := range n.Projects {
		names = append(names, p.ProjectName)
	}
	return names
}

// onNetwork creates a command for one network.
func (a *app) onNetwork(use, short string, run func(ctx context.Context, c *client.Client, id string) error) *cobra.Command {
	return a.onOne(&cobra.Command{
		Use: use + " NETWORK", Short: short, ValidArgsFunction: a.wordsFrom(networkNames),
		Long: short + ".\n\nName a network as in the manifest, or by the beginning of its id.",
	}, a.networkRef, "network list", run)
}

// networkRef resolves the name of a network to one that the server knows.
func (a *app) networkRef(ctx context.Context, c *client.Client, word string) (string, error) {
	project, err := a.anyProject(false)
	if err != nil {
		return "", err
	}
	var found []candidate
	for n, err := range c.Networks(ctx, project) {
		if err != nil {
			return "", err
		}
		if n.Name == word {
			found = append(found, candidate{n.ID, ownerOf(n) + "/" + n.Name})
		}
	}
	if len(found) == 0 {
		return word, nil // it may be a prefix of an id
	}
	return a.pick(found, fmt.Sprintf("network %q", word), "network list")
}

// ownerOf returns the project of a network, or the organization that shares it.
func ownerOf(n contract.Network) string {
	if n.Shared {
		return n.OrganizationName
	}
	return n.ProjectName
}

func (a *app) networkShow() *cobra.Command {
	return a.onNetwork("show", "Show a network and its state on each node", func(ctx context.Context, c *client.Client, id string) error {
		n, err := c.Network(ctx, id)
		return show(a, n, cmp.Or(err, a.checkColumns(attachmentTable(nil))), func() {
			a.facts("network", cell{n.Name, bold}, "id", n.ID, "organization", n.OrganizationName, "project", n.ProjectName, "shared", yesOrNo(n.Shared),
				"used by", strings.Join(projectsOn(*n), ", "), "instances", fmt.Sprint(n.Instances), "created", a.stamp(n.Created), "reason", n.Reason)
			if len(n.Nodes) == 0 {
				return
			}
			fmt.Fprintln(a.env.Stdout)
			a.printTable(attachmentTable(n.Nodes))
		})
	})
}

// attachmentTable shows a network on each of its nodes.
func attachmentTable(parts []contract.NetworkNode) *table {
	t := newTable("NODE", "COMPUTE TYPE", "STATE", "PATH?", "REASON?")
	for _, part := range parts {
		t.add(text(part.NodeName), text(string(part.ComputeType)), volumeState(part.State), text(dashIfEmpty(part.Path)), text(part.Reason))
	}
	return t
}

func (a *app) networkRemove() *cobra.Command {
	var sure bool
	cmd := a.onNetwork("rm", "Delete an unused network", func(ctx context.Context, c *client.Client, id string) error {
		n, err := c.Network(ctx, id)
		if err != nil {
			return err
		}
		if err := a.confirm(ctx, fmt.Sprintf("delete network %s of %s?", n.Name, ownerOf(*n)), sure); err != nil {
			return err
		}
		done, err := c.DeleteNetwork(ctx, n.ID)
		if err != nil {
			return err
		}
		return changed(a, done, nil, "network %s is deleted: %s", n.Name, done.Reason)
	})
	cmd.Long += "\n\nYou cannot delete a network that an instance uses or is about to use. Remove it from the\nmanifest instead: it is then deleted automatically, with the last instance that uses it."
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask for confirmation")
	return cmd
}
