package simulate

import (
	"crypto/sha1" //nolint:gosec // the contract names versions by SHA-1
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"mariposa"
	"mariposa/manifest"
	"mariposa/queue"
	"mariposa/store"
)

// people ask for things, as the API would on their behalf: what they read comes
// from the picture, what they want is one commit that fails if they read old news.
type people struct {
	w        *World
	asked    *server           // the replica that answers them now
	projects map[string]string // name -> id
	sound    map[string]bool   // projects for which peace has been asked
	tries    map[string]int    // how often a version was submitted again in peace
	drafts   map[string]*draft // the manifests that were last submitted, by name of the project
	left     map[string]bool   // projects of which people have left something as it was, by accepting it or by ending a task
	last     string            // the newest task that was admitted
	peace    time.Time         // when people began to ask for sound things
}

var projectNames = []string{"p1", "p2", "p3"}

func (p *people) choices(add func(int, func())) {
	if len(p.w.servers) == 0 {
		return
	}
	p.asked = p.w.servers[p.w.rng.IntN(len(p.w.servers))]
	names := projectNames
	if p.w.Graph {
		names = names[:1]
	}
	for _, name := range names {
		id, r := p.project(name)
		if r == nil {
			if id == "" || p.w.chance(10) {
				add(1, func() { p.create(name, p.draw(name, false)) })
			}
			continue
		}
		if !p.w.chance(3) {
			continue
		}
		add(1, func() { p.update(r, p.draw(name, false), "manifest") })
		add(1, func() { p.rescale(r) })
		if p.w.chance(6) {
			add(1, func() { p.act(r, mariposa.TaskStop, "", mariposa.Patch{Goal: mariposa.GoalStopped}) })
			add(2, func() { p.start(r) })
			add(1, func() { p.reprovision(r) })
		}
		if p.w.chance(4) {
			p.holdChoices(add, r)
		}
		if p.w.chance(4) {
			p.followerChoices(add, r)
		}
		if p.w.chance(25) {
			add(1, func() { p.delete(r) })
		}
	}
	if p.w.chance(10) && len(p.asked.picture.VolumesLeftTo("default")) > 0 {
		add(1, p.deleteVolume)
	}
}

// project finds a project by name in what the server's picture shows.
func (p *people) project(name string) (string, *store.Record) {
	id := p.projects[name]
	if id == "" {
		return "", nil
	}
	r := p.asked.picture.Get(mariposa.KindProject, id)
	if r != nil && r.Spec.(*mariposa.ProjectSpec).Deleting {
		r = nil
	}
	return id, r
}

// draw is the next manifest of a project: often what it had before with a few
// things changed.
func (p *people) draw(name string, sound bool) string {
	d := p.drafts[name]
	if d == nil || sound || p.w.chance(3) {
		d = p.write(sound)
	} else {
		d = p.edit(d)
	}
	p.drafts[name] = d
	return d.String()
}

func (p *people) create(name, body string) bool {
	id := p.w.newID()
	spec := &mariposa.ProjectSpec{Name: name, Organization: "default", Created: p.w.now}
	writes, task := p.version(id, spec, nil, []byte(body), mariposa.TaskStart)
	writes = append(writes, store.Write{Kind: mariposa.KindName, ID: mariposa.NameID("default", name), Spec: &mariposa.NameSpec{Project: id}})
	task.Patch.Goal = mariposa.GoalStarted
	add := p.task(id, task)
	err := p.commit(store.Unit{
		Require: []store.Require{{Kind: mariposa.KindName, ID: mariposa.NameID("default", name), Absent: true}},
		Writes:  append(writes, add),
	})
	p.w.note("people create %s: %v", name, err)
	if err == nil {
		p.projects[name], p.last = id, add.ID
	}
	return err == nil
}

// version writes the next version of a project.
func (p *people) version(id string, spec *mariposa.ProjectSpec, old *manifest.Project, body []byte, kind mariposa.TaskKind) ([]store.Write, *mariposa.TaskSpec) {
	m, err := p.w.parse(body)
	if err != nil {
		p.w.fail("the simulated manifest is wrong: %v\n%s", err, body)
	}
	if p.w.Trace != nil {
		fmt.Fprintf(p.w.Trace, "%s", body)
	}
	sum := sha1.Sum(body) //nolint:gosec // see the import
	spec.Number, spec.Version = spec.Number+1, hex.EncodeToString(sum[:])
	ids := map[string]string{}
	for name, sid := range spec.Services {
		ids[name] = sid
	}
	for _, s := range m.Services {
		if ids[s.Name] == "" {
			ids[s.Name] = p.w.newID()
		}
	}
	spec.Services = ids
	changed := manifest.Changed(manifest.Diff(old, m))
	v := &mariposa.VersionSpec{Project: id, Version: spec.Version, Number: spec.Number, Manifest: body, Created: p.w.now, Changed: changed}
	task := &mariposa.TaskSpec{Project: id, Task: kind, Origin: mariposa.OriginUser, Author: "people", Created: p.w.now, Version: spec.Version, Patch: mariposa.Patch{Number: spec.Number}}
	if kind == mariposa.TaskReprovision {
		task.Services = changed
	}
	return []store.Write{
		{Kind: mariposa.KindProject, ID: id, Project: id, Spec: spec},
		{Kind: mariposa.KindVersion, ID: mariposa.VersionID(id, spec.Number), Project: id, Spec: v},
	}, task
}

