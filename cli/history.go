package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
	"mariposa/manifest"
)

func (a *app) projectVersions() *cobra.Command {
	return a.inProject(&cobra.Command{Use: "versions [PROJECT]", Short: "List the versions of a project, newest first", Aliases: []string{"history"}}, 0,
		func(ctx context.Context, c *client.Client, project string, _ []string) error {
			all, err := c.Versions(ctx, project)
			return show(a, all, err, func() { a.printVersions(all) })
		})
}

func (a *app) printVersions(all *contract.Versions) {
	t := newTable("VERSION", "NUMBER+", "HASH+", "AGE", "AUTHOR?", "CAUSE", "COMPLETED", "SERVICES?", "METADATA?", "TAGS?", "MESSAGE?").keyed("NUMBER")
	for _, v := range all.Versions {
		t.add(text(versionOf(v.Number, v.Version)), number(v.Number), text(v.Version), text(a.age(v.Created)), text(dashIfEmpty(v.Author)), text(dashIfEmpty(string(v.Cause))), text(completed(v)),
			text(list(v.ServicesChanged)), text(list(v.MetadataChanged)), text(list(v.Tags)), text(v.Message))
	}
	a.printTable(t)
}

// completed describes whether a version was ever rolled out completely, and how many
// instances are still outdated.
func completed(v contract.Version) string {
	text := yesOrNo(v.Completed)
	if v.Outdated > 0 {
		text += fmt.Sprintf(", %d outdated", v.Outdated)
	}
	if len(v.NeedsApproval) > 0 {
		text += ", not approved"
	}
	return text
}

func list(words []string) string { return dashIfEmpty(strings.Join(words, ",")) }

func (a *app) projectVersion() *cobra.Command {
	list := a.projectVersions()
	list.Use, list.Aliases = "list [PROJECT]", nil
	return a.group("version", "Show, compare and approve versions of a project", list, a.versionGet(), a.versionDiff(), a.versionApprove(), a.versionWithdraw())
}

func (a *app) versionGet() *cobra.Command {
	return a.ofProject(&cobra.Command{Use: "get VERSION", Short: "Print the manifest of a version as it was submitted", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(versionNames)},
		func(ctx context.Context, c *client.Client, name string, args []string) error {
			v, err := c.Version(ctx, name, args[0])
			if err != nil {
				return a.noVersion(err, name)
			}
			if a.global.json {
				return a.printJSON(v)
			}
			a.note("%s", a.introduce(name, v))
			for _, i := range v.Images {
				a.note("image %s", imageWords(i))
			}
			switch {
			case v.Approval != nil:
				a.note("approved by %s, %s", v.Approval.By, a.stamp(v.Approval.At))
			case len(v.NeedsApproval) > 0:
				a.note("not approved: it uses %s", strings.Join(v.NeedsApproval, ", "))
			}
			_, err = io.WriteString(a.env.Stdout, v.Manifest)
			return err
		})
}

func (a *app) versionApprove() *cobra.Command {
	return a.ofProject(&cobra.Command{
		Use: "approve VERSION", Short: "Approve a version that uses protected secrets", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(versionNames),
		Long: "Approve the use of protected secrets by a version. The version then takes effect. This\nrequires the role operator; compare the version with the current one first:\n\n" +
			"  mariposa project version diff current 7\n\n" +
			"The approval covers the manifest, byte for byte, and the values that it refers to. A version\nthat changes any of these needs an approval of its own; a return to an approved version does\nnot.",
		Example: "  mariposa -j shop version approve 7",
	}, func(ctx context.Context, c *client.Client, name string, args []string) error {
		done, err := c.ApproveVersion(ctx, name, args[0])
		return show(a, done, a.noVersion(err, name), func() {
			a.say("%s: version %s is approved%s", name, versionOf(done.Number, done.Version), prefixed("; ", a.suggest(name, "", done.Reason)))
		})
	})
}

func (a *app) versionWithdraw() *cobra.Command {
	return a.ofProject(&cobra.Command{
		Use: "withdraw VERSION", Short: "Withdraw the approval of a version; running instances are kept", Args: argsBetween(1, 1), ValidArgsFunction: a.wordsFrom(versionNames),
	}, func(ctx context.Context, c *client.Client, name string, args []string) error {
		done, err := c.WithdrawApproval(ctx, name, args[0])
		return show(a, done, a.noVersion(err, name), func() {
			a.say("%s: version %s is no longer approved%s", name, versionOf(done.Number, done.Version), prefixed("; ", a.suggest(name, "", done.Reason)))
		})
	})
}

// introduce describes a version: its number, time, author and message.
func (a *app) introduce(project string, v *contract.Version) string {
	return fmt.Sprintf("version %s of %s, %s%s%s", versionOf(v.Number, v.Version), project, a.stamp(v.Created), prefixed(" by ", v.Author), prefixed(": ", v.Message))
}

