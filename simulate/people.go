package simulate

import (
	"crypto/sha1" //nolint:gosec // the contract names versions by SHA-1
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

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
	last     string            // the newest task that was admitted
}

var projectNames = []string{"p1", "p2", "p3"}

func (p *people) choices(add func(int, func())) {
	if len(p.w.servers) == 0 {
		return
	}
	p.asked = p.w.servers[p.w.rng.IntN(len(p.w.servers))]
	for _, name := range projectNames {
		id, r := p.project(name)
		if r == nil {
			if id == "" || p.w.chance(10) {
				add(1, func() { p.create(name, p.manifest(false)) })
			}
			continue
		}
		if !p.w.chance(3) {
			continue
		}
		add(1, func() { p.update(r, p.manifest(false), "manifest") })
		add(1, func() { p.rescale(r) })
		if p.w.chance(6) {
			add(1, func() { p.act(r, mariposa.TaskStop, "", mariposa.Patch{Goal: mariposa.GoalStopped}) })
			add(2, func() { p.start(r) })
			add(1, func() { p.reprovision(r) })
		}
		if p.w.chance(4) {
			p.holdChoices(add, r)
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

// manifest makes a manifest up. A sound one starts without failing.
func (p *people) manifest(sound bool) string {
	var b strings.Builder
	b.WriteString("services:\n")
	names := []string{"a", "b", "c", "d"}[:1+p.w.rng.IntN(4)]
	for i, name := range names {
		scale := p.w.rng.IntN(5)
		if sound && i+1 < len(names) {
			scale += 7 // others may refer to it, and nobody has said so many before
		}
		fmt.Fprintf(&b, "  %s:\n    compute_type: dummy\n    scale: %d\n", name, scale)
		fmt.Fprintf(&b, "    dummy: {name_len: %d, update_in_place_prop: v%d", 8+p.w.rng.IntN(3), p.w.rng.IntN(3))
		if !sound && p.w.chance(8) {
			b.WriteString(`, fail_prop: "yes"`)
		}
		if p.w.chance(3) {
			b.WriteString(", max_wait_secs: 4")
		}
		b.WriteString("}\n")
		if i > 0 && p.w.chance(2) {
			fmt.Fprintf(&b, "    depends_on: [%s]\n", names[p.w.rng.IntN(i)])
		}
		if i > 0 && p.w.chance(3) {
			field := []string{"id", "address", "ids"}[p.w.rng.IntN(3)]
			fmt.Fprintf(&b, "    %s: {OTHER: \"{{ .services.%s.%s }}\"}\n", []string{"environment", "environment", "mdata"}[p.w.rng.IntN(3)], names[p.w.rng.IntN(i)], field)
		}
		fmt.Fprintf(&b, "    update: {rolling: %d, min_healthy: %d, deadline: 120", 1+p.w.rng.IntN(3), p.w.rng.IntN(4))
		if !sound && p.w.chance(6) {
			fmt.Fprintf(&b, ", canary: %d", 1+p.w.rng.IntN(2))
		}
		if p.w.chance(4) {
			b.WriteString(", on_failure: rollback")
		}
		b.WriteString("}\n")
		if p.w.chance(3) {
			fmt.Fprintf(&b, "    stop: {preservestopped: %s}\n", []string{`"no"`, "on-failure", "always"}[p.w.rng.IntN(3)])
		}
		if p.w.chance(4) {
			b.WriteString("    restart: always\n")
		}
		if p.w.chance(3) {
			fmt.Fprintf(&b, "    networks: [%s]\n", []string{"own", "common", "own, common"}[p.w.rng.IntN(3)])
		}
		if i < 2 && p.w.chance(2) { // a service's volumes come and go together: apart, they could end up on two nodes
			fmt.Fprintf(&b, "    volumes: [%s]\n", []string{"data:/d", "data:/d, logs:/l"}[i])
		}
	}
	b.WriteString("networks: {own: {}, common: {shared: true}}\n")
	b.WriteString("volumes: {data: {size: 1g}, logs: }\n")
	return b.String()
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
		case !p.sound[name]:
			p.sound[name] = p.update(r, p.manifest(true), "a sound manifest")
		case !p.sound[name+"/finished"]:
			p.sound[name+"/finished"] = p.finishHolds(r)
		default:
			p.sound[name+"/started"] = p.start(r)
		}
		all = false
	}
	return all
}