func (p *people) task(project string, spec *mariposa.TaskSpec) store.Write {
	return store.Write{Kind: mariposa.KindTask, ID: p.w.newID(), Project: project, Spec: spec, Event: mariposa.Event{Kind: "task.queued"}}
}

func (p *people) update(r *store.Record, body, what string) bool {
	spec := *r.Spec.(*mariposa.ProjectSpec)
	old, err := p.w.store.Get(p.w.ctx, mariposa.KindVersion, mariposa.VersionID(r.ID, spec.Number))
	if err != nil {
		return false
	}
	was, err := p.w.parse(old.Spec.(*mariposa.VersionSpec).Manifest)
	if err != nil {
		p.w.fail("a stored manifest cannot be read: %v", err)
	}
	writes, task := p.version(r.ID, &spec, was, []byte(body), mariposa.TaskReprovision)
	if len(task.Services) == 0 {
		return false
	}
	task.Supersedes = true
	_, open := p.open(r.ID)
	goal, _ := r.Status.(*mariposa.ProjectStatus)
	next, err := queue.Bring(open, goal, *task, queue.Difference{Services: task.Services, Other: true},
		func(map[string]bool) (queue.Difference, error) { return queue.Difference{}, nil })
	if err != nil {
		p.w.fail("what a version changes cannot be told: %v", err)
	}
	task = &next
	err = p.admit(r, task, writes)
	p.w.note("people submit %s %d of %s: %v", what, spec.Number, spec.Name, err)
	return err == nil
}

// act asks for a task that needs no new version.
func (p *people) act(r *store.Record, kind mariposa.TaskKind, component string, patch mariposa.Patch, services ...string) bool {
	spec := *r.Spec.(*mariposa.ProjectSpec)
	if patch.Goal == mariposa.GoalDeleted {
		spec.Deleting, spec.DropVolumes = true, p.w.chance(2)
	}
	task := &mariposa.TaskSpec{
		Project: r.ID, Services: services, Component: component, Task: kind, Origin: mariposa.OriginUser, Author: "people", Created: p.w.now, Patch: patch,
		Lifts: kind != mariposa.TaskFreeze && (spec.Deleting || !p.w.chance(3)), // the others are deployers
	}
	writes := []store.Write{{Kind: mariposa.KindProject, ID: r.ID, Project: r.ID, Spec: &spec}}
	if spec.Deleting {
		writes = append(writes, store.Write{Kind: mariposa.KindName, ID: mariposa.NameID("default", spec.Name), Delete: true})
	}
	err := p.admit(r, task, writes)
	p.w.note("people ask to %s %s %v: %v", kind, spec.Name, services, err)
	return err == nil
}

// start starts a project, with its first version where none has come into force.
func (p *people) start(r *store.Record) bool {
	patch := mariposa.Patch{Goal: mariposa.GoalStarted}
	if st, _ := r.Status.(*mariposa.ProjectStatus); st == nil || st.Number == 0 {
		patch.Number = r.Spec.(*mariposa.ProjectSpec).Number
	}
	return p.act(r, mariposa.TaskStart, "", patch)
}

func (p *people) rescale(r *store.Record) {
	st, _ := r.Status.(*mariposa.ProjectStatus)
	if st == nil || len(st.Services) == 0 {
		return
	}
	name := p.pick(st)
	if p.w.chance(2) {
		p.act(r, mariposa.TaskScale, "", mariposa.Patch{Scale: map[string]int{name: p.w.rng.IntN(7)}}, name)
	} else {
		p.act(r, mariposa.TaskScale, "", mariposa.Patch{ScaleBy: map[string]int{name: p.w.rng.IntN(3) - 1}}, name)
	}
}

func (p *people) reprovision(r *store.Record) {
	if st, _ := r.Status.(*mariposa.ProjectStatus); st != nil && len(st.Services) > 0 {
		name := p.pick(st)
		p.act(r, mariposa.TaskReprovision, "", mariposa.Patch{Reprovision: []string{name}}, name)
	}
}

