// Package converge decides what to do. View is a project as the planner sees it. Every
// change updates it in place. Plan is a pure function of the view and returns the next
// steps, and what the project waits for and why. All rules about what to do are in this
// package.
//
// The package has no clock, no randomness, no I/O and no goroutines: the same view at the
// same time gives the same plan, regardless of the order in which the view was updated.
// It does not know the capacities of nodes, stores, tasks or drivers.
package converge

import (
	"cmp"
	"maps"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/tidwall/btree"

	"mariposa"
)

// View is one project: its goal, its definitions and its instances. The instances are
// classified for the plan, so that a change of one instance never visits all of them.
type View struct {
	project       string // its name, for commands in reasons
	hasGoal       bool   // whether a goal was ever set
	goal          mariposa.ProjectGoal
	number        int
	versions      map[int]Definitions
	services      map[string]*service
	instances     map[string]*Instance
	nodes         map[string]Node
	byNode        map[string]map[string]struct{}
	startingSet   *btree.BTreeG[*Instance] // starting instances
	needed        map[int]int              // version -> number of users of its definitions
	usedByRemoved map[int]int              // version -> number of goals of removed services that refer to it
	links
	agenda agenda

	storm        Storm
	plannedSince time.Time // no server may have planned the project before this time
}

// Definitions are the services of one version of the manifest, by name.
type Definitions map[string]*mariposa.Service

// Instance is an instance in the view.
type Instance struct {
	ID     string
	Spec   *mariposa.InstanceSpec
	Status *mariposa.InstanceStatus

	// Sort keys, stored here because a search among a hundred thousand instances mostly
	// waits for memory.
	number         int
	created, since int64
}

// Ended reports whether nothing of the instance runs.
func (i *Instance) Ended() bool { return hasEnded(mariposa.StateOf(i.Spec, i.Status)) }

// Node is a node in the view: whether it is reachable, and since when.
type Node struct {
	Name     string
	Unknown  bool
	Since    time.Time
	Draining bool // its instances are moved to other nodes
	GivenUp  bool // a user asked to replace the instances of an unknown node at once
	// UnstableUntil is until when a node that was lost several times is avoided.
	UnstableUntil time.Time
}

// service contains everything about one service: its goal, the current definition and its
// instances by class.
type service struct {
	name       string
	status     *mariposa.ServiceStatus // nil: its instances remain without a goal
	def        *mariposa.Service       // nil: the current version does not define the service
	members    map[string]class
	byClass    [classes]*btree.BTreeG[*Instance]
	byStart    *btree.BTreeG[*Instance] // running and up to date, newest first
	slots      map[int]occupancy        // slot -> its instances; free slots are not included
	free       int                      // no slot below this one is free; speeds up the search
	numbers    map[int]int              // version -> instances that are running or may be reachable
	fresh      [classes]int             // by class, instances created after the current rollout requested new ones
	bound      string                   // digest of the values of the current definition's references
	unresolved bool                     // some of them have no value yet
	binding    int                      // instances created with references
	misbound   int                      // running or starting instances that refer to something other than the service's binding
	displaced  []*Instance              // running or starting instances that must move to another node, in the order of removal

	edges           []edge         // dependencies of its instances, by the definitions that apply to them
	referenceCounts map[string]int // other service -> number of references that block the removal of its instances
	dropped         bool           // it was removed from the view
	schedule
}

// PlannedSince sets since when a server plans this project. Time before that does not
// count toward deadlines.
func (v *View) PlannedSince(at time.Time) {
	v.plannedSince, v.agenda.all = at, true
}

// NewView returns an empty view of a project.
func NewView() *View {
	return &View{
		goal:          mariposa.GoalStarted,
		versions:      map[int]Definitions{},
		services:      map[string]*service{},
		instances:     map[string]*Instance{},
		nodes:         map[string]Node{},
		byNode:        map[string]map[string]struct{}{},
		startingSet:   newStartingSet(),
		needed:        map[int]int{},
		usedByRemoved: map[int]int{},
		links:         newLinks(),
		agenda:        newAgenda(),
	}
}

func newService(name string) *service {
	return &service{name: name, members: map[string]class{}, slots: map[int]occupancy{}, free: 1, numbers: map[int]int{}}
}

// SetVersion sets the definitions of a version. Call it before setting a goal or an
// instance that refers to them.
func (v *View) SetVersion(number int, d Definitions) {
	if old, known := v.versions[number]; !known || !maps.Equal(old, d) {
		v.agenda.all = true
	}
	v.versions[number] = d
	for _, s := range v.services {
		inForce := s.status != nil && s.status.Number == number && s.def != d[s.name]
		if inForce {
			s.def = d[s.name]
		}
		byImage := s.status != nil && filterOf(s.status) != nil && filterOf(s.status).Image != "" // the filter depends on what instances were created from
		if inForce || byImage || s.binding > 0 && s.numbers[number] > 0 {
			v.reclassify(s)
		}
	}
}

