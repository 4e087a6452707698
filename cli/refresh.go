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

func (a *app) projectRefresh() *cobra.Command {
	var r client.Refresh
	var wait bool
	cmd := &cobra.Command{
		Use: "refresh [SERVICE...]", Short: "Roll out images whose tags have moved", ValidArgsFunction: a.every(serviceNames),
		Long: "Look up what the images of a project mean now. If a tag has moved, roll the new image out, as\na new version with the same manifest. Name services to look up only their images.\n\n" +
			"What a tag means is stored with each version. Without a refresh, a moved tag changes nothing:\nrepairs and larger scales use the same image as before.",
		Example: "  mariposa -j shop project refresh --wait\n  mariposa -j shop project refresh web --canary 1",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkAmounts("rolling", r.Rolling, "canary", r.Canary); err != nil {
				return err
			}
			name, err := a.projectName(nil)
			if err != nil {
				return err
			}
			r.Services = args
			return a.change(cmd, wait, func(c *client.Client) (*contract.Changed, error) { return a.refresh(cmd.Context(), c, name, r) })
		},
	}
	rollingFlag(cmd, &r.Rolling)
	canaryFlag(cmd, &r.Canary)
	cmd.Flags().StringVar(&r.Message, "message", "", "description of the change, shown in the list of versions")
	waitFlag(cmd, &wait)
	return cmd
}

// refresh resolves images anew and prints what they mean.
func (a *app) refresh(ctx context.Context, c *client.Client, name string, r client.Refresh) (*contract.Changed, error) {
	done, err := c.Refresh(ctx, name, r)
	if err != nil {
		return nil, a.noProject(err)
	}
	if a.global.json {
		return done, nil
	}
	if done.Task == nil {
		a.say("%s: nothing to do; %s", name, a.suggest(name, "", done.Reason))
		return done, nil
	}
	a.say("%s: %s has the images", name, versionWords(done))
	for _, i := range done.Images {
		a.say("  %s", imageWords(i))
	}
	a.printConsequences(ctx, c, a.organizationFlag(), name, done)
	return done, nil
}

// imageWords says what an image means in a version.
func imageWords(i contract.Image) string {
	if i.Digest == "" {
		return fmt.Sprintf("%s is not pinned%s", i.Image, prefixed(": ", i.Reason))
	}
	return i.Image + " is " + shortDigest(i.Digest) + prefixed(", version ", plain(i.Version)) + prefixed(", commit ", shortCommit(i.Revision))
}

// shortDigest returns enough of a digest to tell images apart.
func shortDigest(digest string) string {
	kind, sum, ok := strings.Cut(digest, ":")
	if !ok {
		return plain(digest)
	}
	return kind + ":" + sum[:min(12, len(sum))]
}

// shortCommit returns enough of a commit to tell it from others; a revision of another form is
// returned as it is.
func shortCommit(revision string) string {
	if len(revision) >= 32 && strings.Trim(revision, "0123456789abcdef") == "" {
		return revision[:12]
	}
	return plain(revision)
}

// imageChange says how the image of a service differs between two versions; empty if it does
// not.
func imageChange(s contract.ServiceDiff) string {
	var all []string
	for _, w := range []struct {
		field, word string
		short       func(string) string
	}{{"image.version", "version", plain}, {"image.revision", "commit", shortCommit}, {"image.digest", "digest", shortDigest}} {
		for _, f := range s.Fields {
			if f.Field == w.field {
				all = append(all, fmt.Sprintf("%s %s → %s", w.word, cmp.Or(w.short(f.Before), "unknown"), cmp.Or(w.short(f.After), "unknown")))
			}
		}
	}
	return strings.Join(all, ", ")
}
