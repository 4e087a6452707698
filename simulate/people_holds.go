package simulate

import (
	"maps"
	"slices"
	"strconv"

	"mariposa"
	"mariposa/auth"
	"mariposa/change"
	"mariposa/contract"
	"mariposa/store"
)

// holdChoices are the requests that hold, release and override rollouts.
func (p *people) holdChoices(add func(int, func()), r *store.Project) {
	scope := p.scope(r)
	on := func(weight int, action string) {
		add(weight, func() { p.act(r, change.Action{Action: action, Services: scope}) })
	}
	on(1, "freeze")
	on(2, "thaw")
	on(1, "pause")
	on(2, "resume")
	on(1, "converge")
	on(1, "accept")
	add(1, func() { p.canary(r) })
	add(1, func() { p.revert(r) })
	add(1, func() { p.terminate(r) })
	if len(scope) > 0 {
		on(1, "stop")
		on(1, "start")
	}
}

// followerChoices are the requests to freeze and thaw a service that refers to another,
// and to reprovision a service that others refer to.
func (p *people) followerChoices(add func(int, func()), r *store.Project) {
	st := r.Status()
	if st == nil {
		return
	}
	var followers, followed, frozen []string
	for _, name := range slices.Sorted(maps.Keys(st.Services)) {
		ss := st.Services[name]
		if ss.Bindings != nil {
			followers = append(followers, name)
			followed = append(followed, slices.Sorted(maps.Keys(ss.Bindings.To))...)
		}
		if ss.Frozen != nil {
			frozen = append(frozen, name)
		}
	}
	one := func(names []string) string { return names[p.w.rng.IntN(len(names))] }
	if len(followers) > 0 {
		add(1, func() {
			if p.act(r, change.Action{Action: "freeze", Services: []string{one(followers)}}) {
				p.w.seen["follower frozen"]++
			}
		})
		add(1, func() {
			p.act(r, change.Action{Action: "reprovision", Services: []string{one(followed)}})
		})
	}
	if len(frozen) > 0 {
		add(2, func() { p.act(r, change.Action{Action: "thaw", Services: []string{one(frozen)}}) })
	}
}

// scope returns the whole project or one of its services.
func (p *people) scope(r *store.Project) []string {
	name := p.pickService(r)
	if name == "" || p.w.chance(2) {
		return nil
	}
	return []string{name}
}

// canary reprovisions some instances of a service.
func (p *people) canary(r *store.Project) {
	if name := p.pickService(r); name != "" {
		a := change.Action{Action: "reprovision", Services: []string{name}, Canary: mariposa.Amount{N: 1 + p.w.rng.IntN(2)}}
		if p.w.chance(2) {
			a.Filter = &change.Filter{Nodes: []string{p.w.nodes[p.w.rng.IntN(len(p.w.nodes))].name}}
		}
		p.act(r, a)
	}
}

// revert makes an older version current again: a given one, or the newest one that was
// fully rolled out.
func (p *people) revert(r *store.Project) {
	a := change.Action{Action: "revert"}
	if number := r.Spec().Number; number > 1 && !p.w.chance(3) {
		a.Version, a.WithScale = strconv.Itoa(1+p.w.rng.IntN(number-1)), p.w.chance(4)
	}
	p.act(r, a)
}

// terminate terminates one of a project's tasks.
func (p *people) terminate(r *store.Project) {
	open := p.asked.picture.TasksOf(r.ID)
	if len(open) == 0 {
		return
	}
	task := open[p.w.rng.IntN(len(open))]
	p.send(&request{
		what: "terminate " + tail(task.ID) + " of " + nameOf(r), permission: auth.Operate, onSuccess: func() { p.left[nameOf(r)] = true },
		ask: func(c *change.Changer, req *change.Request) (*contract.Changed, error) {
			_, err := c.Terminate(p.w.ctx, req, task)
			return nil, err
		},
	})
}

// finishHolds requests the completion of everything held or left out. It waits until the
// newest version is current, because an earlier request would end its task. It resubmits
// a version that was rolled back.
func (p *people) finishHolds(r *store.Project) bool {
	spec, st := r.Spec(), r.Status()
	if st == nil || st.Number != spec.Number {
		p.settling[spec.Name] = st == nil || st.RolledBack != spec.Number
		return false
	}
	return p.act(r, change.Action{Action: "reprovision"})
}
