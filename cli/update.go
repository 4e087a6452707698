package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
	"mariposa/manifest"
)

func (a *app) projectUpdate() *cobra.Command {
	var u client.Update
	var source manifestSource
	var wait, sure bool
	cmd := a.projectArgument(&cobra.Command{
		Use: "update [NAME] -m FILE | --compose FILE", Short: "Update a project to a new manifest",
		Long: "Update a project to a new manifest, or to the translation of a Compose file.\n\n" +
			"On a terminal, you see the difference from the newest version and are asked to confirm.\nElsewhere, --previous must name the version that the file is based on, or --force must say\nthat it replaces whatever is there.\n\n" +
			"If somebody else has submitted another manifest since then, nothing is changed. On a terminal,\nyou see their change and what your update would change now, and are asked again.\n\nIf the newest version has this manifest already, for example because an earlier attempt was\ninterrupted, the command continues with that version, and --wait waits until it is in force.",
		Example: "  mariposa -j shop project update -m mariposa.yaml --wait\n  mariposa -j shop project update -m mariposa.yaml --previous 7 --message \"$GIT_SHA\" --wait\n  mariposa -j shop project update -m - --force < mariposa.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := source.check(); err != nil {
				return err
			}
			if source.dryRun {
				name, err := a.projectName(args)
				if err != nil {
					return err
				}
				return a.printTranslation(cmd.Context(), &source, name)
			}
			if u.Force && u.Previous != "" {
				return Usage(errors.New("--previous and --force cannot be combined"))
			}
			if err := checkAmounts("rolling", u.Rolling, "canary", u.Canary); err != nil {
				return err
			}
			if u.Previous == "" && !u.Force && !a.interactive() {
				return Usage(withHint(errors.New("outside a terminal, an update requires --previous VERSION, the version that the file is based on, or --force to replace whatever is there"),
					"`%s project versions` lists the versions", a.samePrefix()))
			}
			name, err := a.projectName(args)
			if err != nil {
				return err
			}
			text, err := a.readSource(cmd.Context(), &source, name)
			if err != nil {
				return err
			}
			return a.changeManifest(cmd, wait, "", func(c *client.Client) (*contract.Changed, error) {
				return a.update(cmd.Context(), c, name, text, u, sure)
			})
		},
	})
	manifestFlag(cmd, &source.file)
	source.add(cmd)
	source.addDryRun(cmd)
	f := cmd.Flags()
	f.StringVar(&u.Previous, "previous", "", "version that the change is based on: its number, hash or tag, such as current")
	f.BoolVar(&u.Force, "force", false, "replace the newest version, whatever it is")
	f.StringVar(&u.Message, "message", "", "description of the change, shown in the list of versions")
	f.BoolVarP(&sure, "yes", "y", false, "do not ask for confirmation")
	rollingFlag(cmd, &u.Rolling)
	canaryFlag(cmd, &u.Canary)
	waitFlag(cmd, &wait)
	flagAliases(cmd, map[string]string{"count": "canary"})
	complete(cmd, "previous", a.every(versionNames))
	return cmd
}

// update submits a manifest. It first shows the difference, unless a flag names the
// version that the manifest is based on.
func (a *app) update(ctx context.Context, c *client.Client, name string, text []byte, u client.Update, sure bool) (*contract.Changed, error) {
	retried := false
	if u.Previous == "" && !u.Force {
		p, err := c.Project(ctx, name)
		if err != nil {
			return nil, a.noProject(err)
		}
		u.Previous = p.Version
		// Fetched by its version, so that the shown difference is correct even if
		// somebody changes the project concurrently.
		old, err := c.Version(ctx, name, p.Version)
		if err != nil {
			return nil, a.noProject(err)
		}
		if retried = old.Manifest == string(text); !retried {
			a.showDiff(fmt.Sprintf("%s, version %s", name, versionOf(p.Number, p.Version)), a.file, old.Manifest, string(text))
			if err := a.confirm(ctx, fmt.Sprintf("update %s?", name), sure); err != nil {
				return nil, err
			}
		}
	}
	done, err := a.submit(ctx, c, name, text, u, sure)
	if err != nil {
		return nil, err
	}
	if !a.global.json {
		a.printVersion(ctx, c, name, done, retried)
	}
	parsed, err := manifest.Parse(text)
	if err != nil {
		parsed = nil // it may be for a newer server: missing values are listed anyway
	}
	return done, a.supply(ctx, c, name, parsed, done.Missing)
}

