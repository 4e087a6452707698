package fleet

import (
	"maps"
	"slices"

	"mariposa"
	"mariposa/store"
	"mariposa/wire"
)

// What a node has for its instances beside them, volumes so far, takes the same way
// as instances do: the session tells the goals, before the instances that need them,
// and writes down what the node makes of them. Another kind needs a case in hear,
// provision and provisionBatches.

// sendProvisions tells the node the goals of its resources, in frames that it can
// take. A snapshot is told even when it is empty: what it does not name is nobody's.
func (s *Session) sendProvisions(records []*store.Record, snapshot bool) {
	var frames []*wire.Provide
	for part := range slices.Chunk(records, wire.Batch) {
		p := &wire.Provide{Snapshot: snapshot}
		for _, r := range part {
			p.Items = append(p.Items, provision(r))
		}
		frames = append(frames, p)
	}
	if snapshot && len(frames) == 0 {
		frames = append(frames, &wire.Provide{Snapshot: true})
	}
	for i, p := range frames {
		p.Last = snapshot && i == len(frames)-1
		s.send(wire.Frame{Provide: p})
	}
}

func provision(r *store.Record) wire.Provision {
	spec := r.Spec.(*mariposa.VolumeSpec)
	return wire.Provision{Kind: r.Kind, ID: r.ID, Name: spec.Name, Compute: spec.Compute, Goal: spec.Goal, Size: spec.Size}
}

// takeProvided takes what a node says of its resources, as far as it is news.
func (s *Session) takeProvided(all []wire.Provided) {
	for _, p := range all {
		if s.volume(p.ID) != nil {
			s.provided[p.ID] = p
		}
	}
}

// volume is a volume of this node; nil: there is none, or it is another's.
func (s *Session) volume(id string) *store.Record {
	r := s.f.Picture.Get(mariposa.KindVolume, id)
	if r == nil || r.Spec.(*mariposa.VolumeSpec).Node != s.node {
		return nil
	}
	return r
}

// provisionBatches makes units of what was reported of resources. Each stands alone:
// a volume whose tombstone is settled must not be another's by then.
func (s *Session) provisionBatches() []batch {
	var all []batch
	for _, id := range slices.Sorted(maps.Keys(s.provided)) {
		r := s.volume(id)
		if r == nil || !s.news(r, s.provided[id]) {
			delete(s.provided, id)
			continue
		}
		all = append(all, batch{unit: s.writeVolume(r, s.provided[id]), volume: id})
	}
	return all
}

// news reports whether a node says something of a volume that is not stored.
func (s *Session) news(r *store.Record, p wire.Provided) bool {
	if p.State == mariposa.ResourceGone {
		return r.Spec.(*mariposa.VolumeSpec).Goal == mariposa.GoalGone // else it is made anew
	}
	st, _ := r.Status.(*mariposa.VolumeStatus)
	if st == nil {
		return p.State == mariposa.ResourceMade || p.Reason != ""
	}
	return st.State != p.State || st.Path != p.Path || st.Reason != p.Reason
}

// writeVolume stores what a node says of a volume. Of one that is gone, as it should
// be, nothing is left.
func (s *Session) writeVolume(r *store.Record, p wire.Provided) store.Unit {
	spec := r.Spec.(*mariposa.VolumeSpec)
	st := &mariposa.VolumeStatus{State: p.State, Since: s.f.Clock.Now(), Path: p.Path, Reason: p.Reason}
	if old, ok := r.Status.(*mariposa.VolumeStatus); ok && old != nil && old.State == p.State {
		st.Since = old.Since
	}
	w := store.Write{
		Kind: mariposa.KindVolume, ID: r.ID, Status: st,
		Event: mariposa.Event{
			Kind: "volume." + string(p.State), Project: spec.Project, Service: spec.ServiceName, Node: s.node, Task: spec.Task,
			Actor: "node " + s.hello.Name, Reason: p.Reason,
		},
	}
	u := store.Unit{Fences: []store.Fence{{Lease: leaseName(s.node), Epoch: s.epoch}}}
	if p.State == mariposa.ResourceGone {
		w.Status, w.Delete, w.Event.Kind, w.Event.Reason = nil, true, "volume.deleted", spec.Reason
		u.Require = []store.Require{{Kind: mariposa.KindVolume, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: -1}}
	}
	u.Writes = []store.Write{w}
	return u
}
