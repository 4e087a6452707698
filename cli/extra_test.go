package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Commands that start servers follow the same rules.
func TestExtraCommandsKeepToTheRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, args string
		env        map[string]string
		run        func(listen string) error
		code       int
		want       string // on standard error
	}{
		{name: "success", args: "dev", run: func(string) error { return nil }},
		{name: "an error", args: "dev", run: func(string) error { return errors.New("Port 8080 is taken") }, code: exitError, want: "mariposa: port 8080 is taken\n"},
		{name: "an error of usage", args: "dev", run: func(string) error { return Usage(errors.New("--store makes no sense")) }, code: exitUsage, want: "mariposa: --store makes no sense\n"},
		{name: "a code of its own", args: "dev", run: func(string) error { return Exit(42, nil) }, code: 42},
		{name: "an unknown flag", args: "dev --bogus", code: exitUsage, want: "mariposa: unknown flag: --bogus\n  see `mariposa dev --help`\n"},
		{name: "too many words", args: "dev a", code: exitUsage, want: "mariposa: unexpected argument \"a\"\n  usage: mariposa dev [flags]\n"},
		{name: "an environment variable", args: "dev", env: map[string]string{"MARIPOSA_LISTEN_ON": "host:1"}, run: func(listen string) error { return errors.New(listen) }, code: exitError, want: "mariposa: host:1\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var out, errs strings.Builder
			var listen string
			cmd := &cobra.Command{Use: "dev", Args: argsBetween(0, 0), RunE: func(*cobra.Command, []string) error { return c.run(listen) }}
			cmd.Flags().StringVar(&listen, "listen-on", "", "")
			cmd.Flags().String("data", "", "its own")
			code := Main(context.Background(), strings.Fields(c.args), Env{Stdout: &out, Stderr: &errs, Getenv: func(name string) string { return c.env[name] }}, cmd)
			if code != c.code || errs.String() != c.want {
				t.Errorf("exit %d: %s", code, errs.String())
			}
		})
	}
}
