package api

import (
	"cmp"
	"sync"
	"time"

	"mariposa"
	"mariposa/converge"
	"mariposa/store"
)

// projectTallies count the instances of a project by service. They are kept, so that a change
// costs as much as what has changed, and not as much as the project is large.
type projectTallies struct {
	revision int64 // of the changes that are counted; 0: nothing is counted yet
	services map[string]*tally
	shares   map[string]share // by instance
	used     time.Time
}

// tally counts the instances of one service.
type tally struct {
	def     *mariposa.Service // in force; nil: none
	proof   time.Duration     // how long an instance must run to count as stable
	service string            // id, if the service is not defined
	all     int               // instances
	n       [shareKinds]int   // instances of each kind
	made    map[int]int       // versions that outdated instances were created from, with the number of these
	young   map[string]int64  // running as desired, but not long enough yet: until when, in nanoseconds
	awaited map[string]awaitedInstance
	// untested are running, but their checks, or changed checks, have not passed yet.
	untested map[string]*store.Instance
}

// awaitedInstance is an instance that is not running.
type awaitedInstance struct {
	*store.Instance
	state mariposa.State
}

// What an instance counts as.
const (
	isRunning = iota
	isHealthy
	isStarting
	isStopping
	isFailed
	isUnknown
	isOutdated
	isOther    // outdated, and differs in more than metadata values
	isUnproven // running, but its checks have not passed yet
	isSick     // running, but its checks fail
	shareKinds
)

// share is what one instance adds to a tally. There may be many.
type share struct {
	service string // name
	is      uint16 // a bit for each kind
	number  int32  // of its version, if it is outdated
}

// count brings the tallies up to date. A service with only leftover instances gets the goal
// removed.
func (t *projectTallies) count(v *viewer, r *store.Project, goals map[string]*mariposa.ServiceStatus) {
	if !t.isCurrent(v, r, goals) || !t.advance(v, r.ID) {
		t.countAll(v, r, goals)
	}
	now := v.s.Clock.Now()
	for name, one := range t.services {
		for id, until := range one.young {
			if until <= now.UnixNano() {
				delete(one.young, id)
			}
		}
		switch {
		case goals[name] != nil:
		case one.all > 0:
			goals[name] = &mariposa.ServiceStatus{ID: one.service, Removed: true, Status: mariposa.StatusConverging}
		default:
			delete(t.services, name)
		}
	}
	for name, ss := range goals {
		if t.services[name] == nil {
			t.services[name] = newTally(ss, v.definition(r.ID, ss.Number, name))
		}
	}
}

// isCurrent reports whether the services are defined as they were when they were counted, and
// all nodes are as they were.
func (t *projectTallies) isCurrent(v *viewer, r *store.Project, goals map[string]*mariposa.ServiceStatus) bool {
	if t.revision == 0 || v.s.Picture.AllTouchedAt() > t.revision {
		return false
	}
	for name, one := range t.services {
		ss := goals[name]
		if ss == nil {
			if one.def != nil {
				return false // it was removed
			}
			continue
		}
		now := newTally(ss, v.definition(r.ID, ss.Number, name))
		if (now.def == nil) != (one.def == nil) || now.proof != one.proof || (now.def != nil && (now.def.Digest != one.def.Digest || now.def.ChecksDigest != one.def.ChecksDigest || now.def.Stop.Timeout != one.def.Stop.Timeout)) {
			return false
		}
	}
	return true
}

// advance counts what has changed since the last time; false if that is no longer known.
func (t *projectTallies) advance(v *viewer, project string) bool {
	for {
		changes, ok := v.s.Picture.Changes(t.revision, scanBatch)
		if !ok {
			return false
		}
		if len(changes) == 0 {
			return true
		}
		for i := range changes {
			c := &changes[i]
			if c.Record.Kind == mariposa.KindInstance && c.Record.Project == project {
				r := c.Record
				t.set(v, (*store.Instance)(&r), c.Deleted || c.Record.Archived)
			}
		}
		t.revision = changes[len(changes)-1].Revision
	}
}