// noVersion adds a hint to a "not found" error.
func (a *app) noVersion(err error, project string) error {
	return notFound(err, a.commandPrefix(project)+" project versions")
}

func (a *app) versionDiff() *cobra.Command {
	return a.ofProject(&cobra.Command{
		Use: "diff A [B]", Short: "Compare two versions, with secrets masked", Args: argsBetween(1, 2), ValidArgsFunction: a.every(versionNames),
		Long: "Compare version A with version B, or with the newest version: the manifests line by line,\nthen the metadata. Name a version by its number, a tag or the beginning of its hash.",
	}, func(ctx context.Context, c *client.Client, name string, args []string) error {
		to := ""
		if len(args) == 2 {
			to = args[1]
		} else {
			p, err := c.Project(ctx, name)
			if err != nil {
				return a.noProject(err)
			}
			to = p.Version
		}
		d, err := c.Diff(ctx, name, args[0], to)
		if err == nil {
			maskDiff(d)
			if !a.global.json {
				err = manifestsOf(ctx, c, name, &d.From, &d.To)
			}
		}
		return show(a, d, a.noVersion(err, name), func() { a.printDiff(name, d) })
	})
}

// manifestsOf fetches the manifests of versions that do not include them.
func manifestsOf(ctx context.Context, c *client.Client, project string, versions ...*contract.Version) error {
	for _, v := range versions {
		if v.Manifest != "" {
			continue
		}
		whole, err := c.Version(ctx, project, v.Version)
		if err != nil {
			return err
		}
		v.Manifest = whole.Manifest
	}
	return nil
}

// printDiff prints the difference between two versions: the manifests, the metadata and
// the effect on services.
func (a *app) printDiff(project string, d *contract.Diff) {
	p := a.paint(a.env.Stdout)
	text := unifiedDiff(a.introduce(project, &d.From), a.introduce(project, &d.To), d.From.Manifest, d.To.Manifest)
	if len(text) == 0 {
		a.note("from %s", a.introduce(project, &d.From))
		a.note("to %s", a.introduce(project, &d.To))
	}
	for _, line := range text {
		fmt.Fprintln(a.env.Stdout, diffLine(p, line))
	}
	if len(d.Metadata) > 0 {
		fmt.Fprintln(a.env.Stdout, p.in(bold, "metadata"))
	}
	for _, v := range d.Metadata {
		for _, line := range valueLines(v) {
			fmt.Fprintln(a.env.Stdout, diffLine(p, line))
		}
	}
	if len(d.Services) > 0 {
		fmt.Fprintln(a.env.Stdout, p.in(bold, "services"))
	}
	for _, s := range d.Services {
		var fields []string
		for _, f := range s.Fields {
			if f.Field != "image.version" && f.Field != "image.revision" { // they describe the digest
				fields = append(fields, f.Field)
			}
		}
		a.say("  %s: %s%s", s.Service, s.Change, bracketed(strings.Join(fields, ", ")))
	}
	for _, s := range d.Services {
		if text := imageChange(s); text != "" {
			a.say("  image %s: %s", s.Service, text)
		}
	}
	if len(text) == 0 && len(d.Metadata) == 0 && len(d.Services) == 0 {
		a.note("the versions are identical")
	}
}

// maskDiff masks secrets, even if the server did not.
func maskDiff(d *contract.Diff) {
	for n := range d.Metadata {
		if v := &d.Metadata[n]; v.Secret {
			v.Before, v.After = mask(v.Before), mask(v.After)
		}
	}
}

// mask returns the mask of a secret.
func mask(value string) string {
	if value == "" {
		return ""
	}
	return manifest.Mask
}

// valueLines returns the diff lines of one metadata key.
func valueLines(v contract.ValueDiff) []string {
	var lines []string
	if v.Change != "added" {
		lines = append(lines, "-"+v.Key+": "+plain(v.Before))
	}
	if v.Change != "removed" {
		lines = append(lines, "+"+v.Key+": "+plain(v.After))
	}
	return lines
}

// diffLine colors a line of a diff.
func diffLine(p paint, line string) string {
	s := none
	switch {
	case strings.HasPrefix(line, "+++ "), strings.HasPrefix(line, "--- "):
		s = bold
	case strings.HasPrefix(line, "+"):
		s = good
	case strings.HasPrefix(line, "-"):
		s = bad
	case strings.HasPrefix(line, "@"):
		s = quiet
	}
	return p.in(s, plain(line))
}

func (a *app) projectTag() *cobra.Command {
	return a.group("tag", "Manage the tags of versions", a.tagList(), a.tagAdd(), a.tagRemove())
}

