package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"mariposa/bench"
	"mariposa/cli"
)

func benchCommand() *cobra.Command {
	c := &cobra.Command{Use: "bench", Short: "Put load on a system of its own and measure it"}
	c.AddCommand(benchConvergeCommand(), benchAPICommand(), benchQueueCommand())
	return c
}

func benchConvergeCommand() *cobra.Command {
	var o bench.Options
	var g benchFlags
	c := &cobra.Command{
		Use:   "converge",
		Short: "Converge dummy instances from nothing, kill some, lose a node, roll a version, scale to zero",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Instances < 1 || o.Nodes < 1 || o.Projects < 1 {
				return cli.Usage(errors.New("--instances, --nodes and --projects must be at least 1"))
			}
			return g.run(cmd, &o.Environment, func() (any, error) { return bench.Converge(cmd.Context(), o) })
		},
	}
	c.Flags().IntVar(&o.Instances, "instances", 10_000, "how many dummy instances")
	c.Flags().IntVar(&o.Nodes, "nodes", 100, "on how many simulated nodes")
	c.Flags().IntVar(&o.Projects, "projects", 1, "in how many projects")
	c.Flags().IntVar(&o.Kills, "kills", 200, "how many single instances to kill")
	g.flags(c, "cpu.pprof (of the way up), cpu-roll.pprof")
	return c
}

func benchAPICommand() *cobra.Command {
	var o bench.APIOptions
	var g benchFlags
	c := &cobra.Command{
		Use:   "api",
		Short: "Fill a system with organizations and projects, look at it over HTTP, change much of it at once",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if min(o.Organizations, o.Projects, o.Services, o.Nodes, o.Updates, o.Readers) < 1 {
				return cli.Usage(errors.New("--organizations, --projects, --services, --nodes, --updates and --readers must be at least 1"))
			}
			if o.Scale < 0 || o.Duration <= 0 {
				return cli.Usage(errors.New("--scale must not be negative, and --duration must be a while like 3s"))
			}
			return g.run(cmd, &o.Environment, func() (any, error) { return bench.API(cmd.Context(), o) })
		},
	}
	c.Flags().IntVar(&o.Organizations, "organizations", 1000, "how many organizations, each with an owner")
	c.Flags().IntVar(&o.Projects, "projects", 10, "how many projects in each")
	c.Flags().IntVar(&o.Services, "services", 5, "how many services in each of those")
	c.Flags().IntVar(&o.Scale, "scale", 1, "how many dummy instances of each of those")
	c.Flags().IntVar(&o.Nodes, "nodes", 10, "on how many simulated nodes")
	c.Flags().IntVar(&o.Updates, "updates", 500, "how many manifests to submit at the same moment")
	c.Flags().IntVar(&o.Readers, "readers", 4, "how many ask at the same moment")
	c.Flags().DurationVar(&o.Duration, "duration", 5*time.Second, "how long each measurement takes")
	g.flags(c, "cpu-PART.pprof (of each part)")
	return c
}

func benchQueueCommand() *cobra.Command {
	var o bench.QueueOptions
	var g benchFlags
	c := &cobra.Command{
		Use:   "queue",
		Short: "Fill a system with projects and the history of their tasks, list it over HTTP, add tasks, roll a large service",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if min(o.Projects, o.History, o.Instances, o.Nodes, o.Readers, o.Clients) < 1 {
				return cli.Usage(errors.New("--projects, --history, --instances, --nodes, --readers and --clients must be at least 1"))
			}
			if o.Duration <= 0 || o.DriverTime <= 0 || o.MinHealthy < 0 {
				return cli.Usage(errors.New("--duration and --driver-time must be a while like 3s, and --min-healthy must not be negative"))
			}
			o.Throwaway = g.where == ""
			return g.run(cmd, &o.Environment, func() (any, error) { return bench.Queue(cmd.Context(), o) })
		},
	}
	c.Flags().IntVar(&o.Projects, "projects", 10_000, "how many projects, in organizations of ten")
	c.Flags().IntVar(&o.History, "history", 100, "how many ended tasks of each")
	c.Flags().IntVar(&o.Instances, "instances", 10_000, "how many dummy instances to roll")
	c.Flags().IntVar(&o.Nodes, "nodes", 20, "on how many simulated nodes")
	c.Flags().IntVar(&o.Readers, "readers", 2, "how many ask at the same moment")
	c.Flags().IntVar(&o.Clients, "clients", 64, "how many add tasks at the same moment")
	c.Flags().DurationVar(&o.Duration, "duration", 5*time.Second, "how long each measurement takes")
	c.Flags().DurationVar(&o.DriverTime, "driver-time", 5*time.Second, "how long a dummy takes to start, and to go")
	c.Flags().DurationVar(&o.MinHealthy, "min-healthy", time.Second, "how long a replacement is healthy before its predecessor goes")
	g.flags(c, "cpu-PART.pprof (of each part)")
	return c
}

// benchFlags are the flags for the environment of a benchmark.
type benchFlags struct {
	where, profiles string
}

func (g *benchFlags) flags(c *cobra.Command, profiles string) {
	c.Flags().StringVar(&g.profiles, "profiles", "", "a folder for "+profiles+" and heap.pprof (at rest)")
	c.Flags().StringVar(&g.where, "store", "", "sqlite:PATH or postgres://…, empty; a fresh SQLite store in a temporary folder if not given")
}

// run prepares the environment, measures, and prints the result.
func (g *benchFlags) run(cmd *cobra.Command, ground *bench.Environment, measure func() (any, error)) error {
	slog.SetDefault(slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})))
	dir, err := os.MkdirTemp("", "mariposa-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a temporary folder
	ground.Dir, ground.Profiles, ground.Progress = dir, g.profiles, cmd.ErrOrStderr()
	ground.Store, ground.StoreName, _, err = openStore(cmd.Context(), cmp.Or(g.where, "sqlite:"+filepath.Join(dir, "mariposa.db")))
	if err != nil {
		return err
	}
	result, err := measure()
	if err != nil {
		return err
	}
	return json.NewEncoder(cmd.OutOrStdout()).Encode(result)
}
