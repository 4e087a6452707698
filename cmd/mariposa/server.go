package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mariposa/agent"
	"mariposa/api"
	"mariposa/assembly"
	"mariposa/change"
	"mariposa/cli"
	"mariposa/listener"
	"mariposa/seal"
	"mariposa/store"
)

// minConnections is what --max-connections takes at least: half of it is for those who
// have not shown a token yet.
const minConnections = 16

// controlFlags are the flags of every command that runs a control plane.
type controlFlags struct {
	listen       string
	cert, key    string
	insecure     bool
	keyFile      string
	domain       string
	keepVersions int
	keepAudit    int
	keepTasks    int
	proxies      []string
	connections  listener.Options
	limits       api.Limits
	approveNodes bool
}

func (f *controlFlags) add(to *pflag.FlagSet) {
	to.StringVar(&f.listen, "listen", "127.0.0.1:8080", "address to listen on")
	to.StringVar(&f.cert, "tls-cert", "", "certificate (PEM) to serve HTTPS with; read again when it changes")
	to.StringVar(&f.key, "tls-key", "", "the certificate's private key (PEM)")
	to.BoolVar(&f.insecure, "insecure", false, "serve plain HTTP to other machines: tokens travel in the clear")
	to.BoolVar(&f.approveNodes, "approve-nodes", false, "new nodes take part only once somebody approves them (mariposa node approve); give it to every replica")
	to.StringVar(&f.keyFile, "key-file", "", "the key that seals secrets in the store; made the first time (default secret.key in the data folder)")
	to.StringVar(&f.domain, "domain", "", "the domain that services and instances have their names under (default mariposa.internal)")
	to.IntVar(&f.keepVersions, "keep-versions", change.DefaultKeep, "how many versions of a project are kept; tagged and running ones always are")
	to.IntVar(&f.keepTasks, "keep-tasks", 30, "for how many days tasks that have ended are kept; 0: for ever")
	to.IntVar(&f.keepAudit, "keep-audit", 365, "for how many days audit records are kept; 0: for ever")
	to.StringSliceVar(&f.proxies, "trust-proxy", nil, "address or network of a proxy, like 10.0.0.0/8, whose X-Forwarded-For and Forwarded headers are trusted; repeatable")
	to.IntVar(&f.connections.Max, "max-connections", 0, "how many connections there may be, agents included (default: three quarters of the limit of open files)")
	to.IntVar(&f.connections.PerAddress, "max-connections-per-address", listener.DefaultPerAddress, "how many unauthenticated connections one address may have")
	to.IntVar(&f.limits.RequestRate, "max-request-rate", api.DefaultLimits.RequestRate, "how many requests a second one user may send, after a burst; admins of the installation any number")
	to.IntVar(&f.limits.Requests, "max-requests", api.DefaultLimits.Requests, "how many requests of one user are handled at once; installation admins have no limit")
	to.IntVar(&f.limits.Streams, "max-streams", api.DefaultLimits.Streams, "how many event and log streams one user may have open; installation admins have no limit")
	to.IntVar(&f.limits.Commands, "max-execs", api.DefaultLimits.Commands, "how many commands one user may run inside instances at once; installation admins have no limit")
}

