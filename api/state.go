package api

import (
	"cmp"
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/queue"
	"mariposa/reason"
	"mariposa/store"
)

type getStateInput struct {
	InProject
	Service string `query:"service" doc:"id or name of a service"`
}

func (s *server) getState(ctx context.Context, in *getStateInput) (*document[contract.State], error) {
	if in.Project != "" {
		return s.stateOf(ctx, in.Project, in.Organization, in.Service)
	}
	v := s.viewer(ctx)
	revision := s.Picture.Revision()
	projects, err := s.projectsFor(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	doc := contract.State{Revision: revision, Projects: make([]contract.ProjectState, 0, len(projects))}
	for _, r := range projects {
		st, ok := s.projectState(v, r.ID)
		if !ok {
			continue // deleted in the meantime
		}
		if in.Service != "" {
			if st = narrowToService(st, in.Service); len(st.Services) == 0 {
				continue
			}
		}
		doc.Projects = append(doc.Projects, st)
	}
	return answer(doc)
}

func (s *server) getProjectState(ctx context.Context, in *OfProject) (*document[contract.State], error) {
	return s.stateOf(ctx, in.Project, in.Organization, "")
}

// OfService are the parameters of paths to a service.
type OfService struct {
	OfProject
	Service string `path:"service" doc:"id or name" maxLength:"255"`
}

func (s *server) getServiceState(ctx context.Context, in *OfService) (*document[contract.State], error) {
	return s.stateOf(ctx, in.Project, in.Organization, in.Service)
}

// stateOf returns the state of one project, or of one of its services.
func (s *server) stateOf(ctx context.Context, project, organization, service string) (*document[contract.State], error) {
	r, err := s.findProject(ctx, project, organization)
	if err != nil {
		return nil, err
	}
	revision := s.Picture.Revision()
	st, ok := s.projectState(s.viewer(ctx), r.ID)
	if !ok {
		return nil, notFound("project %q was just deleted", project)
	}
	if service != "" {
		all := st
		if st = narrowToService(st, service); len(st.Services) == 0 {
			return nil, unknownService(all, service)
		}
	}
	return answer(contract.State{Revision: revision, Projects: []contract.ProjectState{st}})
}

// unknownService says which services a project has instead.
func unknownService(st contract.ProjectState, service string) error {
	var names []string
	for _, one := range st.Services {
		names = append(names, one.Name)
	}
	return mariposa.UnknownService(st.Name, service, names)
}

// narrowToService narrows a state to one service.
func narrowToService(st contract.ProjectState, service string) contract.ProjectState {
	var services []contract.ServiceState
	for _, one := range st.Services {
		if one.ID == service || one.Name == service {
			services = append(services, one)
		}
	}
	st.Services = services
	return st
}

// stateCache keeps the last count of each project: concurrent readers share one count,
// and an unchanged project is not counted again.
type stateCache struct {
	mu       sync.Mutex
	states   map[string]counted
	counting [64]sync.Mutex // serialize the counts of a project; projects share locks
}

type counted struct {
	revision int64
	until    time.Time // zero: until the project changes
	stateWithReasons
}

// stateWithReasons is a state with the reasons from which its texts are generated.
type stateWithReasons struct {
	contract.ProjectState
	why      *mariposa.Reason
	services []serviceReasons // in the order of the services
	// passing is set if the counts change by time alone: instances have not run long enough.
	passing bool
}

// serviceReasons are a service's reason, and an additional one.
type serviceReasons struct{ why, also *mariposa.Reason }

func (w serviceReasons) at(now time.Time, say func(*mariposa.Reason, time.Time) string) string {
	return strings.TrimPrefix(strings.TrimSuffix(say(w.why, now)+"; "+say(w.also, now), "; "), "; ")
}

// at returns the state with texts for a point in time and for a reader. What depends on the
// reader also depends on the time.
func (st stateWithReasons) at(now time.Time, say func(*mariposa.Reason, time.Time) string) contract.ProjectState {
	doc := st.ProjectState
	if reason.Timed(st.why) {
		doc.Reason = say(st.why, now)
	}
	for i, w := range st.services {
		if !reason.Timed(w.why) {
			continue
		}
		if &doc.Services[0] == &st.Services[0] { // the cached state is shared
			doc.Services = slices.Clone(doc.Services)
		}
		doc.Services[i].Reason = w.at(now, say)
	}
	return doc
}

var countSeed = maphash.MakeSeed()

// get returns a count of at least a revision.
func (c *stateCache) get(project string, revision int64, now time.Time) (stateWithReasons, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one, ok := c.states[project]
	return one.stateWithReasons, ok && one.revision >= revision && (one.until.IsZero() || now.Before(one.until))
}

// passingTime is how long a count is kept that changes by time alone.
const passingTime = time.Second

// put stores a count. If there are too many, it drops all: projects come and go.
func (c *stateCache) put(revision int64, st stateWithReasons, now time.Time, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.states == nil || len(c.states) > most {
		c.states = map[string]counted{}
	}
	if old := c.states[st.ID]; old.revision <= revision {
		one := counted{revision: revision, stateWithReasons: st}
		if st.passing {
			one.until = now.Add(passingTime)
		}
		c.states[st.ID] = one
	}
}

// projectState returns the desired and actual state of a project; false if there is no such
// project. The result is shared and must not be changed.
func (s *server) projectState(v *viewer, id string) (contract.ProjectState, bool) {
	st, ok := s.countProject(v, id)
	return st.at(s.Clock.Now(), v.wording(id)), ok
}

// countProject counts a project, unless it was counted since it last changed.
func (s *server) countProject(v *viewer, id string) (stateWithReasons, bool) {
	changed, now := s.Picture.TouchedAt(id), s.Clock.Now()
	if st, ok := s.states.get(id, changed, now); ok {
		return st, true
	}
	counting := &s.states.counting[maphash.String(countSeed, id)%uint64(len(s.states.counting))]
	counting.Lock()
	defer counting.Unlock()
	if st, ok := s.states.get(id, changed, now); ok {
		return st, true
	}
	revision := s.Picture.Revision()
	p := s.Picture.Projects.Get(id)
	if p == nil {
		return stateWithReasons{}, false
	}
	tallies := s.tallies.take(id)
	st := s.viewer(v.ctx).state(p, tallies) // a new viewer: the cache of v may be older
	if v.ctx.Err() == nil {                 // otherwise versions may be missing
		s.states.put(revision, st, now, 1000+2*s.Picture.Projects.Len())
		s.tallies.give(id, tallies, now)
	}
	return st, true
}

// state shows a project with the counts of its services.
func (v *viewer) state(r *store.Project, tallies *projectTallies) stateWithReasons {
	spec := r.Spec()
	doc := contract.ProjectState{ID: r.ID, Name: spec.Name, Organization: spec.Organization, OrganizationName: v.orgName(spec.Organization), Version: spec.Version, Services: []contract.ServiceState{}}
	goal, status, why := v.projectStatus(r)
	doc.Goal, doc.Status = goal, status
	if st := r.Status(); st != nil {
		doc.Frozen, doc.Paused = st.IsFrozen(), st.IsPaused()
	}
	goals := v.goals(r)
	if st := r.Status(); st != nil {
		doc.Version = st.Version
	}
	tallies.count(v, r, goals)
	waiting := v.awaitsThaw(r)
	var all []serviceReasons
	passing := false
	for _, name := range slices.Sorted(maps.Keys(goals)) {
		one, w := v.service(r.ID, name, goals[name], tallies.services[name])
		if waiting != nil && queue.Overlap(waiting.services, []string{name}) {
			w.why = waiting.addTo(w.why)
		}
		if w.why == nil && one.Status == mariposa.StatusStopped && doc.Status == mariposa.StatusStopped && why != nil && why.Service == "" {
			w.why = why // one reason for all stopped services, unless it is about one of them
		}
		if why == nil && doc.Status == mariposa.StatusConverging && one.Status == mariposa.StatusConverging {
			why = w.why.About(name)
		}
		one.Reason, one.ReasonCode = w.at(v.s.Clock.Now(), reason.At), codeOf(cmp.Or(w.why, w.also))
		doc.Services, all = append(doc.Services, one), append(all, w)
		passing = passing || len(tallies.services[name].young) > 0
	}
	if why == nil && doc.Status == mariposa.StatusConverging {
		why = &mariposa.Reason{Code: mariposa.ReasonUnplanned}
	}
	doc.Reason, doc.ReasonCode = v.sentence(why)
	return stateWithReasons{doc, why, all, passing}
}

// goals returns the goals of a project's services: those in force, or before the first plan
// those of the manifest.
func (v *viewer) goals(r *store.Project) map[string]*mariposa.ServiceStatus {
	if st := r.Status(); st != nil {
		goals := maps.Clone(st.Services)
		if goals == nil {
			goals = map[string]*mariposa.ServiceStatus{}
		}
		return goals
	}
	return v.submittedGoals(r)
}

// submittedGoals returns the initial goals of a project's newest manifest.
func (v *viewer) submittedGoals(r *store.Project) map[string]*mariposa.ServiceStatus {
	spec := r.Spec()
	if first := v.version(r.ID, spec.Number); first != nil {
		return first.InitialGoals(spec.Services)
	}
	return map[string]*mariposa.ServiceStatus{}
}

func (v *viewer) service(project, name string, ss *mariposa.ServiceStatus, t *tally) (contract.ServiceState, serviceReasons) {
	doc := contract.ServiceState{
		ID: ss.ID, Name: name, Version: v.sha(project, ss.Number), Number: ss.Number, Goal: ss.Scale,
		Running: t.n[isRunning], Healthy: t.n[isHealthy], Starting: t.n[isStarting], Stopping: t.n[isStopping],
		Failed: t.n[isFailed], Unknown: t.n[isUnknown], Outdated: t.n[isOutdated],
		Frozen: ss.Frozen != nil, Paused: ss.Paused, Status: cmp.Or(ss.Status, mariposa.StatusConverging),
	}
	if ss.Removed {
		doc.Goal = 0
	}
	if ss.Backoff != nil {
		doc.Backoff = &contract.Backoff{Failures: ss.Backoff.Failures, Until: ss.Backoff.Until}
	}
	w := serviceReasons{why: ss.Reason}
	if w.why == nil && doc.Status == mariposa.StatusConverging {
		w.why = t.reason(v, doc.Goal)
	}
	if w.why == nil && t.n[isOutdated] > 0 {
		w.why = v.whyOutdated(project, name, ss.Number, t)
	}
	if name := t.neverStops(); name != "" {
		w.also = &mariposa.Reason{Code: mariposa.ReasonLingers, Subject: name}
	}
	return doc, w
}

// whyOutdated returns why instances are outdated although no rollout updates them: their
// metadata has changed since they were created.
func (v *viewer) whyOutdated(project, name string, number int, t *tally) *mariposa.Reason {
	why := &mariposa.Reason{Code: mariposa.ReasonOutdatedValues, Subject: name, Count: t.n[isOutdated], Version: slices.Min(slices.Collect(maps.Keys(t.made)))}
	if t.n[isOther] > 0 { // no rollout replaces them, for example after an accept
		why.Code, why.Of = mariposa.ReasonOutdated, number
		return why
	}
	if now := v.version(project, number); now != nil {
		uses := now.Manifest.Uses(name)
		for made := range t.made {
			then := v.version(project, made)
			if then == nil {
				continue
			}
			for _, c := range manifest.DiffValues(then.Values, now.Values) {
				if slices.Contains(uses, c.Key) {
					why.Keys = append(why.Keys, c.Key)
				}
			}
		}
	}
	slices.Sort(why.Keys)
	why.Keys = slices.Compact(why.Keys)
	return why
}
