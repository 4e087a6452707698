package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
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
	"mariposa/fleet"
	"mariposa/listener"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/store/postgres"
)

// minConnections is the minimum of --max-connections. Half of the connections are for
// clients that have not sent a token yet.
const minConnections = 16

// controlFlags are the flags of every command that runs a control plane.
type controlFlags struct {
	listen       string
	advertise    string
	cert, key    string
	insecure     bool
	keyFile      string
	domain       string
	keepVersions int
	keepAudit    int
	keepTasks    int
	reopen       func(context.Context) (store.Store, error) // opens a store that replicas share again
	proxies      []string
	connections  listener.Options
	limits       api.Limits
	approveNodes bool
	pendingNodes string
	stormBreaker string
	adjust       func(*assembly.Config) // what the command itself knows; may be nil
	names        nameFlags
	oidc         oidcFlags
}

func (f *controlFlags) add(to *pflag.FlagSet) {
	to.StringVar(&f.listen, "listen", "127.0.0.1:8080", "address to listen on")
	to.StringVar(&f.cert, "tls-cert", "", "certificate (PEM) for HTTPS; reloaded when it changes")
	to.StringVar(&f.key, "tls-key", "", "private key (PEM) of the certificate")
	to.BoolVar(&f.insecure, "insecure", false, "serve plain HTTP to other machines; tokens are sent unencrypted")
	to.BoolVar(&f.approveNodes, "approve-nodes", false, "new nodes run instances only after an operator accepts them (mariposa node accept); set it on every replica")
	to.StringVar(&f.pendingNodes, "pending-nodes", strconv.Itoa(fleet.DefaultPendingNodes), "number of nodes without a join token that may wait until an operator accepts them (mariposa node accept), or off; set it on every replica")
	to.StringVar(&f.stormBreaker, "storm-breaker", "33%", "stop replacing the instances of lost nodes if more than this share of nodes is lost within a minute, or off: never stop; set it on every replica (mariposa server settings --storm-breaker overrides it)")
	to.StringVar(&f.keyFile, "key-file", "", "file with the key that encrypts secrets in the store; created if missing (default secret.key in the data directory)")
	to.StringVar(&f.domain, "domain", "", "domain of the names of services and instances (default mariposa.internal)")
	to.IntVar(&f.keepVersions, "keep-versions", change.DefaultKeep, "number of versions to keep of each project; tagged and running ones are always kept")
	to.IntVar(&f.keepTasks, "keep-tasks", 30, "number of days to keep ended tasks, or 0 to keep them forever")
	to.IntVar(&f.keepAudit, "keep-audit", 365, "number of days to keep audit records, or 0 to keep them forever")
	f.oidc.add(to)
	to.StringSliceVar(&f.proxies, "trust-proxy", nil, "address or network of a proxy, such as 10.0.0.0/8, whose X-Forwarded-For and Forwarded headers are trusted (repeatable)")
	to.IntVar(&f.connections.Max, "max-connections", 0, "maximum number of connections, including agents (default: three quarters of the open file limit)")
	to.IntVar(&f.connections.PerAddress, "max-connections-per-address", listener.DefaultPerAddress, "maximum number of unauthenticated connections from one address")
	to.IntVar(&f.limits.RequestRate, "max-request-rate", api.DefaultLimits.RequestRate, "maximum number of requests per second of one user, after a burst; no limit for installation admins")
	to.IntVar(&f.limits.Requests, "max-requests", api.DefaultLimits.Requests, "maximum number of concurrent requests of one user; no limit for installation admins")
	to.IntVar(&f.limits.Streams, "max-streams", api.DefaultLimits.Streams, "maximum number of open event and log streams of one user; no limit for installation admins")
	to.IntVar(&f.limits.Commands, "max-execs", api.DefaultLimits.Commands, "maximum number of concurrent commands of one user inside instances; no limit for installation admins")
}

