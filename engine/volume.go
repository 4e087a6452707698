package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"mariposa"
	"mariposa/converge"
	"mariposa/place"
	"mariposa/store"
)

// volumes are the volumes of a project. A slot has at most one kept volume of each name;
// those with a tombstone no longer belong to a slot.
type volumes struct {
	byID      map[string]*store.Volume
	bySlot    map[slot]map[string]string // name -> id
	attaching map[string]bool            // those that people have attached, by id
}

// slot identifies a slot by the id of its service, which stays the same when the service
// is removed from the manifest and added again. The zero slot has the volumes that all instances
// of the project share.
type slot struct {
	service string
	number  int
}

func newVolumes() volumes {
	return volumes{byID: map[string]*store.Volume{}, bySlot: map[slot]map[string]string{}, attaching: map[string]bool{}}
}

func (v *volumes) set(r *store.Volume) {
	spec := r.Spec()
	v.remove(r.ID)
	v.byID[r.ID] = r
	if spec.Goal != mariposa.GoalKept {
		return
	}
	if spec.Attaching {
		v.attaching[r.ID] = true
	}
	at := slot{spec.Service, spec.Slot}
	if spec.Attaching && v.bySlot[at][spec.Name] != "" {
		return // the slot has one
	}
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
	delete(v.attaching, id)
	spec := old.Spec()
	if at := (slot{spec.Service, spec.Slot}); v.bySlot[at][spec.Name] == id {
		if delete(v.bySlot[at], spec.Name); len(v.bySlot[at]) == 0 {
			delete(v.bySlot, at)
		}
	}
}

// of returns the volume of a name that a slot has; nil if none.
func (v *volumes) of(at slot, name string) *store.Volume { return v.byID[v.bySlot[at][name]] }

// nodeOfOthers returns a node where a slot has volumes of other names; empty if none.
func (v *volumes) nodeOfOthers(at slot) string {
	for _, name := range slices.Sorted(maps.Keys(v.bySlot[at])) {
		return v.of(at, name).Spec().Node
	}
	return ""
}

// applyVolume applies a change of a volume. One that was taken over gets the size of its service.
func (a *actor) applyVolume(r *store.Volume, deleted bool) {
	spec := r.Spec()
	if a.volumes.attaching[r.ID] && !spec.Attaching {
		clear(a.sizedFor)
	}
	if deleted || spec.Project != a.project {
		a.volumes.remove(r.ID)
	} else {
		a.volumes.set(r)
	}
}

// storage is the volumes that a new instance needs.
type storage struct {
	mounts   []mariposa.Mount
	existing map[string]*store.Volume // by name, those that its slot already has
	node     string                   // the node they are on; empty if there are none, so that any node will do
	near     string                   // the node where its slot has other volumes, which it may need later; empty if none
}

// storageOf finds the volumes of a slot. Volumes that it does not have yet get their ids
// here, and a node together with the instance. why is the reason if that is impossible.
func (t *turn) storageOf(s converge.Step, def *mariposa.Service, service string) (st storage, why *mariposa.Reason) {
	ids, at := map[string]string{}, slot{service, s.Slot}
	for _, text := range def.Volumes {
		m := mariposa.ParseMount(text)
		r := t.volumes.of(at, m.Name)
		if slices.Contains(def.SharedVolumes, m.Name) {
			r = cmp.Or(t.volumes.of(slot{}, m.Name), t.newShared[m.Name])
		}
		if r != nil && st.existing[m.Name] == nil {
			if why = t.whyContradicts(s, def, st, r); why != nil {
				return st, why
			}
			if st.existing == nil {
				st.existing = map[string]*store.Volume{}
			}
			st.existing[m.Name], st.node, ids[m.Name] = r, r.Spec().Node, r.ID
		}
		if ids[m.Name] == "" {
			ids[m.Name] = t.e.NewID()
		}
		m.Volume = ids[m.Name]
		st.mounts = append(st.mounts, m)
	}
	if st.node == "" && len(st.mounts) > 0 {
		st.near = t.volumes.nodeOfOthers(at)
	}
	return st, nil
}

// whyContradicts returns why a volume cannot be used together with the rest of a slot's
// definition.
func (t *turn) whyContradicts(s converge.Step, def *mariposa.Service, st storage, r *store.Volume) *mariposa.Reason {
	spec := r.Spec()
	if spec.Compute != def.Compute {
		return &mariposa.Reason{Code: mariposa.ReasonVolumeCompute, Subject: slotName(s), Other: spec.Name, Detail: string(spec.Compute), IDs: []string{r.ID}}
	}
	if st.node != "" && st.node != spec.Node {
		name := slices.Sorted(maps.Keys(st.existing))[0]
		return &mariposa.Reason{
			Code: mariposa.ReasonVolumesApart, Subject: slotName(s), Keys: []string{name, spec.Name}, IDs: []string{st.existing[name].ID, r.ID},
			Node: t.nodeName(st.node), Other: t.nodeName(spec.Node),
		}
	}
	return nil
}

