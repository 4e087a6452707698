// Package engine keeps every project converging. It holds leases on shards of projects,
// runs one actor for each of their projects, and turns the feed into plans and plans into
// commits. An actor drains its inbox, plans once, and commits the steps as one unit that
// fails if another replica has taken the lease.
//
// The package owns leases and actors; converge decides what to do, place decides where,
// and pace decides how fast. It does not know agents, HTTP or the wall clock: everything
// here is a step that the caller runs.
package engine

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/converge"
	"mariposa/pace"
	"mariposa/picture"
	"mariposa/place"
	"mariposa/store"
)

// Shards is how many parts the projects are divided into. It is fixed: every
// replica must agree.
const Shards = 64

// Options configure an engine. Store, Picture, Cache, Clock, NewID and Wake are
// required.
type Options struct {
	Store   store.Store
	Picture *picture.Picture
	Cache   *picture.VersionCache
	Clock   clock.Clock
	NewID   func() string        // returns ascending ids
	Wake    func(project string) // asks for a Step of this project soon
	Holder  string               // this replica's name
	TTL     time.Duration        // of leases; 6 s if zero
	Limit   int                  // instances that may start at the same time; 8,192 if zero
	// Reachable reports whether a node that counts as up has a connection, so that no
	// instance is placed on a node that cannot receive it. If nil, every node is assumed
	// to have one.
	Reachable func(node *store.Node) bool
	// StormBreaker is the share of nodes, in percent, that may vanish within a minute before
	// rescheduling stops, if the installation has no such setting; the default if zero, any
	// if negative.
	StormBreaker int
	// Renewed is called after each renewal of this replica's own lease, with the time
	// until it lapses. It is also called at the start: a replica that cannot take its lease
	// within that time is like one that has lost it.
	Renewed func(ttl time.Duration)
	// Observed is called with the time that the store's clock showed between two times of
	// this replica's clock. May be nil.
	Observed func(before, shown, after time.Time)
	// Note returns what this replica publishes with its lease. May be nil.
	Note func() string
}

// Engine plans the projects whose shards it holds.
type Engine struct {
	Options
	placer *place.Placer
	gate   *pace.Gate

	mu            sync.Mutex
	epochs        map[int]int64     // shards held -> epoch of the lease
	pendingShards map[int]int64     // shards taken, but the picture does not show yet what their former holder wrote
	readyAt       int64             // the revision at which the picture shows it
	actors        map[string]*actor // by project
	blocked       map[string]bool   // projects that found no node
	closed        bool

	storm atomic.Pointer[converge.Storm] // which lost nodes are not given up yet
	used  map[string]bool                // nodes with instances; used only by the feed

	loops atomic.Int64 // how often a plan was found to repeat itself
}

// New returns an engine without shards; Renew takes them.
func New(o Options) *Engine {
	if o.TTL == 0 {
		o.TTL = 6 * time.Second
	}
	if o.Limit == 0 {
		o.Limit = 8192
	}
	e := &Engine{
		Options: o, placer: place.NewPlacer(), gate: pace.NewGate(o.Limit, 64),
		epochs: map[int]int64{}, pendingShards: map[int]int64{}, actors: map[string]*actor{}, blocked: map[string]bool{}, used: map[string]bool{},
	}
	e.placer.Now = o.Clock.Now
	e.placer.Reachable = func(node string) bool {
		r := o.Picture.Nodes.Get(node)
		return r != nil && r.Status() != nil && r.Spec().TakesInstances() && (o.Reachable == nil || o.Reachable(r))
	}
	e.updateStorm()
	for _, r := range o.Picture.Nodes.All() {
		e.placer.SetNode(nodeOffer(r))
	}
	for _, r := range o.Picture.Instances.All() {
		e.claim(r.ID, r.Spec())
		e.used[r.Spec().Node] = true
	}
	o.Picture.Subscribe(e.routeChanges)
	if o.Renewed != nil {
		o.Renewed(o.TTL)
	}
	return e
}

