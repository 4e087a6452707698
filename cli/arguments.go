package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// pathFlags are the flags whose values are paths on this machine, which can contain any
// bytes and are not sent to the server.
var pathFlags = []string{"ca", "compose", "data", "deploy", "from-file", "key-file", "manifest", "metadata", "process-path", "profiles", "store", "tls-cert", "tls-key"}

// checkEncoding rejects arguments and values of flags that are not UTF-8: in JSON, invalid
// bytes would silently become other characters. It never shows them, because they may be
// secret.
func (a *app) checkEncoding(cmd *cobra.Command, args []string) error {
	for n, arg := range args {
		if !utf8.ValidString(arg) {
			return Usage(fmt.Errorf("argument %d is not valid UTF-8", n+1))
		}
	}
	var wrong error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if wrong != nil || slices.Contains(pathFlags, f.Name) || !slices.ContainsFunc(flagValues(f), func(v string) bool { return !utf8.ValidString(v) }) {
			return
		}
		name := "--" + f.Name
		if a.fromEnv[f.Name] {
			name = variable(f.Name)
		}
		wrong = Usage(fmt.Errorf("the value of %s is not valid UTF-8", name))
	})
	return wrong
}

// nameArguments is an annotation of commands whose later arguments can be empty: the
// number of arguments that are names.
const nameArguments = "names"

// checkNames rejects empty arguments, such as that of an unset variable of a script: they
// name nothing, and a command could act on something else instead.
func checkNames(cmd *cobra.Command, args []string) error {
	if most, err := strconv.Atoi(cmd.Annotations[nameArguments]); err == nil {
		args = args[:min(most, len(args))]
	}
	switch n := slices.Index(args, ""); {
	case n < 0 || cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd: // the word to complete
		return nil
	case len(args) == 1:
		return Usage(errors.New("the argument is empty"))
	default:
		return Usage(fmt.Errorf("argument %d is empty", n+1))
	}
}

// selecting are the flags that narrow down what a command acts on, or whose default is
// something else to act on.
var selecting = []string{"service", "instance", "node", "version", "image", "project", "org", "as", "user", "to-org"}

// checkSelecting rejects a flag with an empty value, such as that of an unset variable of
// a script: the command would act on everything instead of on nothing.
func checkSelecting(cmd *cobra.Command) error {
	for _, name := range selecting {
		f := cmd.Flags().Lookup(name)
		if f == nil || !f.Changed {
			continue
		}
		if values := flagValues(f); len(values) == 0 || slices.Contains(values, "") {
			return Usage(withHint(fmt.Errorf("--%s has an empty value", name), "omit the flag to leave the %s open", name))
		}
	}
	return nil
}

func flagValues(f *pflag.Flag) []string {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return list.GetSlice()
	}
	return []string{f.Value.String()}
}