// HasVersion reports whether the view has the definitions of a version.
func (v *View) HasVersion(number int) bool { return v.versions[number] != nil }

// MissingVersions lists the versions, in order, that the view refers to but has no
// definitions of.
func (v *View) MissingVersions() []int {
	var missing []int
	for n := range v.needed {
		if _, ok := v.versions[n]; !ok {
			missing = append(missing, n)
		}
	}
	slices.Sort(missing)
	return missing
}

// countVersionUse counts the versions that the goal of a service refers to.
func (v *View) countVersionUse(ss *mariposa.ServiceStatus, by int) {
	if ss == nil {
		return
	}
	refs := v.needed
	if ss.Removed {
		refs = v.usedByRemoved
	}
	addCount(refs, ss.Number, by)
	if n := fallbackVersion(ss); n != 0 {
		addCount(refs, n, by)
	}
}

func addCount(refs map[int]int, number, by int) {
	if refs[number] += by; refs[number] == 0 {
		delete(refs, number)
	}
}

// ForgetVersions removes the definitions that are no longer referred to.
func (v *View) ForgetVersions() {
	maps.DeleteFunc(v.versions, func(n int, _ Definitions) bool {
		return n != v.number && v.needed[n] == 0 && v.usedByRemoved[n] == 0
	})
}

// SetGoal sets the goal. Services that are not in the status lose their goal. An empty
// goal does not stop anything.
func (v *View) SetGoal(st *mariposa.ProjectStatus) {
	goal := cmp.Or(st.Goal, mariposa.GoalStarted)
	if !v.hasGoal || v.goal != goal {
		v.agenda.all = true
	}
	v.hasGoal, v.goal, v.number = true, goal, st.Number
	for name, ss := range st.Services {
		s := v.service(name)
		if s.status != ss {
			v.setStatus(s, ss)
		}
	}
	for name, s := range v.services {
		if _, ok := st.Services[name]; ok || s.status == nil {
			continue
		}
		v.clearGoal(s)
	}
}

// clearGoal removes a service's goal.
func (v *View) clearGoal(s *service) {
	v.countVersionUse(s.status, -1)
	v.countBindings(s, s.status.Bindings, -1)
	s.status, s.def = nil, nil
	v.touch(s)
	v.reclassify(s)
	v.drop(s)
}

// ApplyPlan applies the service statuses of a plan if they do not come back with a goal.
// Ended services stay until a goal omits them.
func (v *View) ApplyPlan(p Plan) {
	for name, ss := range p.Services {
		if s := v.services[name]; s != nil {
			v.setStatus(s, ss)
		}
	}
}

func (v *View) setStatus(s *service, ss *mariposa.ServiceStatus) {
	old := s.status
	s.status = ss
	if old != nil && sameStatus(old, ss) {
		return
	}
	v.touch(s)
	v.countVersionUse(old, -1)
	v.countVersionUse(ss, 1)
	if old == nil || !sameValue(old.Bindings, ss.Bindings) {
		v.countBindings(s, bindingsOf(old), -1)
		v.countBindings(s, ss.Bindings, 1)
	}
	def := v.versions[ss.Number][s.name]
	if old == nil || def != s.def || !sameTarget(old, ss) {
		s.def = def
		v.reclassify(s)
	}
}

// sameTarget reports whether two goals of a service with the same definition make the
// same instances outdated.
func sameTarget(a, b *mariposa.ServiceStatus) bool {
	return outdatedBefore(a).Equal(outdatedBefore(b)) && aboutMetadata(a) == aboutMetadata(b) && reflect.DeepEqual(filterOf(a), filterOf(b)) &&
		reflect.DeepEqual(a.Bindings, b.Bindings)
}

func bindingsOf(s *mariposa.ServiceStatus) *mariposa.Bindings {
	if s == nil {
		return nil
	}
	return s.Bindings
}

func filterOf(s *mariposa.ServiceStatus) *mariposa.Filter {
	if s.Rollout == nil {
		return nil
	}
	return s.Rollout.Filter
}

func aboutMetadata(s *mariposa.ServiceStatus) bool { return s.Rollout != nil && s.Rollout.Metadata }

func outdatedBefore(s *mariposa.ServiceStatus) time.Time {
	if s.Rollout == nil {
		return time.Time{}
	}
	return s.Rollout.Before
}

// fallbackVersion returns the version that the current rollout may fall back to; 0: none.
func fallbackVersion(s *mariposa.ServiceStatus) int {
	if s.Rollout == nil {
		return 0
	}
	return s.Rollout.From
}

