package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"mariposa"
	"mariposa/converge"
	"mariposa/place"
	"mariposa/store"
)

// volumes are those of a project. A slot has at most one of a name that is to be
// kept; those with a tombstone are no slot's any more.
type volumes struct {
	byID   map[string]*store.Record
	bySlot map[slot]map[string]string // name -> id
}

// slot names a slot by the id of its service, which outlives the service's place in
// the manifest.
type slot struct {
	service string
	number  int
}

func newVolumes() volumes {
	return volumes{byID: map[string]*store.Record{}, bySlot: map[slot]map[string]string{}}
}

func (v *volumes) set(r *store.Record) {
	spec := r.Spec.(*mariposa.VolumeSpec)
	v.remove(r.ID)
	v.byID[r.ID] = r
	if spec.Goal != mariposa.GoalKept {
		return
	}
	at := slot{spec.Service, spec.Slot}
	if v.bySlot[at] == nil {
		v.bySlot[at] = map[string]string{}
	}
	v.bySlot[at][spec.Name] = r.ID
}

func (v *volumes) remove(id string) {
	old := v.byID[id]
	if old == nil {
		return
	}
	delete(v.byID, id)
	spec := old.Spec.(*mariposa.VolumeSpec)
	if at := (slot{spec.Service, spec.Slot}); v.bySlot[at][spec.Name] == id {
		if delete(v.bySlot[at], spec.Name); len(v.bySlot[at]) == 0 {
			delete(v.bySlot, at)
		}
	}
}

// of finds what a slot has; nil: nothing of that name.
func (v *volumes) of(at slot, name string) *store.Record { return v.byID[v.bySlot[at][name]] }

// near is a node where a slot has volumes of other names; empty: none.
func (v *volumes) near(at slot) string {
	for _, name := range slices.Sorted(maps.Keys(v.bySlot[at])) {
		return v.of(at, name).Spec.(*mariposa.VolumeSpec).Node
	}
	return ""
}

// storage is what a new instance needs of volumes.
type storage struct {
	mounts []mariposa.Mount
	had    map[string]*store.Record // by name: those that its slot has already
	node   string                   // where those are; empty: there are none, so any node will do
	near   string                   // where its slot has others, which it may want later; empty: nowhere
}

// storageOf finds the volumes of a slot. Those that it does not have yet get their
// ids here, and a node with the instance. Why says what stands in the way.
func (t *turn) storageOf(s converge.Step, def *mariposa.Service, service string) (st storage, why string) {
	ids, at := map[string]string{}, slot{service, s.Slot}
	for _, text := range def.Volumes {
		m := mariposa.ParseMount(text)
		r := t.volumes.of(at, m.Name)
		if r != nil && st.had[m.Name] == nil {
			if why = t.contradicts(s, def, st, r); why != "" {
				return st, why
			}
			if st.had == nil {
				st.had = map[string]*store.Record{}
			}
			st.had[m.Name], st.node, ids[m.Name] = r, r.Spec.(*mariposa.VolumeSpec).Node, r.ID
		}
		if ids[m.Name] == "" {
			ids[m.Name] = t.e.NewID()
		}
		m.Volume = ids[m.Name]
		st.mounts = append(st.mounts, m)
	}
	if st.node == "" && len(st.mounts) > 0 {
		st.near = t.volumes.near(at)
	}
	return st, ""
}

// contradicts says why a volume cannot be used together with what the rest of a
// slot's definition says.
func (t *turn) contradicts(s converge.Step, def *mariposa.Service, st storage, r *store.Record) string {
	spec := r.Spec.(*mariposa.VolumeSpec)
	if spec.Compute != def.Compute {
		return fmt.Sprintf("%s.%d has its volume %s from a time when it was of compute type %s: name another volume, or delete this one with mariposa volume rm %s",
			s.Service, s.Slot, spec.Name, spec.Compute, r.ID)
	}
	if st.node != "" && st.node != spec.Node {
		name := slices.Sorted(maps.Keys(st.had))[0]
		return fmt.Sprintf("%s.%d has its volume %s on node %s and its volume %s on node %s: delete the one that is not needed, with mariposa volume rm %s or %s",
			s.Service, s.Slot, name, t.nodeName(st.node), spec.Name, t.nodeName(spec.Node), st.had[name].ID, r.ID)
	}
	return ""
}

func (t *turn) nodeName(id string) string {
	if r := t.e.Picture.Get(mariposa.KindNode, id); r != nil {
		return r.Spec.(*mariposa.NodeSpec).Name
	}
	return id
}

