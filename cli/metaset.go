package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
	"mariposa/manifest"
)

// A setting is a key and the value to set.
type setting struct{ key, value string }

func (a *app) metaSet() *cobra.Command {
	var file, cas, message string
	var secret bool
	cmd := &cobra.Command{
		Use: "set KEY [VALUE [CAS]] | KEY=VALUE...", Aliases: []string{"add", "create", "new", "update"}, Short: "Set values; on a terminal, ask for a value that is not given",
		Long: "Set values in the metadata of a project.\n\n" +
			"Other users of this machine can see the arguments of a command, and your shell saves them in\nits history. Pass a secret on standard input (-), from a file (--from-file) or at the prompt\non a terminal. With -, the last line break is removed; --from-file keeps every byte.\n\n" +
			"With a CAS, as shown by `meta list` and `meta get --json`, the value is set only if nobody\nhas changed it since. A secret stays a secret until you remove it.",
		Example: "  mariposa -j shop meta set mode production\n  mariposa -j shop meta set mode=production color=blue\n  pass show shop/db | mariposa -j shop meta set db_password - --secret\n  mariposa -j shop meta set cert --from-file cert.pem --secret",
		// Excess arguments are not shown: they may be parts of a secret.
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return missingArgument(cmd, 0)
			}
			return nil
		},
		ValidArgsFunction: a.wordsFrom(metaKeys), Annotations: map[string]string{nameArguments: "1"},
	}
	a.metaChange(cmd, func(ctx context.Context, c *client.Client, project string, args []string) (*contract.Changed, error) {
		settings, id, err := a.settings(ctx, c, project, args, file, secret)
		if err != nil {
			return nil, err
		}
		switch {
		case id != "" && cas != "":
			return nil, Usage(errors.New("the CAS is given more than once"))
		case cas != "" && len(settings) > 1:
			return nil, Usage(errors.New("a CAS applies to one key: set one key at a time"))
		case cas != "" && !isNumber(cas):
			return nil, Usage(errors.New("--cas must be a number, as shown by `meta list`"))
		}
		var marked *bool
		if cmd.Flags().Changed("secret") {
			marked = &secret
		}
		return a.set(ctx, c, project, settings, client.KeyChange{CAS: id + cas, Message: message}, marked)
	})
	// A value may look like a flag, so an unknown flag is not shown either.
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, _ error) error {
		return Usage(withHint(errors.New("an argument that starts with - is not a flag of this command: put a value that starts with - after --"), "see `%s --help`", cmd.CommandPath()))
	})
	cmd.Flags().StringVar(&file, "from-file", "", "file with the value, used byte for byte; - reads standard input")
	cmd.Flags().StringVar(&message, "message", "", "description of the change, shown in the list of versions")
	cmd.Flags().StringVar(&cas, "cas", "", "set the value only if the key still has this CAS")
	cmd.Flags().BoolVar(&secret, "secret", false, "make it a secret: show it only to users who can read secrets")
	return cmd
}

// settings reads the values to set, and the CAS if one is among the arguments.
func (a *app) settings(ctx context.Context, c *client.Client, project string, args []string, file string, secret bool) ([]setting, string, error) {
	if strings.Contains(args[0], "=") {
		all, err := pairs(args, file)
		return all, "", err
	}
	key, args := args[0], args[1:]
	if err := checkKey(key); err != nil {
		return nil, "", err
	}
	one := func(value string, err error) ([]setting, string, error) {
		cas, wrong := readCAS(args)
		return []setting{{key, value}}, cas, cmp.Or(err, wrong)
	}
	if file != "" {
		text, _, err := a.readFile(file, "the value")
		return one(string(text), err)
	}
	if len(args) == 0 {
		return one(a.askValue(ctx, c, project, key, secret))
	}
	value := args[0]
	args = args[1:]
	if value == "-" {
		text, _, err := a.readFile("-", "the value")
		value = strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
		return one(value, err)
	}
	return one(value, nil)
}

// pairs parses settings of the form key=value. It never shows values.
func pairs(args []string, file string) ([]setting, error) {
	if file != "" {
		return nil, Usage(errors.New("--from-file sets the value of one KEY: omit =VALUE"))
	}
	var all []setting
	seen := map[string]bool{}
	for n, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		switch {
		case !ok || checkKey(key) != nil:
			return nil, Usage(fmt.Errorf("argument %d is not of the form KEY=VALUE", n+1))
		case seen[key]:
			return nil, Usage(fmt.Errorf("the value of %s is given more than once", key))
		}
		seen[key] = true
		all = append(all, setting{key, value})
	}
	return all, nil
}

// askValue asks the user for a value. It is hidden unless the key is known not to
// be a secret.
func (a *app) askValue(ctx context.Context, c *client.Client, project, key string, secret bool) (string, error) {
	if !a.interactive() {
		return "", Usage(errNoValue)
	}
	about, err := c.MetadataKey(ctx, project, key, false)
	switch {
	case mariposa.CodeOf(err) == mariposa.ResourceNotFound:
		about = &contract.MetadataKey{Key: key, Secret: true}
	case err != nil:
		return "", err
	}
	about.Secret = about.Secret || secret
	value, err := a.askKey(ctx, declares([]contract.MetadataKey{*about}), key)
	if err == nil && value == "" {
		err = errors.New("no value given; nothing was changed")
	}
	return value, err
}

// set sets the values one by one: the server stores each as its own version. It checks all
// of them first: in JSON, invalid bytes would silently become other characters.
func (a *app) set(ctx context.Context, c *client.Client, project string, settings []setting, change client.KeyChange, secret *bool) (*contract.Changed, error) {
	for _, s := range settings {
		if err := manifest.CheckSetting(s.key, s.value); err != nil {
			return nil, err
		}
	}
	var done *contract.Changed
	for n, s := range settings {
		next, err := c.SetMetadata(ctx, project, s.key, contract.MetadataValue{Value: inJSON(s.value), Secret: secret}, change)
		if err != nil {
			if err = a.noProject(err); n > 0 {
				err = fmt.Errorf("%s: %w; the keys before it on the command line are set", s.key, err)
			}
			return nil, err
		}
		done = next
		if secret != nil && *secret {
			done.Value = mask(done.Value) // even if the server did not
		}
		if !a.global.json {
			a.say("%s: %s is set, %s%s", project, s.key, versionWords(done), prefixed(", cas ", done.CAS))
			if n < len(settings)-1 {
				a.printConsequences(ctx, c, a.organizationFlag(), project, done)
			}
		}
	}
	return done, nil
}
