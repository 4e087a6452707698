package change

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/queue"
	"mariposa/store"
)

// PlaceFunc finds a node for an instance: it sets the spec's node and returns the
// claim to commit with it. Release undoes the claim if the commit fails.
type PlaceFunc func(id string, spec *mariposa.InstanceSpec) (claim store.Claim, release func(), err error)

// CreateInstance creates an unmanaged instance from a definition with the keys of a
// service in a manifest. Without a name it gets one.
func (c *Changer) CreateInstance(ctx context.Context, req *Request, project, name string, definition []byte) (*contract.Changed, error) {
	if name != "" {
		if err := mariposa.CheckName("instance", name); err != nil {
			return nil, err
		}
	}
	return c.changeUnmanaged(ctx, req, project, func(e *edit) (newInstance, error) {
		id := e.c.NewID()
		return newInstance{id: id, name: cmp.Or(name, "single-"+id[len(id)-6:]), definition: definition}, nil
	})
}

// newInstance is an unmanaged instance to be created.
type newInstance struct {
	id, name   string
	definition []byte
	adopted    *mariposa.InstanceSpec // if it is a foreign container: its node, goal, ports and the container
}

// changeUnmanaged adds an unmanaged instance to a project.
func (c *Changer) changeUnmanaged(ctx context.Context, req *Request, project string, build func(*edit) (newInstance, error)) (*contract.Changed, error) {
	release := func() {}
	changed, err := c.change(ctx, req, project, func(e *edit) (a *attempt, err error) {
		release() // of the previous attempt
		release = func() {}
		n, err := build(e)
		if err != nil {
			return nil, err
		}
		a, release, err = e.placeUnmanaged(n)
		return a, err
	})
	if err != nil {
		release()
	}
	return changed, err
}

// placeUnmanaged adds an unmanaged instance to a change.
func (e *edit) placeUnmanaged(n newInstance) (a *attempt, release func(), err error) {
	release = func() {}
	id, name, definition := n.id, n.name, n.definition
	newest, err := e.newest()
	if err != nil {
		return nil, release, err
	}
	of, meta := &manifest.Project{}, func(string) (string, bool) { return "", false }
	if newest != nil {
		of, meta = newest.Manifest, func(key string) (string, bool) { return newest.Manifest.Value(newest.Values, key) }
	}
	def, err := manifest.ParseService(name, definition, of)
	if err != nil {
		return nil, release, err
	}
	if def.Package != "" {
		return nil, release, invalid("package: not supported for a single instance; set memory and cpu")
	}
	if org := e.c.Picture.Orgs.Get(e.spec.Organization); org != nil {
		e.unit.Unchanged(org)
		if err := refuseFaults(singleFaults(org.Spec(), definition, def)); err != nil {
			return nil, release, err
		}
	}
	if _, err := manifest.Resolve(def, manifest.Scope{Meta: meta}); err != nil { // nothing would retry it once there is a value
		return nil, release, conflict("%w: set the value first", err)
	}
	if e.c.hasInstanceNamed(e.record.ID, name) {
		return nil, release, conflict("project %s already has an instance %s: choose another name", e.spec.Name, name)
	}
	spec := &mariposa.InstanceSpec{
		Name: name, Project: e.record.ID, Number: e.spec.Number, Digest: def.Digest, Compute: def.Compute,
		Goal: mariposa.GoalRunning, Generation: 1, Created: e.now, Reason: mariposa.Asked(e.req.actor() + " asked for it"), Author: e.req.actor(),
		Memory: def.Memory, MilliCPU: def.MilliCPU, Ports: def.FixedPorts(), Definition: definition,
	}
	event, says := "instance.provisioning", "was created"
	if from := n.adopted; from != nil {
		spec.Node, spec.Goal, spec.Ports, spec.Adopts, spec.Reason = from.Node, from.Goal, from.Ports, from.Adopts, from.Reason
		event, says = "instance.adopted", "was adopted"
		e.unit.Absent(mariposa.KindInstance, id)
	}
	claim, release, err := e.c.Place(id, spec)
	if err != nil {
		return nil, func() {}, err
	}
	node := e.c.Picture.Nodes.Get(claim.Node)
	if node == nil || !node.Spec().TakesInstances() { // since a moment ago
		return nil, release, conflict("the chosen node no longer accepts instances: try again")
	}
	e.unit.Unchanged(node)
	e.unit.Claims = append(e.unit.Claims, claim)
	e.spec.Unmanaged = e.spec.Unmanaged.Plus(sizeOf(spec))
	e.putInstance(id, spec, event)
	e.answer = contract.Changed{ID: id, Name: name}
	e.unit.Audit[0].Kind, e.unit.Audit[0].Object, e.unit.Audit[0].ObjectName = string(mariposa.KindInstance), id, name
	if n.adopted != nil {
		e.unit.Audit[0].Reason = spec.Reason.Detail
	}
	a, err = e.finish("the instance " + name + " " + says)
	return a, release, err
}

