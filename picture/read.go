package picture

import (
	"context"
	"maps"
	"slices"

	"mariposa"
	"mariposa/store"
)

// Revision is how far the picture has come.
func (p *Picture) Revision() int64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.revision
}

// Await returns once the picture shows a revision, so that who wrote something
// reads it back.
func (p *Picture) Await(ctx context.Context, revision int64) error {
	for {
		p.mu.RLock()
		at, moved := p.revision, p.moved
		p.mu.RUnlock()
		if at >= revision {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		}
	}
}

// Moved returns a channel that is closed when the picture moves on from a
// revision; closed already when it has.
func (p *Picture) Moved(from int64) <-chan struct{} {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.revision > from {
		c := make(chan struct{})
		close(c)
		return c
	}
	return p.moved
}

// Get returns an object, nil if there is none. Versions and archived objects
// are not in the picture.
func (p *Picture) Get(kind mariposa.Kind, id string) *store.Record {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.records[kind][id]
}

// All returns the objects of a kind, by id.
func (p *Picture) All(kind mariposa.Kind) []*store.Record {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return pick(p.records[kind], maps.Keys(p.records[kind]))
}

// EachOf hands the objects of a kind to visit, in no order, until that returns
// false. It is for those who look at many and keep few: it neither sorts nor
// allocates. The picture stands still meanwhile, so visit must be quick, and must
// not call back into the picture.
func (p *Picture) EachOf(kind mariposa.Kind, visit func(*store.Record) bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, r := range p.records[kind] {
		if !visit(r) {
			return
		}
	}
}

// EachInstanceOf hands the instances of a project to visit, like EachOf.
func (p *Picture) EachInstanceOf(project string, visit func(*store.Record) bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	all := p.records[mariposa.KindInstance]
	for id := range p.members[project] {
		if !visit(all[id]) {
			return
		}
	}
}

// Count says how many objects of a kind there are.
func (p *Picture) Count(kind mariposa.Kind) int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.records[kind])
}

// ProjectNamed returns the project that has a name, nil if none has.
func (p *Picture) ProjectNamed(organization, name string) *store.Record {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.records[mariposa.KindProject][p.names[organization+"/"+name]]
}

// OrgNamed returns the organization that has a name, nil if none has.
func (p *Picture) OrgNamed(name string) *store.Record {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.records[mariposa.KindOrg][p.orgs[name]]
}

// UserNamed returns the user that has a name, nil if none has.
func (p *Picture) UserNamed(name string) *store.Record {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.records[mariposa.KindUser][p.users[name]]
}

// ProjectsOf returns the projects of an organization, by id; those being deleted
// too.
func (p *Picture) ProjectsOf(organization string) []*store.Record {
	return p.indexed(mariposa.KindProject, p.owned, organization)
}

// ProjectsWith returns the projects that name a user among their own, by id.
func (p *Picture) ProjectsWith(user string) []*store.Record {
	return p.indexed(mariposa.KindProject, p.shared, user)
}

// OrganizationsOf returns the organizations that a user is a member of, by id.
func (p *Picture) OrganizationsOf(user string) []*store.Record {
	return p.indexed(mariposa.KindOrg, p.joined, user)
}

// TokensOf returns the tokens of a user, by id.
func (p *Picture) TokensOf(user string) []*store.Record {
	return p.indexed(mariposa.KindToken, p.tokens, user)
}

// InstancesOf returns the instances of a project, by id.
func (p *Picture) InstancesOf(project string) []*store.Record {
	return p.indexed(mariposa.KindInstance, p.members, project)
}

// InstancesOn returns the instances assigned to a node, by id.
func (p *Picture) InstancesOn(node string) []*store.Record {
	return p.indexed(mariposa.KindInstance, p.onNode, node)
}

// VolumesOf returns the volumes of a project, by id.
func (p *Picture) VolumesOf(project string) []*store.Record {
	return p.indexed(mariposa.KindVolume, p.volumes, project)
}

// VolumesOn returns the volumes on a node, by id.
func (p *Picture) VolumesOn(node string) []*store.Record {
	return p.indexed(mariposa.KindVolume, p.stored, node)
}

// VolumesLeftTo returns the volumes that an organization has from projects that are
// gone, by id.
func (p *Picture) VolumesLeftTo(organization string) []*store.Record {
	return p.indexed(mariposa.KindVolume, p.left, organization)
}

// NetworksOf returns the networks that a project uses, shared ones too, by id.
func (p *Picture) NetworksOf(project string) []*store.Record {
	return p.indexed(mariposa.KindNetwork, p.networks, project)
}

// AttachmentsOf returns the parts of a network, by id.
func (p *Picture) AttachmentsOf(network string) []*store.Record {
	return p.indexed(mariposa.KindAttachment, p.ways, network)
}

// AttachmentsOn returns the parts of networks on a node, by id.
func (p *Picture) AttachmentsOn(node string) []*store.Record {
	return p.indexed(mariposa.KindAttachment, p.attached, node)
}

// CountOn says how many instances are assigned to a node.
func (p *Picture) CountOn(node string) int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.onNode[node])
}

// TasksOf returns the open tasks of a project, by id.
func (p *Picture) TasksOf(project string) []*store.Record {
	return p.indexed(mariposa.KindTask, p.tasks, project)
}

// OpenTasks returns up to limit open tasks of all projects, newest first, below an
// id (empty: from the top).
func (p *Picture) OpenTasks(before string, limit int) []*store.Record {
	p.mu.RLock()
	defer p.mu.RUnlock()
	out := make([]*store.Record, 0, min(limit, p.open.Len()))
	take := func(id string) bool {
		if id != before && len(out) < limit {
			out = append(out, p.records[mariposa.KindTask][id])
		}
		return len(out) < limit
	}
	if before == "" {
		p.open.Reverse(take)
	} else {
		p.open.Descend(before, take)
	}
	return out
}

func (p *Picture) indexed(kind mariposa.Kind, x index, owner string) []*store.Record {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return pick(p.records[kind], maps.Keys(x[owner]))
}

func pick(from map[string]*store.Record, ids func(func(string) bool)) []*store.Record {
	out := make([]*store.Record, 0, 16)
	for id := range ids {
		out = append(out, from[id])
	}
	slices.SortFunc(out, func(a, b *store.Record) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return out
}

// Project is everything of one project at one revision.
type Project struct {
	Revision  int64
	Record    *store.Record // nil: there is no such project
	Inline    bool          // its services are not records of their own yet
	Tasks     []*store.Record
	Volumes   []*store.Record
	Instances []*store.Record
}

// Project returns a project whole.
func (p *Picture) Project(id string) Project {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return Project{
		Revision:  p.revision,
		Record:    p.records[mariposa.KindProject][id],
		Inline:    p.inline(p.records[mariposa.KindProject][id]),
		Tasks:     pick(p.records[mariposa.KindTask], maps.Keys(p.tasks[id])),
		Volumes:   pick(p.records[mariposa.KindVolume], maps.Keys(p.volumes[id])),
		Instances: pick(p.records[mariposa.KindInstance], maps.Keys(p.members[id])),
	}
}
