package simulate

import (
	"maps"
	"slices"

	"mariposa"
	"mariposa/queue"
	"mariposa/store"
)

// holdChoices are what people ask for to hold things, to let them go, and to have
// them their way.
func (p *people) holdChoices(add func(int, func()), r *store.Record) {
	scope := p.scope(r)
	add(1, func() {
		p.act(r, mariposa.TaskFreeze, "", mariposa.Patch{Mode: mariposa.ModeFreeze}, scope...)
	})
	add(2, func() { p.order(r, "thaw", mariposa.Patch{Mode: mariposa.ModeThaw}, scope...) })
	add(1, func() { p.order(r, "pause", mariposa.Patch{Mode: mariposa.ModePause}, scope...) })
	add(2, func() { p.order(r, "resume", mariposa.Patch{Mode: mariposa.ModeResume}, scope...) })
	add(1, func() { p.order(r, "converge", mariposa.Patch{Retry: true}, scope...) })
	add(1, func() { p.order(r, "accept", mariposa.Patch{Accept: true}, scope...) })
	add(1, func() { p.canary(r) })
	add(1, func() { p.revert(r) })
	add(1, func() { p.terminate(r) })
	add(1, func() {
		if len(scope) > 0 {
			p.act(r, mariposa.TaskStop, "", mariposa.Patch{Goal: mariposa.GoalStopped}, scope...)
		}
	})
	add(1, func() {
		if len(scope) > 0 {
			p.act(r, mariposa.TaskStart, "", mariposa.Patch{Goal: mariposa.GoalStarted}, scope...)
		}
	})
}

// followerChoices are to freeze a service that refers to another, to thaw it again,
// and to have made anew what others refer to.
func (p *people) followerChoices(add func(int, func()), r *store.Record) {
	st, _ := r.Status.(*mariposa.ProjectStatus)
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
			if p.act(r, mariposa.TaskFreeze, "", mariposa.Patch{Mode: mariposa.ModeFreeze}, one(followers)) {
				p.w.seen["follower frozen"]++
			}
		})
		add(1, func() {
			name := one(followed)
			p.act(r, mariposa.TaskReprovision, "", mariposa.Patch{Reprovision: []string{name}}, name)
		})
	}
	if len(frozen) > 0 {
		add(2, func() { p.order(r, "thaw", mariposa.Patch{Mode: mariposa.ModeThaw}, one(frozen)) })
	}
}

// scope is the whole project or one of its services.
func (p *people) scope(r *store.Record) []string {
	st, _ := r.Status.(*mariposa.ProjectStatus)
	if st == nil || len(st.Services) == 0 || p.w.chance(2) {
		return nil
	}
	return []string{p.pick(st)}
}

// order asks for what begins at once and stands beside everything.
func (p *people) order(r *store.Record, component string, patch mariposa.Patch, services ...string) bool {
	task := &mariposa.TaskSpec{
		Project: r.ID, Services: services, Component: component, Task: mariposa.TaskStart, Origin: mariposa.OriginUser, Author: "people",
		Created: p.w.now, Patch: patch, Aside: true,
	}
	err := p.admit(r, task, []store.Write{{Kind: mariposa.KindProject, ID: r.ID, Project: r.ID, Spec: r.Spec}})
	p.w.note("people ask to %s %s %v: %v", component, r.Spec.(*mariposa.ProjectSpec).Name, services, err)
	if err == nil {
		p.w.seen["asked to "+component]++
		if patch.Accept {
			p.left[r.Spec.(*mariposa.ProjectSpec).Name] = true
		}
	}
	return err == nil
}

// canary has some of a service made anew.
func (p *people) canary(r *store.Record) {
	if st, _ := r.Status.(*mariposa.ProjectStatus); st != nil && len(st.Services) > 0 {
		name := p.pick(st)
		patch := mariposa.Patch{Reprovision: []string{name}, Canary: mariposa.Amount{N: 1 + p.w.rng.IntN(2)}}
		if p.w.chance(2) {
			patch.Filter = &mariposa.Filter{Nodes: []string{p.w.nodes[p.w.rng.IntN(len(p.w.nodes))].name}}
		}
		p.act(r, mariposa.TaskReprovision, "", patch, name)
	}
}

// revert makes the manifest of an older version current again.
func (p *people) revert(r *store.Record) {
	spec := r.Spec.(*mariposa.ProjectSpec)
	if spec.Number < 2 {
		return
	}
	old, err := p.w.store.Get(p.w.ctx, mariposa.KindVersion, mariposa.VersionID(r.ID, 1+p.w.rng.IntN(spec.Number-1)))
	if err != nil {
		return
	}
	if p.update(r, string(old.Spec.(*mariposa.VersionSpec).Manifest), "a revert to") {
		p.w.seen["reverted"]++
	}
}

// terminate ends one of a project's tasks.
func (p *people) terminate(r *store.Record) {
	records, open := p.open(r.ID)
	if len(open) == 0 {
		return
	}
	id := open[p.w.rng.IntN(len(open))].ID
	a, freeze, err := queue.Terminate(open, id)
	if err != nil {
		p.w.note("people cannot terminate %s: %v", tail(id), err)
		return
	}
	u := store.Unit{Require: []store.Require{{Kind: mariposa.KindProject, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: -1}}}
	by := ""
	if freeze != nil {
		freeze.Created = p.w.now
		add := p.task(r.ID, freeze)
		by = add.ID
		u.Writes = append(u.Writes, add)
	}
	p.end(&u, records, a.Terminate, by)
	err = p.commit(u)
	p.w.note("people terminate %s of %s: %v", tail(id), r.Spec.(*mariposa.ProjectSpec).Name, err)
	if err == nil {
		p.w.seen["terminated"]++
		p.left[r.Spec.(*mariposa.ProjectSpec).Name] = true
	}
}

// finishHolds asks for what is held, or was left out, to be done to the end. It
// waits for the newest version to come into force: to ask before would end its
// task. One that was taken back is submitted again.
func (p *people) finishHolds(r *store.Record) bool {
	spec := r.Spec.(*mariposa.ProjectSpec)
	st, _ := r.Status.(*mariposa.ProjectStatus)
	if st == nil || st.Number != spec.Number {
		p.sound[spec.Name] = st == nil || st.Undone != spec.Number
		return false
	}
	names := slices.Sorted(maps.Keys(st.Services))
	return p.act(r, mariposa.TaskReprovision, "", mariposa.Patch{Reprovision: names})
}