func sizeOf(spec *mariposa.InstanceSpec) mariposa.Resources {
	return mariposa.Resources{Instances: 1, MilliCPU: spec.MilliCPU, Memory: spec.Memory}
}

// hasInstanceNamed reports whether a project has an instance with a name.
func (c *Changer) hasInstanceNamed(project, name string) bool {
	found := false
	c.Picture.EachInstanceOf(project, func(r *store.Instance) bool {
		found = r.Spec().Name == name
		return !found
	})
	return found
}

// rewriteInstance writes the instance that the change is about, and requires it to be
// as read.
func (e *edit) rewriteInstance(r *store.Instance, spec *mariposa.InstanceSpec, event string) {
	e.unit.Unchanged(r)
	e.putInstance(r.ID, spec, event)
	a := &e.unit.Audit[0]
	a.Kind, a.Object, a.ObjectName, a.Reason = string(mariposa.KindInstance), r.ID, spec.Name, spec.Reason.Detail
}

func (e *edit) putInstance(id string, spec *mariposa.InstanceSpec, event string) {
	e.write(store.Write{Kind: mariposa.KindInstance, ID: id, Spec: spec}, event, spec.Reason)
	ev := &e.unit.Writes[len(e.unit.Writes)-1].Event
	ev.Instance, ev.Node = id, spec.Node
}

// ActOnInstance starts, stops, restarts or replaces an instance.
func (c *Changer) ActOnInstance(ctx context.Context, req *Request, found *store.Instance, action string) (*contract.Changed, error) {
	spec := found.Spec()
	switch action {
	case "start", "stop":
		if spec.Managed {
			return nil, errManaged(spec)
		}
		goal, event := mariposa.GoalRunning, "instance.starting"
		if action == "stop" {
			goal, event = mariposa.GoalHalted, "instance.stopping"
		}
		return c.changeInstance(ctx, req, found, event, func(e *edit, spec *mariposa.InstanceSpec) error {
			if org := c.Picture.Orgs.Get(e.spec.Organization); org != nil && action == "start" && spec.Goal != goal {
				e.unit.Unchanged(org)
				if err := errNotAdmitted(org, "instance "+spec.Name, faultsOfSingle(org.Spec(), spec)); err != nil {
					return err
				}
			}
			spec.Goal, spec.Forced, spec.Reason = goal, false, mariposa.Asked(req.actor()+" asked for a "+action)
			return nil
		})
	case "restart": // it is stopped and started again in place
		return c.changeInstance(ctx, req, found, "instance.restarting", func(e *edit, spec *mariposa.InstanceSpec) error {
			if spec.Goal != mariposa.GoalRunning {
				return conflict("instance %s is stopped: start it instead", spec.Name)
			}
			if err := e.refuseFrozen(spec); err != nil {
				return err
			}
			spec.ManualRestarts++
			spec.Reason = mariposa.Asked(req.actor() + " asked for a restart")
			return nil
		})
	case "replace":
		if !spec.Managed {
			return nil, conflict("instance %s cannot be replaced: it belongs to no service; remove it and create another", spec.Name)
		}
		return c.replaceInstance(ctx, req, found)
	}
	return nil, invalid("unknown action %q: use start, stop, restart or replace", action)
}

