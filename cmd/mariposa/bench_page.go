package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"mariposa/bench"
	"mariposa/cli"
)

func benchPageCommand() *cobra.Command {
	var o bench.PageOptions
	var g benchFlags
	var idle bool
	c := &cobra.Command{
		Use:   "page",
		Short: "Keep web pages open, and measure what they cost the server and how much they slow it down",
		Args:  cli.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if min(o.Instances, o.Nodes, o.Projects, o.Pages, o.Changes, o.Started, o.Rounds) < 1 || o.Interval <= 0 {
				return cli.Usage(errors.New("--instances, --nodes, --projects, --pages, --changes, --started, --rounds and --interval must be more than 0"))
			}
			if o.Details < 0 || o.Details > o.Pages {
				return cli.Usage(errors.New("--project-pages must be at least 0, and at most --pages"))
			}
			executable, err := os.Executable()
			if err != nil {
				return err
			}
			o.Viewers = func(args ...string) *exec.Cmd {
				args = append([]string{executable, "bench", pagesName}, args...)
				yield := []string{"nice", "-n", "19"} // browsers run on other machines
				if idle {
					yield = []string{"chrt", "--idle", "0"}
				}
				if _, err := exec.LookPath(yield[0]); err == nil || idle {
					args = append(yield, args...)
				}
				// It ends with its input.
				return exec.CommandContext(context.WithoutCancel(cmd.Context()), args[0], args[1:]...) //nolint:gosec // this program
			}
			return g.run(cmd, &o.Environment, func() (any, error) { return bench.Page(cmd.Context(), o) })
		},
	}
	c.Flags().IntVar(&o.Instances, "instances", 100_000, "number of dummy instances")
	c.Flags().IntVar(&o.Nodes, "nodes", 100, "number of simulated nodes")
	c.Flags().IntVar(&o.Projects, "projects", 20, "number of projects that the instances are divided among")
	c.Flags().IntVar(&o.Pages, "pages", 50, "number of open pages")
	c.Flags().IntVar(&o.Details, "project-pages", 5, "number of them that show the project that starts; the others show the overview")
	c.Flags().BoolVar(&idle, "idle-pages", false, "run the pages only while the server leaves a core idle (chrt --idle), as if their browsers were on other machines; needs a machine without other work")
	c.Flags().IntVar(&o.Changes, "changes", 20, "number of single instances to kill in each measurement")
	c.Flags().DurationVar(&o.Interval, "interval", 300*time.Millisecond, "time between two kills")
	c.Flags().IntVar(&o.Started, "started", 20_000, "number of instances that the project starts in each round")
	c.Flags().IntVar(&o.Rounds, "rounds", 5, "number of rounds without and with pages, alternately")
	g.flags(c, "cpu-changes.pprof, cpu-start.pprof")
	return c
}

// pagesName is the command that keeps the pages of the benchmark open.
const pagesName = "pages"

func benchPagesCommand() *cobra.Command {
	return &cobra.Command{
		Use: pagesName + " URL PAGES DETAILS PROJECT", Hidden: true, Args: cli.Args(4, 4),
		RunE: func(cmd *cobra.Command, args []string) error {
			o := bench.PagesOptions{URL: args[0], Token: os.Getenv("MARIPOSA_TOKEN"), Project: args[3]}
			var err error
			if o.Pages, err = strconv.Atoi(args[1]); err == nil {
				o.Details, err = strconv.Atoi(args[2])
			}
			if err != nil {
				return cli.Usage(err)
			}
			return bench.OpenPages(cmd.Context(), o, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
