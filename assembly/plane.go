package assembly

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"mariposa"
	"mariposa/api"
	"mariposa/auth"
	"mariposa/clock"
	"mariposa/discover"
	"mariposa/engine"
	"mariposa/fleet"
	"mariposa/history"
	"mariposa/listener"
	"mariposa/picture"
	"mariposa/relay"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/store/timely"
	"mariposa/web"
)

// plane is everything that runs on an opened store.
type plane struct {
	cfg      Config
	store    store.Store
	identity store.Identity
	clock    *clock.Shared
	pic      *picture.Picture
	engine   *engine.Engine
	fleet    *fleet.Fleet
	links    *relay.Links // to the other replicas; nil if there can be none
	handler  http.Handler
	names    *discover.Server // nil if there is none
	gate     *listener.Listener

	outdated chan int64 // a node has seen this revision, which the store does not have
	trusting bool       // whether it believes a node that says so
	run      context.Context
	cancel   context.CancelFunc
	all      sync.WaitGroup
}

// newPlane creates the components and starts the actors.
func newPlane(ctx context.Context, cfg Config, st store.Store, gate *listener.Listener, trusting bool) (*plane, error) {
	c := &plane{cfg: cfg, store: st, gate: gate, trusting: trusting, outdated: make(chan int64, 1)}
	c.run, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := c.wire(ctx); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

// stop ends the actors. Instances keep running.
func (c *plane) stop() {
	c.cancel()
	if c.names != nil {
		c.names.Shutdown()
	}
	if c.links != nil {
		c.links.Close()
	}
	c.all.Wait()
}

// ServeHTTP answers a request. Streams end with the plane.
func (c *plane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(c.run, cancel)()
	c.handler.ServeHTTP(w, r.WithContext(ctx))
}

func (c *plane) wire(ctx context.Context) (err error) {
	if err := c.syncClock(ctx); err != nil {
		return err
	}
	if c.identity, err = c.store.Identity(ctx); err != nil {
		return fmt.Errorf("read the store: %w", err)
	}
	actors, requests := timely.New(c.store, timely.Patience)
	vault := seal.NewVault(c.cfg.Ring, requests)
	if err := vault.Check(ctx, c.store, c.clock.Now()); err != nil {
		return err
	}
	if err := auth.EnsureFirst(ctx, c.store, c.clock.Now()); err != nil {
		return fmt.Errorf("create the first user: %w", err)
	}
	pic, err := picture.Open(ctx, c.store)
	if err != nil {
		return fmt.Errorf("read the store: %w", err)
	}
	c.pic = pic
	if err := rehome(ctx, c.store, pic); err != nil {
		return err
	}
	if n, err := auth.LimitJoinTokens(ctx, c.store, pic, c.clock.Now()); err != nil {
		return fmt.Errorf("limit the lifetime of join tokens: %w", err)
	} else if n > 0 {
		slog.Warn("join tokens from an earlier release expire in 7 days: nodes that have joined do not need them; create new ones with `mariposa node join-token`", "tokens", n)
	}
	cache := picture.NewVersionCache(requests, vault)
	pic.Subscribe(cache.Invalidate) // before all other subscribers: they read the cache
	newID := c.cfg.NewID
	if newID == nil {
		newID = (&ids{clock: c.clock}).next
	}
	if c.store.Shared() {
		c.links = relay.New(relay.Options{Replica: c.cfg.Replica, Cluster: c.identity.Cluster, Store: actors, Ring: c.cfg.Ring, Clock: c.clock})
	}
	book := discover.NewBook(pic, c.cfg.Domain)
	if c.names, err = startDNS(ctx, c.cfg.DNS, book); err != nil {
		return err
	}
	runner := engine.NewRunner(64)
	of := fleet.Options{
		Store: actors, Picture: pic, Cache: cache, Clock: c.clock, Replica: c.cfg.Replica, Beat: c.cfg.Beat, Release: c.cfg.Version, Domain: c.cfg.Domain,
		ApproveNodes: c.cfg.ApproveNodes, PendingNodes: c.cfg.PendingNodes, StormBreaker: c.cfg.StormBreaker, Regained: func() { c.engine.RetryBlocked() }, Links: c.links, Ring: c.cfg.Ring, Names: book,
	}
	if c.trusting {
		of.Outdated = c.noteOutdated
	}
	if c.fleet, err = fleet.New(ctx, of); err != nil {
		return fmt.Errorf("read the store: %w", err)
	}
	o := engine.Options{
		Store: actors, Picture: pic, Cache: cache, Clock: c.clock, NewID: newID, Wake: runner.Wake, Holder: c.cfg.Replica,
		Reachable: c.fleet.Reachable, Observed: c.clock.Observe, Note: c.note(c.clock.Now()), StormBreaker: c.cfg.StormBreaker,
	}
	if c.store.Shared() { // otherwise there is no other replica that its nodes could connect to
		o.Renewed = c.fleet.KeepLease
	}
	c.engine = engine.New(o)
	past := history.New(history.Options{Picture: pic, Used: c.engine.Used, Clock: c.clock})
	m := newSystemMetrics(c)
	c.all.Go(func() { _ = pic.Follow(c.run, 10*time.Minute, m.observeRepairs) }) // it returns only when the context ends
	c.all.Go(func() { runner.Run(c.run, c.engine) })
	c.all.Go(func() { c.fleet.Run(c.run) })
	c.all.Go(func() { past.Run(c.run) })
	c.all.Go(func() { c.trim(c.run) })
	c.all.Go(func() { c.removeExpired(c.run) })
	c.handler = web.New(api.New(api.Options{
		Store: requests, Picture: pic, Cache: cache, Fleet: c.fleet, Used: c.engine.Used, Place: c.engine.Place, Trial: c.engine.Trial, History: past, Vault: vault, Clock: c.clock, NewID: newID,
		JoinToken: c.cfg.JoinToken, Version: c.cfg.Version, Metrics: m.registry,
		Domain: c.cfg.Domain, Names: book, KeepVersions: c.cfg.KeepVersions, Limits: c.cfg.Limits, Proxies: c.cfg.Connections.Proxies, Links: c.links, OIDC: c.cfg.OIDC,
	}))
	return nil
}

// syncClock creates the clock that all replicas share: the store's.
func (c *plane) syncClock(ctx context.Context) error {
	machine := c.cfg.Clock
	if machine == nil {
		machine = clock.NewSteady()
	}
	c.clock = clock.NewShared(machine)
	before := c.clock.Now()
	shown, err := c.store.Time(ctx)
	if err != nil {
		return fmt.Errorf("read the store: %w", err)
	}
	c.clock.Observe(before, shown, c.clock.Now())
	if off := shown.Sub(before).Abs(); off > time.Minute {
		slog.Warn("the clocks of this machine and of the database differ; times are those of the database", "by", off.Round(time.Second))
	}
	return nil
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