func (a *app) tagList() *cobra.Command {
	return a.inProject(&cobra.Command{Use: "list [PROJECT]", Short: "List tags and their versions"}, 0,
		func(ctx context.Context, c *client.Client, project string, _ []string) error {
			all, err := c.Tags(ctx, project)
			return show(a, all, err, func() {
				t := newTable("TAG", "VERSION", "AUTOMATIC").ifEmpty("no tags yet: add one with `%s project tag add TAG VERSION`", a.commandPrefix(project))
				for _, tag := range all.Tags {
					t.add(cell{tag.Tag, bold}, text(versionOf(tag.Number, tag.Version)), text(yesOrNo(tag.Automatic)))
				}
				a.printTable(t)
			})
		})
}

func (a *app) tagAdd() *cobra.Command {
	return a.inProject(&cobra.Command{Use: "add [PROJECT] TAG VERSION", Short: "Tag a version; tagged versions are never deleted", ValidArgsFunction: a.every(versionNames)}, 2,
		func(ctx context.Context, c *client.Client, project string, args []string) error {
			done, err := c.AddTag(ctx, project, args[0], args[1])
			return changed(a, done, err, "%s: version %s is now tagged %s", project, args[1], args[0])
		})
}

func (a *app) tagRemove() *cobra.Command {
	return a.inProject(&cobra.Command{Use: "rm [PROJECT] TAG", Short: "Remove a tag; the version is kept", ValidArgsFunction: a.wordsFrom(tagNames)}, 1,
		func(ctx context.Context, c *client.Client, project string, args []string) error {
			done, err := c.DeleteTag(ctx, project, args[0])
			return changed(a, done, notFound(err, a.commandPrefix(project)+" project tag list"), "%s: tag %s is removed", project, args[0])
		})
}

func (a *app) projectRevert() *cobra.Command {
	var r client.Revert
	var wait bool
	var scales []string
	cmd := &cobra.Command{
		Use: "revert [[PROJECT] VERSION]", Short: "Return to an older version, as a new version", Args: argsBetween(0, 2), ValidArgsFunction: a.wordsFrom(versionNames),
		Long: "Return to an older version: its manifest and metadata become a new version, and the history\nis kept. Without VERSION, return to the last version that was rolled out completely. If\nthere is none, stop the project and remove everything that it has started.\n\n" +
			"The change is rolled out without a canary, whatever the manifest says, unless you use\n--canary. Scales stay as they are unless you use --with-scale or --scale.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkAmounts("rolling", r.Rolling, "canary", r.Canary); err != nil {
				return err
			}
			if len(scales) > 0 {
				var err error
				if r.Scale, err = readScales(scales); err != nil {
					return Usage(err)
				}
			}
			var named []string
			if len(args) > 0 {
				named, r.Version = args[:len(args)-1], args[len(args)-1]
			}
			name, err := a.projectName(named)
			if err != nil {
				return err
			}
			return a.change(cmd, wait, func(c *client.Client) (*contract.Changed, error) { return a.revert(cmd.Context(), c, name, r) })
		},
	}
	rollingFlag(cmd, &r.Rolling)
	revertCanaryFlag(cmd, &r.Canary)
	cmd.Flags().BoolVar(&r.WithScale, "with-scale", false, "also restore the scales of that version (default: keep the current scales)")
	cmd.Flags().StringSliceVar(&scales, "scale", nil, "also set the scale of a service, such as web=3 (repeatable)")
	cmd.Flags().StringVar(&r.Message, "message", "", "description of the change, shown in the list of versions")
	waitFlag(cmd, &wait)
	return cmd
}

// revert makes a version current again and prints which one is current now.
func (a *app) revert(ctx context.Context, c *client.Client, name string, r client.Revert) (*contract.Changed, error) {
	if a.global.json {
		done, err := c.Revert(ctx, name, r)
		return done, a.noVersion(err, name)
	}
	before, err := c.Project(ctx, name)
	if err != nil {
		return nil, a.noProject(err)
	}
	done, err := c.Revert(ctx, name, r)
	if err != nil {
		return nil, a.noVersion(err, name)
	}
	if done.Number == before.Number { // no version was created
		if done.Task == nil {
			a.say("%s: nothing to do; %s", name, cmp.Or(a.suggest(name, "", done.Reason), versionWords(done)+" already has that content"))
		} else {
			a.say("%s: %s", name, cmp.Or(a.suggest(name, "", done.Reason), fmt.Sprintf("version %d is already in force: only scales change", done.Number)))
		}
		return done, nil
	}
	again := "the last completed version"
	if r.Version != "" {
		again = "version " + r.Version
	}
	a.say("%s: %s restores %s", name, versionWords(done), again)
	a.printConsequences(ctx, c, a.organizationFlag(), name, done)
	return done, nil
}