// printVersion prints the version that a submitted manifest has, and what is happening with it.
func (a *app) printVersion(ctx context.Context, c *client.Client, name string, done *contract.Changed, retried bool) {
	version := versionOf(done.Number, done.Version)
	switch {
	case done.Joined:
		a.say("%s: version %s has this manifest already; its task is still open", name, version)
	case done.Task == nil:
		a.say("%s: nothing to do; version %s has this manifest", name, version)
		a.printHeld(ctx, c, name, nil)
	case retried:
		a.say("%s: version %s is retried", name, version)
	default:
		a.say("%s: version %s", name, version)
	}
	a.explain(name, done)
}

// explain prints what else there is to say about a change of a manifest, unless it is printed with the
// task.
func (a *app) explain(name string, done *contract.Changed) {
	if done.Reason != "" && (done.Task == nil || len(done.NeedsApproval) == 0) {
		a.note("%s", a.suggest(name, "", done.Reason))
	}
}

// submit submits a manifest. On a conflict with a newer version, the user sees the new
// difference and is asked again, repeatedly if needed. If the newer version has the same manifest,
// its task is the one to wait for: it may be that of an earlier attempt.
func (a *app) submit(ctx context.Context, c *client.Client, name string, text []byte, u client.Update, sure bool) (*contract.Changed, error) {
	for {
		done, err := c.UpdateManifest(ctx, name, text, u)
		if mariposa.CodeOf(err) != mariposa.Conflict {
			return done, a.noProject(err)
		}
		newest, by, err := a.findNewer(ctx, c, name, u.Previous, err)
		if err != nil {
			return nil, err
		}
		if newest.Manifest == string(text) {
			a.note("the newest version of %s has the same manifest: %s%s", name, versionOf(newest.Number, newest.Version), by)
			u.Previous = newest.Version
			continue
		}
		if sure || !a.interactive() {
			return nil, a.errOvertaken(name, u.Previous, newest, by)
		}
		a.note("somebody else has changed the project: the newest version of %s is %s%s, but your change is based on %s", name, versionOf(newest.Number, newest.Version), by, shortVersion(u.Previous))
		a.showDiff(fmt.Sprintf("%s, version %s", name, versionOf(newest.Number, newest.Version)), a.file, newest.Manifest, string(text))
		if err := a.confirm(ctx, fmt.Sprintf("update %s anyway?", name), false); err != nil {
			return nil, err
		}
		u.Previous = newest.Version
	}
}

// findNewer returns the newest version of a project and its author if a change was refused
// because it is based on another version. Otherwise it returns the refusal, or that the
// project does not have the version that the change is based on.
func (a *app) findNewer(ctx context.Context, c *client.Client, name, previous string, refusal error) (newest *contract.Version, by string, err error) {
	p, failed := c.Project(ctx, name)
	if failed != nil || previous == "" {
		return nil, "", refusal
	}
	switch base, failed := c.Version(ctx, name, previous); {
	case mariposa.CodeOf(failed) == mariposa.ResourceNotFound:
		return nil, "", a.noVersion(failed, name)
	case failed != nil || base.Number == p.Number:
		return nil, "", refusal
	}
	if newest, failed = c.Version(ctx, name, p.Version); failed != nil {
		return nil, "", refusal
	}
	return newest, prefixed(" by ", newest.Author) + prefixed(": ", newest.Message), nil
}

// errOvertaken names the author of the newer version and says how to view it.
func (a *app) errOvertaken(name, previous string, newest *contract.Version, by string) error {
	return withHint(
		fmt.Errorf("somebody else has changed the project: the newest version of %s is %s%s, but your change is based on %s; nothing was changed", name, versionOf(newest.Number, newest.Version), by, shortVersion(previous)),
		"compare them with `%s project version diff %s %s`, merge the changes into your manifest and update again; or overwrite them with --force", a.commandPrefix(name), shortVersion(previous), shortVersion(newest.Version))
}

func (a *app) showDiff(from, to, before, after string) {
	p := a.paint(a.env.Stderr)
	for _, line := range unifiedDiff(from, to, before, after) {
		fmt.Fprintln(a.env.Stderr, diffLine(p, line))
	}
}