// ShardOf returns the shard of a project.
func ShardOf(project string) int {
	h := fnv.New32a()
	h.Write([]byte(project))
	return int(h.Sum32() % Shards)
}

func leaseName(shard int) string { return store.ShardPrefix + strconv.Itoa(shard) }

// Renew takes and keeps this replica's share of the shards. It is called every
// third of the leases' lifetime. Shards whose lease could not be renewed are
// dropped.
func (e *Engine) Renew(ctx context.Context) error {
	mine, err := e.findOwnShards(ctx)
	if err != nil {
		return err // held leases expire by themselves, and fences protect what was written
	}
	if err := e.releaseOthers(ctx, mine); err != nil {
		return err
	}
	began := e.Clock.Now()
	leases, at, err := e.holdLeases(ctx, mine)
	if err != nil {
		return err
	}
	ended := e.Clock.Now()
	if e.Renewed != nil {
		e.Renewed(e.TTL - ended.Sub(began))
	}
	if e.Observed != nil && !at.IsZero() {
		e.Observed(began, at, ended)
	}
	if !e.noteLeases(leases) {
		return nil
	}
	// Former holders of the shards can no longer write, so the newest revision is their
	// last. Planning waits until the picture shows it: a plan based on an older state
	// would repeat their work.
	newest, err := e.Store.Revision(ctx)
	if err != nil {
		return err // the shards are taken and not used yet; the next call tries again
	}
	e.mu.Lock()
	e.readyAt = newest
	e.mu.Unlock()
	e.startActors(e.Picture.Revision())
	return nil
}

// noteLeases records which shards are held and drops those that no longer are.
// It reports whether some wait for startActors.
func (e *Engine) noteLeases(leases []store.Lease) bool {
	held := map[int]int64{}
	for _, l := range leases {
		n, _ := strconv.Atoi(l.Name[len(store.ShardPrefix):])
		held[n] = l.Epoch
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for shard, epoch := range e.epochs {
		if held[shard] != epoch {
			e.dropShard(shard)
		}
	}
	e.readyAt = math.MaxInt64
	clear(e.pendingShards)
	for shard, epoch := range held {
		if _, had := e.epochs[shard]; !had {
			e.pendingShards[shard] = epoch
		}
	}
	return len(e.pendingShards) > 0
}

// startActors gives every project of the new shards an actor, once the picture
// shows what their former holder wrote.
func (e *Engine) startActors(shown int64) {
	e.mu.Lock()
	if len(e.pendingShards) == 0 || shown < e.readyAt {
		e.mu.Unlock()
		return
	}
	fresh := maps.Clone(e.pendingShards)
	maps.Copy(e.epochs, fresh)
	clear(e.pendingShards)
	e.mu.Unlock()
	for _, r := range e.Picture.Projects.All() {
		if _, ours := fresh[ShardOf(r.ID)]; ours && e.actor(r.ID) != nil {
			e.Wake(r.ID)
		}
	}
}

// Release hands over the shards, so that other replicas need not wait for the leases to
// expire.
func (e *Engine) Release(ctx context.Context) error {
	e.mu.Lock()
	names := append(make([]string, 0, Shards+1), store.ReplicaPrefix+e.Holder)
	for shard := range e.pendingShards {
		names = append(names, leaseName(shard))
	}
	clear(e.pendingShards)
	for shard := range e.epochs {
		names = append(names, leaseName(shard))
		e.dropShard(shard)
	}
	e.closed = true
	e.mu.Unlock()
	return e.Store.Release(ctx, e.Holder, names...)
}

func (e *Engine) dropShard(shard int) {
	delete(e.epochs, shard)
	for id, a := range e.actors {
		if a.shard == shard {
			a.stop()
			e.gate.Set(id, 0)
			delete(e.actors, id)
		}
	}
}

// actor returns the actor of a project, and creates it if this replica holds its shard;
// nil if not.
func (e *Engine) actor(project string) *actor {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.actors[project]
	if a == nil {
		epoch, ours := e.epochs[ShardOf(project)]
		if !ours || e.closed {
			return nil
		}
		a = newActor(e, project, epoch)
		e.actors[project] = a
	}
	return a
}

// removeActor ends an actor whose project or lease is gone.
func (e *Engine) removeActor(a *actor) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a.stop()
	if e.actors[a.project] == a {
		delete(e.actors, a.project)
	}
	delete(e.blocked, a.project)
	e.gate.Set(a.project, 0)
}

