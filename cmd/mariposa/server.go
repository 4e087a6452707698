package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"mariposa/agent"
	"mariposa/assembly"
	"mariposa/cli"
	"mariposa/clock"
	"mariposa/store"
	"mariposa/store/sqlite"
)

// startControl starts a control plane whose secrets are kept in a folder.
func startControl(ctx context.Context, dir, listen string, st store.Store) (*assembly.Control, string, error) {
	admin, err := assembly.SecretFile(filepath.Join(dir, cli.TokenFile))
	if err != nil {
		return nil, "", err
	}
	join, err := assembly.SecretFile(filepath.Join(dir, cli.JoinFile))
	if err != nil {
		return nil, "", err
	}
	// The folder's lock proves that the last holder of this name is gone.
	replica, err := assembly.SecretFile(filepath.Join(dir, "replica"))
	if err != nil {
		return nil, "", err
	}
	c, err := assembly.Start(ctx, assembly.Config{Store: st, Listen: listen, AdminToken: admin, JoinToken: join, Version: version, Replica: replica})
	return c, join, err
}

func serverCommand() *cobra.Command {
	var where, listen string
	c := &cobra.Command{
		Use:   "server",
		Short: "Run one replica of the control plane",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, ok := strings.CutPrefix(where, "sqlite:")
			if !ok || path == "" {
				return cli.Usage(fmt.Errorf("--store %q: give sqlite:PATH (PostgreSQL is not supported yet)", where))
			}
			logTo(cmd.ErrOrStderr(), false, false)
			dir := filepath.Dir(path)
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
			st, err := sqlite.Open(cmd.Context(), path, sqlite.Options{Clock: clock.Real{}})
			if err != nil {
				return err
			}
			control, _, err := startControl(cmd.Context(), dir, listen, st)
			if err != nil {
				_ = st.Close() // the first error is the one to tell
				return err
			}
			defer control.Stop()
			fmt.Fprintf(cmd.OutOrStdout(), "Mariposa %s is running at %s\nIts tokens are in %s: clients on this machine use them with --data %s\n", version, control.URL, dir, dir)
			select {
			case <-cmd.Context().Done():
				return nil
			case err := <-control.Failed():
				return err
			}
		},
	}
	c.Flags().StringVar(&where, "store", "", "where everything is kept: sqlite:PATH")
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:8080", "address to listen on")
	return c
}

type agentFlags struct {
	server, join, data, name, rack, dc string
	traits                             []string
	dummies                            int
}

func agentCommand() *cobra.Command {
	var f agentFlags
	c := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of a compute node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logTo(cmd.ErrOrStderr(), false, false)
			return runAgent(cmd.Context(), f)
		},
	}
	c.Flags().StringVar(&f.server, "server", "", "URLs of the control plane, separated by commas")
	c.Flags().StringVar(&f.join, "join", "", "the join token (mariposa node join-token); better given as MARIPOSA_JOIN")
	c.Flags().StringVar(&f.data, "data", "", "folder for the node's identity and instances")
	c.Flags().StringVar(&f.name, "name", "", "the node's name (default: the host's)")
	c.Flags().StringVar(&f.rack, "rack", "", "the rack it stands in")
	c.Flags().StringVar(&f.dc, "dc", "", "the data centre it stands in")
	c.Flags().StringArrayVar(&f.traits, "trait", nil, "a trait of the node, as key=value; may be given more than once")
	c.Flags().IntVar(&f.dummies, "dummy-nodes", 0, "act as so many simulated nodes instead of this machine")
	return c
}

func runAgent(ctx context.Context, f agentFlags) error {
	if f.server == "" || f.join == "" || f.data == "" {
		return cli.Usage(errors.New("--server, --join and --data are needed"))
	}
	traits := map[string]string{}
	for _, t := range f.traits {
		k, v, ok := strings.Cut(t, "=")
		if !ok || k == "" {
			return cli.Usage(fmt.Errorf("--trait %q: write it as key=value", t))
		}
		traits[k] = v
	}
	servers := strings.Split(f.server, ",")
	for _, s := range servers {
		if u, err := url.Parse(s); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return cli.Usage(fmt.Errorf("--server %q: give a URL like http://10.0.0.1:8080", s))
		}
	}
	link := agent.Link{Servers: servers, Token: f.join}
	base := assembly.NodeConfig{Dir: f.data, Name: f.name, Rack: f.rack, DC: f.dc, Traits: traits}
	if f.dummies == 0 {
		return assembly.RunNode(ctx, link, base)
	}
	prefix := f.name
	if prefix == "" {
		prefix = "dummy"
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for i := range f.dummies {
		cfg := base
		cfg.Name, cfg.Dummy = fmt.Sprintf("%s-%d", prefix, i+1), true
		cfg.Dir = filepath.Join(f.data, cfg.Name)
		all.Go(func() {
			if err := assembly.RunNode(ctx, link, cfg); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
