package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"mariposa/client"
	"mariposa/contract"
	"mariposa/manifest"
)

func (a *app) projectCreate() *cobra.Command {
	var source manifestSource
	var values, message string
	var wait bool
	cmd := &cobra.Command{
		Use: "create NAME -m FILE | --compose FILE", Short: "Create a project from a manifest or a Compose file", Args: argsBetween(1, 1),
		Long: "Create a project from a manifest, or from a Compose file (docker-compose.yml).\n\n" +
			"A Compose file is translated into a manifest. What is not carried over is listed on standard\nerror, with its line; --strict refuses the file instead. With --dry-run, the manifest is\nprinted and nothing is created.\n\n" +
			"On a terminal, you are asked for required metadata that --metadata does not contain.\nElsewhere, the project is created, but nothing starts until all required metadata is set.",
		Example:           "  mariposa project create shop -m mariposa.yaml --wait\n  mariposa project create shop --compose docker-compose.yml --dry-run > mariposa.yaml\n  mariposa project create shop --compose docker-compose.yml --wait",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if source.dryRun {
				return a.printTranslation(cmd.Context(), &source, args[0])
			}
			p, err := a.readProject(cmd.Context(), &source, args[0], values)
			if err != nil {
				return err
			}
			return a.change(cmd, wait, func(c *client.Client) (*contract.Changed, error) {
				return a.create(cmd.Context(), c, args[0], p, message)
			})
		},
	}
	manifestFlag(cmd, &source.file)
	source.add(cmd)
	source.addDryRun(cmd)
	cmd.Flags().StringVar(&values, "metadata", "", "file with metadata values in YAML; - reads standard input")
	cmd.Flags().StringVar(&message, "message", "", "description of the change, shown in the list of versions")
	waitFlag(cmd, &wait)
	return cmd
}

// A submission is a manifest with its metadata values.
type submission struct {
	document []byte
	parsed   *manifest.Project // nil: the server reports its errors
	values   *manifest.Values  // nil: none given
}

// readProject reads the manifest of a project, and a file of values if one is given.
func (a *app) readProject(ctx context.Context, source *manifestSource, name, values string) (*submission, error) {
	if (source.file == "-" || source.compose == "-") && values == "-" {
		return nil, Usage(errTwice)
	}
	var s submission
	var err error
	if s.document, err = a.readSource(ctx, source, name); err != nil {
		return nil, err
	}
	if p, err := manifest.Parse(s.document); err == nil {
		s.parsed = p
	} else if !utf8.Valid(s.document) {
		return nil, err // with values, it is sent as JSON, where invalid bytes would become other characters
	}
	if values == "" {
		return &s, nil
	}
	shown := a.file
	text, err := a.readDocument(values, "metadata")
	if err != nil {
		return nil, err
	}
	if s.values, err = manifest.ReadValues(text); err != nil {
		return nil, err
	}
	if err := s.parsed.CheckValues(s.values, nil); err != nil {
		return nil, err
	}
	a.file, a.documentKind = shown, "manifest" // errors of the server are about the manifest
	return &s, nil
}

// create creates a project, with the values that are given or entered.
func (a *app) create(ctx context.Context, c *client.Client, name string, s *submission, message string) (*contract.Changed, error) {
	if err := a.askMissing(ctx, s); err != nil {
		return nil, err
	}
	var done *contract.Changed
	var err error
	if s.values == nil {
		done, err = c.CreateProject(ctx, name, s.document, message)
	} else {
		done, err = c.NewProject(ctx, contract.NewProject{Name: name, Manifest: inJSON(string(s.document)), Metadata: inJSON(string(s.values.Document)), Message: message})
	}
	if err == nil && !a.global.json {
		a.say("%s: version %s", name, versionOf(done.Number, done.Version))
		a.printMissing(a.organizationFlag(), name, s.parsed, done.Missing)
	}
	return done, err
}

// inJSON encodes a text, or a list of them, as JSON.
func inJSON(words any) json.RawMessage {
	raw, err := json.Marshal(words)
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return raw
}

// askMissing asks the user for required values that were not given.
func (a *app) askMissing(ctx context.Context, s *submission) error {
	if !a.interactive() || a.file == stdinName {
		return nil
	}
	for _, key := range s.parsed.Missing(s.values) {
		value, err := a.askKey(ctx, s.parsed, key)
		if err != nil {
			return err
		}
		if value == "" {
			continue
		}
		if s.values, err = s.values.Set(key, value, s.parsed.IsSecret(key), a.env.Now()); err != nil {
			return err
		}
	}
	return nil
}

// askKey asks the user for one value until it is valid. An empty answer leaves it
// unset.
func (a *app) askKey(ctx context.Context, p *manifest.Project, key string) (string, error) {
	m, known := p.Declared(key)
	hidden := m.Secret || !known
	for {
		value, err := a.ask(ctx, question(key, m, hidden), hidden)
		if err != nil || value == "" {
			return "", err
		}
		if err = cmp.Or(manifest.CheckSetting(key, value), p.CheckValue(key, value)); err == nil {
			return value, nil
		}
		a.note("%s", err)
	}
}

// question returns the prompt for a key.
func question(key string, m manifest.Metadata, hidden bool) string {
	var about []string
	if m.Description != "" {
		about = append(about, m.Description)
	}
	if len(m.Choices) > 0 {
		about = append(about, "one of "+strings.Join(m.Choices, ", "))
	}
	if hidden {
		about = append(about, "input is hidden")
	}
	return key + bracketed(strings.Join(about, "; ")) + ": "
}

// organizationFlag returns the organization given on the command line, for commands
// suggested to the user.
func (a *app) organizationFlag() string {
	if a.fromEnv["org"] {
		return ""
	}
	return a.global.org
}

// printMissing lists the values that a project waits for, and how to set them.
func (a *app) printMissing(org, project string, p *manifest.Project, missing []string) {
	if len(missing) == 0 {
		return
	}
	a.note("%s is waiting for required metadata; set it with", project)
	for _, key := range missing {
		value := "VALUE"
		if p.IsSecret(key) {
			value = "-   # a secret, from standard input"
		}
		a.note("  mariposa%s -j %s meta set %s %s", prefixed(" -o ", org), project, key, value)
	}
}

// supply asks the user for the values that a changed project waits for, and sets
// them.
func (a *app) supply(ctx context.Context, c *client.Client, project string, p *manifest.Project, missing []string) error {
	var left []string
	for _, key := range missing {
		value := ""
		if a.interactive() && a.file != stdinName {
			var err error
			if value, err = a.askKey(ctx, p, key); errors.Is(err, errInterrupted) {
				return withHint(errors.New("interrupted; the manifest was submitted and is waiting for metadata"), "see `%s meta list`", a.commandPrefix(project))
			} else if err != nil {
				return err
			}
		}
		if value == "" {
			left = append(left, key)
			continue
		}
		if _, err := c.SetMetadata(ctx, project, key, contract.MetadataValue{Value: inJSON(value)}, client.KeyChange{}); err != nil {
			return err
		}
	}
	a.printMissing(a.organizationFlag(), project, p, left)
	return nil
}