// refused says why the node that has a slot's volumes does not take an instance, and
// what has to happen.
func (t *turn) refused(s converge.Step, st storage, by *place.Refused) string {
	name := slices.Sorted(maps.Keys(st.had))[0]
	has := fmt.Sprintf("%s.%d has its volume %s on node %s, which ", s.Service, s.Slot, name, t.nodeName(by.Node))
	r := t.e.Picture.Get(mariposa.KindNode, by.Node)
	if r == nil {
		return has + "is no more: delete the volume with mariposa volume rm " + st.had[name].ID + " to go on with an empty one"
	}
	status, _ := r.Status.(*mariposa.NodeStatus)
	switch {
	case status != nil && status.State == mariposa.NodeUnknown:
		return has + "cannot be reached since " + status.Since.UTC().Format("15:04:05") + "; it is made when the node returns"
	case r.Spec.(*mariposa.NodeSpec).Drained:
		return has + by.Why + "; it is made when the node is no longer drained"
	case status == nil || status.State != mariposa.NodeRunning || t.e.Reachable != nil && !t.e.Reachable(r):
		return has + by.Why + "; it is made when the node returns"
	}
	return has + by.Why + "; it is made when there is room"
}

// block notes why something of a service cannot be made. Of several reasons the
// first is told, and how many there are.
func (t *turn) block(service, why string) {
	if t.blocked[service] == "" {
		t.blocked[service] = why
		return
	}
	t.unsaid[service]++
}

// useVolumes writes the volumes of a new instance: those that it is the first to
// use, and who uses the others from now on. So nobody can delete one at the same
// moment without one of the two having to look again.
func (t *turn) useVolumes(s converge.Step, spec *mariposa.InstanceSpec, def *mariposa.Service, st storage) {
	done := map[string]bool{}
	for _, m := range st.mounts {
		if done[m.Volume] {
			continue
		}
		done[m.Volume] = true
		v := mariposa.VolumeSpec{
			Name: m.Name, Project: t.project, Service: spec.Service, ServiceName: s.Service, Slot: s.Slot, Compute: spec.Compute,
			Node: spec.Node, Goal: mariposa.GoalKept, Created: t.now, Reason: "made for " + spec.Name,
		}
		event := mariposa.Event{Kind: "volume.created", Project: t.project, Service: s.Service, Instance: s.Instance, Node: spec.Node, Task: spec.Task, Actor: "mariposa", Reason: v.Reason}
		if had := st.had[m.Name]; had != nil {
			v, event = *had.Spec.(*mariposa.VolumeSpec), mariposa.Event{}
			t.unit.Require = append(t.unit.Require, store.Require{Kind: mariposa.KindVolume, ID: m.Volume, SpecRevision: had.SpecRevision, StatusRevision: -1})
		}
		v.Instance, v.Task, v.Size = s.Instance, spec.Task, def.Sizes[m.Name]
		t.unit.Writes = append(t.unit.Writes, store.Write{Kind: mariposa.KindVolume, ID: m.Volume, Project: t.project, Spec: &v, Event: event})
	}
}

// leaveVolumes hands the volumes of a project that goes to its organization, or
// lets them go with it where a person said so.
func (t *turn) leaveVolumes() {
	for _, id := range slices.Sorted(maps.Keys(t.volumes.byID)) {
		r := t.volumes.byID[id]
		spec := *r.Spec.(*mariposa.VolumeSpec)
		spec.Project, spec.ProjectName, spec.Organization = "", t.spec.Name, t.spec.Organization
		kind, why := "volume.left", "its project is deleted; the organization has it now"
		if t.spec.DropVolumes && spec.Goal != mariposa.GoalGone {
			spec.Goal, kind, why = mariposa.GoalGone, "volume.deleting", "its project is deleted, volumes too"
		}
		spec.Reason = why
		t.unit.Require = append(t.unit.Require, store.Require{Kind: mariposa.KindVolume, ID: id, SpecRevision: r.SpecRevision, StatusRevision: -1})
		t.unit.Writes = append(t.unit.Writes, store.Write{
			Kind: mariposa.KindVolume, ID: id, Spec: &spec,
			Event: mariposa.Event{Kind: kind, Project: t.project, Service: spec.ServiceName, Node: spec.Node, Actor: "mariposa", Reason: why},
		})
	}
}

// pickNode finds a node for an instance; false: there is none now, and why is noted.
func (t *turn) pickNode(s converge.Step, spec *mariposa.InstanceSpec, def *mariposa.Service, st storage) (place.Node, bool) {
	need := needOf(spec)
	if need.Node = st.near; need.Node != "" { // as long as all its volumes are on one node, none is in the way of another
		if node, err := t.e.placer.Pick(s.Instance, need); err == nil {
			return node, true
		}
	}
	need.Node = st.node
	node, err := t.e.placer.Pick(s.Instance, need)
	var refused *place.Refused
	switch {
	case err == nil:
		return node, true
	case errors.As(err, &refused): // others of the service may have theirs elsewhere
		t.block(s.Service, t.refused(s, st, refused))
		return node, false
	}
	why := err.Error()
	if len(spec.Ports) > 0 && !def.Update.StopFirst && t.goal.Services[s.Service].Rollout != nil {
		why += "; its predecessors may hold a fixed port, which `update: {order: stop-first}` would free first"
	}
	t.nowhere[s.Service] = true
	t.block(s.Service, why)
	return node, false
}
