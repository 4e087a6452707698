package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// everyCommand calls f for each command of the program, with its words.
func everyCommand(f func(path []string, cmd *cobra.Command)) {
	var walk func(path []string, cmd *cobra.Command)
	walk = func(path []string, cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			sub := append(slices.Clone(path), c.Name())
			f(sub, c)
			walk(sub, c)
		}
	}
	a := &app{env: Env{}.withDefaults()}
	walk(nil, a.root(nil))
}

// A command that needs an argument says which one and how it is used, in our words.
func TestEveryCommandSaysWhichArgumentIsMissing(t *testing.T) {
	t.Parallel()
	needs := 0
	everyCommand(func(path []string, cmd *cobra.Command) {
		if cmd.Args == nil {
			return
		}
		for _, args := range [][]string{nil, {"x"}, slices.Repeat([]string{"x"}, 2000)} {
			err := cmd.Args(cmd, args)
			if err == nil || len(args) > 1 && strings.Contains(err.Error(), "unexpected argument") || len(args) > 0 && strings.Contains(err.Error(), "separate several URLs") {
				continue
			}
			if len(args) == 0 {
				needs++
			}
			if said := err.Error(); !strings.HasSuffix(said, " is missing") && !strings.Contains(said, "is not a URL") && !strings.HasPrefix(said, "unexpected argument") || said == "an argument is missing" {
				t.Errorf("%v with %d arguments says %q", path, len(args), said)
			}
		}
	})
	if needs < 50 {
		t.Errorf("only %d commands need arguments: does this test still find them?", needs)
	}
	for args, said := range map[string]string{
		"project scale":                   "mariposa: SERVICE=N is missing\n  usage: mariposa project scale [NAME] SERVICE=N|+N|-N...",
		"-j shop project tag add v1":      "mariposa: VERSION is missing\n  usage: mariposa project tag add [PROJECT] TAG VERSION",
		"-j shop meta set":                "mariposa: KEY is missing\n  usage: mariposa meta set KEY",
		"instance exec":                   "mariposa: INSTANCE is missing\n  usage: mariposa instance exec",
		"instance snapshots":              "mariposa: INSTANCE is missing\n  usage: mariposa instance snapshot list INSTANCE",
		"instance snapshot restore web.1": "mariposa: SNAPSHOT is missing\n  usage: mariposa instance snapshot restore INSTANCE SNAPSHOT",
		"instance snapshot web.1 a b":     `mariposa: unexpected argument "b"`,
		"project create":                  "mariposa: NAME is missing\n  usage: mariposa project create NAME -m FILE",
	} {
		r := (&run{env: map[string]string{"MARIPOSA_URL": nobody, "MARIPOSA_TOKEN": secret}}).do(t, strings.Fields(args)...)
		r.expect(exitUsage, strings.Contains(r.stderr, said))
	}
}

// Each group of commands has its plural as an alias.
func TestEveryGroupHasItsPlural(t *testing.T) {
	t.Parallel()
	found := 0
	everyCommand(func(path []string, cmd *cobra.Command) {
		plural := cmd.Name() + "s"
		if !cmd.HasSubCommands() || slices.Contains([]string{"version", "join-token"}, cmd.Name()) { // these do something by themselves, or have a sibling of that name
			return
		}
		if stem, ok := strings.CutSuffix(cmd.Name(), "y"); ok && cmd.Name() != "key" {
			plural = stem + "ies"
		}
		found++
		if !cmd.HasAlias(plural) {
			t.Errorf("%v has no alias %s", path, plural)
		}
	})
	if found < 15 {
		t.Errorf("only %d groups", found)
	}
	f := newHello(t, oneWeb).proxy(t)
	for _, plural := range []string{"projects", "services", "instances", "metas", "nodes", "volumes", "networks", "orgs", "users", "tokens", "packages", "queues", "balancers"} {
		(&run{f: f, env: map[string]string{"MARIPOSA_PROJECT": "hello"}}).do(t, plural).expect(exitOK)
	}
}