// refuseFrozen refuses to restart an instance whose service is frozen, or about to be.
// The error says who froze it and how to continue.
func (e *edit) refuseFrozen(spec *mariposa.InstanceSpec) error {
	if !spec.Managed {
		return nil
	}
	who := frozenBy(e.record.Status(), spec)
	for _, t := range e.tasks {
		if t.IsFreeze() && queue.Overlap(t.Spec.Services, []string{spec.ServiceName}) {
			who = t.Spec.Author
		}
	}
	if who == "" {
		return nil
	}
	return errFrozen(spec, "restarted", who, e.command("project thaw --service "+spec.ServiceName))
}

func errFrozen(spec *mariposa.InstanceSpec, action, who, thaw string) error {
	return conflict("instance %s cannot be %s because %s froze service %s: thaw it first with %s", spec.Name, action, who, spec.ServiceName, thaw)
}

// RefuseFrozen refuses an action on an instance whose service is frozen. The action changes
// nothing in the store.
func (c *Changer) RefuseFrozen(spec *mariposa.InstanceSpec, action string) error {
	project := c.Picture.Projects.Get(spec.Project)
	if project == nil || !spec.Managed {
		return nil
	}
	if who := frozenBy(project.Status(), spec); who != "" {
		return errFrozen(spec, action, who, "mariposa -j "+project.Spec().Name+" project thaw --service "+spec.ServiceName)
	}
	return nil
}

// frozenBy returns who froze the service of an instance; empty if it is not frozen.
func frozenBy(st *mariposa.ProjectStatus, spec *mariposa.InstanceSpec) string {
	if st == nil || st.Services[spec.ServiceName] == nil || st.Services[spec.ServiceName].Frozen == nil {
		return ""
	}
	return cmp.Or(st.Services[spec.ServiceName].Frozen.By, "another user")
}

// RemoveInstance removes an unmanaged instance, or kills one that is stopping.
func (c *Changer) RemoveInstance(ctx context.Context, req *Request, found *store.Instance, force bool) (*contract.Changed, error) {
	spec, ended := found.Spec(), false
	if st := found.Status(); st != nil {
		ended = st.State == mariposa.StateStopped || st.State == mariposa.StateFailed || st.State == mariposa.StateDestroyed
	}
	switch {
	case force && (spec.Goal == mariposa.GoalGone || spec.Managed && spec.Goal == mariposa.GoalHalted && !ended):
		return c.forceInstance(ctx, req, found)
	case spec.Managed && force && spec.Goal == mariposa.GoalRunning:
		return nil, conflict("instance %s cannot be removed by force: it is not stopping, and its service would recreate it; stop the service or replace the instance, then force the removal if it does not stop", spec.Name)
	case spec.Managed:
		return nil, errManaged(spec)
	}
	return c.changeInstance(ctx, req, found, "instance.stopping", func(e *edit, spec *mariposa.InstanceSpec) error {
		spec.Goal, spec.Forced, spec.Reason = mariposa.GoalGone, force, mariposa.Asked(req.actor()+" removed it")
		e.spec.Unmanaged = e.spec.Unmanaged.Minus(sizeOf(spec))
		return nil
	})
}

// changeInstance changes the desired state of an instance.
func (c *Changer) changeInstance(ctx context.Context, req *Request, found *store.Instance, event string, build func(*edit, *mariposa.InstanceSpec) error) (*contract.Changed, error) {
	return c.change(ctx, req, found.Spec().Project, func(e *edit) (*attempt, error) {
		r := c.Picture.Instances.Get(found.ID)
		if r == nil {
			return nil, notFound("the instance no longer exists")
		}
		spec := *r.Spec()
		if spec.Goal == mariposa.GoalGone {
			return nil, conflict("instance %s is already being removed; run `mariposa instance rm --force` to kill it at once", spec.Name)
		}
		before := spec
		if err := build(e, &spec); err != nil {
			return nil, err
		}
		e.answer = contract.Changed{ID: r.ID, Name: spec.Name}
		if spec.Goal == before.Goal && spec.ManualRestarts == before.ManualRestarts {
			return &e.attempt, nil
		}
		spec.Generation++
		e.rewriteInstance(r, &spec, event)
		return e.finish(spec.Reason.Detail)
	})
}

