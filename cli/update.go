package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
	"mariposa/manifest"
)

func (a *app) projectUpdate() *cobra.Command {
	var u client.Update
	var file string
	var wait, sure bool
	cmd := a.aProject(&cobra.Command{
		Use: "update [NAME] -m FILE", Short: "Give a project a new manifest",
		Long: "Give a project a new manifest.\n\nWithout --previous and --force, the change is based on the newest version: it is\nshown as a difference and, on a terminal, asked about. Should somebody else change\nthe project meanwhile, nothing happens.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if u.Force && u.Previous != "" {
				return Usage(errors.New("--force says whatever the previous version is, so --previous makes no sense beside it"))
			}
			if err := checkAmounts("rolling", u.Rolling, "canary", u.Canary); err != nil {
				return err
			}
			name, err := a.projectName(args)
			if err != nil {
				return err
			}
			text, err := a.readManifest(file)
			if err != nil {
				return err
			}
			return a.change(cmd, wait, func(c *client.Client) (*contract.Changed, error) {
				return a.update(cmd.Context(), c, name, text, u, sure)
			})
		},
	})
	manifestFlag(cmd, &file)
	f := cmd.Flags()
	f.StringVar(&u.Previous, "previous", "", "the version the change is based on")
	f.BoolVar(&u.Force, "force", false, "whatever the newest version is")
	f.StringVar(&u.Message, "message", "", "why, for those who read the versions later")
	f.BoolVarP(&sure, "yes", "y", false, "do not ask")
	rollingFlag(cmd, &u.Rolling)
	canaryFlag(cmd, &u.Canary)
	waitFlag(cmd, &wait)
	complete(cmd, "previous", a.versionNames)
	return cmd
}

// update submits a manifest, after showing what it changes unless the person has
// said what it is based on. It answers nil when the person says no.
func (a *app) update(ctx context.Context, c *client.Client, name string, text []byte, u client.Update, sure bool) (*contract.Changed, error) {
	if u.Previous == "" && !u.Force {
		p, err := c.Project(ctx, name)
		if err != nil {
			return nil, a.noProject(err)
		}
		u.Previous = p.Version
		// Asked for by its version, so that the difference shown is the one made
		// even if somebody changes the project right now.
		old, err := c.Version(ctx, name, p.Version)
		if err != nil {
			return nil, a.noProject(err)
		}
		if bytes.Equal([]byte(old.Manifest), text) {
			if !a.global.json {
				a.say("%s: nothing to do, version %s is this manifest", name, versionOf(p.Number, p.Version))
			}
			return &contract.Changed{Version: p.Version, Number: p.Number}, nil
		}
		a.showDiff(fmt.Sprintf("%s, version %s", name, versionOf(p.Number, p.Version)), a.file, old.Manifest, string(text))
		if ok, err := a.confirm(ctx, fmt.Sprintf("update %s?", name), sure); err != nil || !ok {
			return nil, err
		}
	}
	done, err := c.UpdateManifest(ctx, name, text, u)
	if mariposa.CodeOf(err) == mariposa.Conflict {
		return nil, a.overtaken(ctx, c, name, u.Previous, err)
	}
	if err != nil {
		return nil, a.noProject(err)
	}
	if !a.global.json {
		a.say("%s: version %s", name, versionOf(done.Number, done.Version))
	}
	parsed, err := manifest.Parse(text)
	if err != nil {
		parsed = nil // of a newer server, perhaps: what it misses is named all the same
	}
	return done, a.supply(ctx, c, name, parsed, done.Missing)
}

// overtaken says who was faster, if that is why the server refused.
func (a *app) overtaken(ctx context.Context, c *client.Client, name, previous string, refusal error) error {
	p, err := c.Project(ctx, name)
	if err != nil || previous == "" || isVersion(previous, p) {
		return refusal // that is the news, not that we cannot say more
	}
	who := ""
	if v, err := c.Version(ctx, name, p.Version); err == nil {
		who = prefixed(" by ", v.Author) + prefixed(": ", v.Message)
	}
	return hinted(
		fmt.Errorf("somebody was faster: the newest version of %s is %s%s, and your change is based on %s; nothing was changed", name, versionOf(p.Number, p.Version), who, short(previous)),
		"look at it with `mariposa -j %s project version get %s`, bring your manifest up to date, then update again; or overwrite it with --force", name, p.Version)
}

// isVersion reports whether a word means the newest version of a project, as the
// server understands such words.
func isVersion(word string, p *contract.Project) bool {
	return word == strconv.Itoa(p.Number) || len(word) >= 7 && strings.HasPrefix(p.Version, word)
}

func (a *app) showDiff(from, to, before, after string) {
	p := a.paint(a.env.Stderr)
	for _, line := range unified(from, to, before, after) {
		fmt.Fprintln(a.env.Stderr, diffLine(p, line))
	}
}
