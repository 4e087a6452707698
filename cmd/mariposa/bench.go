package main

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"mariposa/bench"
	"mariposa/cli"
)

func benchCommand() *cobra.Command {
	c := &cobra.Command{Use: "bench", Short: "Put load on a system of its own and measure it"}
	c.AddCommand(benchConvergeCommand())
	return c
}

func benchConvergeCommand() *cobra.Command {
	var o bench.Options
	var where, profiles string
	c := &cobra.Command{
		Use:   "converge",
		Short: "Converge dummy instances from nothing, kill some, lose a node, roll a version, scale to zero",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Instances < 1 || o.Nodes < 1 || o.Projects < 1 {
				return cli.Usage(errors.New("--instances, --nodes and --projects must be at least 1"))
			}
			slog.SetDefault(slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})))
			if o.Dir, err = os.MkdirTemp("", "mariposa-bench-"); err != nil {
				return err
			}
			defer os.RemoveAll(o.Dir)
			if where == "" {
				where = "sqlite:" + filepath.Join(o.Dir, "mariposa.db")
			}
			if o.Store, o.StoreName, _, err = openStore(cmd.Context(), where); err != nil {
				return err
			}
			o.Progress = cmd.ErrOrStderr()
			if profiles != "" {
				cpu, err := os.Create(filepath.Join(profiles, "cpu.pprof"))
				if err != nil {
					return err
				}
				defer cpu.Close()
				heap, err := os.Create(filepath.Join(profiles, "heap.pprof"))
				if err != nil {
					return err
				}
				defer heap.Close()
				o.CPU, o.Heap = cpu, heap
			}
			res, err := bench.Converge(cmd.Context(), o)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(res)
		},
	}
	c.Flags().IntVar(&o.Instances, "instances", 10_000, "how many dummy instances")
	c.Flags().IntVar(&o.Nodes, "nodes", 100, "on how many simulated nodes")
	c.Flags().IntVar(&o.Projects, "projects", 1, "in how many projects")
	c.Flags().IntVar(&o.Kills, "kills", 200, "how many single instances to kill")
	c.Flags().StringVar(&profiles, "profiles", "", "a folder for cpu.pprof (of the way up) and heap.pprof (at rest)")
	c.Flags().StringVar(&where, "store", "", "sqlite:PATH or postgres://…, empty; a fresh SQLite store in a temporary folder if not given")
	return c
}