// forceInstance kills an instance that is stopping, however much time it has left. It
// adds no task: the one that stops the instance continues. It also works while the
// project is being deleted.
func (c *Changer) forceInstance(ctx context.Context, req *Request, found *store.Instance) (*contract.Changed, error) {
	project := found.Spec().Project
	return c.commit(ctx, req, project, func() (*attempt, error) {
		r, of := c.Picture.Instances.Get(found.ID), c.Picture.Projects.Get(project)
		if r == nil || of == nil {
			return nil, notFound("the instance no longer exists")
		}
		if err := c.authorize(req, of.Record()); err != nil {
			return nil, err
		}
		e := &edit{c: c, req: req, ctx: ctx, record: of, spec: *of.Spec()}
		e.beginAudit()
		spec := *r.Spec()
		e.answer = contract.Changed{ID: r.ID, Name: spec.Name}
		switch {
		case spec.Goal == mariposa.GoalRunning: // another request was faster
			return nil, conflict("instance %s is no longer stopping: it was just started again", spec.Name)
		case spec.Forced:
			return &e.attempt, nil
		}
		spec.Forced, spec.Reason = true, mariposa.Asked(req.actor()+" killed it")
		spec.Generation++
		e.rewriteInstance(r, &spec, "instance.stopping")
		return &e.attempt, nil
	})
}

// releaseQuota returns the quota of unmanaged instances that are removed from their node, or
// with it.
func (c *Changer) releaseQuota(a *attempt, forgotten []*store.Instance, why *mariposa.Reason) {
	freed := map[string]mariposa.Resources{}
	for _, r := range forgotten {
		if spec := r.Spec(); !spec.Managed && !spec.Orphaned && spec.Goal != mariposa.GoalGone {
			freed[spec.Project] = freed[spec.Project].Plus(sizeOf(spec))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(freed)) {
		r := c.Picture.Projects.Get(id)
		if r == nil {
			continue
		}
		spec := *r.Spec()
		spec.Unmanaged, spec.Demand = spec.Unmanaged.Minus(freed[id]), spec.Demand.Minus(freed[id])
		account, _ := mariposa.LedgerOf(spec.Organization)
		a.unit.Unchanged(r)
		a.unit.GiveBack(account, freed[id])
		a.unit.Put(store.Write{
			Kind: mariposa.KindProject, ID: id, Project: id, Spec: &spec, Event: mariposa.Event{Kind: "project.updated", Project: id, Reason: why},
		})
	}
}

// dismissUnmanaged orphans the unmanaged instances of a project that is deleted: their
// nodes remove them once they can be reached.
func (e *edit) dismissUnmanaged() {
	e.c.Picture.EachInstanceOf(e.record.ID, func(r *store.Instance) bool {
		spec := *r.Spec()
		if spec.Managed || spec.Orphaned {
			return true
		}
		spec.Orphaned, spec.Goal, spec.Reason = true, mariposa.GoalGone, &mariposa.Reason{Code: mariposa.ReasonProjectDeleted}
		spec.Generation++
		e.unit.Unchanged(r)
		e.putInstance(r.ID, &spec, "instance.stopping")
		return true
	})
}

// replaceInstance replaces one instance of a service.
func (c *Changer) replaceInstance(ctx context.Context, req *Request, r *store.Instance) (*contract.Changed, error) {
	spec := r.Spec()
	return c.change(ctx, req, spec.Project, func(e *edit) (*attempt, error) {
		e.answer.ID, e.answer.Name = r.ID, spec.Name
		reason, err := e.add(&mariposa.TaskSpec{
			Task: mariposa.TaskReprovision, Component: "instance", Services: []string{spec.ServiceName}, LiftsFreeze: e.mayLiftFreeze(),
			Reason: mariposa.Asked(req.actor() + " asked to replace " + spec.Name),
			Patch:  mariposa.Patch{Reprovision: []string{spec.ServiceName}, Filter: &mariposa.Filter{Instances: []string{r.ID}}},
		}, nil)
		if err != nil {
			return nil, err
		}
		return e.finish(reason)
	})
}

func errManaged(spec *mariposa.InstanceSpec) error {
	return conflict("instance %s belongs to service %s, which would recreate it: change the service instead, or restart or replace the instance", spec.Name, spec.ServiceName)
}