// dropLostShard ends every actor of a shard whose lease another replica has taken. Renew
// tries to take the shard again.
func (e *Engine) dropLostShard(a *actor) {
	e.removeActor(a)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.epochs[a.shard] == a.epoch {
		e.dropShard(a.shard)
	}
}

// updateInstance notes what an instance uses of its node. It reports whether there may be
// more room than before, and whether other nodes count in a storm.
func (e *Engine) updateInstance(c store.Change, spec *mariposa.InstanceSpec) (roomier, weather bool) {
	weather = (c.Spec || c.Deleted) && e.noteUse(spec.Node)
	if c.Deleted {
		e.placer.Release(c.Record.ID)
		return true, weather
	}
	e.claim(c.Record.ID, spec)
	return spec.Kept, weather
}

// routeChanges routes changes to the actors they concern.
func (e *Engine) routeChanges(changes []store.Change) {
	byProject := map[string][]store.Change{}
	roomier, weather := false, false
	for _, c := range changes {
		var project string
		switch spec := c.Record.Spec.(type) {
		case *mariposa.SettingsSpec:
			weather = true
			continue
		case *mariposa.NodeSpec:
			roomier, weather = true, true
			for _, id := range e.updateNode(c) {
				byProject[id] = append(byProject[id], c)
			}
			continue
		case *mariposa.ProjectSpec:
			project = c.Record.ID
		case *mariposa.ServiceSpec:
			project = spec.Project
		case *mariposa.InstanceSpec:
			project = spec.Project
			isRoomier, isOtherWeather := e.updateInstance(c, spec)
			roomier, weather = roomier || isRoomier, weather || isOtherWeather
		case *mariposa.TaskSpec:
			if project = spec.Project; project == "" {
				continue // of a node
			}
		case *mariposa.VolumeSpec:
			if project = spec.Project; project == "" { // left over from a deleted project, or just given back by its planner
				if project = c.Event.Project; project == "" {
					continue
				}
			}
		case *mariposa.NetworkSpec, *mariposa.AttachmentSpec: // read from the picture; but an actor may wait for its own commit to come back
			if project = c.Event.Project; project == "" {
				continue
			}
		case *mariposa.VersionSpec: // read when a task brings it into force; but an actor may wait for its own commit to come back
			project = spec.Project
		default:
			continue
		}
		byProject[project] = append(byProject[project], c)
	}
	if weather { // before the actors see the nodes
		for _, project := range e.updateStorm() {
			defer e.Wake(project)
		}
	}
	// All changes of a project go to its actor at once and in order: the actor assumes
	// that it knows everything up to the newest revision that it received.
	for project, cs := range byProject {
		if a := e.actor(project); a != nil {
			a.inbox.Put(cs...)
		}
	}
	if roomier {
		e.RetryBlocked()
	}
	if len(changes) > 0 {
		e.startActors(changes[len(changes)-1].Revision)
	}
}

// claim records in the placer what an instance uses of its node.
func (e *Engine) claim(id string, spec *mariposa.InstanceSpec) {
	if spec.Kept {
		e.placer.Release(id)
		return
	}
	e.placer.Claim(id, spec.Node, needOf(spec))
}

