package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"mariposa/cli"
)

// A command that needs an argument says which one and how it is used, in our words.
func TestTheBinarysCommandsSayWhichArgumentIsMissing(t *testing.T) {
	t.Parallel()
	say := func(args []string) (int, string) {
		var errs bytes.Buffer
		code := cli.Main(context.Background(), args, cli.Env{Stdin: strings.NewReader(""), Stdout: &bytes.Buffer{}, Stderr: &errs, Getenv: func(string) string { return "" }}, commands()...)
		return code, errs.String()
	}
	needs := 0
	var walk func(path []string, cmd *cobra.Command)
	walk = func(path []string, cmd *cobra.Command) {
		path = append(path[:len(path):len(path)], cmd.Name())
		if cmd.Args != nil && cmd.Args(cmd, nil) != nil {
			needs++
			if code, said := say(path); code != 2 || !strings.Contains(said, " is missing\n  usage: mariposa "+strings.Join(path, " ")) {
				t.Errorf("%v: exit %d\n%s", path, code, said)
			}
		}
		if many := strings.Fields(strings.Repeat("x ", 50)); cmd.Args != nil && cmd.Args(cmd, many) != nil {
			if code, said := say(append(path, many...)); code != 2 || !strings.Contains(said, `unexpected argument "x"`) {
				t.Errorf("%v x x x: exit %d\n%s", path, code, said)
			}
		}
		for _, c := range cmd.Commands() {
			walk(path, c)
		}
	}
	for _, c := range commands() {
		walk(nil, c)
	}
	if needs < 5 {
		t.Errorf("only %d commands need arguments: does this test still find them?", needs)
	}
	if _, said := say([]string{"images"}); !strings.Contains(said, "no node has its data") {
		t.Errorf("images: %s", said)
	}
}
