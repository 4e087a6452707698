package converge

import (
	"fmt"
	"time"

	"mariposa"
)

// Forecast contains the steps to reach a goal if every step succeeds.
type Forecast struct {
	Steps    []ForecastStep
	Services map[string]*mariposa.ServiceStatus // their final status
	Todo     map[string]int                     // remaining instances by service: they wait for a user or a node
	Cut      bool                               // it was truncated: there are more steps
}

// ForecastStep is a step and its earliest time from now. The time that instances and
// nodes need is not included.
type ForecastStep struct {
	Step
	Follows string // the service that it follows; empty: none
	After   time.Duration
	Round   int // steps of the same plan have the same round; later plans have larger numbers
}

// ForecastOptions are the assumptions of a forecast.
type ForecastOptions struct {
	Goal     *mariposa.ProjectStatus // nil: the current goal
	Versions map[int]Definitions     // in addition to those in the view
	Now      time.Time
	Starting int                                   // maximum number of starting instances; 0: no limit
	Steps    int                                   // maximum number of steps; 0: 10,000
	Name     func(service string, slot int) string // names new instances; nil: like web.3#1
	// Stuck is called whenever nothing can be done for a while or for good, for each instance
	// on a node that is drained, with the status of its service at that moment. Nil: it is not
	// needed.
	Stuck func(i *Instance, ss *mariposa.ServiceStatus)
}

// maxForecastRounds limits the number of simulated plans, with or without steps.
const maxForecastRounds = 100_000

// Forecast repeatedly plans and assumes that every step succeeds immediately, until
// nothing is left to do. It does not change the view.
func (v *View) Forecast(f ForecastOptions) Forecast {
	w := v.copy(f)
	if f.Starting == 0 {
		f.Starting = 1 << 30
	}
	if f.Steps == 0 {
		f.Steps = 10_000
	}
	if f.Name == nil {
		made := 0
		f.Name = func(service string, slot int) string { made++; return fmt.Sprintf("%s.%d#%d", service, slot, made) }
	}
	var out Forecast
	for now, round := f.Now, 0; ; round++ {
		p := w.Plan(now, Budget{Starting: f.Starting})
		for _, s := range p.Steps {
			if len(out.Steps) == f.Steps {
				out.Cut = true
				w.recordEnd(&out, p)
				return out
			}
			out.Steps = append(out.Steps, ForecastStep{Step: s, Follows: w.followedService(p, s), After: now.Sub(f.Now), Round: round})
		}
		busy := w.carryOut(p, now, f.Name)
		if round == 0 {
			busy = w.services // instances that are already starting
		}
		moved := w.advanceNodes(now, busy)
		if len(p.Steps) > 0 || moved || p.PlanAgain {
			continue
		}
		w.reportStuck(f.Stuck)
		switch {
		case p.Wake.IsZero() || p.Todo == 0:
			w.recordEnd(&out, p)
			return out
		case round >= maxForecastRounds:
			out.Cut = true
			w.recordEnd(&out, p)
			return out
		default:
			now = p.Wake
		}
	}
}

// reportStuck names the instances that have to leave their nodes.
func (v *View) reportStuck(report func(*Instance, *mariposa.ServiceStatus)) {
	if report == nil {
		return
	}
	for _, s := range v.services {
		for _, i := range s.displaced {
			if s.status != nil {
				report(i, s.status)
			}
		}
	}
}

// followedService returns the service that a step follows; empty: none.
func (v *View) followedService(p Plan, s Step) string {
	st := p.Services[s.Service]
	if is := v.services[s.Service]; st == nil && is != nil {
		st = is.status
	}
	if s.Action != Create || st == nil || st.Rollout == nil {
		return ""
	}
	return st.Rollout.Follows
}

// recordEnd records the final status of the services.
func (v *View) recordEnd(out *Forecast, p Plan) {
	out.Services, out.Todo = map[string]*mariposa.ServiceStatus{}, map[string]int{}
	if st := v.goalInForce(); st != nil {
		out.Services = p.ApplyTo(st.Services)
	}
	for name, s := range v.services {
		out.Todo[name] = s.todo
	}
}