// config returns the configuration of a control plane. Its key is in dir unless the flags
// say otherwise.
func (f *controlFlags) config(st store.Store, dir string) (assembly.Config, error) {
	if f.keepVersions < 1 || f.keepAudit < 0 || f.keepTasks < 0 {
		return assembly.Config{}, cli.Usage(errors.New("--keep-versions must be at least 1, --keep-audit and --keep-tasks at least 0"))
	}
	if f.connections.Max < 0 || (f.connections.Max > 0 && f.connections.Max < minConnections) {
		return assembly.Config{}, cli.Usage(fmt.Errorf("--max-connections must be at least %d, or 0 for the default, not %d", minConnections, f.connections.Max))
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
			return assembly.Config{}, fmt.Errorf("cannot create the directory for the key: %w", err)
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
	pending, err := readPendingNodes(f.pendingNodes)
	if err != nil {
		return assembly.Config{}, cli.Usage(err)
	}
	storm, err := readStormBreaker(f.stormBreaker)
	if err != nil {
		return assembly.Config{}, cli.Usage(err)
	}
	if err := checkDomain(f.domain); err != nil {
		return assembly.Config{}, cli.Usage(err)
	}
	names, err := f.names.control()
	if err != nil {
		return assembly.Config{}, cli.Usage(err)
	}
	provider, err := f.oidc.provider()
	if err != nil {
		return assembly.Config{}, cli.Usage(err)
	}
	return assembly.Config{
		OIDC: provider, StormBreaker: storm, DNS: names,
		Store: st, Reopen: f.reopen, Ring: ring, Listen: f.listen, Advertise: f.advertise, Version: version, TLSCert: f.cert, TLSKey: f.key, Insecure: f.insecure,
		Domain: f.domain, ApproveNodes: f.approveNodes, PendingNodes: pending, KeepVersions: f.keepVersions, KeepAudit: days(f.keepAudit), KeepTasks: days(f.keepTasks),
		Limits: f.limits, Connections: connections,
	}, nil
}

// startControl starts a control plane whose secrets are in a directory. join is the token
// of the agents in this process, if any.
func startControl(ctx context.Context, dir string, f *controlFlags, st store.Store, join string) (c *assembly.Control, admin string, err error) {
	if admin, err = assembly.AdminToken(ctx, st, filepath.Join(dir, cli.TokenFile)); err != nil {
		return nil, "", err
	}
	if err := assembly.MigrateJoinToken(ctx, st, filepath.Join(dir, "join.token")); err != nil {
		return nil, "", err
	}
	// We hold the directory's lock, so the previous replica with this name is gone.
	replica, err := assembly.SecretFile(filepath.Join(dir, "replica"))
	if err != nil {
		return nil, "", err
	}
	cfg, err := f.config(st, dir)
	if err != nil {
		return nil, "", err
	}
	if cfg.JoinToken, cfg.Replica = join, replica; f.adjust != nil {
		f.adjust(&cfg)
	}
	if c, err = assembly.Start(ctx, cfg); err != nil {
		return nil, "", err
	}
	// Clients on this machine read the URL from this file.
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
		Short: "Run a replica of the control plane",
		Long:  "Run a replica of the control plane. With PostgreSQL, run as many as you like on the same\ndatabase: they share the projects, and if one fails, the others take over within seconds.",
		Args:  cli.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			logTo(cmd.ErrOrStderr(), false, false)
			hideMemory()
			return runServer(cmd.Context(), where, &f, cmd.OutOrStdout())
		},
	}
	c.PersistentFlags().StringVar(&where, "store", "", "store: sqlite:PATH or postgres://…; use MARIPOSA_STORE if it contains a password")
	f.add(c.Flags())
	f.names.addControl(c.Flags(), dnsOff, "address at which a DNS server answers the names of services and instances, such as 10.0.0.1:53, or off")
	c.Flags().StringVar(&f.advertise, "advertise", "", "URL at which the other replicas and agents reach this replica, such as https://10.0.0.1:8080 (default: the listen address, unless it stands for all addresses)")
	c.AddCommand(tokenCommand(&where))
	return c
}

func runServer(ctx context.Context, where string, f *controlFlags, stdout io.Writer) error {
	control, dir, hint, err := startReplica(ctx, where, f)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil // it was stopped while it waited for its database
	case err != nil:
		return err
	}
	defer func() {
		control.Stop()
		if dir != "" {
			_ = os.Remove(filepath.Join(dir, cli.URLFile)) // clients then report that nothing runs
		}
	}()
	fmt.Fprintf(stdout, "Mariposa is running at %s (version %s)\n%s\n", control.URL, version, hint)
	return waitFor(ctx, control)
}

// waitFor waits for a signal or for the failure of a component of the control plane.
func waitFor(ctx context.Context, control *assembly.Control) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-control.Failed():
		return err
	}
}

// startReplica starts a control plane. Its secrets are in the directory of its store or, if
// replicas share a database, in the database. It waits for such a database.
func startReplica(ctx context.Context, where string, f *controlFlags) (c *assembly.Control, dir, hint string, err error) {
	if !isPostgres(where) {
		st, _, dir, err := openStore(ctx, where)
		if err != nil {
			return nil, "", "", err
		}
		if c, _, err = startControl(ctx, dir, f, st, ""); err != nil {
			_ = st.Close() // the first error is the one to report
		}
		return c, dir, fmt.Sprintf("The admin token is in %s; clients on this machine use it with --data %s. Create join tokens for nodes with `mariposa node join-token --data %s`", dir, dir, dir), err
	}
	f.reopen = func(ctx context.Context) (store.Store, error) {
		return postgres.Open(ctx, where, postgres.Options{Existing: true})
	}
	cfg, err := f.config(nil, cli.DataDir(os.Getenv))
	if err != nil {
		return nil, "", "", err
	}
	cfg.Open = func(ctx context.Context) (store.Store, error) { return postgres.Open(ctx, where, postgres.Options{}) }
	cfg.Explain = postgres.Explain
	c, err = assembly.Start(ctx, cfg)
	return c, "", "Create tokens with `mariposa server token` (for users) and `mariposa server token --join` (for nodes)", err
}

