// Package assembly wires the packages together into running processes: a control plane,
// and agents in the same process or elsewhere. The binary, the benchmark and the tests
// that start the whole program share it. It makes no decisions.
package assembly

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"mariposa"
	"mariposa/api"
	"mariposa/auth"
	"mariposa/change"
	"mariposa/clock"
	"mariposa/engine"
	"mariposa/fleet"
	"mariposa/listener"
	"mariposa/picture"
	"mariposa/seal"
	"mariposa/store"
)

// Config configures a control plane.
type Config struct {
	Store     store.Store // closed by Stop
	Ring      *seal.Ring  // the keys that encrypt secrets in the store
	Listen    string
	JoinToken string // of agents in this process, not stored; empty if there are none
	Version   string
	Replica   string        // its name among replicas; generated if empty. One that keeps its name resumes its leases at once
	Keep      time.Duration // how long the feed is kept; 7 days if zero
	KeepRows  int64         // how many changes at most; 2 million if zero
	KeepWhole int64         // how many of the newest no project loses; 100,000 if zero
	Beat      time.Duration // heartbeat of agents; 5 s if zero
	NewID     func() string // generates ids, which grow with time; NewID if nil

	TLSCert, TLSKey string        // files; without them the server speaks plain HTTP
	Insecure        bool          // allow plain HTTP from other machines
	Domain          string        // under which instances have names; mariposa.internal if empty
	ApproveNodes    bool          // new nodes wait for approval
	KeepVersions    int           // of a project; 100 if zero
	KeepAudit       time.Duration // 365 days if zero; negative: forever
	KeepTasks       time.Duration // of ended tasks; 30 days if zero; negative: forever

	Limits      api.Limits       // of one user
	Connections listener.Options // how many, and which proxies are trusted
}

// Control is one replica of the control plane.
type Control struct {
	URL string

	cfg     Config
	cert    *certificate // nil: plain HTTP
	pic     *picture.Picture
	engine  *engine.Engine
	fleet   *fleet.Fleet
	gate    *listener.Listener
	server  *http.Server
	cancel  context.CancelFunc
	all     sync.WaitGroup
	stopped sync.Once
	failed  chan error
}

// NewID returns a new id; ids grow with time.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// Start starts a control plane; when it returns, requests are answered.
func Start(ctx context.Context, cfg Config) (*Control, error) {
	cert, err := loadCertificate(cfg)
	if err != nil {
		return nil, err
	}
	tcp, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w: choose another address with --listen or MARIPOSA_LISTEN", cfg.Listen, err)
	}
	c := &Control{cfg: cfg, cert: cert, gate: listener.New(tcp, cfg.Connections), URL: "http://" + tcp.Addr().String(), failed: make(chan error, 1)}
	incoming := net.Listener(c.gate)
	if cert != nil {
		c.URL = "https://" + tcp.Addr().String()
		incoming = tls.NewListener(incoming, cert.config())
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	handler, err := c.wire(ctx, run)
	if err != nil {
		cancel()
		c.all.Wait()
		_ = incoming.Close() // the first error is the one to report
		return nil, err
	}
	// The API limits how long bodies and responses may take, because streams have no
	// end. HTTP/2 is not offered: one connection could carry many requests at once.
	c.server = &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, BaseContext: func(net.Listener) context.Context { return run }, ConnContext: listener.Context,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	c.all.Go(func() {
		if err := c.server.Serve(incoming); !errors.Is(err, http.ErrServerClosed) {
			c.failed <- err
		}
	})
	return c, nil
}

// loadCertificate reads the certificate. Without one it refuses to send tokens
// unencrypted over the network.
func loadCertificate(cfg Config) (*certificate, error) {
	if cfg.TLSCert != "" || cfg.TLSKey != "" {
		return newCertificate(cfg.TLSCert, cfg.TLSKey)
	}
	if !cfg.Insecure && !isLoopback(cfg.Listen) {
		return nil, fmt.Errorf("%s is reachable from other machines, and tokens would be sent unencrypted: set --tls-cert and --tls-key, "+
			"listen on 127.0.0.1, or pass --insecure if a proxy in front of it terminates TLS", cfg.Listen)
	}
	return nil, nil
}

