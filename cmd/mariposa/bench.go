package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mariposa/bench"
	"mariposa/cli"
)

func benchCommand() *cobra.Command {
	c := &cobra.Command{Use: "bench", Short: "Run load tests and print the measurements as JSON"}
	c.AddCommand(benchConvergeCommand(), benchAPICommand(), benchQueueCommand(), benchComputeCommand(), benchHealthCommand(), benchAnswerCommand(), benchRequestsCommand(), benchRespondCommand(), benchPageCommand(), benchPagesCommand())
	return c
}

func benchConvergeCommand() *cobra.Command {
	var o bench.Options
	var g benchFlags
	c := &cobra.Command{
		Use:   "converge",
		Short: "Start dummy instances, kill some, lose a node, roll out a version, scale to zero",
		Args:  cli.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Instances < 1 || o.Nodes < 1 || o.Projects < 1 {
				return cli.Usage(errors.New("--instances, --nodes and --projects must be at least 1"))
			}
			return g.run(cmd, &o.Environment, func() (any, error) { return bench.Converge(cmd.Context(), o) })
		},
	}
	c.Flags().IntVar(&o.Instances, "instances", 10_000, "number of dummy instances")
	c.Flags().IntVar(&o.Nodes, "nodes", 100, "number of simulated nodes")
	c.Flags().IntVar(&o.Projects, "projects", 1, "number of projects")
	c.Flags().IntVar(&o.Kills, "kills", 200, "number of single instances to kill")
	g.flags(c, "cpu.pprof (of the start), cpu-roll.pprof")
	return c
}

func benchAPICommand() *cobra.Command {
	var o bench.APIOptions
	var g benchFlags
	c := &cobra.Command{
		Use:   "api",
		Short: "Create many organizations and projects, read them over HTTP, update many at once",
		Args:  cli.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if min(o.Organizations, o.Projects, o.Services, o.Nodes, o.Updates, o.Readers) < 1 {
				return cli.Usage(errors.New("--organizations, --projects, --services, --nodes, --updates and --readers must be at least 1"))
			}
			if o.Scale < 0 || o.Duration <= 0 {
				return cli.Usage(errors.New("--scale must not be negative, and --duration must be longer than 0, such as 3s"))
			}
			return g.run(cmd, &o.Environment, func() (any, error) { return bench.API(cmd.Context(), o) })
		},
	}
	c.Flags().IntVar(&o.Organizations, "organizations", 1000, "number of organizations, each with an owner")
	c.Flags().IntVar(&o.Projects, "projects", 10, "number of projects in each organization")
	c.Flags().IntVar(&o.Services, "services", 5, "number of services in each project")
	c.Flags().IntVar(&o.Scale, "scale", 1, "number of dummy instances of each service")
	c.Flags().IntVar(&o.Nodes, "nodes", 10, "number of simulated nodes")
	c.Flags().IntVar(&o.Updates, "updates", 500, "number of manifests to submit at the same time")
	c.Flags().IntVar(&o.Readers, "readers", 4, "number of concurrent readers")
	c.Flags().DurationVar(&o.Duration, "duration", 5*time.Second, "duration of each measurement")
	g.flags(c, "cpu-PART.pprof (of each part)")
	return c
}

func benchQueueCommand() *cobra.Command {
	var o bench.QueueOptions
	var g benchFlags
	c := &cobra.Command{
		Use:   "queue",
		Short: "Create many projects with a task history, list the tasks over HTTP, add tasks, roll out a large service",
		Args:  cli.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if min(o.Projects, o.History, o.Instances, o.Nodes, o.Readers, o.Clients) < 1 {
				return cli.Usage(errors.New("--projects, --history, --instances, --nodes, --readers and --clients must be at least 1"))
			}
			if o.Duration <= 0 || o.DriverTime <= 0 || o.MinHealthy < 0 {
				return cli.Usage(errors.New("--duration and --driver-time must be longer than 0, such as 3s, and --min-healthy must not be negative"))
			}
			o.Throwaway = g.where == ""
			return g.run(cmd, &o.Environment, func() (any, error) { return bench.Queue(cmd.Context(), o) })
		},
	}
	c.Flags().IntVar(&o.Projects, "projects", 10_000, "number of projects, ten in each organization")
	c.Flags().IntVar(&o.History, "history", 100, "number of ended tasks in each project")
	c.Flags().IntVar(&o.Instances, "instances", 10_000, "number of dummy instances in the rollout")
	c.Flags().IntVar(&o.Nodes, "nodes", 20, "number of simulated nodes")
	c.Flags().IntVar(&o.Readers, "readers", 2, "number of concurrent readers")
	c.Flags().IntVar(&o.Clients, "clients", 64, "number of concurrent clients that add tasks")
	c.Flags().DurationVar(&o.Duration, "duration", 5*time.Second, "duration of each measurement")
	c.Flags().DurationVar(&o.DriverTime, "driver-time", 5*time.Second, "time that a dummy instance takes to start and to stop")
	c.Flags().DurationVar(&o.MinHealthy, "min-healthy", time.Second, "time that a new instance must be up before the old one is removed")
	g.flags(c, "cpu-PART.pprof (of each part)")
	return c
}

