package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mariposa/manifest"
)

// similarFlags returns flags of a command that are similar to an unknown flag.
func similarFlags(cmd *cobra.Command, err error) []string {
	_, unknown, ok := strings.Cut(err.Error(), "unknown flag: --")
	if !ok {
		return nil
	}
	var like []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && (manifest.EditDistance(unknown, f.Name) <= max(1, len(unknown)/3) || len(unknown) > 2 && strings.HasPrefix(f.Name, unknown)) {
			like = append(like, "--"+f.Name)
		}
	})
	slices.Sort(like)
	return like
}
