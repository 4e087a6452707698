package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
	"mariposa/manifest"
)

func (a *app) metaImport() *cobra.Command {
	var file, message string
	var force bool
	cmd := a.metaChange(&cobra.Command{
		Use: "import -m FILE", Short: "Add values from a file; with -f, also overwrite existing values", Args: argsBetween(0, 0),
		Long: "Add the values of a YAML file to the metadata of a project.\n\n" +
			"Keys that are already set keep their value, with a warning; -f overwrites them. Keys that\nare not in the file are never changed; remove them with `meta rm`. A secret that is masked\nin the file stays unchanged.",
		Example: "  mariposa -j shop meta import -m values.yaml\n  mariposa -j shop meta import -m values.yaml -f --wait",
	}, func(ctx context.Context, c *client.Client, project string, _ []string) (*contract.Changed, error) {
		doc, err := a.readDocument(file, "metadata")
		if err != nil {
			return nil, err
		}
		return a.importValues(ctx, c, project, doc, message, force)
	})
	documentFlag(cmd, &file, "metadata")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "overwrite keys that are already set")
	cmd.Flags().StringVar(&message, "message", "", "description of the change, shown in the list of versions")
	return cmd
}

// importTries is how often an import starts over because of a concurrent change of the
// project.
const importTries = 10

// importValues merges a file into the metadata. It sends the version that it has read, so
// that it never overwrites a concurrent change.
func (a *app) importValues(ctx context.Context, c *client.Client, project string, doc []byte, message string, force bool) (*contract.Changed, error) {
	given, err := manifest.ReadValues(doc)
	if err != nil {
		return nil, err
	}
	for _, key := range manifest.NullKeys(doc) {
		a.note("the value of %s is null: write a value, \"\" for an empty one, or remove the key with `%s meta rm %s`", key, a.commandPrefix(project), key)
	}
	for try := 1; ; try++ {
		now, err := c.Metadata(ctx, project, false)
		if err != nil {
			return nil, a.noProject(err)
		}
		m := compareValues(now.Keys, given)
		set := m.added
		if force {
			set = append(set, m.differ...)
		}
		if len(set) == 0 {
			a.printImport(project, m, force, nil)
			return &contract.Changed{Name: project, Version: now.Version}, nil
		}
		merged, err := mergeValues(ctx, c, project, doc, given, set)
		if err != nil {
			return nil, a.noProject(err)
		}
		done, err := c.ImportMetadata(ctx, project, merged, client.Update{Previous: now.Version, Message: message})
		if mariposa.CodeOf(err) == mariposa.Conflict && try < importTries && isOvertaken(ctx, c, project, now.Version) {
			continue
		}
		if err != nil {
			return nil, a.noProject(err)
		}
		a.printImport(project, m, force, done)
		return done, nil
	}
}

// isOvertaken reports whether a project has a newer version than the given one.
func isOvertaken(ctx context.Context, c *client.Client, project, version string) bool {
	p, err := c.Project(ctx, project)
	return err == nil && p.Version != version
}

// mergeValues sets keys of the current metadata document to the given values. Secrets in
// the document are masked, which leaves them unchanged.
func mergeValues(ctx context.Context, c *client.Client, project string, doc []byte, given *manifest.Values, set []string) ([]byte, error) {
	current, err := c.MetadataDocument(ctx, project, false)
	if err != nil {
		return nil, err
	}
	if len(strings.TrimSpace(string(current))) == 0 {
		return doc, nil // nothing is set yet: the file is stored as it is
	}
	values, err := manifest.ReadValues(current)
	if err != nil {
		return nil, err
	}
	for _, key := range set {
		v, _ := given.Get(key)
		if values, err = values.Set(key, v.Text, false, v.Changed); err != nil {
			return nil, err
		}
	}
	return values.Document, nil
}

// An importPlan compares the keys of a file with the current metadata.
type importPlan struct {
	added  []string // not set yet
	differ []string // set to another value, or to a secret that we cannot compare
	same   []string // set to the same value, or masked
}

// compareValues compares the values of a file with the current ones. The current values
// of secrets are not known here, so a given secret counts as different.
func compareValues(now []contract.MetadataKey, given *manifest.Values) (m importPlan) {
	current := map[string]contract.MetadataKey{}
	for _, k := range now {
		if k.Set {
			current[k.Key] = k
		}
	}
	for _, key := range given.Keys() {
		v, _ := given.Get(key)
		k, isSet := current[key]
		switch {
		case !isSet:
			m.added = append(m.added, key)
		case v.Text == k.Value || k.Secret && v.Text == manifest.Mask:
			m.same = append(m.same, key)
		default:
			m.differ = append(m.differ, key)
		}
	}
	return m
}

// printImport prints the result of an import, and warns about keys that it did not
// change. done is nil if nothing changed.
func (a *app) printImport(project string, m importPlan, force bool, done *contract.Changed) {
	if len(m.differ) > 0 && !force {
		a.note("already set, not changed: %s; use -f to overwrite", strings.Join(m.differ, ", "))
	}
	switch {
	case a.global.json:
	case done == nil:
		a.say("%s: nothing to import", project)
	default:
		var parts []string
		if len(m.added) > 0 {
			parts = append(parts, "added "+strings.Join(m.added, ", "))
		}
		if force && len(m.differ) > 0 {
			parts = append(parts, "changed "+strings.Join(m.differ, ", "))
		}
		a.say("%s: %s; %s", project, strings.Join(parts, "; "), versionWords(done))
	}
}