type agentFlags struct {
	server, join, data, name, rack, dc string
	traits                             []string
	dummies                            int
	ca                                 string
	process                            processFlags
	docker                             dockerFlags
	systems                            systemFlags
	insecure, moved                    bool
	names                              nameFlags
}

func agentCommand() *cobra.Command {
	var f agentFlags
	c := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of a node",
		Args:  cli.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			logTo(cmd.ErrOrStderr(), false, false)
			hideMemory()
			return runAgent(cmd.Context(), f)
		},
	}
	c.Flags().StringVar(&f.server, "server", "", "URL of the control plane, or several separated by commas; one is enough, because the agent learns the others from it")
	c.Flags().StringVar(&f.join, "join", "", "join token (mariposa node join-token), needed once; without it, a new node waits until an operator accepts it (mariposa node accept); prefer MARIPOSA_JOIN")
	c.Flags().BoolVar(&f.insecure, "insecure", false, "allow plain HTTP to other machines; the token and the key of the node are sent unencrypted")
	c.Flags().StringVar(&f.data, "data", "", "directory for the identity and the instances of the node")
	c.Flags().BoolVar(&f.moved, "moved", false, "accept a data directory that was moved here from another path or machine; never use it for a copy while an agent runs with the original")
	c.Flags().StringVar(&f.ca, "ca", "", "file with certificates (PEM) to trust in addition to those of the system")
	c.Flags().StringVar(&f.name, "name", "", "name of the node (default: the host name)")
	c.Flags().StringVar(&f.rack, "rack", "", "rack of the node")
	c.Flags().StringVar(&f.dc, "dc", "", "data center of the node")
	c.Flags().StringArrayVar(&f.traits, "trait", nil, "trait of the node, as key=value (repeatable)")
	c.Flags().IntVar(&f.dummies, "dummy-nodes", 0, "run this many simulated nodes instead of this machine")
	f.process.add(c.Flags())
	f.docker.add(c.Flags())
	f.systems.add(c.Flags())
	f.names.addNode(c.Flags())
	c.Flags().BoolVar(&f.process.allowUnisolated, "allow-unisolated", false, "run process instances even if this machine cannot isolate them, as plain processes of the agent's user")
	return c
}

func runAgent(ctx context.Context, f agentFlags) error {
	if f.server == "" || f.data == "" {
		return cli.Usage(errors.New("--server and --data are required"))
	}
	traits := map[string]string{}
	for _, t := range f.traits {
		k, v, ok := strings.Cut(t, "=")
		if !ok || k == "" {
			return cli.Usage(fmt.Errorf("--trait must be of the form key=value, not %q", t))
		}
		traits[k] = v
	}
	link := agent.Link{Servers: strings.Split(f.server, ","), Token: f.join, Insecure: f.insecure, Known: assembly.KnownServers(f.data)}
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
	base := assembly.NodeConfig{Dir: f.data, Name: f.name, Rack: f.rack, DC: f.dc, Traits: traits, Release: version, Moved: f.moved}
	if f.dummies == 0 {
		var err error
		if base.Process, err = f.process.options(); err != nil {
			return cli.Usage(err)
		}
		if base.Docker, err = f.docker.options(); err != nil {
			return cli.Usage(err)
		}
		if err := f.systems.apply(&base); err != nil {
			return cli.Usage(err)
		}
		if base.DNS, err = f.names.node(); err != nil {
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

// maxPendingNodes is the largest number of nodes without a join token that may wait.
const maxPendingNodes = 10_000

// readPendingNodes reads how many nodes without a join token may wait.
func readPendingNodes(text string) (int, error) {
	if text == "off" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxPendingNodes {
		return 0, fmt.Errorf("--pending-nodes %s: give a number from 1 to %d, or off", text, maxPendingNodes)
	}
	return n, nil
}

// readStormBreaker reads the share of nodes that may be lost at once, in percent; negative:
// any.
func readStormBreaker(text string) (int, error) {
	if text == "off" {
		return -1, nil
	}
	n, err := strconv.Atoi(strings.TrimSuffix(text, "%"))
	if err != nil || n < 1 || n > 99 {
		return 0, fmt.Errorf("--storm-breaker %s: give a percentage of nodes from 1%% to 99%%, or off", text)
	}
	return n, nil
}