func benchComputeCommand() *cobra.Command {
	var o bench.ComputeOptions
	var g benchFlags
	c := &cobra.Command{
		Use:   "compute",
		Short: "Start containers, kill some, measure the agent's memory, and compare with direct calls to the Docker engine",
		Args:  cli.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if min(o.Containers, o.Rounds, o.Kills) < 1 || o.Most < o.Containers {
				return cli.Usage(errors.New("--containers, --rounds and --kills must be at least 1, and --most-containers at least --containers"))
			}
			if o.Engine == "off" || (o.Engine != "" && !strings.Contains(o.Engine, "://")) {
				return cli.Usage(errors.New("--docker must be the address of an engine, such as unix:///var/run/docker.sock"))
			}
			executable, err := os.Executable()
			if err != nil {
				return err
			}
			o.Agent = func(server, join, dir, engine string) *exec.Cmd {
				// It ends with the benchmark, which stops it after everything is removed.
				agent := exec.CommandContext(context.WithoutCancel(cmd.Context()), executable, "agent", "--server", server, "--data", filepath.Join(dir, "agent"),
					"--name", "bench", "--docker", engine, "--lxc", "off", "--kvm", "off")
				agent.Env = append(os.Environ(), "MARIPOSA_JOIN="+join)
				return agent
			}
			return g.run(cmd, &o.Environment, func() (any, error) { return bench.Compute(cmd.Context(), o) })
		},
	}
	c.Flags().StringVar(&o.Engine, "docker", "", "Docker engine to use, such as unix:///run/docker-2.sock (default: DOCKER_HOST, or unix:///var/run/docker.sock)")
	c.Flags().StringVar(&o.Image, "image", "", "image in the engine whose command keeps running (default: a tiny one, made for the run)")
	c.Flags().IntVar(&o.Containers, "containers", 50, "number of containers of the service")
	c.Flags().IntVar(&o.Rounds, "rounds", 3, "number of times to start them, directly and with Mariposa in turn")
	c.Flags().IntVar(&o.Kills, "kills", 10, "number of single containers to kill")
	c.Flags().IntVar(&o.Most, "most-containers", 200, "number of containers while the agent's memory is measured")
	g.flags(c, "cpu.pprof (of the starts)")
	return c
}

func benchHealthCommand() *cobra.Command {
	var o bench.HealthOptions
	var g benchFlags
	c := &cobra.Command{
		Use:   "health",
		Short: "Run many health checks on one agent and measure its processor time",
		Args:  cli.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Instances < 1 || o.Checks < 1 || o.Checks > 20 || o.Poll < 100*time.Millisecond || o.Duration <= 0 {
				return cli.Usage(errors.New("--instances must be at least 1, --checks 1 to 20, --poll at least 100ms, and --duration longer than 0"))
			}
			executable, err := os.Executable()
			if err != nil {
				return err
			}
			o.Command = []string{executable, "bench", answerName}
			o.Agent = func(server, join, dir string) *exec.Cmd {
				// It ends with the benchmark, which stops it after everything is removed.
				agent := exec.CommandContext(context.WithoutCancel(cmd.Context()), executable, "agent", "--server", server, "--data", filepath.Join(dir, "agent"),
					"--name", "bench", "--docker", "off", "--lxc", "off", "--kvm", "off", "--allow-unisolated")
				agent.Env = append(os.Environ(), "MARIPOSA_JOIN="+join)
				return agent
			}
			return g.run(cmd, &o.Environment, func() (any, error) { return bench.Health(cmd.Context(), o) })
		},
	}
	c.Flags().IntVar(&o.Instances, "instances", 50, "number of processes to check")
	c.Flags().IntVar(&o.Checks, "checks", 20, "number of checks of each")
	c.Flags().DurationVar(&o.Poll, "poll", 100*time.Millisecond, "time between two runs of a check")
	c.Flags().DurationVar(&o.Duration, "duration", 15*time.Second, "duration of the measurement")
	g.flags(c, "(none)")
	return c
}

// answerName is the command that the instances of the benchmark of health checks run.
const answerName = "answer"

func benchAnswerCommand() *cobra.Command {
	return &cobra.Command{
		Use: answerName, Hidden: true, Args: cli.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return bench.Answer(cmd.Context(), os.Getenv("PORT")) },
	}
}

// benchFlags are the flags for the environment of a benchmark.
type benchFlags struct {
	where, profiles string
}

func (g *benchFlags) flags(c *cobra.Command, profiles string) {
	c.Flags().StringVar(&g.profiles, "profiles", "", "directory for the profiles "+profiles+" and heap.pprof (when idle)")
	c.Flags().StringVar(&g.where, "store", "", "empty store to use: sqlite:PATH or postgres://… (default: SQLite in a temporary directory)")
}

// run prepares the environment, measures, and prints the result.
func (g *benchFlags) run(cmd *cobra.Command, ground *bench.Environment, measure func() (any, error)) error {
	slog.SetDefault(slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})))
	dir, err := os.MkdirTemp("", "mariposa-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a temporary directory
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