func (p *people) pick(st *mariposa.ProjectStatus) string {
	var names []string
	for name := range st.Services {
		names = append(names, name)
	}
	slices.Sort(names)
	return names[p.w.rng.IntN(len(names))]
}

func (p *people) delete(r *store.Record) bool {
	gone := p.act(r, mariposa.TaskStop, "delete", mariposa.Patch{Goal: mariposa.GoalDeleted})
	if gone {
		delete(p.projects, r.Spec.(*mariposa.ProjectSpec).Name)
	}
	return gone
}

// open finds the open tasks of a project.
func (p *people) open(project string) ([]*store.Record, []queue.Task) {
	var open []queue.Task
	records := p.asked.picture.TasksOf(project)
	for _, t := range records {
		st, _ := t.Status.(*mariposa.TaskStatus)
		open = append(open, queue.Task{ID: t.ID, Spec: t.Spec.(*mariposa.TaskSpec), Status: st})
	}
	return records, open
}

// admit adds a task beside the open ones, in one commit with what comes with it.
func (p *people) admit(r *store.Record, task *mariposa.TaskSpec, writes []store.Write) error {
	records, open := p.open(r.ID)
	a, err := queue.Admit(open, task)
	if err != nil {
		return err
	}
	u := store.Unit{Require: []store.Require{{Kind: mariposa.KindProject, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: -1}}}
	add := p.task(r.ID, task)
	p.end(&u, records, a.Terminate, add.ID)
	u.Writes = append(u.Writes, writes...)
	u.Writes = append(u.Writes, add)
	if err := p.commit(u); err != nil {
		return err
	}
	p.last = add.ID
	return nil
}

// end adds to a unit that tasks end by another.
func (p *people) end(u *store.Unit, records []*store.Record, tasks []queue.Task, by string) {
	for _, t := range tasks {
		at := slices.IndexFunc(records, func(x *store.Record) bool { return x.ID == t.ID })
		st := mariposa.TaskStatus{}
		if t.Status != nil {
			st = *t.Status
		}
		st.State, st.Finished, st.EndedBy = mariposa.TaskTerminated, p.w.now, by
		u.Require = append(u.Require, store.Require{Kind: mariposa.KindTask, ID: t.ID, SpecRevision: -1, StatusRevision: records[at].StatusRevision})
		u.Writes = append(u.Writes, store.Write{Kind: mariposa.KindTask, ID: t.ID, Project: records[at].Project, Status: &st, Archive: true, Event: mariposa.Event{Kind: "task.terminated"}})
	}
}

func (p *people) commit(u store.Unit) error {
	err := p.w.store.Commit(p.w.ctx, u)[0].Err
	if err != nil && !errors.Is(err, store.ErrConflict) {
		p.w.fail("the store refuses people: %v", err)
	}
	return err
}

// askForSoundThings gives every project a manifest that can be reached, and
// starts what is stopped. It reports whether all of that has been admitted.
func (p *people) askForSoundThings() bool {
	all := true
	for _, name := range projectNames {
		_, r := p.project(name)
		if r == nil || p.sound[name+"/started"] {
			continue
		}
		switch {
		case !p.sound[name+"/thawed"]:
			p.sound[name+"/thawed"] = p.order(r, "thaw", mariposa.Patch{Mode: mariposa.ModeThaw})
		case !p.sound[name+"/resumed"]:
			p.sound[name+"/resumed"] = p.order(r, "resume", mariposa.Patch{Mode: mariposa.ModeResume})
		case !p.sound[name] && p.mayRescale(r.ID):
		case !p.sound[name] && p.mends(name, r):
			p.sound[name] = p.submitMended(name, r)
		case !p.sound[name]:
			p.sound[name] = p.update(r, p.draw(name, true), "a sound manifest")
		case !p.sound[name+"/finished"] && p.mends(name, r):
			p.sound[name+"/finished"] = p.finishMended(r)
		case !p.sound[name+"/finished"]:
			p.sound[name+"/finished"] = p.finishHolds(r)
		default:
			p.sound[name+"/started"] = p.start(r)
		}
		all = false
	}
	return all
}

// askAgain reports whether a sound version was taken back after everything had been
// asked for, as there was no room for it while another project rolled, say; or has
// stopped, as a volume is on a node that others fill. People make room and submit
// another one then, a few times.
func (p *people) askAgain() bool {
	again := false
	for _, name := range projectNames {
		_, r := p.project(name)
		if r == nil || !p.sound[name+"/started"] || p.tries[name] == 3 {
			continue
		}
		st, _ := r.Status.(*mariposa.ProjectStatus)
		full := p.lacksRoom(st)
		if full {
			p.w.enlargeNodes()
		}
		if full || st != nil && st.Undone == r.Spec.(*mariposa.ProjectSpec).Number {
			p.tries[name]++
			p.sound[name], p.sound[name+"/finished"], p.sound[name+"/started"] = false, false, false
			again = true
		}
	}
	return again
}