// config returns the configuration of a control plane. Dir is where its key is kept
// unless the flags say otherwise.
func (f *controlFlags) config(st store.Store, dir string) (assembly.Config, error) {
	if f.keepVersions < 1 || f.keepAudit < 0 || f.keepTasks < 0 {
		return assembly.Config{}, cli.Usage(errors.New("--keep-versions must be at least 1, --keep-audit and --keep-tasks at least 0"))
	}
	if f.connections.Max < 0 || (f.connections.Max > 0 && f.connections.Max < minConnections) {
		return assembly.Config{}, cli.Usage(fmt.Errorf("--max-connections %d: give at least %d, or 0 for what the limit of open files allows", f.connections.Max, minConnections))
	}
	if min(f.connections.PerAddress, f.limits.RequestRate, f.limits.Requests, f.limits.Streams, f.limits.Commands) < 1 {
		return assembly.Config{}, cli.Usage(errors.New("--max-connections-per-address, --max-request-rate, --max-requests, --max-streams and --max-execs must be at least 1"))
	}
	proxies, err := listener.ParseProxies(f.proxies)
	if err != nil {
		return assembly.Config{}, cli.Usage(fmt.Errorf("--trust-proxy: %w", err))
	}
	connections := f.connections
	connections.Proxies = proxies
	path := f.keyFile
	if path == "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return assembly.Config{}, fmt.Errorf("cannot make the folder for the key: %w", err)
		}
		path = filepath.Join(dir, "secret.key")
	}
	ring, err := seal.OpenRing(path)
	if err != nil {
		return assembly.Config{}, err
	}
	days := func(n int) time.Duration {
		if n == 0 {
			return -1
		}
		return time.Duration(n) * 24 * time.Hour
	}
	return assembly.Config{
		Store: st, Ring: ring, Listen: f.listen, Version: version, TLSCert: f.cert, TLSKey: f.key, Insecure: f.insecure,
		Domain: f.domain, ApproveNodes: f.approveNodes, KeepVersions: f.keepVersions, KeepAudit: days(f.keepAudit), KeepTasks: days(f.keepTasks),
		Limits: f.limits, Connections: connections,
	}, nil
}

// startControl starts a control plane whose secrets are in a folder. Join is the token of
// the agents in this process, if any.
func startControl(ctx context.Context, dir string, f *controlFlags, st store.Store, join string) (c *assembly.Control, admin string, err error) {
	if admin, err = assembly.AdminToken(ctx, st, filepath.Join(dir, cli.TokenFile)); err != nil {
		return nil, "", err
	}
	if err := assembly.MigrateJoinToken(ctx, st, filepath.Join(dir, "join.token")); err != nil {
		return nil, "", err
	}
	// The folder's lock proves that the last holder of this name is gone.
	replica, err := assembly.SecretFile(filepath.Join(dir, "replica"))
	if err != nil {
		return nil, "", err
	}
	cfg, err := f.config(st, dir)
	if err != nil {
		return nil, "", err
	}
	cfg.JoinToken, cfg.Replica = join, replica
	if c, err = assembly.Start(ctx, cfg); err != nil {
		return nil, "", err
	}
	// Clients on this machine read where it is.
	if err = assembly.WriteFile(filepath.Join(dir, cli.URLFile), []byte(c.URL+"\n")); err != nil {
		c.Stop()
		return nil, "", err
	}
	return c, admin, nil
}

func serverCommand() *cobra.Command {
	var where string
	var f controlFlags
	c := &cobra.Command{
		Use:   "server",
		Short: "Run one replica of the control plane",
		Long: "Runs one replica of the control plane. On PostgreSQL run as many as you like on the same database: they share the\n" +
			"projects, and when one is lost the others take its part over within seconds.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logTo(cmd.ErrOrStderr(), false, false)
			hideMemory()
			return runServer(cmd.Context(), where, &f, cmd.OutOrStdout())
		},
	}
	c.PersistentFlags().StringVar(&where, "store", "", "where everything is kept: sqlite:PATH or postgres://…; better given as MARIPOSA_STORE when it holds a password")
	f.add(c.Flags())
	c.AddCommand(tokenCommand(&where))
	return c
}

func runServer(ctx context.Context, where string, f *controlFlags, stdout io.Writer) error {
	st, _, dir, err := openStore(ctx, where)
	if err != nil {
		return err
	}
	control, hint, err := startReplica(ctx, st, dir, f)
	if err != nil {
		_ = st.Close() // the first error is the one to report
		return err
	}
	defer func() {
		control.Stop()
		if dir != "" {
			_ = os.Remove(filepath.Join(dir, cli.URLFile)) // clients then say that nothing runs
		}
	}()
	fmt.Fprintf(stdout, "Mariposa is running at %s (version %s)\n%s\n", control.URL, version, hint)
	return waitFor(ctx, control)
}