// SetInstance adds or updates an instance.
func (v *View) SetInstance(id string, spec *mariposa.InstanceSpec, status *mariposa.InstanceStatus) {
	i := newInstance(id, spec, status)
	v.touch(v.service(spec.ServiceName))
	if old, ok := v.instances[id]; ok {
		if v.replaceInstance(old, i) {
			return
		}
		if old.Spec.Node != spec.Node || old.Spec.ServiceName != spec.ServiceName {
			v.RemoveInstance(id) // for example, it was assigned to a node
		} else {
			v.remove(old)
		}
	}
	v.instances[id] = i
	on := v.byNode[spec.Node]
	if on == nil {
		on = map[string]struct{}{}
		v.byNode[spec.Node] = on
	}
	on[id] = struct{}{}
	v.add(v.service(spec.ServiceName), i)
}

func newInstance(id string, spec *mariposa.InstanceSpec, status *mariposa.InstanceStatus) *Instance {
	i := &Instance{ID: id, Spec: spec, Status: status, number: spec.Number, created: sortableTime(spec.Created)}
	i.since = sortableTime(since(i))
	return i
}

// sortableTime converts a time to a number with the same order.
func sortableTime(t time.Time) int64 {
	if t.IsZero() {
		return math.MinInt64
	}
	return t.UnixNano()
}

// replaceInstance replaces the record of an instance if its class and all sort positions
// stay the same.
func (v *View) replaceInstance(old, i *Instance) bool {
	s := v.services[old.Spec.ServiceName]
	if i.Spec.ServiceName != s.name || i.Spec.Node != old.Spec.Node || i.Spec.Slot != old.Spec.Slot ||
		i.number != old.number || i.created != old.created || i.since != old.since || s.members[i.ID] != v.classify(s, i) ||
		i.Spec.Bound != old.Spec.Bound || !sameValue(i.Spec.Bindings, old.Spec.Bindings) {
		return false
	}
	*old = *i
	return true
}

// RemoveInstance removes an instance whose record was deleted.
func (v *View) RemoveInstance(id string) {
	i, ok := v.instances[id]
	if !ok {
		return
	}
	s := v.services[i.Spec.ServiceName]
	v.touch(s)
	v.remove(i)
	delete(v.instances, id)
	if delete(v.byNode[i.Spec.Node], id); len(v.byNode[i.Spec.Node]) == 0 {
		delete(v.byNode, i.Spec.Node)
	}
	v.drop(s)
}

// SetNode sets whether a node is reachable. It costs time only on a change, and only for
// the instances on that node.
func (v *View) SetNode(id string, n Node) {
	old := v.nodes[id]
	v.nodes[id] = n
	if old == n || !old.Unknown && !n.Unknown && old.Draining == n.Draining {
		return
	}
	changes := old.Unknown != n.Unknown || old.Draining != n.Draining
	for _, on := range slices.Sorted(maps.Keys(v.byNode[id])) {
		i := v.instances[on]
		s := v.services[i.Spec.ServiceName]
		v.touch(s)
		if changes {
			v.nodes[id] = old
			v.remove(i)
			v.nodes[id] = n
			v.add(s, i)
		}
	}
}

// RemoveNode removes a node.
func (v *View) RemoveNode(id string) {
	v.SetNode(id, Node{})
	delete(v.nodes, id)
}

// Instance returns an instance, or nil if it is unknown.
func (v *View) Instance(id string) *Instance { return v.instances[id] }

// Len returns the number of instances in the view.
func (v *View) Len() int { return len(v.instances) }

// Definition returns the definition of a service in a version.
func (v *View) Definition(number int, name string) *mariposa.Service { return v.versions[number][name] }

func (v *View) service(name string) *service {
	s := v.services[name]
	if s == nil {
		s = newService(name)
		v.services[name] = s
	}
	return s
}

// drop removes a service that has neither a goal nor instances.
func (v *View) drop(s *service) {
	if s.status == nil && len(s.members) == 0 && !s.dropped {
		v.removeFromAgenda(s)
		delete(v.services, s.name)
	}
}

// UnwantedOn lists the unwanted instances on matching nodes, by id.
func (v *View) UnwantedOn(on func(Node) bool) []*Instance {
	var out []*Instance
	for _, name := range slices.Sorted(maps.Keys(v.services)) {
		for _, c := range []class{leaving, leavingLost} {
			v.services[name].each(c, func(i *Instance) bool {
				if on(v.nodes[i.Spec.Node]) {
					out = append(out, i)
				}
				return true
			})
		}
	}
	slices.SortFunc(out, func(a, b *Instance) int { return cmp.Compare(a.ID, b.ID) })
	return out
}
