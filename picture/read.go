package picture

import (
	"context"
	"maps"

	"mariposa"
	"mariposa/store"
)

// Revision returns the newest revision that the picture shows.
func (p *Picture) Revision() int64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.revision
}

// Await waits until the picture shows a revision, so that writers can read their own
// writes.
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

// Moved returns a channel that is closed once the picture has moved past a revision.
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

// Get returns an object of any kind, or nil if it does not exist. Versions and archived
// objects are not in the picture.
func (p *Picture) Get(kind mariposa.Kind, id string) *store.Record {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.records[kind][id]
}

// EachInstanceOf calls visit for the instances of a project, like Table.Each.
func (p *Picture) EachInstanceOf(project string, visit func(*store.Instance) bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for id := range p.instancesOf[project] {
		if !visit(p.Instances.at(id)) {
			return
		}
	}
}

// ProjectNamed returns the project with a name, or nil.
func (p *Picture) ProjectNamed(organization, name string) *store.Project {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.Projects.at(p.names[organization+"/"+name])
}

// OrgNamed returns the organization with a name, or nil.
func (p *Picture) OrgNamed(name string) *store.Organization {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.Orgs.at(p.orgs[name])
}

// UserNamed returns the user with a name, or nil.
func (p *Picture) UserNamed(name string) *store.User {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.Users.at(p.users[name])
}

// ProjectsOf returns the projects of an organization, sorted by id, including those being
// deleted.
func (p *Picture) ProjectsOf(organization string) []*store.Project {
	return p.Projects.of(p.projectsOf, organization)
}

// ProjectsWith returns the projects that a user is a member of, sorted by id.
func (p *Picture) ProjectsWith(user string) []*store.Project {
	return p.Projects.of(p.projectsWith, user)
}

// OrganizationsOf returns the organizations that a user is a member of, by id.
func (p *Picture) OrganizationsOf(user string) []*store.Organization {
	return p.Orgs.of(p.organizationsOf, user)
}

// TokensOf returns the tokens of a user, sorted by id. An empty user returns the join
// tokens.
func (p *Picture) TokensOf(user string) []*store.Token {
	return p.Tokens.of(p.tokensOf, user)
}

// InstancesOf returns the instances of a project, by id.
func (p *Picture) InstancesOf(project string) []*store.Instance {
	return p.Instances.of(p.instancesOf, project)
}

// InstancesInAnyOrder returns the instances of a project, and the revision that they show at
// least.
func (p *Picture) InstancesInAnyOrder(project string) (revision int64, instances []*store.Instance) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	ids := p.instancesOf[project]
	instances = make([]*store.Instance, 0, len(ids))
	for id := range ids {
		instances = append(instances, p.Instances.at(id))
	}
	return p.revision, instances
}

// InstancesOn returns the instances assigned to a node, by id.
func (p *Picture) InstancesOn(node string) []*store.Instance {
	return p.Instances.of(p.instancesOn, node)
}

// VolumesOf returns the volumes of a project, by id.
func (p *Picture) VolumesOf(project string) []*store.Volume {
	return p.Volumes.of(p.volumesOf, project)
}

// VolumesOn returns the volumes on a node, by id.
func (p *Picture) VolumesOn(node string) []*store.Volume {
	return p.Volumes.of(p.volumesOn, node)
}

// RetainedVolumesOf returns the volumes of deleted projects that an organization retains,
// by id.
func (p *Picture) RetainedVolumesOf(organization string) []*store.Volume {
	return p.Volumes.of(p.retainedVolumes, organization)
}

// NetworksOf returns the networks that a project uses, including shared ones, by id.
func (p *Picture) NetworksOf(project string) []*store.Network {
	return p.Networks.of(p.networksOf, project)
}

// AttachmentsOf returns the attachments of a network, by id.
func (p *Picture) AttachmentsOf(network string) []*store.Attachment {
	return p.Attachments.of(p.attachmentsOf, network)
}

// AttachmentsOn returns the network attachments on a node, by id.
func (p *Picture) AttachmentsOn(node string) []*store.Attachment {
	return p.Attachments.of(p.attachmentsOn, node)
}

// CountOn returns how many instances are assigned to a node.
func (p *Picture) CountOn(node string) int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.instancesOn[node])
}

// TasksOf returns the open tasks of a project, by id.
func (p *Picture) TasksOf(project string) []*store.Task {
	return p.Tasks.of(p.tasksOf, project)
}

// OpenTasks returns up to limit open tasks of all projects, newest first, with ids below
// the given one (empty: all).
func (p *Picture) OpenTasks(before string, limit int) []*store.Task {
	p.mu.RLock()
	defer p.mu.RUnlock()
	out := make([]*store.Task, 0, min(limit, p.openTasks.Len()))
	take := func(id string) bool {
		if id != before && len(out) < limit {
			out = append(out, p.Tasks.at(id))
		}
		return len(out) < limit
	}
	if before == "" {
		p.openTasks.Reverse(take)
	} else {
		p.openTasks.Descend(before, take)
	}
	return out
}

// Project is all objects of one project at one revision.
type Project struct {
	Revision  int64
	Record    *store.Project // nil: there is no such project
	Inline    bool           // its services are not separate records yet
	Tasks     []*store.Task
	Volumes   []*store.Volume
	Instances []*store.Instance
}

// Project returns a project with its objects.
func (p *Picture) Project(id string) Project {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return Project{
		Revision:  p.revision,
		Record:    p.Projects.at(id),
		Inline:    p.inline(p.Projects.at(id)),
		Tasks:     p.Tasks.pick(maps.Keys(p.tasksOf[id])),
		Volumes:   p.Volumes.pick(maps.Keys(p.volumesOf[id])),
		Instances: p.Instances.pick(maps.Keys(p.instancesOf[id])),
	}
}