// slotName returns the name of the slot of a step.
func slotName(s converge.Step) string { return fmt.Sprintf("%s.%d", s.Service, s.Slot) }

func (t *turn) nodeName(id string) string {
	if r := t.e.Picture.Nodes.Get(id); r != nil {
		return r.Spec().Name
	}
	return id
}

// whyRefused returns why the node with a slot's volumes cannot run an instance, and what
// has to happen.
func (t *turn) whyRefused(s converge.Step, st storage, by *mariposa.Reason) *mariposa.Reason {
	name := slices.Sorted(maps.Keys(st.existing))[0]
	why := &mariposa.Reason{Subject: slotName(s), Other: name, Node: t.nodeName(by.Node)}
	r := t.e.Picture.Nodes.Get(by.Node)
	if r == nil {
		why.Code, why.IDs = mariposa.ReasonVolumeNodeGone, []string{st.existing[name].ID}
		return why
	}
	status := r.Status()
	switch {
	case status != nil && status.State.IsAway():
		why.Code, why.Since = mariposa.ReasonVolumeNodeAway, status.Since
	case r.Spec().Drained:
		why.Code = mariposa.ReasonVolumeDrained
	case status == nil || status.State != mariposa.NodeRunning || t.e.Reachable != nil && !t.e.Reachable(r):
		why.Code, why.Detail = mariposa.ReasonVolumeNodeAway, by.Detail
	default:
		why.Code, why.Detail = mariposa.ReasonVolumeNoRoom, by.Detail
	}
	return why
}

// block records why an instance of a service cannot be created. Of several reasons, the
// first is kept, with a count of the others.
func (t *turn) block(service string, why *mariposa.Reason) {
	if t.blocked[service] == nil {
		t.blocked[service] = why
		return
	}
	t.blockedMore[service]++
}

// useVolumes writes the volumes of a new instance: new ones, and the new user of existing
// ones. So a concurrent deletion of a volume conflicts.
func (t *turn) useVolumes(s converge.Step, spec *mariposa.InstanceSpec, def *mariposa.Service, st storage) {
	done, made := map[string]bool{}, &mariposa.Reason{Code: mariposa.ReasonMadeFor, Subject: spec.Name}
	for _, m := range st.mounts {
		if done[m.Volume] {
			continue
		}
		done[m.Volume] = true
		v := mariposa.VolumeSpec{
			Name: m.Name, Project: t.project, Service: spec.Service, ServiceName: s.Service, Slot: s.Slot, Compute: spec.Compute,
			Node: spec.Node, Goal: mariposa.GoalKept, Created: t.now, Reason: made,
		}
		if slices.Contains(def.SharedVolumes, m.Name) {
			v.Service, v.ServiceName, v.Slot, v.Shared = "", "", 0, true
		}
		event := spec.Event("volume.created", s.Instance, "mariposa", made)
		had := st.existing[m.Name]
		if had != nil && had.Spec().Shared && (t.written[had.ID] || t.newShared[m.Name] == had) {
			continue // for another instance
		}
		if had != nil {
			v, event = *had.Spec(), mariposa.Event{}
			v.Attaching = false
			t.unit.Unchanged(had)
			t.written[had.ID] = true
		}
		v.Instance, v.Task, v.Size = s.Instance, spec.Task, sizeAfter(st.existing[m.Name], def.Sizes[m.Name])
		t.unit.Put(store.Write{Kind: mariposa.KindVolume, ID: m.Volume, Project: t.project, Spec: &v, Event: event})
		if v.Shared && had == nil { // further instances of this turn use it too
			t.newShared[m.Name] = &store.Volume{Kind: mariposa.KindVolume, ID: m.Volume, Halves: store.Halves{Spec: &v}}
		}
	}
}

// sizeAfter returns the size of a volume for which a manifest has a size. An existing one never
// gets smaller, and does not get a limit that it was created without.
func sizeAfter(had *store.Volume, size int64) int64 {
	switch {
	case had == nil:
		return size
	case had.Spec().Size == 0:
		return 0
	}
	return max(had.Spec().Size, size)
}

