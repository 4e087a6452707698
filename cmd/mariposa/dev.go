package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"mariposa"
	"mariposa/agent"
	"mariposa/assembly"
	"mariposa/cli"
	"mariposa/client"
	"mariposa/clock"
	"mariposa/driver/process"
	"mariposa/store/sqlite"
)

type devFlags struct {
	controlFlags
	data    string
	dummies int
	deploy  string
	down    downFlags
	name    string
	verbose bool
	process processFlags
	docker  dockerFlags
	systems systemFlags
}

func devCommand() *cobra.Command {
	var f devFlags
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run the whole system in one process on this machine",
		Long: "Run the control plane, the API and a node agent for this machine in one process, with an\nembedded store in the data directory.\n\n" +
			"If you start it again on the same directory, it continues where it stopped. It takes over\ninstances that kept running; it does not restart them.",
		Args: cli.Args(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDev(cmd.Context(), f, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.add(c.Flags())
	f.names.addControl(c.Flags(), devDNS, "address at which a DNS server answers the names of services and instances, or off; if the port is in use, another one is chosen")
	c.Flags().StringVar(&f.data, "data", "", "data directory (default $XDG_DATA_HOME/mariposa)")
	c.Flags().IntVar(&f.dummies, "dummy-nodes", 0, "number of simulated nodes to add")
	c.Flags().StringVar(&f.deploy, "deploy", "", "manifest to deploy after the start, as [NAME=]FILE; then show a live view")
	f.down.add(c.Flags())
	c.Flags().StringVar(&f.name, "name", "", "node name of this machine (default: the host name)")
	c.Flags().BoolVar(&f.verbose, "verbose", false, "log debug messages")
	f.process.add(c.Flags())
	f.docker.add(c.Flags())
	f.systems.add(c.Flags())
	return c
}

// dev is a running `mariposa dev`.
type dev struct {
	dir     string
	control *assembly.Control
	client  *client.Client
	agents  sync.WaitGroup
	names   netip.AddrPort // where the DNS server answers; not valid if there is none
}

func runDev(ctx context.Context, f devFlags, stdin io.Reader, stdout, stderr io.Writer) error {
	if f.dummies < 0 || f.dummies > 100_000 {
		return cli.Usage(fmt.Errorf("--dummy-nodes must be a number from 0 to 100000, not %d", f.dummies))
	}
	if err := f.down.check(); err != nil {
		return err
	}
	if f.down.down {
		if err := requireData(cmp.Or(f.data, cli.DataDir(os.Getenv))); err != nil {
			return err
		}
		if err := f.down.checkConfirmed(ctx, stdin, stderr); err != nil {
			return err
		}
		if f.data != "" {
			f.down.dataFlag = " --data " + f.data
		}
	}
	f.process.allowUnisolated = true // a developer's laptop may not support isolation
	if _, err := f.process.options(); err != nil {
		return cli.Usage(err)
	}
	if _, err := f.docker.options(); err != nil {
		return cli.Usage(err)
	}
	logTo(stderr, f.verbose, f.deploy != "")
	hideMemory()
	ctx, cancel := context.WithCancel(ctx)
	d, err := startDev(ctx, f)
	if err != nil {
		cancel()
		return err
	}
	stop := sync.OnceFunc(func() { d.stop(cancel) })
	defer stop()
	fmt.Fprintf(stdout, "Mariposa is running at %s (version %s)\n", d.control.URL, version)
	if d.names.IsValid() {
		fmt.Fprintf(stdout, "A DNS server for the names of services and instances is at %s.\n", d.names)
	}
	switch _, why, lacks := process.Probe(); {
	case why != "":
		fmt.Fprintf(stdout, "Process instances are not isolated here (%s): they can read everything that you can read.\n", why)
	case lacks != "":
		fmt.Fprintf(stdout, "Process instances are isolated, but without %s. See docs/hardening.md.\n", lacks)
	}
	if !f.down.down {
		if err := d.printLink(ctx, stdout); err != nil {
			return err
		}
	}
	switch {
	case f.down.down:
		if err := d.down(ctx, f.down, stdin, stdout, stderr); err != nil || !f.down.purge {
			return err
		}
		stop() // the files are in use until then
		return purgeData(d.dir, stdout)
	case f.deploy != "":
		return d.deployAndWatch(ctx, f.deploy, stdout)
	}
	fmt.Fprintf(stdout, "Data and admin token are in %s. Try: mariposa project create hello -m examples/hello/mariposa.yaml --wait\n", d.dir)
	return waitFor(ctx, d.control)
}

// linkLifetime is how long the printed sign-in link is valid: the person may look at the terminal
// later.
const linkLifetime = time.Hour

// printLink prints a link that signs a person in to the web page, once.
func (d *dev) printLink(ctx context.Context, stdout io.Writer) error {
	link, _, err := d.client.CreateLink(ctx, linkLifetime.String())
	if err != nil {
		return fmt.Errorf("cannot create a sign-in link: %w", err)
	}
	fmt.Fprintf(stdout, "Open the web page within an hour: %s (it works once; `mariposa open` prints another)\n", link)
	return nil
}

// logTo sends logs to standard error. With a live view, only errors are logged.
func logTo(w io.Writer, verbose, quiet bool) {
	level := slog.LevelInfo
	switch {
	case verbose:
		level = slog.LevelDebug
	case quiet:
		level = slog.LevelError
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})))
}

