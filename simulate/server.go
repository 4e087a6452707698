package simulate

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"mariposa/auth"
	"mariposa/change"
	"mariposa/engine"
	"mariposa/fleet"
	"mariposa/picture"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/wire"
)

// server is one lifetime of a control plane replica, or the part of it in which it takes
// the store for the same.
type server struct {
	w        *World
	process  *process
	life     *lifetime
	store    *storeHandle
	picture  *picture.Picture
	change   *change.Changer
	engine   *engine.Engine
	fleet    *fleet.Fleet
	ready    map[string]bool // projects that were woken
	sessions map[*fleet.Session]*link
	woken    map[*link]bool
	stepping map[*link]bool // sessions that wait for the store

	disturbed time.Time // when it last started, or its store last kept it waiting or failed
}

// storeHandle is a server's connection to the store. After a crash all calls fail, which
// is how the store sees a crash. The last commit may have happened or not; the server
// never learns which.
type storeHandle struct {
	store.Store
	w    *World
	s    *server
	left int // calls until the crash; negative: none is scheduled
	dead bool

	unreachable bool      // for now; calls have no effect
	blocking    bool      // the caller is a coroutine, which waits for slow calls
	stalled     time.Time // calls are not answered before
	rewound     bool      // the store has lost what this server has seen; calls fail
	incarnation string    // of the store when it was opened
	newest      int64     // the newest revision that it has written
	waiting     int       // calls that are under way
	began       time.Time // when it last became unreachable
	outage      time.Time // when the last outage ended that a server must notice
}

func (h *storeHandle) cancelCrash() { h.left = -1 }

func (h *storeHandle) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	if h.w.Weigh {
		h.w.countWrites(units)
	}
	outage := h.outage
	late := h.delay()
	if err := h.away(); err != nil || h.countCall() {
		if err == nil && h.w.callTakesEffect() {
			h.Store.Commit(ctx, units...)
		}
		return store.FailAll(units, cmp.Or(err, store.ErrUnavailable))
	}
	results := h.Store.Commit(ctx, units...)
	for _, r := range results {
		h.newest = max(h.newest, r.Last)
	}
	h.w.checker.checkLost(outage, units, results)
	late()
	return results
}

func (h *storeHandle) Seize(ctx context.Context, holder, name string) (store.Lease, error) {
	late := h.delay()
	if err := h.away(); err != nil || h.countCall() {
		if err == nil && h.w.callTakesEffect() {
			_, _ = h.Store.Seize(ctx, holder, name)
		}
		return store.Lease{}, cmp.Or(err, store.ErrUnavailable)
	}
	defer late()
	return h.Store.Seize(ctx, holder, name)
}

func (h *storeHandle) Hold(ctx context.Context, holder string, ttl time.Duration, names ...string) ([]store.Lease, error) {
	late := h.delay()
	if err := h.away(); err != nil || h.countCall() {
		return nil, cmp.Or(err, store.ErrUnavailable)
	}
	defer late()
	return h.Store.Hold(ctx, holder, ttl, names...)
}

func (h *storeHandle) countCall() bool {
	if h.left > 0 {
		h.left--
	}
	if h.left == 0 || h.w.storeCall() {
		h.dead = true
	}
	return h.dead
}

func (w *World) startServer(p *process) {
	s := &server{
		w: w, process: p, life: &lifetime{}, store: &storeHandle{Store: w.store, w: w, left: -1},
		ready: map[string]bool{}, sessions: map[*fleet.Session]*link{}, woken: map[*link]bool{}, stepping: map[*link]bool{}, disturbed: w.now,
	}
	s.store.s, s.store.outage, s.store.incarnation = s, w.now, w.incarnation()
	p.known[s.store.incarnation] = true
	clk := s.sharedClock()
	var err error
	if s.picture, err = picture.Open(w.ctx, s.store); err != nil {
		w.fail("open the picture: %v", err)
	}
	vault := seal.NewVault(w.ring, s.store)
	cache := picture.NewVersionCache(s.store, vault)
	s.picture.Subscribe(cache.Invalidate) // before all other subscribers, because they read the cache
	of := fleet.Options{Store: s.store, Picture: s.picture, Cache: cache, Clock: clk, Replica: p.name, Regained: func() { s.engine.RetryBlocked() }, Ring: w.ring}
	if p.trusting {
		of.Outdated = s.noteOutdated
	}
	if s.fleet, err = fleet.New(w.ctx, of); err != nil {
		w.fail("create the fleet: %v", err)
	}
	s.engine = engine.New(engine.Options{
		Store: s.store, Picture: s.picture, Cache: cache, Clock: clk, NewID: w.newID, Holder: p.name,
		Wake: func(project string) { s.ready[project] = true }, Limit: cmp.Or(w.Limit, 40), Reachable: s.fleet.Reachable, Renewed: s.fleet.KeepLease, Observed: clk.Observe,
	})
	s.change = change.New(change.Options{
		Store: s.store, Picture: s.picture, Cache: cache, Directory: auth.NewDirectory(s.picture, ""), Clock: clk, NewID: w.newID,
		Vault: vault, Place: s.engine.Place, Trial: s.engine.Trial, Await: s.await,
	})
	w.servers = append(w.servers, s)
	w.started = w.now
	w.note("server starts")
	s.every(5*time.Second, func() {
		if err := s.engine.Renew(w.ctx); err != nil && !s.store.dead && s.store.away() == nil {
			w.fail("renew the lease: %v", err)
		}
	})
	s.every(time.Second, func() { s.fleet.Tick(w.ctx) })
}