// waitFor waits for a signal, or until a part of a control plane has failed.
func waitFor(ctx context.Context, control *assembly.Control) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-control.Failed():
		return err
	}
}

// startReplica starts a control plane: with the secrets in its folder or, where
// replicas share a database, with those in the database.
func startReplica(ctx context.Context, st store.Store, dir string, f *controlFlags) (*assembly.Control, string, error) {
	if dir != "" {
		c, _, err := startControl(ctx, dir, f, st, "")
		return c, fmt.Sprintf("Its admin token is in %s: clients on this machine use it with --data %s. Let nodes join with `mariposa node join-token --data %s`", dir, dir, dir), err
	}
	cfg, err := f.config(st, cli.DataDir(os.Getenv))
	if err != nil {
		return nil, "", err
	}
	c, err := assembly.Start(ctx, cfg)
	return c, "Make tokens with `mariposa server token` (people) and `mariposa server token --join` (nodes)", err
}

type agentFlags struct {
	server, join, data, name, rack, dc string
	traits                             []string
	dummies                            int
	ca                                 string
	process                            processFlags
	insecure                           bool
}

func agentCommand() *cobra.Command {
	var f agentFlags
	c := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of a compute node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logTo(cmd.ErrOrStderr(), false, false)
			hideMemory()
			return runAgent(cmd.Context(), f)
		},
	}
	c.Flags().StringVar(&f.server, "server", "", "URLs of the control plane, separated by commas")
	c.Flags().StringVar(&f.join, "join", "", "a join token (mariposa node join-token), for a node that has not joined before; better given as MARIPOSA_JOIN")
	c.Flags().BoolVar(&f.insecure, "insecure", false, "talk plain HTTP to other machines: the token and the node's key travel in the clear")
	c.Flags().StringVar(&f.data, "data", "", "folder for the node's identity and instances")
	c.Flags().StringVar(&f.ca, "ca", "", "certificates (PEM) to trust beside the system's, for https servers")
	c.Flags().StringVar(&f.name, "name", "", "the node's name (default: the host's)")
	c.Flags().StringVar(&f.rack, "rack", "", "the rack it stands in")
	c.Flags().StringVar(&f.dc, "dc", "", "the data centre it stands in")
	c.Flags().StringArrayVar(&f.traits, "trait", nil, "a trait of the node, as key=value; may be given more than once")
	c.Flags().IntVar(&f.dummies, "dummy-nodes", 0, "act as so many simulated nodes instead of this machine")
	f.process.add(c.Flags())
	c.Flags().BoolVar(&f.process.allowUnisolated, "allow-unisolated", false, "run process instances also where this machine cannot isolate them: as plain processes of the agent's user")
	return c
}

func runAgent(ctx context.Context, f agentFlags) error {
	if f.server == "" || f.data == "" {
		return cli.Usage(errors.New("--server and --data are needed, and --join for a node that has not joined before"))
	}
	traits := map[string]string{}
	for _, t := range f.traits {
		k, v, ok := strings.Cut(t, "=")
		if !ok || k == "" {
			return cli.Usage(fmt.Errorf("--trait %q: write it as key=value", t))
		}
		traits[k] = v
	}
	link := agent.Link{Servers: strings.Split(f.server, ","), Token: f.join, Insecure: f.insecure}
	if err := link.Check(); err != nil {
		return cli.Usage(fmt.Errorf("--server: %w", err))
	}
	if f.ca != "" {
		trusting, err := assembly.Trusting(f.ca)
		if err != nil {
			return err
		}
		link.Client = trusting
	}
	base := assembly.NodeConfig{Dir: f.data, Name: f.name, Rack: f.rack, DC: f.dc, Traits: traits}
	if f.dummies == 0 {
		var err error
		if base.Process, err = f.process.options(); err != nil {
			return cli.Usage(err)
		}
		logIsolation(f.process.allowUnisolated)
		return assembly.RunNode(ctx, link, base)
	}
	prefix := cmp.Or(f.name, "dummy")
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