// copy returns a scratch copy of the view. Records are shared, because they never change.
func (v *View) copy(f ForecastOptions) *View {
	w := NewView()
	w.project = v.project
	for n, d := range v.versions {
		w.SetVersion(n, d)
	}
	for n, d := range f.Versions {
		w.SetVersion(n, d)
	}
	for id, n := range v.nodes {
		w.SetNode(id, n)
	}
	w.SetStorm(v.storm)
	for id, i := range v.instances {
		w.SetInstance(id, i.Spec, i.Status)
	}
	goal := f.Goal
	if goal == nil {
		goal = v.goalInForce()
	}
	if goal != nil {
		w.SetGoal(goal)
	}
	return w
}

// goalInForce returns the view's goal, as far as the plan needs it.
func (v *View) goalInForce() *mariposa.ProjectStatus {
	if !v.hasGoal {
		return nil
	}
	st := &mariposa.ProjectStatus{Goal: v.goal, Number: v.number, Services: map[string]*mariposa.ServiceStatus{}}
	for name, s := range v.services {
		if s.status != nil {
			st.Services[name] = s.status
		}
	}
	return st
}

// carryOut executes a plan and returns the services that have work to do now. It visits
// only what the plan names, so that a forecast over many layers does not visit all
// services for each layer.
func (v *View) carryOut(p Plan, now time.Time, name func(string, int) string) map[string]*service {
	v.ApplyPlan(p)
	for _, name := range p.Ended {
		v.clearGoal(v.services[name])
	}
	busy := map[string]*service{}
	for _, s := range p.Steps {
		v.applyStep(s, now, name)
		if is := v.services[s.Service]; is != nil {
			busy[s.Service] = is
		}
	}
	return busy
}

func (v *View) applyStep(s Step, now time.Time, name func(string, int) string) {
	if s.Action == Create {
		d, id := v.Definition(s.Number, s.Service), name(s.Service, s.Slot)
		v.SetInstance(id, &mariposa.InstanceSpec{
			Name: id, Slot: s.Slot, ServiceName: s.Service, Number: s.Number, Digest: d.Digest, Live: d.Live, Compute: d.Compute,
			Goal: mariposa.GoalRunning, Generation: 1, Created: now, Managed: true, Bindings: s.Bindings, Bound: s.Bound,
		}, nil)
		return
	}
	i := v.instances[s.Instance]
	spec := *i.Spec
	spec.Generation++
	switch s.Action {
	case Collect:
		v.RemoveInstance(i.ID)
		return
	case Remove:
		spec.Goal = mariposa.GoalGone
	case Preserve:
		spec.Goal, spec.Kept = mariposa.GoalHalted, i.Ended()
	case Update:
		spec.Number, spec.Live = s.Number, v.Definition(s.Number, s.Service).Live
	}
	v.SetInstance(i.ID, &spec, i.Status)
}

// advanceNodes makes every reachable node finish its work for some services. It reports
// whether there was any work.
func (v *View) advanceNodes(now time.Time, busy map[string]*service) bool {
	moved := false
	for _, s := range busy {
		for _, c := range []class{starting, outdatedStarting, updating, leaving} {
			var all []*Instance
			s.each(c, func(i *Instance) bool { all = append(all, i); return true })
			for _, i := range all {
				st := mariposa.InstanceStatus{Since: now, Started: now, PhysicalID: i.ID, Addresses: []string{i.ID}}
				if i.Status != nil {
					st = *i.Status
				}
				next := map[mariposa.Goal]mariposa.State{
					mariposa.GoalRunning: mariposa.StateRunning, mariposa.GoalHalted: mariposa.StateStopped, mariposa.GoalGone: mariposa.StateDestroyed,
				}[i.Spec.Goal]
				if st.State != next {
					st.State, st.Since = next, now
				}
				if st.Health == mariposa.HealthStarting {
					st.Health, st.Served, st.Since = mariposa.HealthHealthy, true, now
				}
				st.Generation = i.Spec.Generation
				v.SetInstance(i.ID, i.Spec, &st)
				moved = true
			}
		}
	}
	return moved
}
