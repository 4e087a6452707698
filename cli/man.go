package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manCommand writes the manual pages. `make man` calls it.
func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages into a directory", Args: argsBetween(1, 1), Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // everybody may read manual pages
				return fmt.Errorf("cannot create the directory: %w", err)
			}
			return a.writeManual(cmd.Root(), args[0])
		},
	}
}

// writeManual writes the page of a command and of all commands below it.
func (a *app) writeManual(cmd *cobra.Command, dir string) error {
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	if err := os.WriteFile(filepath.Join(dir, name+".1"), []byte(a.manualPage(cmd)), 0o644); err != nil { //nolint:gosec // everybody may read manual pages
		return fmt.Errorf("cannot write the manual pages: %w", err)
	}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" {
			if err := a.writeManual(c, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// manualPage returns the manual page of a command, for man(1).
func (a *app) manualPage(cmd *cobra.Command) string {
	var b strings.Builder
	title := strings.ToUpper(strings.ReplaceAll(cmd.CommandPath(), " ", "-"))
	fmt.Fprintf(&b, ".TH %q 1 \"\" %q \"Mariposa\"\n", title, "mariposa "+a.env.Version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(strings.ReplaceAll(cmd.CommandPath(), " ", "-")), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.nf\n%s\n.fi\n", roff(cmd.UseLine()))
	if long := cmd.Long; long != "" {
		fmt.Fprintf(&b, ".SH DESCRIPTION\n.nf\n%s\n.fi\n", roff(long))
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(cmd.Example))
	}
	manualFlags(&b, "OPTIONS", cmd.NonInheritedFlags())
	if !cmd.HasParent() {
		fmt.Fprintf(&b, ".SH ENVIRONMENT\nEvery option can also be set with an environment variable: \\-\\-url with MARIPOSA_URL, and so on.\n")
	}
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(&b, ".SH ALIASES\n%s\n", roff(strings.Join(cmd.Aliases, ", ")))
	}
	var also []string
	if cmd.HasParent() {
		also = append(also, strings.ReplaceAll(cmd.Parent().CommandPath(), " ", "-")+"(1)")
	}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.Name() != "help" {
			also = append(also, strings.ReplaceAll(c.CommandPath(), " ", "-")+"(1)")
		}
	}
	fmt.Fprintf(&b, ".SH SEE ALSO\n%s\n", roff(strings.Join(also, ", ")))
	return b.String()
}

func manualFlags(b *strings.Builder, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		kind, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(b, ".TP\n\\fB%s\\fR %s\n%s\n", roff(name), roff(kind), roff(usage))
	})
}

// roff escapes a text for troff.
func roff(s string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s), "\n")
	for n, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[n] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