// wire creates the components and starts the actors.
func (c *Control) wire(ctx, run context.Context) (http.Handler, error) {
	vault := seal.NewVault(c.cfg.Ring, c.cfg.Store)
	if err := vault.Check(ctx, c.cfg.Store, time.Now()); err != nil {
		return nil, err
	}
	if err := auth.EnsureFirst(ctx, c.cfg.Store, time.Now()); err != nil {
		return nil, fmt.Errorf("create the first user: %w", err)
	}
	pic, err := picture.Open(ctx, c.cfg.Store)
	if err != nil {
		return nil, fmt.Errorf("read the store: %w", err)
	}
	c.pic = pic
	if err := rehome(ctx, c.cfg.Store, pic); err != nil {
		return nil, err
	}
	if n, err := auth.LimitJoinTokens(ctx, c.cfg.Store, pic, time.Now()); err != nil {
		return nil, fmt.Errorf("limit the lifetime of join tokens: %w", err)
	} else if n > 0 {
		slog.Warn("join tokens from an earlier release expire in 7 days: nodes that have joined do not need them; create new ones with `mariposa node join-token`", "tokens", n)
	}
	cache := picture.NewVersionCache(c.cfg.Store, vault)
	pic.Subscribe(cache.Invalidate) // before all other subscribers: they read the cache
	newID := c.cfg.NewID
	if newID == nil {
		newID = NewID
	}
	replica := cmp.Or(c.cfg.Replica, newID())
	runner := engine.NewRunner(64)
	c.fleet, err = fleet.New(ctx, fleet.Options{
		Store: c.cfg.Store, Picture: pic, Cache: cache, Clock: clock.Real{}, Replica: replica, Beat: c.cfg.Beat, Domain: c.cfg.Domain,
		ApproveNodes: c.cfg.ApproveNodes, Regained: func() { c.engine.RetryBlocked() },
	})
	if err != nil {
		return nil, fmt.Errorf("read the store: %w", err)
	}
	o := engine.Options{
		Store: c.cfg.Store, Picture: pic, Cache: cache, Clock: clock.Real{}, NewID: newID, Wake: runner.Wake, Holder: replica,
		Reachable: c.fleet.Reachable,
	}
	if c.cfg.Store.Shared() { // otherwise there is no other replica that its nodes could connect to
		o.Renewed = c.fleet.KeepLease
	}
	c.engine = engine.New(o)
	m := newSystemMetrics(c)
	c.all.Go(func() { _ = pic.Follow(run, 10*time.Minute, m.observeRepairs) }) // it returns only when the context ends
	c.all.Go(func() { runner.Run(run, c.engine) })
	c.all.Go(func() { c.fleet.Run(run) })
	c.all.Go(func() { c.trim(run) })
	c.all.Go(func() { c.removeExpired(run) })
	return api.New(api.Options{
		Store: c.cfg.Store, Picture: pic, Cache: cache, Fleet: c.fleet, Used: c.engine.Used, Place: c.engine.Place, Trial: c.engine.Trial, Vault: vault, Clock: clock.Real{}, NewID: newID,
		JoinToken: c.cfg.JoinToken, Version: c.cfg.Version, Metrics: m.registry,
		Domain: c.cfg.Domain, KeepVersions: c.cfg.KeepVersions, Limits: c.cfg.Limits, Proxies: c.cfg.Connections.Proxies,
	}), nil
}

// rehome moves projects whose organization does not exist to the first user's
// organization.
func rehome(ctx context.Context, st store.Store, pic *picture.Picture) error {
	moved, left, err := auth.Rehome(ctx, st, pic)
	if len(moved) > 0 {
		slog.Info("moved projects whose organization does not exist to "+mariposa.FirstName, "projects", moved)
	}
	for _, name := range left {
		slog.Warn("the organization of a project does not exist, and "+mariposa.FirstName+" already has a project of that name: rename it and restart", "project", name)
	}
	if err != nil {
		return fmt.Errorf("move projects without an organization: %w", err)
	}
	return nil
}

