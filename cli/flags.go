package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// prepare sets every flag that is not on the command line from its environment
// variable, and checks the arguments and flags.
func (a *app) prepare(cmd *cobra.Command, args []string) error {
	if parent := cmd.Context(); parent != nil { // it is nil when words are completed
		cmd.SetContext(context.WithValue(parent, sessionKey{}, Session{a}))
	}
	if a.fromEnv == nil {
		a.fromEnv = map[string]bool{}
	}
	var wrong error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" {
			return
		}
		name := variable(f.Name)
		value := a.env.Getenv(name)
		if value == "" {
			return
		}
		if err := cmd.Flags().Set(f.Name, value); err != nil && wrong == nil {
			wrong = fmt.Errorf("invalid environment variable: %w", wrongValue(err, name))
		}
		a.fromEnv[f.Name] = true
	})
	return cmp.Or(wrong, a.checkEncoding(cmd, args), checkNames(cmd, args), checkSelecting(cmd))
}

// variable returns the environment variable of a flag.
func variable(flag string) string {
	return "MARIPOSA_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// group creates a command that only has subcommands.
func (a *app) group(use, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short}
	a.runGroup(g)
	g.AddCommand(commands...)
	return g
}

// runGroup makes a command report an unknown or missing subcommand, and list if it is called
// by its plural.
func (a *app) runGroup(g *cobra.Command) {
	g.Args = cobra.ArbitraryArgs
	g.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 0:
			return unknownCommand(cmd, args[0])
		case !cmd.HasParent():
			return cmd.Help()
		}
		if list := listedBy(cmd); list != nil {
			list.SetContext(cmd.Context())
			if err := checkArgs(list, nil); err != nil {
				return err
			}
			if err := a.prepare(list, nil); err != nil {
				return err
			}
			return list.RunE(list, nil)
		}
		return Usage(withHint(fmt.Errorf("`%s` requires a command: one of %s", cmd.CommandPath(), strings.Join(names(cmd), ", ")), "see `%s --help`", cmd.CommandPath()))
	}
}

func names(cmd *cobra.Command) []string {
	var all []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			all = append(all, c.Name())
		}
	}
	return all
}

func unknownCommand(cmd *cobra.Command, word string) error {
	// cobra sets this only in its own error path.
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	err := fmt.Errorf("there is no command %q in `%s`", redactWord(word), cmd.CommandPath())
	if like := cmd.SuggestionsFor(word); len(like) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(like, " or "))
	}
	return Usage(withHint(err, "see `%s --help`", cmd.CommandPath()))
}

// flagError describes a wrong flag. If the command does not exist, it reports the command
// instead of the flag.
func (a *app) flagError(cmd *cobra.Command, err error) error {
	if cmd.HasSubCommands() {
		if word := a.wordAfter(cmd); word != "" {
			return unknownCommand(cmd, word)
		}
	}
	err = wrongValue(err, "")
	if like := similarFlags(cmd, err); len(like) > 0 {
		err = fmt.Errorf("%w; did you mean %s?", err, strings.Join(like, " or "))
	}
	return Usage(withHint(err, "see `%s --help`", cmd.CommandPath()))
}

// wrongValue returns a plain error for an invalid flag value. The value may come from an
// environment variable.
func wrongValue(err error, variable string) error {
	var wrong *pflag.InvalidValueError
	if !errors.As(err, &wrong) {
		return err
	}
	flag := wrong.GetFlag()
	takes := ""
	switch kind := flag.Value.Type(); {
	case strings.HasPrefix(kind, "int"):
		takes = "a whole number"
	case strings.HasPrefix(kind, "uint"), kind == "count":
		takes = "a whole number of at least 0"
	case strings.HasPrefix(kind, "float"):
		takes = "a number"
	case kind == "duration":
		takes = "a duration such as 30s, 5m or 1h30m"
	case kind == "bool":
		takes = "true or false"
	default:
		return err // it explains itself
	}
	return fmt.Errorf("%s must be %s, not %q", cmp.Or(variable, "--"+flag.Name), takes, wrong.GetValue())
}

// wordAfter returns the first argument after a group's own name that is neither a flag
// nor the value of a flag.
func (a *app) wordAfter(cmd *cobra.Command) string {
	path := strings.Fields(cmd.CommandPath())[1:]
	skip := false
	for _, arg := range a.args {
		switch {
		case skip:
			skip = false
		case strings.HasPrefix(arg, "-") && len(arg) > 1:
			skip = takesValue(cmd, arg)
		case len(path) > 0:
			path = slices.Delete(path, 0, 1)
		default:
			return arg
		}
	}
	return ""
}

// takesValue reports whether a flag's value is the next argument.
func takesValue(cmd *cobra.Command, arg string) bool {
	name, long := strings.CutPrefix(arg, "--")
	if strings.Contains(name, "=") {
		return false
	}
	var f *pflag.Flag
	if long {
		f = cmd.Flag(name)
	} else if len(arg) == 2 {
		f = cmd.Flags().ShorthandLookup(arg[1:])
	}
	return f != nil && f.NoOptDefVal == ""
}

// Args limits the number of arguments of a command that the binary adds.
func Args(least, most int) cobra.PositionalArgs { return argsBetween(least, most) }

// checkArgs checks the arguments of a command that another one runs.
func checkArgs(cmd *cobra.Command, args []string) error {
	if cmd.Args == nil {
		return nil
	}
	if err := cmd.Args(cmd, args); err != nil {
		return Usage(withHint(err, "usage: %s", cmd.UseLine()))
	}
	return nil
}

// missingArgument names the first required argument that is missing, if some are given.
func missingArgument(cmd *cobra.Command, given int) error {
	if required := requiredArguments(cmd.Use); given < len(required) {
		return fmt.Errorf("%s is missing", required[given])
	}
	return errors.New("an argument is missing")
}

// requiredArguments returns the required arguments of a usage line: SERVICE=N of
// "scale [NAME] SERVICE=N|+N|-N...".
func requiredArguments(use string) (all []string) {
	words, depth := strings.Fields(use), 0
	for n, word := range words {
		was := depth
		if depth += strings.Count(word, "[") - strings.Count(word, "]"); n == 0 || was > 0 || strings.Contains(word, "[") {
			continue
		}
		if word == "|" || strings.HasPrefix(word, "-") {
			break // what follows are flags, or another form
		}
		word, _, _ = strings.Cut(strings.TrimSuffix(word, "..."), "|")
		all = append(all, word)
	}
	return all
}

// argsBetween limits the number of a command's arguments.
func argsBetween(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return missingArgument(cmd, len(args))
		case len(args) > most:
			return fmt.Errorf("unexpected argument %q", redactWord(args[most]))
		}
		return nil
	}
}

// redactWord returns an unexpected argument without parts that may be secret.
func redactWord(word string) string {
	if key, _, ok := strings.Cut(word, "="); ok {
		return key + "=…"
	}
	if strings.HasPrefix(word, tokenPrefix) {
		return tokenPrefix + "…"
	}
	return word
}

// tokenPrefix is the prefix of all tokens.
const tokenPrefix = "mrp_"
