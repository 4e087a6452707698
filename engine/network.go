package engine

import (
	"slices"

	"mariposa"
	"mariposa/converge"
	"mariposa/store"
)

// networks is what a turn does to networks. They are read from the picture, not from the
// actor's view, because projects of other actors may share them. So a turn reads each one
// once, and its write requires that the network is still what was read.
type networks struct {
	joined        map[string]*joinedNetwork // by id
	attached      map[string]bool           // by id, attachments written in this turn
	checkedUnused bool                      // unused networks were searched for
}

// joinedNetwork is a network that instances of this turn join.
type joinedNetwork struct {
	read *store.Network        // nil if it did not exist
	spec *mariposa.NetworkSpec // as it is after this turn
}

// networkID returns the id of the network that a definition names.
func (t *turn) networkID(def *mariposa.Service, name string) (id string, shared bool) {
	if slices.Contains(def.Shared, name) {
		return mariposa.NetworkID(t.spec.Organization, name), true
	}
	return mariposa.NetworkID(t.project, name), false
}

// useNetworks joins a new instance to the networks of its definition. Networks
// that do not exist yet, or are not on its node, are created in the same
// commit, before it.
func (t *turn) useNetworks(s converge.Step, spec *mariposa.InstanceSpec, def *mariposa.Service) {
	for _, name := range def.Networks {
		id, shared := t.networkID(def, name)
		j := mariposa.Join{Network: id, Attachment: mariposa.AttachmentID(id, spec.Node, spec.Compute), Name: name}
		spec.Networks = append(spec.Networks, j)
		t.join(s, j, shared)
		t.attach(s, j, spec)
	}
}

// join creates a network, or adds this project to its users.
func (t *turn) join(s converge.Step, j mariposa.Join, shared bool) {
	if t.networks.joined[j.Network] != nil {
		return
	}
	if t.networks.joined == nil {
		t.networks.joined, t.networks.attached = map[string]*joinedNetwork{}, map[string]bool{}
	}
	why := &mariposa.Reason{Code: mariposa.ReasonNetworkUsed, Subject: s.Service, Other: t.spec.Name}
	r := t.e.Picture.Networks.Get(j.Network)
	if r == nil {
		spec := &mariposa.NetworkSpec{Name: j.Name, Project: t.project, Created: t.now, Reason: why}
		if shared {
			spec.Project, spec.Organization, spec.Users = "", t.spec.Organization, []string{t.project}
		}
		t.networks.joined[j.Network] = &joinedNetwork{spec: spec}
		t.writeNetwork(j.Network, nil, spec, "network.created", why)
		return
	}
	was := r.Spec()
	next := was.With(t.project)
	t.networks.joined[j.Network] = &joinedNetwork{read: r, spec: next}
	if len(next.Users) > len(was.Users) {
		t.writeNetwork(j.Network, r, next, "network.joined", why)
		return
	}
	// It must still exist; other changes to it do not matter.
	t.unit.Exists(mariposa.KindNetwork, j.Network)
}

// attach attaches a network to an instance's node. The attachment is written for every
// instance, once in a turn, so that a concurrent removal of the network conflicts.
func (t *turn) attach(s converge.Step, j mariposa.Join, on *mariposa.InstanceSpec) {
	if t.networks.attached[j.Attachment] {
		return
	}
	t.networks.attached[j.Attachment] = true
	network := t.networks.joined[j.Network]
	spec := &mariposa.AttachmentSpec{
		Network: j.Network, Name: j.Name, Project: network.spec.Project, Organization: network.spec.Organization, Compute: on.Compute, Node: on.Node,
		Goal: mariposa.GoalKept, Instance: s.Instance, Created: t.now, Reason: &mariposa.Reason{Code: mariposa.ReasonMadeFor, Subject: on.Name},
	}
	event := mariposa.Event{Project: t.project}
	r := t.e.Picture.Attachments.Get(j.Attachment)
	if r == nil || r.Spec().Goal == mariposa.GoalGone {
		next := *network.spec
		next.Nodes++
		network.spec = &next
		t.writeNetwork(j.Network, network.read, network.spec, "", nil)
		event = on.Event("network.attaching", s.Instance, "mariposa", spec.Reason)
	} else {
		spec.Created = r.Spec().Created
	}
	t.unit.Put(store.Write{Kind: mariposa.KindAttachment, ID: j.Attachment, Project: spec.Project, Spec: spec, Event: event})
}

