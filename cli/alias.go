package cli

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// verbAliases are other spellings of commands, by name. They apply in every group that
// has no command with that spelling.
var verbAliases = map[string][]string{
	"list":        {"ls"},
	"show":        {"get"},
	"create":      {"add", "new"},
	"add":         {"create", "new"},
	"rm":          {"delete", "del", "remove"},
	"revert":      {"rollback"},
	"reprovision": {"restart"},
	"thaw":        {"unfreeze"},
	"incr":        {"increment"},
	"decr":        {"decrement"},
	"terminate":   {"stop", "cancel"},
	"instances":   {"ps"},
}

// groupAliases are other names of groups. A plural on its own lists: `mariposa projects`.
var groupAliases = map[string][]string{
	"project": {"projects"}, "service": {"services"}, "instance": {"instances"}, "meta": {"metas", "metadata"}, "node": {"nodes"}, "volume": {"volumes"},
	"network": {"networks"}, "org": {"orgs", "organization", "organizations"}, "user": {"users"}, "token": {"tokens"}, "package": {"packages"}, "queue": {"queues", "tasks"},
	"tag": {"tags"}, "snapshot": {"snapshots"}, "registry": {"registries"}, "balancer": {"balancers"}, "image": {"images"}, "key": {"keys"},
}

// addAliases adds the other spellings to every command of a tree, unless a sibling
// command has that name or alias.
func addAliases(cmd *cobra.Command) {
	taken := map[string]bool{}
	for _, c := range cmd.Commands() {
		taken[c.Name()] = true
		for _, alias := range c.Aliases {
			taken[alias] = true
		}
	}
	for _, c := range cmd.Commands() {
		more := verbAliases[c.Name()]
		if c.HasSubCommands() {
			more = groupAliases[c.Name()]
		}
		for _, alias := range more {
			if !taken[alias] {
				taken[alias] = true
				c.Aliases = append(c.Aliases, alias)
			}
		}
		addAliases(c)
	}
}

// listedBy returns the list command of a group that was called by its plural.
func listedBy(group *cobra.Command) *cobra.Command {
	if !slices.Contains(groupAliases[group.Name()], group.CalledAs()) {
		return nil
	}
	for _, c := range group.Commands() {
		if c.Name() == "list" {
			return c
		}
	}
	return nil
}

// flagAliases adds other names for flags of a command. The help does not list them.
func flagAliases(cmd *cobra.Command, names map[string]string) {
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if flag, ok := names[name]; ok {
			name = flag
		}
		return pflag.NormalizedName(name)
	})
}

// nodeAliases are the other names of --node.
var nodeAliases = map[string]string{"compute_node": "node", "compute-node": "node", "cn": "node"}