// countAll counts everything anew.
func (t *projectTallies) countAll(v *viewer, r *store.Project, goals map[string]*mariposa.ServiceStatus) {
	revision, instances := v.s.Picture.InstancesInAnyOrder(r.ID)
	t.revision, t.services, t.shares = revision, map[string]*tally{}, make(map[string]share, len(instances))
	for name, ss := range goals {
		t.services[name] = newTally(ss, v.definition(r.ID, ss.Number, name))
	}
	for _, i := range instances {
		t.set(v, i, false)
	}
}

// set replaces what an instance adds to its tally.
func (t *projectTallies) set(v *viewer, r *store.Instance, gone bool) {
	if old, known := t.shares[r.ID]; known {
		t.services[old.service].remove(r.ID, old)
		delete(t.shares, r.ID)
	}
	spec := r.Spec()
	if gone || !spec.Managed { // an unmanaged instance belongs to no service
		return
	}
	one := t.services[spec.ServiceName]
	if one == nil {
		one = newTally(nil, nil)
		one.service = spec.Service
		t.services[spec.ServiceName] = one
	}
	t.shares[r.ID] = one.add(r, v.unreachable(spec.Node), v.s.Clock.Now())
}

func newTally(ss *mariposa.ServiceStatus, def *mariposa.Service) *tally {
	t := &tally{def: def, made: map[int]int{}, young: map[string]int64{}, awaited: map[string]awaitedInstance{}, untested: map[string]*store.Instance{}}
	if def != nil {
		t.proof = def.Update.ProofTime(ss.Rollout != nil && ss.Rollout.First)
	}
	return t
}

// add counts an instance and returns its share.
func (t *tally) add(r *store.Instance, unreachable bool, now time.Time) share {
	spec, st := r.Spec(), r.Status()
	t.all++
	s := share{service: spec.ServiceName}
	state := mariposa.StateOf(spec, st)
	if state == mariposa.StateDestroyed || spec.Kept {
		return s
	}
	if unreachable {
		state = mariposa.StateUnknown
	}
	s.is = t.kindsOf(state, spec, st)
	alive := state == mariposa.StateRunning || state == mariposa.StateProvisioning || state == mariposa.StateUnknown
	switch {
	case t.def == nil || !alive || spec.Goal != mariposa.GoalRunning:
	case t.def.Digest != spec.Digest:
		s.is, s.number = s.is|1<<isOutdated, int32(spec.Number) //nolint:gosec // there are fewer versions
		if mariposa.FormOf(t.def.Digest) != mariposa.FormOf(spec.Digest) {
			s.is |= 1 << isOther
		}
		t.made[spec.Number]++
	case state == mariposa.StateRunning && st.Health == mariposa.HealthUnhealthy:
		s.is |= 1 << isSick
	case state == mariposa.StateRunning && st.Health == mariposa.HealthStarting:
		s.is |= 1 << isUnproven
		t.untested[r.ID] = r
	case state == mariposa.StateRunning && converge.AwaitsChecks(t.def, st): // it serves, and its checks have changed
		t.untested[r.ID] = r
	case state == mariposa.StateRunning && st.Since.Add(t.proof).After(now):
		t.young[r.ID] = st.Since.Add(t.proof).UnixNano()
	}
	if state != mariposa.StateRunning {
		t.awaited[r.ID] = awaitedInstance{r, state}
	}
	t.addKinds(s.is, 1)
	return s
}

func (t *tally) addKinds(is uint16, by int) {
	for kind := range t.n {
		if is&(1<<kind) != 0 {
			t.n[kind] += by
		}
	}
}

// remove takes the share of an instance away.
func (t *tally) remove(id string, s share) {
	t.all--
	t.addKinds(s.is, -1)
	if number := int(s.number); s.is&(1<<isOutdated) != 0 {
		if t.made[number]--; t.made[number] == 0 {
			delete(t.made, number)
		}
	}
	delete(t.young, id)
	delete(t.awaited, id)
	delete(t.untested, id)
}

