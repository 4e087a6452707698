package cli

import (
	"context"

	"github.com/spf13/cobra"

	"mariposa/client"
)

// asks makes a command run with a client.
func (a *app) asks(cmd *cobra.Command, run func(ctx context.Context, c *client.Client, args []string) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		return run(cmd.Context(), c, args)
	}
	return cmd
}

// show prints a document of the API as JSON, or else in words.
func show[T any](a *app, document *T, err error, words func()) error {
	if err != nil {
		return err
	}
	if a.global.json {
		return a.printJSON(document)
	}
	words()
	return nil
}

// changed prints the answer to a change as JSON, or else as a sentence and what
// follows from it.
func changed[T any](a *app, document *T, err error, format string, args ...any) error {
	return show(a, document, err, func() { a.say(format, args...) })
}
