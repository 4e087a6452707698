package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
)

// A source asks the server for names that can complete a word. The user is waiting after
// pressing Tab, so it must be fast and may return nothing.
type source func(ctx context.Context, c *client.Client, project string) []string

const completionTime = 2 * time.Second

// namesFrom returns the names of a source, or nothing on an error.
func (a *app) namesFrom(cmd *cobra.Command, from source) []string {
	if a.prepare(cmd, nil) != nil {
		return nil
	}
	c, err := a.connect()
	if err != nil {
		return nil
	}
	project, err := a.anyProject(false)
	if err != nil {
		return nil
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	return from(ctx, c, project)
}

// wordsFrom completes the arguments of a command, each from its own source.
func (a *app) wordsFrom(each ...source) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(each) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.namesFrom(cmd, each[len(args)]), cobra.ShellCompDirectiveNoFileComp
	}
}

// last completes the last argument of a command from names. One argument completed from
// before may precede it.
func (a *app) last(before, names source) cobra.CompletionFunc {
	either := func(ctx context.Context, c *client.Client, project string) []string {
		return append(names(ctx, c, project), before(ctx, c, project)...)
	}
	return a.wordsFrom(either, names)
}

// every completes each argument of a command, or each value of a flag.
func (a *app) every(names source) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.namesFrom(cmd, names), cobra.ShellCompDirectiveNoFileComp
	}
}

// oneOf completes a word from a fixed list.
func oneOf(words []string) cobra.CompletionFunc {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// complete completes the values of a flag.
func complete(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic(err) // the flag does not exist, which is a bug in this package
	}
}

// scaleWords completes `web=`; the user types the number.
func (a *app) scaleWords(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var words []string
	for _, s := range a.namesFrom(cmd, serviceNames) {
		words = append(words, s+"=")
	}
	return words, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// each returns the names of the members of a list, or nothing if the list could not be
// read.
func each[T any](err error, members func() []T, name func(T) string) (names []string) {
	if err != nil {
		return nil
	}
	for _, one := range members() {
		names = append(names, name(one))
	}
	return names
}

func projectNames(ctx context.Context, c *client.Client, _ string) []string {
	all, err := c.Projects(ctx, "")
	return each(err, func() []contract.Project { return all.Projects }, func(p contract.Project) string { return p.Name })
}

func serviceNames(ctx context.Context, c *client.Client, project string) []string {
	if project == "" {
		return nil
	}
	p, err := c.Project(ctx, project)
	return each(err, func() []string { return p.Services }, func(name string) string { return name })
}

func instanceNames(ctx context.Context, c *client.Client, project string) (names []string) {
	for i, err := range c.Instances(ctx, client.InstanceFilter{Project: project}) {
		if err == nil {
			names = append(names, i.Name)
		}
	}
	return names
}

func volumeNames(ctx context.Context, c *client.Client, project string) (names []string) {
	for v, err := range c.Volumes(ctx, client.VolumeFilter{Project: project}) {
		if err == nil {
			names = append(names, slotted(v), cobra.CompletionWithDesc(v.ID, v.ProjectName+"/"+slotted(v)))
		}
	}
	return names
}

// leftVolumeNames lists the volumes of deleted projects.
func leftVolumeNames(ctx context.Context, c *client.Client, _ string) (names []string) {
	for v, err := range c.Volumes(ctx, client.VolumeFilter{}) {
		if err == nil && v.Project == "" {
			names = append(names, slotted(v), cobra.CompletionWithDesc(v.ID, v.ProjectName+"/"+slotted(v)))
		}
	}
	return names
}

func networkNames(ctx context.Context, c *client.Client, project string) (names []string) {
	for n, err := range c.Networks(ctx, project) {
		if err == nil {
			names = append(names, n.Name, cobra.CompletionWithDesc(n.ID, ownerOf(n)+"/"+n.Name))
		}
	}
	return names
}

func taskIDs(ctx context.Context, c *client.Client, project string) []string {
	all, err := c.Queue(ctx, client.TaskFilter{Project: project})
	return each(err, func() []contract.Task { return all.Tasks }, func(t contract.Task) string { return cobra.CompletionWithDesc(t.ID, describeTask(&t)) })
}

func nodeNames(ctx context.Context, c *client.Client, _ string) []string {
	all, err := c.Nodes(ctx)
	return each(err, func() []contract.Node { return all.Nodes }, func(n contract.Node) string { return n.Name })
}

// versionNames completes versions by their hashes.
func versionNames(ctx context.Context, c *client.Client, project string) []string {
	if project == "" {
		return nil
	}
	all, err := c.Versions(ctx, project)
	return each(err, func() []contract.Version { return all.Versions }, func(v contract.Version) string { return cobra.CompletionWithDesc(v.Version, v.Message) })
}

func orgNames(ctx context.Context, c *client.Client, _ string) []string {
	all, err := c.Organizations(ctx)
	return each(err, func() []contract.Organization { return all.Organizations }, func(o contract.Organization) string { return o.Name })
}

func userNames(ctx context.Context, c *client.Client, _ string) []string {
	all, err := c.Users(ctx)
	return each(err, func() []contract.User { return all.Users }, func(u contract.User) string { return u.Name })
}

func tokenNames(ctx context.Context, c *client.Client, _ string) []string {
	all, err := c.Tokens(ctx, "")
	return each(err, func() []contract.Token { return all.Tokens }, func(t contract.Token) string { return t.Name })
}

func joinTokenNames(ctx context.Context, c *client.Client, _ string) []string {
	all, err := c.JoinTokens(ctx)
	return each(err, func() []contract.Token { return all.Tokens }, func(t contract.Token) string { return t.Name })
}

func packageNames(ctx context.Context, c *client.Client, _ string) []string {
	all, err := c.Packages(ctx)
	return each(err, func() []contract.Package { return all.Packages }, func(p contract.Package) string { return p.Name })
}

func metaKeys(ctx context.Context, c *client.Client, project string) []string {
	all, err := c.Metadata(ctx, project, false)
	return each(err, func() []contract.MetadataKey { return all.Keys }, func(k contract.MetadataKey) string { return cobra.CompletionWithDesc(k.Key, k.Description) })
}

func tagNames(ctx context.Context, c *client.Client, project string) []string {
	all, err := c.Tags(ctx, project)
	return each(err, func() []contract.Tag { return all.Tags }, func(t contract.Tag) string { return t.Tag })
}
