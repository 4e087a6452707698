package simulate

import (
	"encoding/json"
	"time"

	"mariposa"
	"mariposa/store"
)

// A planner that changes nothing but its own records must come to an end: while the
// world stands still, it commits a few times and then waits.
const (
	// mostCommits is how often a project's planner may commit while the world
	// stands still.
	mostCommits = 32
	// rowEnds is the pause after which a commit no longer counts as in a row with
	// the previous one, as in the engine's guard.
	rowEnds = 2 * time.Minute
	// mostPlans is how often it may plan at all, with no change and no time passed.
	mostPlans = 64
	// mostBytes limits what is stored of a project's status for each of its
	// services, and of a task's status: a larger status must be nesting itself.
	mostBytes = 2 << 10
)

// stillness counts, by project, what its planner has done since the world last
// changed: since a person, a node or another planner wrote something about the
// project or a node. A planner's own writes are no change of the world.
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
		c.w.fail("the planner of %s committed %d times while the world stood still", tail(project), s.commits[project])
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

// checkProjectSize checks the stored size of a project's status and its services'.
// Each service is measured when it changes: one change costs no walk over all.
func (c *checker) checkProjectSize(name string, st *mariposa.ProjectStatus) {
	alone := *st
	alone.Services = nil
	total := c.stored(name, alone)
	for service, ss := range st.Services {
		n, known := c.sizes[ss]
		if !known {
			if len(c.sizes) > 4*len(st.Services)+1000 {
				clear(c.sizes) // most are of statuses that are no longer there
			}
			n = c.stored(name+"/"+service, ss)
			c.sizes[ss] = n
		}
		total += n + len(service) + 4 // its name, in quotes, a colon and a comma
	}
	if total > mostBytes*(1+len(st.Services)) {
		c.w.fail("the status of %s with %d services takes %d bytes: %.300v…", name, len(st.Services), total, st)
	}
}

func (c *checker) stored(what string, status any) int {
	b, err := json.Marshal(status)
	if err != nil {
		c.w.fail("the status of %s cannot be written: %v", what, err)
	}
	return len(b)
}
