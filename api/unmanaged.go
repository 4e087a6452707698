package api

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/store"
)

// Placing finds a node for an instance: it sets the spec's node and returns the
// claim to commit with it. Release takes that back if the commit fails.
type Placing func(id string, spec *mariposa.InstanceSpec) (claim store.Claim, release func(), err error)

type createInstanceInput struct {
	Project      string `query:"project" doc:"its id or name, unless the body says it" maxLength:"255"`
	Organization string `query:"organization" doc:"where the project's name is looked up"`
	RawBody      []byte `contentType:"application/json"`
}

// single is what is asked for: where, and a service's definition.
type single struct {
	project, organization, name string
	definition                  []byte
}

// read takes the instance's own keys out of the body; the rest defines what it runs.
func (in *createInstanceInput) read() (*single, error) {
	var keys map[string]json.RawMessage
	d := json.NewDecoder(bytes.NewReader(in.RawBody))
	if err := d.Decode(&keys); err != nil || d.More() {
		return nil, invalid(`the body must be a JSON object like {"project": "shop", "name": "probe", "compute_type": "process", "command": ["/bin/true"]}`)
	}
	one := &single{project: in.Project, organization: in.Organization}
	for name, to := range map[string]*string{"project": &one.project, "organization": &one.organization, "name": &one.name} {
		if raw, ok := keys[name]; ok {
			if json.Unmarshal(raw, to) != nil {
				return nil, invalid("%s must be a text", name)
			}
			delete(keys, name)
		}
	}
	if one.project == "" {
		return nil, invalid("project is missing: an instance belongs to one")
	}
	if one.name != "" {
		if err := checkName("instance", one.name); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	b.WriteString("{\n")
	for i, name := range slices.Sorted(maps.Keys(keys)) {
		if i > 0 {
			b.WriteString(",\n")
		}
		quoted, _ := json.Marshal(name) // a string marshals
		b.Write(quoted)
		b.WriteString(": ")
		b.Write(keys[name])
	}
	b.WriteString("\n}\n")
	one.definition = b.Bytes()
	return one, nil
}

func (s *server) createInstance(ctx context.Context, in *createInstanceInput) (*document[contract.Changed], error) {
	ask, err := in.read()
	if err != nil {
		return nil, err
	}
	project, err := s.findProject(ctx, ask.project, ask.organization)
	if err != nil {
		return nil, err
	}
	if err := s.require(ctx, auth.ManageInstances, project); err != nil {
		return nil, err
	}
	release := func() {}
	out, err := s.change(ctx, OfProject{Project: project.ID}, func(e *edit) (*change, error) {
		release() // of the try before
		c, again, err := e.launch(ask)
		release = again
		return c, err
	})
	if err != nil {
		release()
	}
	return out, err
}

// launch adds an instance to a change.
func (e *edit) launch(ask *single) (c *change, release func(), err error) {
	release = func() {}
	id := e.s.NewID()
	name := firstOf(ask.name, "single-"+id[len(id)-6:])
	newest, err := e.newest()
	if err != nil {
		return nil, release, err
	}
	of, meta := &manifest.Project{}, func(string) (string, bool) { return "", false }
	if newest != nil {
		of, meta = newest.Manifest, func(key string) (string, bool) { return newest.Manifest.Value(newest.Values, key) }
	}
	def, err := manifest.ParseService(name, ask.definition, of)
	if err != nil {
		return nil, release, err
	}
	if def.Package != "" {
		return nil, release, invalid("package: say memory and cpu for a single instance")
	}
	if _, err := manifest.Resolve(def, manifest.Scope{Meta: meta}); err != nil { // nobody would come back to it once there is a value
		return nil, release, conflict("%w: set the value first", err)
	}
	if e.s.named(e.record.ID, name) {
		return nil, release, conflict("project %s has an instance %s already: choose another name", e.spec.Name, name)
	}
	spec := &mariposa.InstanceSpec{
		Name: name, Project: e.record.ID, Number: e.spec.Number, Digest: def.Digest, Compute: def.Compute,
		Goal: mariposa.GoalRunning, Generation: 1, Created: e.now, Reason: mariposa.Asked(actor(e.ctx) + " asked for it"), Author: actor(e.ctx),
		Memory: def.Memory, MilliCPU: def.MilliCPU, Ports: def.FixedPorts(), Definition: ask.definition,
	}
	claim, release, err := e.s.Place(id, spec)
	if err != nil {
		return nil, func() {}, err
	}
	e.unit.Claims = append(e.unit.Claims, claim)
	e.spec.Single = e.spec.Single.Plus(sizeOf(spec))
	e.putInstance(id, spec, "instance.provisioning")
	e.answer = contract.Changed{ID: id, Name: name}
	e.unit.Audit[0].Kind, e.unit.Audit[0].Object, e.unit.Audit[0].ObjectName = string(mariposa.KindInstance), id, name
	c, err = e.done("the instance " + name + " was made")
	return c, release, err
}

func sizeOf(spec *mariposa.InstanceSpec) mariposa.Resources {
	return mariposa.Resources{Instances: 1, MilliCPU: spec.MilliCPU, Memory: spec.Memory}
}

// named reports whether a project has an instance of a name.
func (s *server) named(project, name string) bool {
	found := false
	s.Picture.EachInstanceOf(project, func(r *store.Record) bool {
		found = r.Spec.(*mariposa.InstanceSpec).Name == name
		return !found
	})
	return found
}

func (e *edit) putInstance(id string, spec *mariposa.InstanceSpec, event string) {
	e.write(store.Write{Kind: mariposa.KindInstance, ID: id, Spec: spec}, event, spec.Reason)
	ev := &e.unit.Writes[len(e.unit.Writes)-1].Event
	ev.Instance, ev.Node = id, spec.Node
}

// changeInstance changes what is wanted of an instance.
func (s *server) changeInstance(ctx context.Context, found *store.Record, event string, build func(*edit, *mariposa.InstanceSpec) error) (*document[contract.Changed], error) {
	project := found.Spec.(*mariposa.InstanceSpec).Project
	return s.change(ctx, OfProject{Project: project}, func(e *edit) (*change, error) {
		r := s.Picture.Get(mariposa.KindInstance, found.ID)
		if r == nil {
			return nil, notFound("the instance is gone")
		}
		spec := *r.Spec.(*mariposa.InstanceSpec)
		if spec.Goal == mariposa.GoalGone {
			return nil, conflict("instance %s is on its way out; mariposa instance rm --force ends it at once", spec.Name)
		}
		before := spec
		if err := build(e, &spec); err != nil {
			return nil, err
		}
		e.answer = contract.Changed{ID: r.ID, Name: spec.Name}
		if spec.Goal == before.Goal && spec.Bounces == before.Bounces {
			return &e.change, nil
		}
		spec.Generation++
		e.unit.Require = append(e.unit.Require, store.Require{Kind: mariposa.KindInstance, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: -1})
		e.putInstance(r.ID, &spec, event)
		a := &e.unit.Audit[0]
		a.Kind, a.Object, a.ObjectName, a.Reason = string(mariposa.KindInstance), r.ID, spec.Name, spec.Reason.Detail
		return e.done(spec.Reason.Detail)
	})
}

// stopOrStart changes the goal of an unmanaged instance.
func (s *server) stopOrStart(ctx context.Context, found *store.Record, action string) (*document[contract.Changed], error) {
	goal, event := mariposa.GoalRunning, "instance.starting"
	if action == "stop" {
		goal, event = mariposa.GoalHalted, "instance.stopping"
	}
	return s.changeInstance(ctx, found, event, func(e *edit, spec *mariposa.InstanceSpec) error {
		spec.Goal, spec.Forced, spec.Reason = goal, false, mariposa.Asked(actor(e.ctx)+" asked for a "+action)
		return nil
	})
}

// restartInstance ends an instance and starts it again in its place.
func (s *server) restartInstance(ctx context.Context, found *store.Record) (*document[contract.Changed], error) {
	return s.changeInstance(ctx, found, "instance.restarting", func(e *edit, spec *mariposa.InstanceSpec) error {
		if spec.Goal != mariposa.GoalRunning {
			return conflict("instance %s is stopped: start it instead", spec.Name)
		}
		spec.Bounces++
		spec.Reason = mariposa.Asked(actor(e.ctx) + " asked for a restart")
		return nil
	})
}

// removeSingle removes an unmanaged instance.
func (s *server) removeSingle(ctx context.Context, found *store.Record, force bool) (*document[contract.Changed], error) {
	return s.changeInstance(ctx, found, "instance.stopping", func(e *edit, spec *mariposa.InstanceSpec) error {
		spec.Goal, spec.Forced, spec.Reason = mariposa.GoalGone, force, mariposa.Asked(actor(e.ctx)+" removed it")
		e.spec.Single = e.spec.Single.Minus(sizeOf(spec))
		return nil
	})
}

// forceInstance ends by force what is stopping, however much time it has. It takes no
// task: the one that stops it goes on with that. It works while the project is being
// deleted too.
func (s *server) forceInstance(ctx context.Context, found *store.Record) (*document[contract.Changed], error) {
	project := found.Spec.(*mariposa.InstanceSpec).Project
	changed, err := s.commit(ctx, project, func() (*change, error) {
		r, of := s.Picture.Get(mariposa.KindInstance, found.ID), s.Picture.Get(mariposa.KindProject, project)
		if r == nil || of == nil {
			return nil, notFound("the instance is gone")
		}
		if err := s.authorizeAgain(ctx, of); err != nil {
			return nil, err
		}
		e := &edit{s: s, ctx: ctx, record: of, spec: *of.Spec.(*mariposa.ProjectSpec)}
		e.begin()
		spec := *r.Spec.(*mariposa.InstanceSpec)
		e.answer = contract.Changed{ID: r.ID, Name: spec.Name}
		if spec.Forced {
			return &e.change, nil
		}
		spec.Forced, spec.Reason = true, mariposa.Asked(actor(ctx)+" ended it by force")
		spec.Generation++
		e.unit.Require = []store.Require{{Kind: mariposa.KindInstance, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: -1}}
		e.putInstance(r.ID, &spec, "instance.stopping")
		a := &e.unit.Audit[0]
		a.Kind, a.Object, a.ObjectName, a.Reason = string(mariposa.KindInstance), r.ID, spec.Name, spec.Reason.Detail
		return &e.change, nil
	})
	if err != nil {
		return nil, err
	}
	return answer(*changed)
}

// giveBack returns what unmanaged instances that are forgotten with their node took
// of their projects' quotas.
func (s *server) giveBack(c *change, forgotten []*store.Record) {
	freed := map[string]mariposa.Resources{}
	for _, r := range forgotten {
		if spec := r.Spec.(*mariposa.InstanceSpec); !spec.Managed && !spec.Debt && spec.Goal != mariposa.GoalGone {
			freed[spec.Project] = freed[spec.Project].Plus(sizeOf(spec))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(freed)) {
		r := s.Picture.Get(mariposa.KindProject, id)
		if r == nil {
			continue
		}
		spec := *r.Spec.(*mariposa.ProjectSpec)
		spec.Single, spec.Demand = spec.Single.Minus(freed[id]), spec.Demand.Minus(freed[id])
		account, _ := mariposa.LedgerOf(spec.Organization)
		c.unit.Require = append(c.unit.Require, store.Require{Kind: mariposa.KindProject, ID: id, SpecRevision: r.SpecRevision, StatusRevision: -1})
		c.unit.Claims = append(c.unit.Claims, store.Claim{Node: account, Take: mariposa.Resources{}.Minus(freed[id])})
		c.unit.Writes = append(c.unit.Writes, store.Write{
			Kind: mariposa.KindProject, ID: id, Project: id, Spec: &spec, Event: mariposa.Event{Kind: "project.updated", Project: id, Reason: &mariposa.Reason{Code: mariposa.ReasonNodeGivenUp}},
		})
	}
}

// dismiss lets the unmanaged instances of a project go with it: their nodes settle
// that, whenever they can be reached.
func (e *edit) dismiss() {
	e.s.Picture.EachInstanceOf(e.record.ID, func(r *store.Record) bool {
		spec := *r.Spec.(*mariposa.InstanceSpec)
		if spec.Managed || spec.Debt {
			return true
		}
		spec.Debt, spec.Goal, spec.Reason = true, mariposa.GoalGone, &mariposa.Reason{Code: mariposa.ReasonProjectDeleted}
		spec.Generation++
		e.unit.Require = append(e.unit.Require, store.Require{Kind: mariposa.KindInstance, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: -1})
		e.putInstance(r.ID, &spec, "instance.stopping")
		return true
	})
}