// writeNetwork writes a network, replacing an earlier write of this turn. The commit fails if
// the network is no longer the one that was read, or exists if none was.
func (t *turn) writeNetwork(id string, read *store.Network, spec *mariposa.NetworkSpec, kind string, reason *mariposa.Reason) {
	w := store.Write{Kind: mariposa.KindNetwork, ID: id, Project: spec.Project, Spec: spec, Event: mariposa.Event{Project: t.project}}
	if kind != "" {
		w.Event = mariposa.OwnEvent(kind, t.project, reason)
	}
	for i := range t.unit.Writes {
		if old := &t.unit.Writes[i]; old.Kind == w.Kind && old.ID == id {
			old.Spec = spec
			return
		}
	}
	t.unit.Put(w)
	if read != nil {
		t.unit.Unchanged(read)
	} else {
		t.unit.Absent(mariposa.KindNetwork, id)
	}
}

// releaseNetworks releases the networks that no service of the goal uses any
// more, once the last instance that did is gone; all of them when the project
// is removed.
func (t *turn) releaseNetworks(all bool) {
	t.networksDirty = t.networksDirty || t.goal != t.stored
	mine := t.e.Picture.NetworksOf(t.project)
	if len(mine) == 0 || !all && (!t.networksDirty || t.hasFrozen(nil)) {
		return
	}
	t.networks.checkedUnused = true
	for _, r := range mine {
		if t.networks.joined[r.ID] != nil || !all && (t.goalUsesNetwork(r) || t.hasInstanceOn(r.ID)) {
			continue
		}
		t.releaseNetwork(r)
	}
}

// goalUsesNetwork reports whether a service of the goal uses a network.
func (t *turn) goalUsesNetwork(network *store.Network) bool {
	spec := network.Spec()
	shared := spec.Project == ""
	if shared && spec.Organization != t.spec.Organization {
		return false
	}
	for name, ss := range t.goal.Services {
		if ss.Removed {
			continue
		}
		def := t.view.Definition(ss.Number, name)
		if def != nil && slices.Contains(def.Networks, spec.Name) && slices.Contains(def.Shared, spec.Name) == shared {
			return true
		}
	}
	return false
}

// hasInstanceOn reports whether an instance of this project uses a network. Instances
// that are only kept for inspection do not count.
func (t *turn) hasInstanceOn(network string) (used bool) {
	t.e.Picture.EachInstanceOf(t.project, func(r *store.Instance) bool {
		spec := r.Spec()
		used = !spec.Kept && slices.ContainsFunc(spec.Networks, func(j mariposa.Join) bool { return j.Network == network })
		return !used
	})
	return used
}

// releaseNetwork removes this project from the users of a network. With its
// last user the network is removed: its attachments get a tombstone, and their
// nodes remove them.
func (t *turn) releaseNetwork(r *store.Network) {
	why := &mariposa.Reason{Code: mariposa.ReasonNetworkLeft, Subject: t.spec.Name}
	if rest := r.Spec().Without(t.project); len(rest.Users) > 0 {
		t.writeNetwork(r.ID, r, rest, "network.left", why)
		return
	}
	t.unit.Unchanged(r)
	event := mariposa.OwnEvent("network.deleted", t.project, why)
	t.unit.Delete(mariposa.KindNetwork, r.ID, event)
	for _, p := range t.e.Picture.AttachmentsOf(r.ID) {
		t.unit.Unchanged(p) // a node that is removed takes them with it
		spec := p.Spec().WithTombstone(why)
		event.Kind, event.Node = "network.detaching", spec.Node
		t.unit.Put(store.Write{Kind: mariposa.KindAttachment, ID: p.ID, Spec: spec, Event: event})
	}
}
