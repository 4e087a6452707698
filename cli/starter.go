package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"mariposa/manifest"
)

// manifestName is the file that commands read if no manifest is given.
const manifestName = "mariposa.yaml"

const starterManifest = `# A Mariposa manifest. Check it with "mariposa validate", try it with
# "mariposa project create NAME --wait". Every key is described in docs/manifest.md.
services:
  web:
    compute_type: process          # docker (the default), infrastructure, process or dummy
    command: [sh, -c, "while true; do date; sleep 5; done"]
    scale: 2
    update: {rolling: 1}           # replace one instance at a time
`

func (a *app) initCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "init", Short: "Write a starter " + manifestName + " into this directory", Args: argsBetween(0, 0),
		RunE: func(*cobra.Command, []string) error {
			flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
			if force {
				flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
			}
			f, err := os.OpenFile(manifestName, flags, 0o644) //nolint:gosec // a manifest contains no secrets
			if errors.Is(err, fs.ErrExist) {
				return withHint(fmt.Errorf("%s already exists; nothing was changed", manifestName), "use --force to overwrite it")
			}
			if err != nil {
				return fmt.Errorf("cannot write %s: %w", manifestName, err)
			}
			_, err = f.WriteString(starterManifest)
			if err = errors.Join(err, f.Close()); err != nil {
				return fmt.Errorf("cannot write %s: %w", manifestName, err)
			}
			return changed(a, &map[string]string{"file": manifestName}, nil, "wrote %s; next: `mariposa project create NAME --wait`", manifestName)
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "overwrite the file if it exists")
	return cmd
}

func (a *app) validateCommand() *cobra.Command {
	var source manifestSource
	cmd := &cobra.Command{
		Use: "validate [-m FILE | --compose FILE]", Short: "Check a manifest or a Compose file without a server", Args: argsBetween(0, 0),
		Long: "Check a manifest, by default ./" + manifestName + ", without a server. All errors are listed with their\nlines. To check what only a server knows, such as quotas and packages, use `project plan`.\n\n" +
			"With --compose, check that a Compose file can be translated, and list what is not carried over.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := a.readSource(cmd.Context(), &source, "")
			if err != nil {
				return err
			}
			p, err := manifest.Parse(text)
			if err != nil {
				return err
			}
			var names []string
			for _, s := range p.Services {
				names = append(names, s.Name)
			}
			found := map[string]any{"file": a.file, "services": names}
			return changed(a, &found, nil, "%s is valid: %s (%s)", a.file, plural(len(names), "service", "services"), strings.Join(names, ", "))
		},
	}
	manifestFlag(cmd, &source.file)
	source.add(cmd)
	return cmd
}
