package cli

import (
	"context"

	"github.com/spf13/cobra"

	"mariposa/client"
)

// withClient makes a command run with a client.
func (a *app) withClient(cmd *cobra.Command, run func(ctx context.Context, c *client.Client, args []string) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		return run(cmd.Context(), c, args)
	}
	return cmd
}

// projectArgument lets a command take its project as its only word.
func (a *app) projectArgument(cmd *cobra.Command) *cobra.Command {
	cmd.Args = argsBetween(0, 1)
	cmd.ValidArgsFunction = a.wordsFrom(projectNames)
	return cmd
}

// inProject is a command about one project: its first word, or the one that is
// meant. So many more words follow.
func (a *app) inProject(cmd *cobra.Command, words int, run func(ctx context.Context, c *client.Client, project string, args []string) error) *cobra.Command {
	cmd.Args = argsBetween(words, words+1)
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = a.wordsFrom(projectNames)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		named, args := args[:len(args)-words], args[len(args)-words:]
		c, project, err := a.onProject(named)
		if err != nil {
			return err
		}
		return a.noProject(run(cmd.Context(), c, project, args))
	}
	return cmd
}

// ofProject is a command about something of the project that is meant.
func (a *app) ofProject(cmd *cobra.Command, run func(ctx context.Context, c *client.Client, project string, args []string) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, project, err := a.onProject(nil)
		if err != nil {
			return err
		}
		return run(cmd.Context(), c, project, args)
	}
	return cmd
}

// ofProjects is a command about the project that is meant, if one is, or with -A
// about all.
func (a *app) ofProjects(cmd *cobra.Command, run func(ctx context.Context, c *client.Client, project string) error) *cobra.Command {
	var everywhere bool
	cmd.Flags().BoolVarP(&everywhere, "all-projects", "A", false, "whatever project is set")
	cmd.Args = argsBetween(0, 0)
	return a.withClient(cmd, func(ctx context.Context, c *client.Client, _ []string) error {
		project, err := a.anyProject(everywhere)
		if err != nil {
			return err
		}
		return a.noProject(run(ctx, c, project))
	})
}

// onOne is a command about one thing. Find turns the word for it into one that the
// server knows; list is the command that shows which there are.
func (a *app) onOne(cmd *cobra.Command, find func(ctx context.Context, c *client.Client, word string) (string, error), list string, run func(ctx context.Context, c *client.Client, id string) error) *cobra.Command {
	cmd.Args = argsBetween(1, 1)
	return a.withClient(cmd, func(ctx context.Context, c *client.Client, args []string) error {
		id, err := find(ctx, c, args[0])
		if err != nil {
			return err
		}
		return notFound(run(ctx, c, id), a.commandPrefix("")+" "+list)
	})
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
