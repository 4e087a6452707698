package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mariposa"
	"mariposa/agent"
	"mariposa/api"
	"mariposa/assembly"
	"mariposa/change"
	"mariposa/cli"
	"mariposa/clock"
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
}

func (f *controlFlags) add(to *pflag.FlagSet) {
	to.StringVar(&f.listen, "listen", "127.0.0.1:8080", "address to listen on")
	to.StringVar(&f.cert, "tls-cert", "", "certificate (PEM) to serve HTTPS with; read again when it changes")
	to.StringVar(&f.key, "tls-key", "", "the certificate's private key (PEM)")
	to.BoolVar(&f.insecure, "insecure", false, "serve plain HTTP to other machines: tokens travel in the clear")
	to.StringVar(&f.keyFile, "key-file", "", "the key that seals secrets in the store; made the first time (default secret.key in the data folder)")
	to.StringVar(&f.domain, "domain", "", "the domain that services and instances have their names under (default mariposa.internal)")
	to.IntVar(&f.keepVersions, "keep-versions", change.DefaultKeep, "how many versions of a project are kept; tagged and running ones always are")
	to.IntVar(&f.keepTasks, "keep-tasks", 30, "for how many days tasks that have ended are kept; 0: for ever")
	to.IntVar(&f.keepAudit, "keep-audit", 365, "for how many days audit records are kept; 0: for ever")
	to.StringSliceVar(&f.proxies, "trust-proxy", nil, "a proxy's address or network, like 10.0.0.0/8, that is believed when it says whom it speaks for; may be given again")
	to.IntVar(&f.connections.Max, "max-connections", 0, "how many connections there may be, agents included (default: three quarters of the limit of open files)")
	to.IntVar(&f.connections.PerAddress, "max-connections-per-address", listener.DefaultPerAddress, "how many connections of one address may wait without a request that was let in")
	to.IntVar(&f.limits.RequestRate, "max-request-rate", api.DefaultLimits.RequestRate, "how many requests a second one user may send, after a burst; admins of the installation any number")
	to.IntVar(&f.limits.Requests, "max-requests", api.DefaultLimits.Requests, "how many requests of one user are answered at once; likewise")
	to.IntVar(&f.limits.Streams, "max-streams", api.DefaultLimits.Streams, "how many streams of events and logs one user may have open; likewise")
	to.IntVar(&f.limits.Commands, "max-execs", api.DefaultLimits.Commands, "how many commands one user may run inside instances at once; likewise")
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
		Domain: f.domain, KeepVersions: f.keepVersions, KeepAudit: days(f.keepAudit), KeepTasks: days(f.keepTasks),
		Limits: f.limits, Connections: connections,
	}, nil
}

// startControl starts a control plane whose secrets are in a folder.
func startControl(ctx context.Context, dir string, f *controlFlags, st store.Store) (*assembly.Control, string, error) {
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
	cfg, err := f.config(st, dir)
	if err != nil {
		return nil, "", err
	}
	cfg.AdminToken, cfg.JoinToken, cfg.Replica = admin, join, replica
	c, err := assembly.Start(ctx, cfg)
	return c, join, err
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
	defer control.Stop()
	fmt.Fprintf(stdout, "Mariposa %s is running at %s\n%s\n", version, control.URL, hint)
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
		c, _, err := startControl(ctx, dir, f, st)
		return c, fmt.Sprintf("Its tokens are in %s: clients on this machine use them with --data %s", dir, dir), err
	}
	cfg, err := f.config(st, cli.DataDir(os.Getenv))
	if err != nil {
		return nil, "", err
	}
	c, err := assembly.Start(ctx, cfg)
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
			hash := mariposa.HashToken(token)
			res := st.Commit(cmd.Context(), store.Unit{Urgent: true, Writes: []store.Write{{
				Kind: mariposa.KindToken, ID: mariposa.TokenID(hash),
				Spec:  &mariposa.TokenSpec{Use: use, Hash: hash, Name: "made by mariposa server token", Created: clock.Real{}.Now()},
				Event: mariposa.Event{Kind: "token.created", Actor: "operator", Reason: mariposa.Asked(string(use))},
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
	ca                                 string
	process                            processFlags
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
	c.Flags().StringVar(&f.join, "join", "", "the join token (mariposa node join-token); better given as MARIPOSA_JOIN")
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