// updateNode updates the placer, and returns the projects with instances on a
// node.
func (e *Engine) updateNode(c store.Change) []string {
	if c.Deleted {
		e.placer.RemoveNode(c.Record.ID)
	} else {
		r := c.Record
		e.placer.SetNode(nodeOffer((*store.Node)(&r)))
	}
	projects := map[string]bool{}
	for _, r := range e.Picture.InstancesOn(c.Record.ID) {
		projects[r.Spec().Project] = true
	}
	return slices.Sorted(maps.Keys(projects))
}

// RetryBlocked plans again the projects that found no node.
func (e *Engine) RetryBlocked() {
	e.mu.Lock()
	projects := make([]string, 0, len(e.blocked))
	for id := range e.blocked {
		projects = append(projects, id)
	}
	clear(e.blocked)
	e.mu.Unlock()
	for _, id := range projects {
		e.Wake(id)
	}
}

// Step runs a project's actor once. Each project is stepped by one goroutine at
// a time; different projects run concurrently.
func (e *Engine) Step(ctx context.Context, project string) {
	a := e.actor(project)
	if a == nil {
		return
	}
	err := a.step(ctx)
	switch {
	case err == nil:
	case errors.Is(err, store.ErrFenced):
		slog.Warn("another replica has taken over this project", "project", project)
		e.dropLostShard(a)
	case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrNoCapacity):
		a.reload() // another writer was faster: read again
		a.wakeIn(10 * time.Millisecond)
	case errors.Is(err, store.ErrClosed), ctx.Err() != nil:
	default:
		slog.Warn("cannot plan a project; retrying", "project", project, "err", err)
		a.reload()
		a.wakeIn(time.Second)
	}
}

// Held returns how many shards and projects this engine plans.
func (e *Engine) Held() (shards, projects int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.epochs), len(e.actors)
}

// Used returns what is claimed of a node.
func (e *Engine) Used(node string) mariposa.Resources { return e.placer.Used(node) }

// Place finds a node for an instance that no planner creates and sets it in the spec. If the
// spec has a node, only that one can be picked. The caller commits the claim with the instance, and calls release if that fails.
func (e *Engine) Place(id string, spec *mariposa.InstanceSpec) (claim store.Claim, release func(), err error) {
	need := needOf(spec)
	need.Node = spec.Node
	node, why := e.placer.Pick(id, need)
	if why != nil {
		return store.Claim{}, nil, &mariposa.Error{Code: mariposa.Conflict, Message: "no node can run the instance", Reason: why}
	}
	spec.Node = node.ID
	return store.Claim{Node: node.ID, Take: spec.Resources(), Limit: node.Capacity}, func() { e.placer.Release(id) }, nil
}

// Trial returns a copy of the known nodes and claims for dry runs. The given instances
// can be released from it.
func (e *Engine) Trial(instances []string) *place.Placer { return e.placer.Trial(instances) }

// nodeOffer converts a node's record for the placer.
func nodeOffer(r *store.Node) place.Node {
	spec := r.Spec()
	n := place.Node{ID: r.ID, Name: spec.Name, NotReady: "is not connected"}
	st := r.Status()
	if st != nil {
		n.Capacity, n.Drivers = st.Capacity, st.Drivers
		for kind, o := range st.Offers {
			if o.Unavailable != "" {
				n.Unavailable = append(n.Unavailable, place.Unavailable{Compute: kind, Why: o.Unavailable})
			}
		}
		n.Ready, n.UnstableUntil, n.ShunnedUntil = st.State == mariposa.NodeRunning, st.UnstableUntil(), st.ShunnedUntil()
	}
	if spec.Approval != "" {
		n.Ready, n.NotReady = false, "is not approved"
	}
	if spec.Reserved != "" {
		n.Ready, n.NotReady = false, "is reserved"
	}
	if spec.Drained {
		n.Ready, n.NotReady = false, "is drained"
	}
	return n
}

func needOf(spec *mariposa.InstanceSpec) place.Need {
	return place.Need{
		Service: spec.Service, Compute: spec.Compute, Ports: spec.Ports, Take: spec.Resources(),
	}
}
