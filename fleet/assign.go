package fleet

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"mariposa"
	"mariposa/manifest"
	"mariposa/picture"
	"mariposa/store"
	"mariposa/wire"
)

// sendSnapshot sends the node everything that this store knows on it.
func (s *Session) sendSnapshot(ctx context.Context) error {
	var resources []wire.Provision
	for _, r := range s.f.Picture.VolumesOn(s.node) {
		resources = append(resources, resourceOf(r.Record()).item)
	}
	for _, r := range s.f.Picture.AttachmentsOn(s.node) {
		resources = append(resources, resourceOf(r.Record()).item)
	}
	s.sendProvisions(resources, true) // before the instances, which need them to start
	records := s.f.Picture.InstancesOn(s.node)
	if err := s.sendValues(ctx, records); err != nil { // before the instances, which read them at their start
		return err
	}
	var ids []string
	for _, r := range records {
		if r.Spec().Compute == mariposa.ComputeBalancer {
			ids = append(ids, r.ID)
		}
	}
	if err := s.sendMembers(ctx, ids); err != nil { // likewise
		return err
	}
	frames, err := s.packFrames(ctx, records, true)
	if err != nil {
		return err
	}
	if len(frames) == 0 {
		frames = append(frames, &wire.Assign{Snapshot: true})
	}
	frames[len(frames)-1].Last = true
	for _, a := range frames {
		s.sendAssign(a)
	}
	if r := s.f.Picture.Nodes.Get(s.node); r != nil {
		s.sendTombstones(r.Spec().Purge)
	}
	return nil
}

// sendChanges sends the node what has changed on it: always the newest state in the
// picture, whatever the feed contained.
func (s *Session) sendChanges(ctx context.Context, changes []store.Change) error {
	seen := map[string]bool{}
	var records []*store.Instance
	var resources []wire.Provision
	for _, c := range changes {
		r := s.f.Picture.Get(c.Record.Kind, c.Record.ID)
		if r == nil || seen[r.ID] {
			continue
		}
		seen[r.ID] = true
		if r.Kind == mariposa.KindVolume || r.Kind == mariposa.KindAttachment {
			resources = append(resources, resourceOf(r).item)
		} else {
			records = append(records, (*store.Instance)(r))
		}
	}
	s.sendProvisions(resources, false)
	if err := s.sendValues(ctx, records); err != nil {
		return err
	}
	return s.sendFrames(ctx, records)
}

func (s *Session) sendFrames(ctx context.Context, records []*store.Instance) error {
	frames, err := s.packFrames(ctx, records, false)
	if err != nil {
		return err
	}
	for _, a := range frames {
		s.sendAssign(a)
	}
	return nil
}

// frameBytes is the size at which a frame of assignments is full. One more workload,
// escaped, stays far below wire.MaxFrame.
const frameBytes = 1 << 20

// packFrames packs assignments into frames that the agent accepts: limited in number,
// and in size, as workloads may be large.
func (s *Session) packFrames(ctx context.Context, records []*store.Instance, snapshot bool) ([]*wire.Assign, error) {
	var all []*wire.Assign
	var a *wire.Assign
	bytes := 0
	for _, r := range records {
		if a == nil || len(a.Items) == wire.Batch || bytes >= frameBytes {
			a, bytes = &wire.Assign{Snapshot: snapshot}, 0
			all = append(all, a)
		}
		before, logins, checks := len(a.Workloads), len(a.Logins), len(a.Checks)
		if err := s.addAssignment(ctx, a, r, snapshot); err != nil {
			return nil, err
		}
		bytes += wire.MountsWeight(a.Items[len(a.Items)-1].Mounts) + wire.JoinsWeight(a.Items[len(a.Items)-1].Networks)
		if len(a.Workloads) > before {
			bytes += wire.WorkloadWeight(a.Workloads[a.Items[len(a.Items)-1].Workload])
		}
		if len(a.Checks) > checks {
			bytes += wire.ChecksWeight(a.Checks[a.Items[len(a.Items)-1].Checks])
		}
		if len(a.Logins) > logins {
			bytes += wire.LoginWeight(a.Logins[a.Items[len(a.Items)-1].Login])
		}
	}
	return all, nil
}

// sendTombstones sends tombstones for quarantined instances that an operator has purged.
func (s *Session) sendTombstones(ids []string) {
	var items []wire.Assignment
	for _, id := range ids {
		if s.f.Picture.Instances.Get(id) == nil {
			items = append(items, wire.Assignment{ID: id, Goal: mariposa.GoalGone, Generation: 1})
		}
	}
	for part := range slices.Chunk(items, wire.Batch) {
		s.sendAssign(&wire.Assign{Items: part})
	}
}

