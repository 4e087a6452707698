package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

func (a *app) networkCommand() *cobra.Command {
	return a.group("network", "Look at networks, where instances find each other, and delete them", a.networkList(), a.networkShow(), a.networkRemove())
}

func (a *app) networkList() *cobra.Command {
	return a.ofProjects(&cobra.Command{Use: "list", Short: "List the networks"}, func(ctx context.Context, c *client.Client, project string) error {
		all, err := c.AllNetworks(ctx, project)
		return show(a, all, err, func() { a.printNetworks(all.Networks) })
	})
}

func (a *app) printNetworks(all []contract.Network) {
	if len(all) == 0 {
		a.note("no networks")
		return
	}
	t := newTable("NETWORK", "SHARED", "ORGANIZATION", "PROJECTS", "INSTANCES", "NODES", "AGE", "ID")
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

// onNetwork makes a command that takes one network.
func (a *app) onNetwork(use, short string, run func(ctx context.Context, c *client.Client, id string) error) *cobra.Command {
	return a.onOne(&cobra.Command{
		Use: use + " NETWORK", Short: short, ValidArgsFunction: a.wordsFrom(networkNames),
		Long: short + ".\n\nA network is named as in the manifest, or by the beginning of its id.",
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
	return a.onNetwork("show", "Show one network, with its part on each node", func(ctx context.Context, c *client.Client, id string) error {
		n, err := c.Network(ctx, id)
		return show(a, n, err, func() {
			a.facts("network", cell{n.Name, bold}, "id", n.ID, "organization", n.OrganizationName, "project", n.ProjectName, "shared", yesOrNo(n.Shared),
				"used by", strings.Join(projectsOn(*n), ", "), "instances", fmt.Sprint(n.Instances), "created", a.stamp(n.Created), "reason", n.Reason)
			if len(n.Nodes) == 0 {
				return
			}
			fmt.Fprintln(a.env.Stdout)
			t := newTable("NODE", "COMPUTE TYPE", "STATE", "PATH?", "REASON?")
			for _, part := range n.Nodes {
				t.add(text(part.NodeName), text(string(part.ComputeType)), volumeState(part.State), text(dashIfEmpty(part.Path)), text(part.Reason))
			}
			a.printTable(t)
		})
	})
}

func (a *app) networkRemove() *cobra.Command {
	var sure bool
	cmd := a.onNetwork("rm", "Delete a network that nothing uses", func(ctx context.Context, c *client.Client, id string) error {
		n, err := c.Network(ctx, id)
		if err != nil {
			return err
		}
		if ok, err := a.confirm(ctx, fmt.Sprintf("delete network %s of %s?", n.Name, ownerOf(*n)), sure); err != nil || !ok {
			return err
		}
		done, err := c.DeleteNetwork(ctx, n.ID)
		if err != nil {
			return err
		}
		return changed(a, done, nil, "network %s is deleted: %s", n.Name, done.Reason)
	})
	cmd.Long += "\n\nNot while an instance uses it, or is to be made that would: take it out of the manifest\nfirst. Then it goes by itself, with the last instance that is on it."
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask")
	return cmd
}