// lacksRoom reports whether something has long waited for room on the node that has
// its volume: nothing moves what fills it.
func (p *people) lacksRoom(st *mariposa.ProjectStatus) bool {
	if st == nil || p.w.now.Sub(p.peace) < 20*time.Minute {
		return false
	}
	for _, ss := range st.Services {
		stopped := ss.Rollout != nil && ss.Rollout.Stopped != nil && ss.Rollout.Stopped.Cause.Is(mariposa.ReasonVolumeNoRoom)
		if stopped || ss.Reason.Is(mariposa.ReasonVolumeNoRoom) {
			return true
		}
	}
	return false
}

// mayRescale reports whether somebody's older wish for another scale may still come
// into force. What is stuck for long is not waited for.
func (p *people) mayRescale(project string) bool {
	_, open := p.open(project)
	return p.w.now.Sub(p.peace) < 20*time.Minute && slices.ContainsFunc(open, func(t queue.Task) bool {
		return t.Spec.Task == mariposa.TaskScale && t.Spec.Origin == mariposa.OriginUser && !t.State().Ended()
	})
}

// mends reports whether a project comes to peace with the manifest it has, mended.
// That is so in every other world, unless people have left something as it was, or
// a version is taken back: then they submit another one.
func (p *people) mends(name string, r *store.Record) bool {
	st, _ := r.Status.(*mariposa.ProjectStatus)
	return p.w.Seed%2 == 0 && p.drafts[name] != nil && !p.left[name] && st != nil && st.Undone != r.Spec.(*mariposa.ProjectSpec).Number
}

// submitMended submits what there is with its faults mended. Where that is nothing
// new, it stays.
func (p *people) submitMended(name string, r *store.Record) bool {
	scales := map[string]int{}
	st, _ := r.Status.(*mariposa.ProjectStatus)
	for service, ss := range st.Services {
		scales[service] = ss.Scale
	}
	d := p.mend(p.drafts[name], scales)
	spec := r.Spec.(*mariposa.ProjectSpec)
	if sum := sha1.Sum([]byte(d.String())); spec.Version == hex.EncodeToString(sum[:]) { //nolint:gosec // see the import
		if st.Number == spec.Number {
			return true
		}
		d.services[d.order[0]].prop++ // its task was terminated before it came into force
	}
	p.drafts[name] = d
	if !p.update(r, d.String(), "a mended manifest") {
		d.services[d.order[0]].prop++ // it may be what there is, in another order
		return false
	}
	p.w.seen["mended"]++
	return true
}

// leftOutdated reports whether somebody's filter took the place of a rollout, so that
// the others of its instances stay as they were.
func (p *people) leftOutdated(project, service string, number int) bool {
	def, err := p.w.definition(project, number, service)
	if err != nil || def == nil {
		return false
	}
	for _, r := range p.w.checker.instances {
		spec := r.Spec.(*mariposa.InstanceSpec)
		if spec.Project == project && spec.ServiceName == service && spec.Goal == mariposa.GoalRunning && mariposa.FormOf(spec.Digest) != mariposa.FormOf(def.Digest) {
			return true
		}
	}
	return false
}

// finishMended has what is held or left outdated go on, and what has failed be tried
// again, once the mended version is in force.
func (p *people) finishMended(r *store.Record) bool {
	spec := r.Spec.(*mariposa.ProjectSpec)
	st, _ := r.Status.(*mariposa.ProjectStatus)
	if st == nil || st.Number != spec.Number {
		p.sound[spec.Name] = st == nil || st.Undone != spec.Number
		return false
	}
	var held []string
	for _, name := range slices.Sorted(maps.Keys(st.Services)) {
		if ss := st.Services[name]; ss.Scale == 0 && !ss.Removed { // somebody's older wish came into force since
			p.act(r, mariposa.TaskScale, "", mariposa.Patch{Scale: map[string]int{name: 1}}, name)
			return false
		}
		if ss := st.Services[name]; ss.Rollout != nil && ss.Rollout.Limit > 0 || ss.Rollout == nil && p.leftOutdated(r.ID, name, ss.Number) {
			held = append(held, name)
		}
	}
	if len(held) > 0 {
		return p.act(r, mariposa.TaskReprovision, "", mariposa.Patch{Reprovision: held}, held...)
	}
	return p.order(r, "converge", mariposa.Patch{Retry: true})
}