// kindsOf returns what an instance counts as by its state.
func (t *tally) kindsOf(state mariposa.State, spec *mariposa.InstanceSpec, st *mariposa.InstanceStatus) uint16 {
	switch state {
	case mariposa.StateRunning:
		unchecked := t.def == nil || t.def.ChecksDigest == ""
		if st.Health == mariposa.HealthHealthy || (unchecked && (st.Health == "" || st.Health == mariposa.HealthUnknown)) {
			return 1<<isRunning | 1<<isHealthy
		}
		return 1 << isRunning
	case mariposa.StatePending, mariposa.StateProvisioning:
		if spec.Goal == mariposa.GoalGone {
			return 1 << isStopping
		}
		return 1 << isStarting
	case mariposa.StateDraining, mariposa.StateStopping:
		return 1 << isStopping
	case mariposa.StateFailed:
		return 1 << isFailed
	case mariposa.StateUnknown:
		return 1 << isUnknown
	}
	return 0
}

// first returns the instance with the lowest slot that is not running, or whose checks have not
// passed, and what it waits for.
func (t *tally) first() (first *store.Instance, detail string) {
	for _, r := range t.awaited {
		if isBefore(r.Instance, first) {
			first, detail = r.Instance, string(r.state)
		}
	}
	if first != nil {
		return first, detail
	}
	for _, r := range t.untested {
		if isBefore(r, first) {
			first = r
		}
	}
	if first != nil {
		detail = untestedDetail(first.Status())
	}
	return first, detail
}

func isBefore(a, b *store.Instance) bool {
	return b == nil || cmp.Or(cmp.Compare(a.Spec().Slot, b.Spec().Slot), cmp.Compare(a.ID, b.ID)) < 0
}

// untestedDetail says what an instance waits for whose checks have not passed yet.
func untestedDetail(st *mariposa.InstanceStatus) string {
	for _, c := range st.Checks {
		if c.Health == mariposa.HealthStarting && c.Reason != "" {
			return "waiting for its checks (" + c.Name + " " + c.Reason + ")"
		}
	}
	return "waiting for its first check"
}

// neverStops returns the name of an instance that may never stop; empty: none.
func (t *tally) neverStops() (name string) {
	if t.def == nil || t.def.Stop.Timeout >= 0 {
		return ""
	}
	for _, r := range t.awaited {
		spec := r.Spec()
		if r.state == mariposa.StateStopping && spec.Goal != mariposa.GoalRunning && !spec.Forced && (name == "" || spec.Name < name) {
			name = spec.Name
		}
	}
	return name
}

// reason returns what a service waits for, with the name of an instance if there is one.
func (t *tally) reason(v *viewer, goal int) *mariposa.Reason {
	why := &mariposa.Reason{Code: mariposa.ReasonCounts, Count: t.n[isRunning], Of: goal, Tally: map[string]int{
		mariposa.TallyStarting: t.n[isStarting], mariposa.TallyStopping: t.n[isStopping], mariposa.TallyFailed: t.n[isFailed],
		mariposa.TallyUnknown: t.n[isUnknown], mariposa.TallyOutdated: t.n[isOutdated], mariposa.TallyUnproven: t.n[isUnproven], mariposa.TallySick: t.n[isSick],
	}}
	if t.def != nil {
		why.Tally[mariposa.TallyYoung], why.For = len(t.young), t.proof
	}
	first, detail := t.first()
	if first == nil {
		return why
	}
	spec := first.Spec()
	why.Subject, why.Detail = spec.Name, detail
	if spec.Node != "" {
		why.Node = cmp.Or(v.nodeName(spec.Node), spec.Node)
	}
	return why
}

// tallyCache keeps the tallies of large projects that are being watched.
type tallyCache struct {
	mu  sync.Mutex
	all map[string]*projectTallies
}

const (
	minKeptTally = 100         // instances; fewer are counted again
	tallyTime    = time.Minute // how long tallies are kept that nobody uses
)

// take returns the tallies of a project, for one user at a time.
func (c *tallyCache) take(project string) *projectTallies {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.all[project]
	if t == nil {
		return &projectTallies{}
	}
	delete(c.all, project)
	return t
}

// give keeps tallies that are up to date.
func (c *tallyCache) give(project string, t *projectTallies, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, other := range c.all {
		if now.Sub(other.used) > tallyTime {
			delete(c.all, id)
		}
	}
	if len(t.shares) < minKeptTally {
		return
	}
	if c.all == nil {
		c.all = map[string]*projectTallies{}
	}
	t.used = now
	c.all[project] = t
}
