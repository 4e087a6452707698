package fleet

import (
	"maps"
	"slices"

	"mariposa"
	"mariposa/store"
	"mariposa/wire"
)

// Volumes and network attachments of a node work like its instances: the session sends
// their goals, before those of the instances that need them, and stores what the node
// reports. Another kind needs a case in routeChanges and resourceOf.

// sendProvisions sends the node the goals of its resources, in frames that it accepts. A
// snapshot is sent even if it is empty: resources that it does not name are unmanaged.
func (s *Session) sendProvisions(items []wire.Provision, snapshot bool) {
	var frames []*wire.Provide
	for part := range slices.Chunk(items, wire.Batch) {
		frames = append(frames, &wire.Provide{Snapshot: snapshot, Items: part})
	}
	if snapshot && len(frames) == 0 {
		frames = append(frames, &wire.Provide{Snapshot: true})
	}
	for i, p := range frames {
		p.Last = snapshot && i == len(frames)-1
		s.send(wire.Frame{Provide: p})
	}
}

// resource is what the session knows about a resource of its node.
type resource struct {
	*store.Record
	was           *mariposa.VolumeStatus // nil until the node reports
	node          string
	goal          mariposa.Goal
	eventTemplate mariposa.Event // the template of its events
	kindByState   map[mariposa.ResourceState]string
	item          wire.Provision
}

// These are the event kinds of a resource that a node has created, cannot create, or has
// removed.
var (
	volumeEvents  = map[mariposa.ResourceState]string{mariposa.ResourceMade: "volume.made", mariposa.ResourcePending: "volume.pending", mariposa.ResourceGone: "volume.deleted"}
	networkEvents = map[mariposa.ResourceState]string{mariposa.ResourceMade: "network.attached", mariposa.ResourcePending: "network.pending", mariposa.ResourceGone: "network.detached"}
)

// resourceOf reads the record of a volume or of a network attachment.
func resourceOf(r *store.Record) resource {
	was, _ := r.Status.(*mariposa.VolumeStatus)
	switch spec := r.Spec.(type) {
	case *mariposa.VolumeSpec:
		return resource{
			Record: r, was: was, node: spec.Node, goal: spec.Goal, kindByState: volumeEvents,
			eventTemplate: mariposa.Event{Project: spec.Project, Service: spec.ServiceName, Task: spec.Task, Reason: spec.Reason},
			item:          wire.Provision{Kind: mariposa.KindVolume, ID: r.ID, Name: spec.Name, Compute: spec.Compute, Goal: spec.Goal, Size: spec.Size},
		}
	case *mariposa.AttachmentSpec:
		return resource{
			Record: r, was: was, node: spec.Node, goal: spec.Goal, kindByState: networkEvents,
			eventTemplate: mariposa.Event{Project: spec.Project, Reason: spec.Reason},
			item:          wire.Provision{Kind: mariposa.KindNetwork, ID: r.ID, Name: spec.Name, Compute: spec.Compute, Goal: spec.Goal},
		}
	}
	return resource{}
}

// storedKinds maps the kind that a node reports to the kind that the store uses.
var storedKinds = map[mariposa.Kind]mariposa.Kind{mariposa.KindVolume: mariposa.KindVolume, mariposa.KindNetwork: mariposa.KindAttachment}

// handleProvided keeps what a node reports about its resources.
func (s *Session) handleProvided(all []wire.Provided, c *cutter) {
	for _, p := range all {
		r := s.resource(p)
		if _, known := r.kindByState[p.State]; known {
			c.provided(&p)
			s.provided[p.ID] = p
		}
	}
}

// resource returns a resource of this node; without a record if there is none, or if it
// is another node's.
func (s *Session) resource(p wire.Provided) resource {
	kind, known := storedKinds[p.Kind]
	if !known {
		return resource{}
	}
	if r := s.f.Picture.Get(kind, p.ID); r != nil {
		if of := resourceOf(r); of.node == s.node {
			return of
		}
	}
	return resource{}
}

// provisionBatches returns the units for the reported resources: for those that are gone,
// or for the others. Resources are stored as created before their users, and as gone
// after them. Each has its own unit: a tombstone may only be deleted if the record is
// unchanged.
func (s *Session) provisionBatches(gone bool) []batch {
	var all []batch
	for _, id := range slices.Sorted(maps.Keys(s.provided)) {
		if (s.provided[id].State == mariposa.ResourceGone) != gone {
			continue
		}
		r := s.resource(s.provided[id])
		if r.Record == nil || !r.hasChanged(s.provided[id]) {
			delete(s.provided, id)
			continue
		}
		all = append(all, batch{unit: s.writeResource(r, s.provided[id]), resource: id})
	}
	return all
}

// hasChanged reports whether a report differs from what is stored.
func (r resource) hasChanged(p wire.Provided) bool {
	if p.State == mariposa.ResourceGone {
		return r.goal == mariposa.GoalGone // else it will be recreated
	}
	if r.was == nil {
		return p.State == mariposa.ResourceMade || p.Reason != ""
	}
	return r.was.State != p.State || r.was.Path != p.Path || r.was.Reason != p.Reason
}

// writeResource stores what a node reports about a resource. If it is gone as intended,
// its record is deleted.
func (s *Session) writeResource(r resource, p wire.Provided) store.Unit {
	st := &mariposa.VolumeStatus{State: p.State, Since: s.f.Clock.Now(), Path: p.Path, Reason: p.Reason}
	if r.was != nil && r.was.State == p.State {
		st.Since = r.was.Since
	}
	event := r.eventTemplate
	event.Kind, event.Node, event.Actor, event.Reason = r.kindByState[p.State], s.node, "node "+s.hello.Name, mariposa.Reported(p.Reason)
	w := store.Write{Kind: r.Kind, ID: r.ID, Status: st, Event: event}
	u := store.Unit{Fences: s.fence()}
	if p.State == mariposa.ResourceGone {
		w.Status, w.Delete, w.Event.Reason = nil, true, r.eventTemplate.Reason
		u.Unchanged(r.Record)
	}
	u.Put(w)
	return u
}
