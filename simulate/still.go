package simulate

import (
	"encoding/json"
	"time"

	"mariposa"
	"mariposa/store"
)

// A planner that changes only its own records must come to an end: while the world does
// not change, it may commit a few times and must then wait.
const (
	// mostCommits limits the commits of a project's planner while the world does not
	// change.
	mostCommits = 32
	// rowEnds is the pause after which a commit no longer counts as consecutive, as in
	// the engine's guard.
	rowEnds = 2 * time.Minute
	// mostPlans limits the plans without any change and without time passing.
	mostPlans = 64
	// mostBytes limits the stored size of a project's status per service, and of a task's
	// status. A larger status probably nests itself.
	mostBytes = 2 << 10
)

// stillness counts, by project, what its planner has done since the world last changed,
// that is, since a user, a node or another planner wrote something about the project or a
// node. The planner's own writes do not count.
type stillness struct {
	commits map[string]int
	plans   map[string]int
	ticks   map[string]int // when a project was last planned, in timers fired
	from    int64          // the revisions that the current plan has written
	to      int64
	at      map[string]time.Time // when a project's planner last committed
}

func newStillness() stillness {
	return stillness{commits: map[string]int{}, plans: map[string]int{}, ticks: map[string]int{}, at: map[string]time.Time{}}
}

// countPlan counts one plan and the changes it has written.
func (c *checker) countPlan(project string, changes []store.Change) {
	s := &c.still
	if s.ticks[project] != c.w.ticks {
		s.ticks[project], s.plans[project] = c.w.ticks, 0
	}
	if s.plans[project]++; s.plans[project] > mostPlans {
		c.w.fail("%s was planned %d times while nothing changed and no time passed", tail(project), s.plans[project])
	}
	if len(changes) == 0 {
		return
	}
	s.from, s.to = changes[0].Revision, changes[len(changes)-1].Revision
	if c.w.now.Sub(s.at[project]) >= rowEnds {
		s.commits[project] = 0
	}
	s.at[project] = c.w.now
	if s.commits[project]++; s.commits[project] > mostCommits {
		c.w.fail("the planner of %s committed %d times while nothing else changed", tail(project), s.commits[project])
	}
	c.w.seen["most commits in a row"] = max(c.w.seen["most commits in a row"], s.commits[project])
}

// noteChange handles a change of the world.
func (s *stillness) noteChange(ch *store.Change) {
	if s.from <= ch.Revision && ch.Revision <= s.to {
		return
	}
	switch spec := ch.Record.Spec.(type) {
	case *mariposa.NodeSpec:
		clear(s.commits)
		clear(s.plans)
		return
	case *mariposa.ProjectSpec:
		s.forget(ch.Record.ID)
	case *mariposa.InstanceSpec:
		s.forget(spec.Project)
	default:
		s.forget(ch.Record.Project)
		s.forget(ch.Event.Project)
	}
}

func (s *stillness) forget(project string) {
	delete(s.commits, project)
	delete(s.plans, project)
}

// checkStatusSize checks the stored size of a status.
func (c *checker) checkStatusSize(what string, status any) {
	if n := c.stored(what, status); n > mostBytes {
		c.w.fail("the status of %s takes %d bytes: %.300v…", what, n, status)
	}
}

// checkProjectSize checks the stored size of a project's status and of its services. It
// measures each service only when the service changes.
func (c *checker) checkProjectSize(name string, st *mariposa.ProjectStatus) {
	alone := *st
	alone.Services = nil
	total := c.stored(name, alone)
	for service, ss := range st.Services {
		n, known := c.sizes[ss]
		if !known {
			if len(c.sizes) > 4*len(st.Services)+1000 {
				clear(c.sizes) // most of these statuses no longer exist
			}
			n = c.stored(name+"/"+service, ss)
			c.sizes[ss] = n
		}
		total += n + len(service) + 4 // the name in quotes, a colon and a comma
	}
	if total > mostBytes*(1+len(st.Services)) {
		c.w.fail("the status of %s with %d services takes %d bytes: %.300v…", name, len(st.Services), total, st)
	}
}

func (c *checker) stored(what string, status any) int {
	b, err := json.Marshal(status)
	if err != nil {
		c.w.fail("encode the status of %s: %v", what, err)
	}
	return len(b)
}