// growVolumes makes volumes larger if the versions in force say so. Their instances go on.
func (t *turn) growVolumes() {
	changed, numbers := map[string]*mariposa.Service{}, map[string]int{} // by id of the service
	shared := map[string]int64{}
	for name, ss := range t.goal.Services {
		if t.sizedFor[ss.ID] == ss.Number || ss.Removed {
			continue
		}
		if def := t.view.Definition(ss.Number, name); def != nil {
			changed[ss.ID], numbers[ss.ID] = def, ss.Number
			for _, name := range def.SharedVolumes {
				shared[name] = max(shared[name], def.Sizes[name])
			}
		}
	}
	if len(changed) == 0 {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(t.volumes.byID)) {
		r := t.volumes.byID[id]
		spec := *r.Spec()
		def := changed[spec.Service]
		if spec.Shared {
			def = &mariposa.Service{Sizes: shared}
		}
		if def == nil || spec.Goal != mariposa.GoalKept || spec.Attaching || t.written[id] {
			continue // one that is being attached follows
		}
		size := sizeAfter(r, def.Sizes[spec.Name])
		if size == spec.Size {
			continue
		}
		if len(t.unit.Writes) >= maxSteps {
			return // the rest follows
		}
		spec.Size, spec.Reason = size, &mariposa.Reason{Code: mariposa.ReasonVolumeGrows}
		t.written[id] = true
		t.unit.Unchanged(r)
		t.unit.Put(store.Write{
			Kind: mariposa.KindVolume, ID: id, Project: t.project, Spec: &spec,
			Event: mariposa.Event{Kind: "volume.growing", Project: t.project, Service: spec.ServiceName, Node: spec.Node, Actor: "mariposa", Reason: spec.Reason},
		})
	}
	t.sized = numbers
}

// takeVolumes takes over the volumes that people have attached to the project, and gives those
// back whose slot has another volume by now. Only the planner creates and takes volumes, so a
// slot never has two.
func (t *turn) takeVolumes() {
	for _, id := range slices.Sorted(maps.Keys(t.volumes.attaching)) {
		r := t.volumes.byID[id]
		spec := *r.Spec()
		if t.written[id] {
			continue
		}
		spec.Attaching = false
		w := store.Write{Kind: mariposa.KindVolume, ID: id, Project: t.project, Spec: &spec}
		if t.volumes.bySlot[slot{spec.Service, spec.Slot}][spec.Name] != id {
			spec.Project, spec.ProjectName, spec.Organization = "", t.spec.Name, t.spec.Organization
			spec.Reason = &mariposa.Reason{Code: mariposa.ReasonVolumeReturned, Subject: spec.Owner(), Other: spec.Name}
			if spec.Shared {
				spec.Reason.Subject = "project " + t.spec.Name
			}
			w.Project, w.Event = "", mariposa.Event{Kind: "volume.left", Project: t.project, Service: spec.ServiceName, Node: spec.Node, Actor: "mariposa", Reason: spec.Reason}
		}
		t.written[id] = true
		t.unit.Unchanged(r)
		t.unit.Put(w)
	}
}

// releaseVolumes moves the volumes of a removed project to its organization, or removes
// them too if a person requested that.
func (t *turn) releaseVolumes() {
	for _, id := range slices.Sorted(maps.Keys(t.volumes.byID)) {
		r := t.volumes.byID[id]
		spec := *r.Spec()
		spec.Project, spec.ProjectName, spec.Organization, spec.Attaching = "", t.spec.Name, t.spec.Organization, false
		kind, why := "volume.left", &mariposa.Reason{Code: mariposa.ReasonVolumeLeft}
		if t.spec.DropVolumes && spec.Goal != mariposa.GoalGone {
			spec.Goal, kind, why = mariposa.GoalGone, "volume.deleting", &mariposa.Reason{Code: mariposa.ReasonVolumeDropped}
		}
		spec.Reason = why
		t.unit.Unchanged(r)
		t.unit.Put(store.Write{
			Kind: mariposa.KindVolume, ID: id, Spec: &spec,
			Event: mariposa.Event{Kind: kind, Project: t.project, Service: spec.ServiceName, Node: spec.Node, Actor: "mariposa", Reason: why},
		})
	}
}

// pickNode finds a node for an instance; false if there is none now, with the reason
// recorded.
func (t *turn) pickNode(s converge.Step, spec *mariposa.InstanceSpec, def *mariposa.Service, st storage) (place.Node, bool) {
	need := needOf(spec)
	need.Stable = s.Stable
	if need.Node = st.near; need.Node != "" { // volumes of one slot must not be on different nodes
		if node, why := t.claimNode(s.Instance, need); why == nil {
			return node, true
		}
	}
	need.Node = st.node
	node, why := t.claimNode(s.Instance, need)
	switch {
	case why == nil:
		return node, true
	case why.Is(mariposa.ReasonNodeRefuses): // other instances of the service may have theirs elsewhere
		t.block(s.Service, t.whyRefused(s, st, why))
		return node, false
	}
	if len(spec.Ports) > 0 && !def.Update.StopFirst && t.goal.Services[s.Service].Rollout != nil {
		why = why.Because(&mariposa.Reason{Code: mariposa.ReasonPortsHeld})
	}
	t.withoutNode[fit{s.Service, s.Stable}] = true
	t.block(s.Service, why)
	return node, false
}