func (s *Session) addAssignment(ctx context.Context, a *wire.Assign, r *store.Instance, full bool) error {
	spec := r.Spec()
	it := wire.Assignment{ID: r.ID, Name: spec.Name, Service: spec.ServiceName, Generation: spec.Generation, Goal: spec.Goal, ManualRestarts: spec.ManualRestarts, Mounts: spec.Mounts, Networks: spec.Networks, Adopts: spec.Adopts, Origin: s.f.signOrigin(r)}
	if full {
		it.Status = r.Status()
	}
	project := s.f.Picture.Projects.Get(spec.Project)
	if project != nil {
		it.Project = project.Spec().Name
	}
	ends, checks, err := s.endingOf(ctx, r.ID, spec, project)
	if err != nil {
		return err
	}
	it.Checks = addChecks(a, ends.checks, checks)
	if it.Frozen, it.Restart = ends.frozen, ends.policy(); ends == (ending{}) {
		delete(s.endings, r.ID)
	} else {
		s.endings[r.ID] = ends
	}
	if spec.Goal != mariposa.GoalGone {
		if a.Workloads == nil {
			a.Workloads = map[string]*mariposa.Workload{}
		}
		key, err := s.addWorkload(ctx, a.Workloads, r.ID, spec, project)
		if err != nil && !errors.Is(err, errLost) { // the planner reports a lost definition; the instance keeps running
			return err
		}
		it.Workload = key
		if w := a.Workloads[key]; w != nil && spec.Compute == mariposa.ComputeDocker && spec.Goal == mariposa.GoalRunning {
			it.Login = s.addLogin(ctx, a, project, mariposa.RegistryOf(w.Image))
		}
	}
	if spec.Goal != mariposa.GoalRunning && project != nil {
		var err error
		if it.StopTimeout, err = s.stopTimeout(ctx, spec, project); err != nil {
			return err
		}
	}
	if it.Drain, err = s.drainOf(ctx, r); err != nil {
		return err
	}
	s.noteLeaving(r.ID, spec.Project, it.Drain > 0)
	a.Items = append(a.Items, it)
	return nil
}

// isFrozen reports whether the service of an instance is frozen.
func isFrozen(spec *mariposa.InstanceSpec, project *store.Project) bool {
	if project == nil || !spec.Managed || spec.Goal != mariposa.GoalRunning {
		return false
	}
	st := project.Status()
	if st == nil {
		return false
	}
	ss := st.Services[spec.ServiceName]
	return ss != nil && ss.Frozen != nil
}

// ending is what happens when an instance ends by itself or is not healthy, where that
// differs from what its own version says.
type ending struct {
	frozen  bool
	differs bool // the restart policy in force is another one
	restart mariposa.Restart
	checks  string // digest of its health checks; empty: it has none
}

// policy returns the restart policy that the node has to be told; nil: the workload has it.
func (e ending) policy() *mariposa.Restart {
	if !e.differs {
		return nil
	}
	return &e.restart
}

// endingOf returns what happens when an instance ends by itself, and its health checks.
// The restart policy is that of the definition in force: instances that started before a
// change have it too.
func (s *Session) endingOf(ctx context.Context, id string, spec *mariposa.InstanceSpec, project *store.Project) (ending, *wire.Checks, error) {
	e := ending{frozen: isFrozen(spec, project)}
	if project == nil || spec.Goal != mariposa.GoalRunning {
		return e, nil, nil
	}
	inForce, v, err := s.definitionInForce(ctx, spec, project)
	if err != nil || inForce == nil {
		return e, nil, err
	}
	checked, of, err := s.checkedDefinition(ctx, spec, project, inForce, v)
	if err != nil {
		return e, nil, err
	}
	checks, digest := s.checksOf(ctx, id, spec, checked, of, project)
	e.checks = digest
	if v.Spec.Number == spec.Number {
		return e, checks, nil
	}
	own, _, err := s.definition(ctx, spec, spec.Number)
	if err != nil && !errors.Is(err, errLost) {
		return e, nil, err
	}
	if own == nil || own.Restart != inForce.Restart {
		e.differs, e.restart = true, inForce.Restart
	}
	return e, checks, nil
}

// endOtherwise returns the instances whose end has other consequences than the node was
// told, or whose health checks have changed: they were frozen or thawed, or another
// definition is in force.
func (s *Session) endOtherwise(ctx context.Context, records []*store.Instance) ([]*store.Instance, error) {
	var changed []*store.Instance
	for _, r := range records {
		spec := r.Spec()
		now, _, err := s.endingOf(ctx, r.ID, spec, s.f.Picture.Projects.Get(spec.Project))
		if err != nil {
			return nil, err
		}
		if now != s.endings[r.ID] {
			changed = append(changed, r)
		}
	}
	return changed, nil
}

// stopTimeout returns how long an instance may take to stop: the timeout of the
// definition in force, or zero if the stop is forced. Nil if unknown.
func (s *Session) stopTimeout(ctx context.Context, spec *mariposa.InstanceSpec, project *store.Project) (*time.Duration, error) {
	if spec.Forced {
		return new(time.Duration), nil
	}
	def, _, err := s.definitionInForce(ctx, spec, project)
	if err != nil || def == nil {
		return nil, err
	}
	timeout := def.Stop.Timeout
	return &timeout, nil
}