func startDev(ctx context.Context, f devFlags) (*dev, error) {
	dir := cmp.Or(f.data, cli.DataDir(os.Getenv))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create the data directory: %w", err)
	}
	options, err := f.process.options()
	if err != nil {
		return nil, err
	}
	st, err := sqlite.Open(ctx, filepath.Join(dir, "mariposa.db"), sqlite.Options{Clock: clock.Real{}})
	if err != nil {
		return nil, err
	}
	d := &dev{dir: dir}
	f.adjust = d.serveNames(options.UIDs)
	join := assembly.Secret() // only the agents in this process know it
	control, token, err := startControl(ctx, dir, &f.controlFlags, st, join)
	if err != nil {
		_ = st.Close() // the first error is the one to report
		return nil, err
	}
	d.control = control
	// This is our own address: the traffic never leaves this machine.
	d.client, err = client.New(client.Options{URL: control.URL, Token: token, HTTPClient: control.Client(), Insecure: true})
	if err != nil {
		control.Stop()
		return nil, err
	}
	link := agent.Link{Servers: []string{control.URL}, Token: join, Client: control.Client(), Insecure: true}
	containers, err := f.docker.options()
	if err != nil {
		control.Stop()
		return nil, err
	}
	options.Hidden = append(options.Hidden, dir)
	if f.keyFile != "" {
		options.Hidden = append(options.Hidden, f.keyFile)
	}
	node := assembly.NodeConfig{Dir: filepath.Join(dir, "node"), Name: f.name, Process: options, Docker: containers, Release: version, Moved: true}
	if err := f.systems.apply(&node); err != nil {
		control.Stop()
		return nil, err
	}
	if f.names.listen != dnsOff {
		node.DNS = &assembly.NodeDNS{TTL: f.names.ttl}
	}
	d.run(ctx, link, node) // the directory of a dev contains its store, so a copy is an installation of its own
	for _, name := range dummyNames(dir, f) {
		d.run(ctx, link, assembly.NodeConfig{Dir: filepath.Join(dir, "nodes", name), Name: name, Dummy: true, Release: version, Moved: true})
	}
	return d, nil
}

// serveNames returns how a DNS server answers on this machine, where all instances are. They are
// refused there: the DNS server of the node knows their projects.
func (d *dev) serveNames(instances process.UIDs) func(*assembly.Config) {
	var once sync.Once
	return func(cfg *assembly.Config) {
		if cfg.DNS == nil {
			return
		}
		cfg.DNS.Local = true
		cfg.DNS.Refuses = func(uid int) bool { return uid >= instances.First && uid <= instances.Last }
		cfg.DNS.Bound = func(at netip.AddrPort) { once.Do(func() { d.names = at }) }
	}
}