// removeExpired removes data past its retention: audit records, idempotency records,
// tasks and tokens.
func (c *Control) removeExpired(ctx context.Context) {
	every := time.NewTicker(time.Hour)
	defer every.Stop()
	for {
		keep := cmp.Or(c.cfg.KeepAudit, 365*24*time.Hour)
		if keep > 0 {
			if _, err := c.cfg.Store.TrimAudit(ctx, keep); err != nil && ctx.Err() == nil {
				slog.Warn("cannot trim the audit log; will retry", "err", err)
			}
		}
		if keep > 0 {
			if err := forgetTokens(ctx, c.cfg.Store, time.Now().Add(-keep)); err != nil && ctx.Err() == nil {
				slog.Warn("cannot delete expired tokens; will retry", "err", err)
			}
		}
		if keep := cmp.Or(c.cfg.KeepTasks, 30*24*time.Hour); keep > 0 {
			if err := forgetTasks(ctx, c.cfg.Store, time.Now().Add(-keep)); err != nil && ctx.Err() == nil {
				slog.Warn("cannot delete old tasks; will retry", "err", err)
			}
		}
		if err := change.ForgetAnswers(ctx, c.cfg.Store, time.Now()); err != nil && ctx.Err() == nil {
			slog.Warn("cannot delete old idempotency records; will retry", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// forgetTasks removes ended tasks that were created before a time. Ids grow with
// time, so no search is needed.
func forgetTasks(ctx context.Context, st store.Store, before time.Time) error {
	ms := before.UnixMilli()
	q := store.Query{Kind: mariposa.KindTask, Before: fmt.Sprintf("%08x-%04x-7000-8000-000000000000", ms>>16, ms&0xffff), Limit: 500}
	for {
		old, err := st.List(ctx, q)
		if err != nil || len(old) == 0 {
			return err
		}
		var unit store.Unit
		for i := range old {
			if old[i].Archived {
				unit.Delete(mariposa.KindTask, old[i].ID, mariposa.Event{})
			}
		}
		if len(unit.Writes) > 0 {
			if err := st.Commit(ctx, unit)[0].Err; err != nil {
				return err
			}
		}
		q.Before = old[len(old)-1].ID
	}
}

// forgetTokens removes tokens that were revoked or expired before a time. From then on
// they are unknown rather than revoked or expired.
func forgetTokens(ctx context.Context, st store.Store, before time.Time) error {
	q := store.Query{Kind: mariposa.KindToken, Limit: 500}
	for {
		some, err := st.List(ctx, q)
		if err != nil || len(some) == 0 {
			return err
		}
		var unit store.Unit
		for i := range some {
			spec := some[i].Spec.(*mariposa.TokenSpec)
			if at := cmp.Or(spec.Revoked, spec.Expires); !at.IsZero() && at.Before(before) {
				unit.Delete(mariposa.KindToken, some[i].ID, mariposa.Event{})
			}
		}
		if len(unit.Writes) > 0 {
			if err := st.Commit(ctx, unit)[0].Err; err != nil {
				return err
			}
		}
		q.Before = some[len(some)-1].ID
	}
}

// Picture returns the control plane's view of the store, for callers in the same
// process that read it without requests.
func (c *Control) Picture() *picture.Picture { return c.pic }

// Failed reports when the control plane has ended by itself.
func (c *Control) Failed() <-chan error { return c.failed }

// Stop stops accepting requests, hands over the leases and closes the store.
// Instances keep running. It is idempotent and takes a few seconds at most.
func (c *Control) Stop() {
	c.stopped.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		go func() { // streams end with the actors, so do not wait for them first
			time.Sleep(200 * time.Millisecond)
			c.cancel()
		}()
		if err := c.server.Shutdown(ctx); err != nil {
			_ = c.server.Close() // connections that are still open would never close by themselves
		}
		c.cancel()
		done := make(chan struct{})
		go func() { // a store that hangs must not keep the process from ending: what was acknowledged is durable
			defer close(done)
			c.all.Wait()
			if err := c.cfg.Store.Close(); err != nil {
				slog.Warn("cannot close the store", "err", err)
			}
		}()
		select {
		case <-done:
		case <-time.After(6 * time.Second):
			slog.Warn("the store does not respond; exiting without closing it")
		}
	})
}

// systemMetrics are the metrics of the actors.
type systemMetrics struct {
	registry *prometheus.Registry
	repairs  prometheus.Counter
}

func newSystemMetrics(c *Control) *systemMetrics {
	m := &systemMetrics{registry: prometheus.NewRegistry()}
	m.repairs = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "mariposa_reread_mended_total", Help: "Objects that a full re-read found different from the feed; should stay at 0.",
	})
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	m.registry.MustRegister(m.repairs,
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "mariposa_plan_loops_total", Help: "How often the plan of a project repeated itself without a change of state and was delayed; should stay at 0.",
		}, func() float64 { return float64(c.engine.Loops()) }),
		gauge("mariposa_revision", "The newest revision seen.", func() float64 { return float64(c.pic.Revision()) }),
		gauge("mariposa_instances", "Instances in the store.", func() float64 { return float64(c.pic.Instances.Len()) }),
		gauge("mariposa_projects", "Projects.", func() float64 { return float64(c.pic.Projects.Len()) }),
		gauge("mariposa_open_tasks", "Tasks that have not ended.", func() float64 { return float64(c.pic.Tasks.Len()) }),
		gauge("mariposa_nodes", "Known nodes.", func() float64 { return float64(c.pic.Nodes.Len()) }),
		gauge("mariposa_sessions", "Agents connected to this replica.", func() float64 { return float64(c.fleet.Sessions()) }),
		gauge("mariposa_connections_held", "Open connections with an authenticated request, agents included.", func() float64 { return float64(c.gate.Stats().Held) }),
		gauge("mariposa_connections_pending", "Open connections without an authenticated request.", func() float64 { return float64(c.gate.Stats().Pending) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "mariposa_connections_evicted_total", Help: "Pending connections that were closed to make room for others.",
		}, func() float64 { return float64(c.gate.Stats().Evicted) }),
		gauge("mariposa_shards", "Shards held by this replica.", func() float64 { n, _ := c.engine.Held(); return float64(n) }),
	)
	return m
}

func (m *systemMetrics) observeRepairs(n int) {
	if n > 0 {
		slog.Error("a full re-read found objects that the feed had missed", "objects", n)
	}
	m.repairs.Add(float64(n))
}
