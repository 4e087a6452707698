package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

// A source of names asks the server which words could follow. Whoever presses
// the tab key waits for it, so it does not take long, and silence is an answer.
type source func(cmd *cobra.Command, args []string) []string

const completionTime = 2 * time.Second

// first completes the first word of a command.
func first(names source) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(cmd, args), cobra.ShellCompDirectiveNoFileComp
	}
}

// every completes each word of a command.
func every(names source, d cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return names(cmd, args), d | cobra.ShellCompDirectiveNoFileComp
	}
}

// last completes the words of a command whose last one is of one kind, and before
// which one of another kind may stand.
func last(before, names source) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return append(names(cmd, args), before(cmd, args)...), cobra.ShellCompDirectiveNoFileComp
		case 1:
			return names(cmd, args), cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// complete completes the values of a flag.
func complete(cmd *cobra.Command, flag string, names source) {
	if err := cmd.RegisterFlagCompletionFunc(flag, every(names, cobra.ShellCompDirectiveDefault)); err != nil {
		panic(err) // the flag does not exist: a slip in this package
	}
}

// asking gives a source its client; any trouble means that no name is known.
func (a *app) asking(ask func(ctx context.Context, c *client.Client, project string) []string) source {
	return func(cmd *cobra.Command, args []string) []string {
		if a.prepare(cmd) != nil {
			return nil
		}
		c, err := a.connect()
		if err != nil {
			return nil
		}
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		ctx, cancel := context.WithTimeout(ctx, completionTime)
		defer cancel()
		project, err := a.anyProject(false)
		if err != nil {
			return nil
		}
		return ask(ctx, c, project)
	}
}

func (a *app) projectNames(cmd *cobra.Command, args []string) []string {
	return a.asking(func(ctx context.Context, c *client.Client, _ string) []string {
		var names []string
		if all, err := c.Projects(ctx, ""); err == nil {
			for _, p := range all.Projects {
				names = append(names, p.Name)
			}
		}
		return names
	})(cmd, args)
}

func (a *app) serviceNames(cmd *cobra.Command, args []string) []string {
	return a.asking(func(ctx context.Context, c *client.Client, project string) []string {
		if project == "" {
			return nil
		}
		p, err := c.Project(ctx, project)
		if err != nil {
			return nil
		}
		return p.Services
	})(cmd, args)
}

// scaleWords completes `web=`: the number is the person's.
func (a *app) scaleWords(cmd *cobra.Command, args []string) []string {
	var words []string
	for _, s := range a.serviceNames(cmd, args) {
		words = append(words, s+"=")
	}
	return words
}

func (a *app) instanceNames(cmd *cobra.Command, args []string) []string {
	return a.asking(func(ctx context.Context, c *client.Client, project string) []string {
		var names []string
		for i, err := range c.Instances(ctx, client.InstanceFilter{Project: project}) {
			if err != nil {
				break
			}
			names = append(names, i.Name)
		}
		return names
	})(cmd, args)
}

func (a *app) volumeNames(cmd *cobra.Command, args []string) []string {
	return a.asking(func(ctx context.Context, c *client.Client, project string) []string {
		var names []string
		for v, err := range c.Volumes(ctx, client.VolumeFilter{Project: project}) {
			if err != nil {
				break
			}
			names = append(names, slotted(v), cobra.CompletionWithDesc(v.ID, v.ProjectName+"/"+slotted(v)))
		}
		return names
	})(cmd, args)
}

func (a *app) networkNames(cmd *cobra.Command, args []string) []string {
	return a.asking(func(ctx context.Context, c *client.Client, project string) []string {
		var names []string
		for n, err := range c.Networks(ctx, project) {
			if err != nil {
				break
			}
			names = append(names, n.Name, cobra.CompletionWithDesc(n.ID, ownerOf(n)+"/"+n.Name))
		}
		return names
	})(cmd, args)
}

