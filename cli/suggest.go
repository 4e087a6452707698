package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// similarFlags returns the flags of a command that an unknown one may have meant.
func similarFlags(cmd *cobra.Command, err error) []string {
	_, unknown, ok := strings.Cut(err.Error(), "unknown flag: --")
	if !ok {
		return nil
	}
	var like []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && (editDistance(unknown, f.Name) <= max(1, len(unknown)/3) || len(unknown) > 2 && strings.HasPrefix(f.Name, unknown)) {
			like = append(like, "--"+f.Name)
		}
	})
	slices.Sort(like)
	return like
}

// editDistance returns how many letters must be inserted, deleted or replaced to turn
// one word into another.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			before, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, before+cost)
		}
	}
	return row[len(b)]
}
