package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
	"mariposa/manifest"
)

func (a *app) metaImport() *cobra.Command {
	var file, message string
	var force, sure bool
	cmd := a.metaChange(&cobra.Command{
		Use: "import -m FILE", Short: "Put a file of values in place of all metadata", Args: argsBetween(0, 0),
		Long: "Put a YAML file of values in place of all metadata: keys that it leaves out are taken out.\n\n" +
			"Which keys change is shown first and, on a terminal, asked about; values are not shown.\nElsewhere, keys may be added, but what is set is neither changed nor taken out unless -y or\n-f is said. Should somebody else change the project meanwhile, nothing happens, unless -f\nis said.",
	}, func(ctx context.Context, c *client.Client, project string, _ []string) (*contract.Changed, error) {
		doc, err := a.readDocument(file, "metadata")
		if err != nil {
			return nil, err
		}
		return a.importValues(ctx, c, project, doc, client.Update{Force: force, Message: message}, sure)
	})
	documentFlag(cmd, &file, "metadata")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "whatever the newest version is, and without asking")
	cmd.Flags().BoolVarP(&sure, "yes", "y", false, "do not ask")
	cmd.Flags().StringVar(&message, "message", "", "why, for those who read the versions later")
	return cmd
}

func (a *app) importValues(ctx context.Context, c *client.Client, project string, doc []byte, u client.Update, sure bool) (*contract.Changed, error) {
	values, err := manifest.ReadValues(doc)
	if err != nil {
		return nil, err
	}
	if !u.Force {
		now, err := c.Metadata(ctx, project, false)
		if err != nil {
			return nil, a.noProject(err)
		}
		u.Previous = now.Version
		change := compareKeys(now.Keys, values)
		a.showKeys(change)
		if !sure && !a.interactive() {
			err = change.refused(project)
		}
		if err != nil {
			return nil, err
		}
		if len(change) > 0 {
			if ok, err := a.confirm(ctx, fmt.Sprintf("change the metadata of %s?", project), sure); err != nil || !ok {
				return nil, err
			}
		}
	}
	done, err := c.ImportMetadata(ctx, project, doc, u)
	if err != nil {
		return nil, a.noProject(err)
	}
	if !a.global.json {
		a.say("%s: %s in, %s", project, plural(len(values.ByKey), "value is", "values are"), versionWords(done))
	}
	return done, nil
}

// keyChanges are the keys that an import changes, without their values.
type keyChanges []keyChange

type keyChange struct {
	sign byte // '-' removed, '~' changed, '+' added
	key  string
	why  string
}

// compareKeys returns the keys that differ. A secret that comes back masked is
// kept; any other value of a secret counts as changed, as the current one is not
// known here.
func compareKeys(now []contract.MetadataKey, next *manifest.Values) (all keyChanges) {
	had := map[string]bool{}
	for _, k := range now {
		if !k.Set {
			continue
		}
		had[k.Key] = true
		v, stays := next.Get(k.Key)
		switch {
		case !stays:
			all = append(all, keyChange{'-', k.Key, wordIf("a secret", k.Secret)})
		case k.Secret && v.Text != manifest.Mask:
			all = append(all, keyChange{'~', k.Key, "a secret, given anew"})
		case !k.Secret && v.Text != k.Value:
			all = append(all, keyChange{'~', k.Key, ""})
		}
	}
	for _, key := range next.Keys() {
		if !had[key] {
			all = append(all, keyChange{'+', key, ""})
		}
	}
	return all
}

// showKeys shows which keys an import changes.
func (a *app) showKeys(change keyChanges) {
	p := a.paint(a.env.Stderr)
	for _, k := range change {
		s := map[byte]style{'-': bad, '~': busy, '+': good}[k.sign]
		fmt.Fprintln(a.env.Stderr, p.in(s, string(k.sign)+" "+plain(k.key)+bracketed(k.why)))
	}
}

// refused returns an error if values would be lost and nobody can be asked: an
// incomplete file looks just like an intended one.
func (all keyChanges) refused(project string) error {
	var lost []string
	if keys := all.signed('~'); keys != "" {
		lost = append(lost, "change "+keys)
	}
	if keys := all.signed('-'); keys != "" {
		lost = append(lost, "take out "+keys)
	}
	if len(lost) == 0 {
		return nil
	}
	return withHint(fmt.Errorf("the import would %s in the metadata of %s; nothing was changed", strings.Join(lost, " and "), project),
		"say -f if you mean it, or -y, which still heeds what others do meanwhile; `meta set` changes single keys")
}

func (all keyChanges) signed(sign byte) string {
	var keys []string
	for _, k := range all {
		if k.sign == sign {
			keys = append(keys, k.key)
		}
	}
	return strings.Join(keys, ", ")
}
