package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/agent"
	"mariposa/assembly"
	"mariposa/cli"
	"mariposa/clock"
	"mariposa/store"
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
		Long: "Runs one replica of the control plane. On PostgreSQL run as many as you like on the same database: they share the\n" +
			"projects, and when one is lost the others take its part over within seconds.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logTo(cmd.ErrOrStderr(), false, false)
			return runServer(cmd.Context(), where, listen, cmd.OutOrStdout())
		},
	}
	c.PersistentFlags().StringVar(&where, "store", "", "where everything is kept: sqlite:PATH or postgres://…; better given as MARIPOSA_STORE when it holds a password")
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:8080", "address to listen on")
	c.AddCommand(tokenCommand(&where))
	return c
}

func runServer(ctx context.Context, where, listen string, stdout io.Writer) error {
	st, _, dir, err := openStore(ctx, where)
	if err != nil {
		return err
	}
	control, hint, err := startReplica(ctx, st, dir, listen)
	if err != nil {
		_ = st.Close() // the first error is the one to tell
		return err
	}
	defer control.Stop()
	fmt.Fprintf(stdout, "Mariposa %s is running at %s\n%s\n", version, control.URL, hint)
	select {
	case <-ctx.Done():
		return nil
	case err := <-control.Failed():
		return err
	}
}

// startReplica starts a control plane: with the secrets of its folder, or, where
// replicas share a database, with those that the database knows.
func startReplica(ctx context.Context, st store.Store, dir, listen string) (*assembly.Control, string, error) {
	if dir != "" {
		c, _, err := startControl(ctx, dir, listen, st)
		return c, fmt.Sprintf("Its tokens are in %s: clients on this machine use them with --data %s", dir, dir), err
	}
	c, err := assembly.Start(ctx, assembly.Config{Store: st, Listen: listen, Version: version})
	return c, "Make tokens with `mariposa server token` (people) and `mariposa server token --join` (nodes)", err
}

func tokenCommand(where *string) *cobra.Command {
	var join bool
	c := &cobra.Command{
		Use:   "token",
		Short: "Make a token and print it, once",
		Long: "Makes an admin token, or with --join one for nodes, and prints it. The store keeps only its hash, so it cannot be shown\n" +
			"again. With SQLite the server must not be running; its folder has tokens of its own already.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, _, _, err := openStore(cmd.Context(), *where)
			if err != nil {
				return err
			}
			use := mariposa.TokenAdmin
			if join {
				use = mariposa.TokenJoin
			}
			token := assembly.Secret()
			res := st.Commit(cmd.Context(), store.Unit{Urgent: true, Writes: []store.Write{{
				Kind: mariposa.KindToken, ID: assembly.NewID(),
				Spec:  &mariposa.TokenSpec{Use: use, Hash: mariposa.HashToken(token), Created: clock.Real{}.Now()},
				Event: mariposa.Event{Kind: "token.created", Actor: "operator", Reason: string(use)},
			}}})[0]
			if err := errors.Join(res.Err, st.Close()); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), token)
			return nil
		},
	}
	c.Flags().BoolVar(&join, "join", false, "a token for nodes instead of people")
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