// every runs f now and then periodically, until the server's life is over.
func (s *server) every(d time.Duration, f func()) {
	s.run(func() {
		f()
		s.replaceIfDead()
		worldClock{s.w, s.life}.After(d, func() { s.every(d, f) })
	})
}

func (s *server) behind() bool {
	next, err := s.w.store.Changes(s.w.ctx, s.picture.Revision(), 1)
	return err != nil || len(next) > 0
}

func (s *server) choices(add func(int, func())) {
	if s.store.isStalled() {
		return // whatever it does next, it waits for the store
	}
	if s.behind() && s.store.away() == nil {
		add(10, s.advance)
	}
	for _, project := range slices.Sorted(maps.Keys(s.ready)) {
		add(10, func() { s.plan(project) })
	}
	for _, l := range s.w.links {
		if s.woken[l] && !s.stepping[l] && l.session != nil {
			add(10, func() { s.stepSession(l) })
		}
	}
}

func (s *server) advance() {
	if _, err := s.picture.Advance(s.w.ctx); err != nil {
		s.w.fail("follow the feed: %v", err)
	}
	s.w.digestOnly("picture at %d", s.picture.Revision())
}

// await sometimes lets a change see its own commit or a conflicting one. Often the
// picture lags.
func (s *server) await(_ context.Context, revision int64) {
	if s.picture.Revision() < revision && s.store.away() == nil && (s.w.orderly || s.w.chance(2)) {
		s.advance()
	}
}

func (s *server) plan(project string) {
	delete(s.ready, project)
	s.w.checker.beforePlan(s, project)
	s.engine.Step(s.w.ctx, project)
	s.w.digestOnly("plan %s", project[len(project)-4:])
	s.w.checker.afterPlan(project)
	if s.engine.Loops() > 0 {
		s.w.fail("the plan of %s was held back because it repeats itself", tail(project))
	}
	s.replaceIfDead()
}

func (s *server) stepSession(l *link) {
	delete(s.woken, l)
	s.stepping[l] = true
	s.run(func() {
		err := l.session.Step(s.w.ctx)
		delete(s.stepping, l)
		if err != nil {
			s.w.note("session of %s ends: %v", l.node.name, err)
			l.session.End(err.Error())
		}
		s.w.digestOnly("session of %s steps", l.node.name)
		s.replaceIfDead()
	})
}

// accept handles an agent's hello.
func (s *server) accept(l *link, h *wire.Hello) {
	s.run(func() {
		session, bye := s.fleet.Open(s.w.ctx, h, fleet.Admission{Own: true, From: "192.0.2.1:4242"}, serverEnd{l}, func() {
			if l.server == s {
				s.woken[l] = true
			}
		})
		switch {
		case bye != nil && bye.Final:
			s.w.fail("node %s was rejected permanently: %s", l.node.name, bye.Reason)
		case bye != nil:
			s.w.note("%s is refused: %s", l.node.name, bye.Reason)
			l.cut("refused")
		case l.closed: // the agent did not wait that long
			session.End("the connection ended")
		default:
			l.session, l.opened, l.heard = session, s.w.now, s.w.now
		}
		s.replaceIfDead()
	})
}

// scheduleCrash makes the server crash at one of its next calls to the store.
func (s *server) scheduleCrash() {
	if s.store.left < 0 {
		s.store.left = 1 + s.w.rng.IntN(6)
		s.w.note("server will crash at its call %d from now", s.store.left)
	}
}

// replaceIfDead removes a crashed server and starts the next one after a while.
func (s *server) replaceIfDead() {
	if !s.store.dead || s.life.over {
		return
	}
	w := s.w
	s.end()
	w.seen["server crash"]++
	w.note("server has crashed")
	s.leave("the server crashed")
	worldClock{w, &lifetime{}}.After(w.pause(40*time.Second), func() {
		if len(w.servers) < max(1, w.Replicas) {
			w.startServer(w.newProcess())
		}
	})
}

// end ends the server's life. Its calls that are under way have no more effect.
func (s *server) end() {
	s.store.unreachable = true
	s.life.end()
}

// leave ends the server's connections.
func (s *server) leave(why string) {
	w := s.w
	w.servers = slices.DeleteFunc(w.servers, func(o *server) bool { return o == s })
	for _, l := range slices.Clone(w.links) {
		if l.server == s {
			l.node.disturb()
			l.cut(why)
		}
	}
}