func (a *app) taskIDs(cmd *cobra.Command, args []string) []string {
	return a.asking(func(ctx context.Context, c *client.Client, project string) []string {
		var ids []string
		if all, err := c.Queue(ctx, client.TaskFilter{Project: project}); err == nil {
			for _, t := range all.Tasks {
				ids = append(ids, cobra.CompletionWithDesc(t.ID, what(&t)))
			}
		}
		return ids
	})(cmd, args)
}

func (a *app) nodeNames(cmd *cobra.Command, args []string) []string {
	return a.asking(func(ctx context.Context, c *client.Client, _ string) []string {
		var names []string
		if all, err := c.Nodes(ctx); err == nil {
			for _, n := range all.Nodes {
				names = append(names, n.Name)
			}
		}
		return names
	})(cmd, args)
}

// versionNames completes versions by their numbers.
func (a *app) versionNames(cmd *cobra.Command, args []string) []string {
	return a.asking(func(ctx context.Context, c *client.Client, project string) []string {
		var names []string
		if all, err := c.Versions(ctx, project); err == nil && project != "" {
			for _, v := range all.Versions {
				names = append(names, cobra.CompletionWithDesc(v.Version, v.Message))
			}
		}
		return names
	})(cmd, args)
}

// named asks for a list and takes the name of each.
func named[L, T any](a *app, ask func(ctx context.Context, c *client.Client, project string) (*L, error), each func(*L) []T, name func(T) string) source {
	return a.asking(func(ctx context.Context, c *client.Client, project string) []string {
		all, err := ask(ctx, c, project)
		if err != nil {
			return nil
		}
		var names []string
		for _, one := range each(all) {
			names = append(names, name(one))
		}
		return names
	})
}

func (a *app) orgNames(cmd *cobra.Command, args []string) []string {
	return named(a, func(ctx context.Context, c *client.Client, _ string) (*contract.Organizations, error) {
		return c.Organizations(ctx)
	},
		func(l *contract.Organizations) []contract.Organization { return l.Organizations },
		func(o contract.Organization) string { return o.Name })(cmd, args)
}

func (a *app) userNames(cmd *cobra.Command, args []string) []string {
	return named(a, func(ctx context.Context, c *client.Client, _ string) (*contract.Users, error) { return c.Users(ctx) },
		func(l *contract.Users) []contract.User { return l.Users },
		func(u contract.User) string { return u.Name })(cmd, args)
}

func (a *app) tokenNames(cmd *cobra.Command, args []string) []string {
	return named(a, func(ctx context.Context, c *client.Client, _ string) (*contract.Tokens, error) {
		return c.Tokens(ctx, "")
	},
		func(l *contract.Tokens) []contract.Token { return l.Tokens },
		func(t contract.Token) string { return t.Name })(cmd, args)
}

func (a *app) packageNames(cmd *cobra.Command, args []string) []string {
	return named(a, func(ctx context.Context, c *client.Client, _ string) (*contract.Packages, error) {
		return c.Packages(ctx)
	},
		func(l *contract.Packages) []contract.Package { return l.Packages },
		func(p contract.Package) string { return p.Name })(cmd, args)
}

func (a *app) metaKeys(cmd *cobra.Command, args []string) []string {
	return named(a, func(ctx context.Context, c *client.Client, project string) (*contract.Metadata, error) {
		return c.Metadata(ctx, project, false)
	}, func(l *contract.Metadata) []contract.MetadataKey { return l.Keys },
		func(k contract.MetadataKey) string { return cobra.CompletionWithDesc(k.Key, k.Description) })(cmd, args)
}

func (a *app) tagNames(cmd *cobra.Command, args []string) []string {
	return named(a, func(ctx context.Context, c *client.Client, project string) (*contract.Tags, error) {
		return c.Tags(ctx, project)
	},
		func(l *contract.Tags) []contract.Tag { return l.Tags },
		func(t contract.Tag) string { return t.Tag })(cmd, args)
}
