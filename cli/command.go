package cli

import (
	"context"

	"github.com/spf13/cobra"

	"mariposa/client"
)

// withClient connects a command to the server before it runs.
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

// projectArgument makes the project the only argument of a command.
func (a *app) projectArgument(cmd *cobra.Command) *cobra.Command {
	cmd.Args = argsBetween(0, 1)
	cmd.ValidArgsFunction = a.wordsFrom(projectNames)
	return cmd
}

// inProject creates a command for one project: the first argument or the selected
// project. The given number of other arguments follows.
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

// ofProject creates a command for something in the selected project.
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

// ofProjects creates a command for the selected project, if there is one, or with -A for
// all projects.
func (a *app) ofProjects(cmd *cobra.Command, run func(ctx context.Context, c *client.Client, project string) error) *cobra.Command {
	var everywhere bool
	cmd.Flags().BoolVarP(&everywhere, "all-projects", "A", false, "all projects, even if a default project is set")
	cmd.Args = argsBetween(0, 0)
	return a.withClient(cmd, func(ctx context.Context, c *client.Client, _ []string) error {
		project, err := a.anyProject(everywhere)
		if err != nil {
			return err
		}
		return a.noProject(run(ctx, c, project))
	})
}

// onOne creates a command for one object. find resolves its name to one that the server
// knows. list is the command that lists such objects.
func (a *app) onOne(cmd *cobra.Command, find func(ctx context.Context, c *client.Client, word string) (string, error), list string, run func(ctx context.Context, c *client.Client, id string) error) *cobra.Command {
	cmd.Args = argsBetween(1, 1)
	return a.withClient(cmd, func(ctx context.Context, c *client.Client, args []string) error {
		id, err := find(ctx, c, args[0])
		if err != nil {
			return err
		}
		return notFound(run(ctx, c, id), a.samePrefix()+" "+list)
	})
}

// show prints an API document as JSON, or else calls words.
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

// changed prints the answer to a change as JSON, or else as a sentence.
func changed[T any](a *app, document *T, err error, format string, args ...any) error {
	return show(a, document, err, func() { a.say(format, args...) })
}