// stoppingInstances returns those instances that are stopping.
func stoppingInstances(records []*store.Instance) []*store.Instance {
	return slices.DeleteFunc(records, func(r *store.Instance) bool {
		st := r.Status()
		return r.Spec().Goal == mariposa.GoalRunning || st == nil || st.State != mariposa.StateStopping
	})
}

var errLost = errors.New("the definition is lost")

// addWorkload adds an instance's workload to those of a frame and returns its key. If
// nothing in it depends on the instance, all instances of a service share one.
func (s *Session) addWorkload(ctx context.Context, into map[string]*mariposa.Workload, id string, spec *mariposa.InstanceSpec, project *store.Project) (string, error) {
	if project == nil {
		return "", errLost
	}
	def, v, err := s.definition(ctx, spec, spec.Number)
	if err != nil {
		return "", err
	}
	key := id
	if spec.Managed && !manifest.PerInstance(def) {
		key = spec.Project + "/" + strconv.Itoa(spec.Number) + "/" + spec.ServiceName
	}
	if into[key] != nil {
		return key, nil
	}
	w, err := manifest.Resolve(def, s.scope(ctx, id, spec, v, project))
	if err != nil { // one bad instance must not block its whole node
		slog.Warn("cannot resolve the workload of an instance", "instance", spec.Name, "err", err)
		return "", errLost
	}
	if wire.WorkloadWeight(w) > wire.MaxWeight {
		slog.Warn("the workload of an instance is too large for a frame", "instance", spec.Name)
		return "", errLost
	}
	into[key] = w
	return key, nil
}

// scope returns the values for the interpolations of an instance of a version.
func (s *Session) scope(ctx context.Context, id string, spec *mariposa.InstanceSpec, v *picture.Version, project *store.Project) manifest.Scope {
	return s.scopeWithout(ctx, id, spec, v, project, hiddenFrom(spec, v, project))
}

// hiddenFrom reports which protected secrets must not be passed to an instance of a
// version: all that the version itself does not pass to its service. Instances of an
// older version may have them in their environment, which the service may refer to.
func hiddenFrom(spec *mariposa.InstanceSpec, v *picture.Version, project *store.Project) func(key string) bool {
	protected := project.Spec().Protected
	return func(key string) bool {
		return spec.Managed && slices.Contains(protected, key) && !v.Manifest.Holds(spec.ServiceName, key)
	}
}

// scopeWithout is scope with some metadata masked.
func (s *Session) scopeWithout(ctx context.Context, id string, spec *mariposa.InstanceSpec, v *picture.Version, project *store.Project, hidden func(key string) bool) manifest.Scope {
	p := project.Spec()
	sc := manifest.Scope{Domain: s.f.Domain, Meta: func(key string) (string, bool) {
		if hidden(key) {
			return manifest.Mask, true
		}
		return v.Manifest.Value(v.Values, key)
	}, HasService: v.HasService}
	sc.Project.Name, sc.Project.UUID, sc.Project.Version = p.Name, spec.Project, v.Spec.Version
	sc.Service.Name, sc.Service.UUID, sc.Service.Version = spec.ServiceName, spec.Service, v.Spec.Version
	if def := v.Services[spec.ServiceName]; def != nil {
		sc.Package = v.Spec.Packages[def.Package]
	}
	if org := s.f.Picture.Orgs.Get(p.Organization); org != nil {
		sc.Organization = org.Spec().Name
	}
	if st := project.Status(); st != nil && st.Services[spec.ServiceName] != nil {
		sc.Scale = st.Services[spec.ServiceName].Scale
	}
	sc.Instance.Name, sc.Instance.UUID = spec.Name, id
	sc.Placement.CN = spec.Node
	if node := s.f.Picture.Nodes.Get(spec.Node); node != nil { // for a referenced instance, this may be another node
		sc.Placement.Rack, sc.Placement.DC = node.Spec().Rack, node.Spec().DC
	}
	sc.Other = s.resolveOthers(ctx, spec.Bindings, project, hidden)
	return sc
}

// resolveOthers resolves references to other services, by bindings, with some metadata
// masked.
func (s *Session) resolveOthers(ctx context.Context, b *mariposa.Bindings, project *store.Project, hidden func(key string) bool) func(mariposa.Ref) (string, bool) {
	return manifest.Others(b, func(service string, to mariposa.Binding, name string) (string, bool) {
		spec := &mariposa.InstanceSpec{
			Name: to.Name, Project: project.ID, ServiceName: service, Service: project.Spec().Services[service],
			Number: to.Number, Node: to.Node, Managed: true, Bindings: to.Of,
		}
		def, v, err := s.definition(ctx, spec, to.Number)
		if err != nil || def == nil {
			return "", false
		}
		sc := s.scopeWithout(ctx, to.Instance, spec, v, project, hidden)
		sc.Instance.Port = to.Values["port"]
		return manifest.ResolveVariable(def, name, sc)
	})
}

// sendAssign sends goals, with the revision that they are based on.
func (s *Session) sendAssign(a *wire.Assign) {
	a.Revision = s.f.Picture.Revision()
	a.Proof = s.f.prove(a.Revision, s.past)
	s.send(wire.Frame{Assign: a})
}
