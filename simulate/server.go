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

// server is one lifetime of a control plane replica.
type server struct {
	w        *World
	life     *lifetime
	store    *storeHandle
	picture  *picture.Picture
	change   *change.Changer
	engine   *engine.Engine
	fleet    *fleet.Fleet
	ready    map[string]bool // projects that were woken
	sessions map[*fleet.Session]*link
	woken    map[*link]bool
}

// storeHandle is a server's connection to the store. After a crash all calls fail, which
// is how the store sees a crash. The last commit may have happened or not; the server
// never learns which.
type storeHandle struct {
	store.Store
	w    *World
	left int // calls until the crash; negative: none is scheduled
	dead bool
}

func (h *storeHandle) cancelCrash() { h.left = -1 }

func (h *storeHandle) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	if h.w.Weigh {
		h.w.countWrites(units)
	}
	if h.countCall() {
		if h.w.callTakesEffect() {
			h.Store.Commit(ctx, units...)
		}
		out := make([]store.Result, len(units))
		for i := range out {
			out[i].Err = store.ErrUnavailable
		}
		return out
	}
	return h.Store.Commit(ctx, units...)
}

func (h *storeHandle) Seize(ctx context.Context, holder, name string) (store.Lease, error) {
	if h.countCall() {
		if h.w.callTakesEffect() {
			_, _ = h.Store.Seize(ctx, holder, name)
		}
		return store.Lease{}, store.ErrUnavailable
	}
	return h.Store.Seize(ctx, holder, name)
}

func (h *storeHandle) Hold(ctx context.Context, holder string, ttl time.Duration, names ...string) ([]store.Lease, error) {
	if h.countCall() {
		return nil, store.ErrUnavailable
	}
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

func (w *World) startServer() {
	s := &server{
		w: w, life: &lifetime{}, store: &storeHandle{Store: w.store, w: w, left: -1},
		ready: map[string]bool{}, sessions: map[*fleet.Session]*link{}, woken: map[*link]bool{},
	}
	clk := worldClock{w, s.life}
	var err error
	if s.picture, err = picture.Open(w.ctx, s.store); err != nil {
		w.fail("open the picture: %v", err)
	}
	vault := seal.NewVault(w.ring, s.store)
	cache := picture.NewVersionCache(s.store, vault)
	s.picture.Subscribe(cache.Invalidate) // before all other subscribers, because they read the cache
	holder := w.newID()
	if s.fleet, err = fleet.New(w.ctx, fleet.Options{Store: s.store, Picture: s.picture, Cache: cache, Clock: clk, Replica: holder, Regained: func() { s.engine.RetryBlocked() }}); err != nil {
		w.fail("create the fleet: %v", err)
	}
	s.engine = engine.New(engine.Options{
		Store: s.store, Picture: s.picture, Cache: cache, Clock: clk, NewID: w.newID, Holder: holder,
		Wake: func(project string) { s.ready[project] = true }, Limit: cmp.Or(w.Limit, 40), Reachable: s.fleet.Reachable, Renewed: s.fleet.KeepLease,
	})
	s.change = change.New(change.Options{
		Store: s.store, Picture: s.picture, Cache: cache, Directory: auth.NewDirectory(s.picture, ""), Clock: clk, NewID: w.newID,
		Vault: vault, Place: s.engine.Place, Trial: s.engine.Trial, Await: s.await,
	})
	w.servers = append(w.servers, s)
	w.started = w.now
	w.note("server starts")
	s.every(5*time.Second, func() {
		if err := s.engine.Renew(w.ctx); err != nil && !s.store.dead {
			w.fail("renew the lease: %v", err)
		}
	})
	s.every(2500*time.Millisecond, func() { s.fleet.Tick(w.ctx) })
}

// every runs f now and then periodically, until the server's life is over.
func (s *server) every(d time.Duration, f func()) {
	f()
	s.replaceIfDead()
	worldClock{s.w, s.life}.After(d, func() { s.every(d, f) })
}

func (s *server) behind() bool {
	next, err := s.w.store.Changes(s.w.ctx, s.picture.Revision(), 1)
	return err != nil || len(next) > 0
}

func (s *server) choices(add func(int, func())) {
	if s.behind() {
		add(10, s.advance)
	}
	for _, project := range slices.Sorted(maps.Keys(s.ready)) {
		add(10, func() { s.plan(project) })
	}
	for _, l := range s.w.links {
		if s.woken[l] {
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
	if s.picture.Revision() < revision && (s.w.orderly || s.w.chance(2)) {
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
	if l.session == nil {
		return
	}
	if err := l.session.Step(s.w.ctx); err != nil {
		s.w.note("session of %s ends: %v", l.node.name, err)
		l.session.End(err.Error())
	}
	s.w.digestOnly("session of %s steps", l.node.name)
	s.replaceIfDead()
}

// accept handles an agent's hello.
func (s *server) accept(l *link, h *wire.Hello) {
	session, bye := s.fleet.Open(s.w.ctx, h, fleet.Admission{Own: true}, serverEnd{l}, func() {
		if l.server == s {
			s.woken[l] = true
		}
	})
	if bye != nil {
		s.w.note("%s is refused: %s", l.node.name, bye.Reason)
		if bye.Final {
			s.w.fail("node %s was rejected permanently: %s", l.node.name, bye.Reason)
		}
		l.cut("refused")
		s.replaceIfDead()
		return
	}
	l.session = session
	s.replaceIfDead()
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
	s.life.over = true
	w := s.w
	w.seen["server crash"]++
	w.note("server has crashed")
	w.servers = slices.DeleteFunc(w.servers, func(o *server) bool { return o == s })
	for _, l := range slices.Clone(w.links) {
		if l.server == s {
			l.cut("the server crashed")
		}
	}
	worldClock{w, &lifetime{}}.After(w.pause(40*time.Second), func() {
		if len(w.servers) < max(1, w.Replicas) {
			w.startServer()
		}
	})
}