// dummyNames returns the dummy nodes to run: the requested number, and with --down also
// those of earlier runs.
func dummyNames(dir string, f devFlags) []string {
	var names []string
	for i := range f.dummies {
		names = append(names, fmt.Sprintf("dummy-%d", i+1))
	}
	if f.down.down {
		old, _ := filepath.Glob(filepath.Join(dir, "nodes", "*")) // the pattern is valid
		names = nil
		for _, path := range old {
			names = append(names, filepath.Base(path))
		}
	}
	return names
}

func (d *dev) run(ctx context.Context, link agent.Link, cfg assembly.NodeConfig) {
	d.agents.Go(func() {
		// Everything else works without the node, and users can repair it.
		if err := assembly.RunNode(ctx, link, cfg); err != nil && ctx.Err() == nil {
			slog.Error("this machine cannot run as a node", "err", err)
		}
	})
}

func (d *dev) stop(cancel context.CancelFunc) {
	cancel()
	d.agents.Wait()
	d.control.Stop()
	_ = os.Remove(filepath.Join(d.dir, cli.URLFile)) // clients then report that nothing runs
}

// deployAndWatch creates or updates the project, then shows a live view until ctx is
// done.
func (d *dev) deployAndWatch(ctx context.Context, what string, stdout io.Writer) error {
	name, file, ok := strings.Cut(what, "=")
	if !ok {
		file = what
		if name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)); name == "mariposa" {
			abs, err := filepath.Abs(file)
			if err != nil {
				return err
			}
			name = filepath.Base(filepath.Dir(abs))
		}
	}
	body, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("cannot read the manifest: %w", err)
	}
	note, err := d.createOrUpdate(ctx, name, file, body)
	if err != nil {
		return err
	}
	if note != "" {
		fmt.Fprintln(stdout, note)
	}
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- cli.Watch(watch, d.client, name, note, stdout, isTerminal(stdout)) }()
	failed := make(chan error, 1)
	go func() { failed <- waitFor(ctx, d.control) }()
	select {
	case err = <-ended:
		if err != nil && ctx.Err() == nil {
			return err
		}
	case err = <-failed:
		cancel()
		<-ended
	}
	fmt.Fprintf(stdout, "\nMariposa has stopped; the instances of %s keep running.\nStart it again to continue, or run it with --down to delete every project.\n", name)
	return err
}

// maxCompared is the number of versions that a manifest is compared with.
const maxCompared = 50

// createOrUpdate creates the project, or updates it to a changed file. It does not
// restore a manifest that was submitted before, because that would revert newer changes.
// The note says what was done if that is not obvious.
func (d *dev) createOrUpdate(ctx context.Context, name, file string, body []byte) (note string, err error) {
	_, err = d.client.CreateProject(ctx, name, body, "")
	if mariposa.CodeOf(err) != mariposa.Conflict {
		return "", err
	}
	versions, err := d.client.Versions(ctx, name)
	if err != nil {
		return "", err
	}
	for i, v := range versions.Versions[:min(len(versions.Versions), maxCompared)] {
		old, err := d.client.Version(ctx, name, strconv.Itoa(v.Number))
		switch {
		case err != nil:
			return "", err
		case old.Manifest != string(body):
		case i == 0:
			return "", nil
		default:
			return fmt.Sprintf("%s has changed since %s was deployed and stays as it is; to return to the file: mariposa -j %s project update -m %s --force", name, file, name, file), nil
		}
	}
	if len(versions.Versions) == 0 {
		return "", nil
	}
	done, err := d.client.UpdateManifest(ctx, name, body, client.Update{Previous: versions.Versions[0].Version, Message: "changed " + filepath.Base(file)})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s has changed: it is now version %d of %s", file, done.Number, name), nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
