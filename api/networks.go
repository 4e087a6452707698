package api

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

type listNetworksInput struct {
	InProject
	Limit  int    `query:"limit" minimum:"1" maximum:"10000" default:"1000"`
	Marker string `query:"marker" doc:"networks after this one" maxLength:"255"`
}

func (s *server) listNetworks(ctx context.Context, in *listNetworksInput) (*document[contract.Networks], error) {
	if err := s.checkMarker(mariposa.KindNetwork, in.Marker); err != nil {
		return nil, err
	}
	records, err := s.networksFor(ctx, in)
	if err != nil {
		return nil, err
	}
	var page contract.Networks
	page.Networks, page.Marker = pageOf(records, in.Marker, in.Limit, s.viewer(ctx).network)
	return answer(page)
}

// networksFor lists the networks that are asked for and that the caller may see, by id.
func (s *server) networksFor(ctx context.Context, in *listNetworksInput) ([]*store.Record, error) {
	g := s.sight(ctx, caller(ctx))
	var found []*store.Record
	switch project, err := s.projectID(ctx, in.InProject); {
	case err != nil:
		return nil, err
	case project != "":
		found = s.Picture.NetworksOf(project)
	default:
		found = s.Picture.All(mariposa.KindNetwork)
	}
	org := ""
	if in.Organization != "" && in.Project == "" {
		var err error
		if org, err = s.organizationID(ctx, in.Organization); err != nil {
			return nil, err
		}
	}
	v := s.viewer(ctx)
	return slices.DeleteFunc(found, func(r *store.Record) bool {
		spec := r.Spec.(*mariposa.NetworkSpec)
		return !s.seesNetwork(g, spec.Project, spec.Organization) || org != "" && org != v.orgOfNetwork(spec)
	}), nil
}

// seesNetwork reports whether the caller may know of a network: who sees its project,
// or of a shared one, has a part in its organization.
func (s *server) seesNetwork(g *sight, project, organization string) bool {
	if project != "" {
		return g.project(project)
	}
	org := s.Picture.Get(mariposa.KindOrg, organization)
	return g.all || org != nil && s.directory.RoleOf(g.c, org) != ""
}

// findNetwork finds a network by id, or by the beginning of it, among those that the
// caller may see.
func (s *server) findNetwork(ctx context.Context, ref string) (*store.Record, error) {
	g := s.sight(ctx, caller(ctx))
	sees := func(r *store.Record) bool {
		spec := r.Spec.(*mariposa.NetworkSpec)
		return s.seesNetwork(g, spec.Project, spec.Organization)
	}
	return s.findByID(mariposa.KindNetwork, ref, sees)
}

// ownerOfNetwork finds what a permission about a network is asked for: its project, or
// the organization that shares it.
func (s *server) ownerOfNetwork(ctx context.Context, ref string) (*store.Record, error) {
	r, err := s.findNetwork(ctx, ref)
	if err != nil {
		return nil, err
	}
	if owner := s.networkOwner(r); owner != nil {
		return owner, nil
	}
	return nil, notFound("there is no network %q", ref)
}

func (s *server) networkOwner(r *store.Record) *store.Record {
	spec := r.Spec.(*mariposa.NetworkSpec)
	if spec.Project != "" {
		return s.Picture.Get(mariposa.KindProject, spec.Project)
	}
	return s.Picture.Get(mariposa.KindOrg, spec.Organization)
}

type ofNetwork struct {
	Network string `path:"network" doc:"its id, or the beginning of it" maxLength:"255"`
}

func (s *server) getNetwork(ctx context.Context, in *ofNetwork) (*document[contract.Network], error) {
	r, err := s.findNetwork(ctx, in.Network)
	if err != nil {
		return nil, err
	}
	return answer(s.viewer(ctx).network(r))
}

// network shows a network. Which other projects share it is told to who may see them.
func (v *viewer) network(r *store.Record) contract.Network {
	spec := r.Spec.(*mariposa.NetworkSpec)
	doc := contract.Network{
		ID: r.ID, Name: spec.Name, Shared: spec.Project == "", Organization: v.orgOfNetwork(spec), Project: spec.Project,
		Projects: []contract.NetworkProject{}, Nodes: []contract.NetworkNode{}, Created: spec.Created,
	}
	doc.Reason, doc.ReasonCode = v.say(spec.Reason)
	doc.OrganizationName = v.orgName(doc.Organization)
	g := v.s.sight(v.ctx, caller(v.ctx))
	for _, id := range spec.Projects() {
		n := len(v.onNetwork(id)[r.ID])
		doc.Instances += n
		if g.project(id) {
			doc.Projects = append(doc.Projects, contract.NetworkProject{Project: id, ProjectName: v.projectName(id), Instances: n})
		}
	}
	if spec.Project != "" {
		doc.ProjectName = v.projectName(spec.Project)
	}
	for _, part := range v.s.Picture.AttachmentsOf(r.ID) {
		doc.Nodes = append(doc.Nodes, v.attachment(part))
	}
	slices.SortFunc(doc.Nodes, func(a, b contract.NetworkNode) int {
		return cmp.Or(naturally(a.NodeName, b.NodeName), strings.Compare(a.Node, b.Node), cmp.Compare(a.ComputeType, b.ComputeType))
	})
	return doc
}

// orgOfNetwork is the organization of a network's project, or that shares it.
func (v *viewer) orgOfNetwork(spec *mariposa.NetworkSpec) string {
	if p := v.projectRecord(spec.Project); p != nil {
		return p.Spec.(*mariposa.ProjectSpec).Organization
	}
	return spec.Organization
}

// attachment shows a network's part on a node.
func (v *viewer) attachment(r *store.Record) contract.NetworkNode {
	spec := r.Spec.(*mariposa.AttachmentSpec)
	doc := contract.NetworkNode{Node: spec.Node, NodeName: v.nodeName(spec.Node), ComputeType: spec.Compute, State: string(mariposa.ResourcePending)}
	why := spec.Reason
	if st, _ := r.Status.(*mariposa.AttachmentStatus); st != nil {
		doc.State, doc.Path, why = string(st.State), st.Path, cmp.Or(mariposa.Reported(st.Reason), why)
	}
	switch {
	case v.unreachable(spec.Node):
		doc.State, why = string(mariposa.NodeUnknown), v.unreachableNode(spec.Node)
	case spec.Goal == mariposa.GoalGone:
		doc.State = "deleting"
	}
	doc.Reason, doc.ReasonCode = v.say(why)
	return doc
}

// attachedNetwork shows a network as far as one of its parts tells: it may be gone.
func (v *viewer) attachedNetwork(r *store.Record) contract.Network {
	spec := r.Spec.(*mariposa.AttachmentSpec)
	of := &mariposa.NetworkSpec{Name: spec.Name, Project: spec.Project, Organization: spec.Organization}
	return contract.Network{
		ID: spec.Network, Name: spec.Name, Shared: spec.Project == "", Organization: v.orgOfNetwork(of), OrganizationName: v.orgName(v.orgOfNetwork(of)),
		Project: spec.Project, ProjectName: v.projectName(spec.Project), Projects: []contract.NetworkProject{}, Nodes: []contract.NetworkNode{v.attachment(r)},
	}
}

// onNetwork finds a project's instances by the networks that they are on. What has
// ended and is kept to look at is on none.
func (v *viewer) onNetwork(project string) map[string][]*store.Record {
	on, known := v.joined[project]
	if !known {
		on = map[string][]*store.Record{}
		for _, r := range v.s.Picture.InstancesOf(project) {
			spec := r.Spec.(*mariposa.InstanceSpec)
			if spec.Kept || mariposa.StateOf(spec, instanceStatus(r)) == mariposa.StateDestroyed {
				continue
			}
			for _, j := range spec.Networks {
				on[j.Network] = append(on[j.Network], r)
			}
		}
		v.joined[project] = on
	}
	return on
}

// deleteNetwork takes away a network that nothing uses. Its parts get a tombstone:
// their nodes take them away when they can be reached.
func (s *server) deleteNetwork(ctx context.Context, in *ofNetwork) (*document[contract.Changed], error) {
	found, err := s.findNetwork(ctx, in.Network)
	if err != nil {
		return nil, err
	}
	changed, err := s.commit(ctx, found.ID, func() (*change, error) {
		r := s.Picture.Get(mariposa.KindNetwork, found.ID)
		if r == nil || s.networkOwner(r) == nil {
			return nil, notFound("the network is gone")
		}
		if err := s.authorizeAgain(ctx, s.networkOwner(r)); err != nil {
			return nil, err
		}
		v := s.viewer(ctx)
		if err := v.unusedNetwork(r); err != nil {
			return nil, err
		}
		return s.endNetwork(ctx, r, v.network(r)), nil
	})
	if err != nil {
		return nil, err
	}
	return answer(*changed)
}

// unusedNetwork refuses to delete a network that something uses, or will.
func (v *viewer) unusedNetwork(r *store.Record) error {
	spec := r.Spec.(*mariposa.NetworkSpec)
	for _, project := range spec.Projects() {
		var users []string
		for _, i := range v.onNetwork(project)[r.ID] {
			users = append(users, i.Spec.(*mariposa.InstanceSpec).Name)
		}
		if len(users) > 0 {
			return conflict("network %s is used by %s of project %s: stop them, or take the network out of the manifest first", spec.Name, some(users), v.projectName(project))
		}
		if service := v.wouldJoin(project, r.ID); service != "" {
			return conflict("network %s will be used again: service %s of project %s names it; scale it down, stop it, or take the network out of the manifest first", spec.Name, service, v.projectName(project))
		}
	}
	return nil
}

// wouldJoin names a service whose goal is to have instances on a network.
func (v *viewer) wouldJoin(project, network string) string {
	p := v.projectRecord(project)
	st := statusOf(p)
	if st == nil || st.Goal != mariposa.GoalStarted {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(st.Services)) {
		ss := st.Services[name]
		def := v.definition(project, ss.Number, name)
		if ss.Removed || ss.Stopped || ss.Scale == 0 || def == nil {
			continue
		}
		for _, called := range def.Networks {
			if networkOf(p, def, called) == network {
				return name
			}
		}
	}
	return ""
}

// networkOf is the id of what a definition of a project's service calls by a name.
func networkOf(project *store.Record, def *mariposa.Service, name string) string {
	if slices.Contains(def.Shared, name) {
		return mariposa.NetworkID(project.Spec.(*mariposa.ProjectSpec).Organization, name)
	}
	return mariposa.NetworkID(project.ID, name)
}

// endNetwork is the end of a network. All must be as it was seen: an instance that is
// being made on it at the same moment has touched its part on that node.
func (s *server) endNetwork(ctx context.Context, r *store.Record, doc contract.Network) *change {
	why := actor(ctx) + " deleted it"
	c := &change{answer: contract.Changed{ID: r.ID, Name: doc.Name, Reason: "nothing was ever made of it"}}
	told := mariposa.Event{Kind: "network.deleted", Project: doc.Project, Actor: actor(ctx), Reason: mariposa.Asked(why)}
	c.unit.Require = append(c.unit.Require, store.Require{Kind: mariposa.KindNetwork, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: -1})
	c.unit.Writes = append(c.unit.Writes, store.Write{Kind: mariposa.KindNetwork, ID: r.ID, Delete: true, Event: told})
	parts := s.Picture.AttachmentsOf(r.ID)
	for _, p := range parts {
		spec := p.Spec.(*mariposa.AttachmentSpec).Ended(told.Reason)
		told.Kind, told.Node = "network.detaching", spec.Node
		c.unit.Require = append(c.unit.Require, store.Require{Kind: mariposa.KindAttachment, ID: p.ID, SpecRevision: p.SpecRevision, StatusRevision: -1})
		c.unit.Writes = append(c.unit.Writes, store.Write{Kind: mariposa.KindAttachment, ID: p.ID, Spec: spec, Event: told})
	}
	if n := len(parts); n > 0 {
		c.answer.Reason = fmt.Sprintf("%s remove it as soon as they can be reached", many(n, "node"))
		if n == 1 {
			c.answer.Reason = "its node removes it as soon as it can be reached"
		}
	}
	c.unit.Audit = []mariposa.Audit{{
		Kind: string(mariposa.KindNetwork), Object: r.ID, ObjectName: doc.Name, Organization: doc.Organization, Project: doc.Project, ProjectName: doc.ProjectName, Reason: why,
	}}
	return c
}

// detach takes the parts of networks on a node that is given up off the books.
func (s *server) detach(c *change, node, why string) {
	for _, r := range s.Picture.AttachmentsOn(node) {
		spec := r.Spec.(*mariposa.AttachmentSpec)
		c.unit.Require = append(c.unit.Require, store.Require{Kind: mariposa.KindAttachment, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: -1})
		c.unit.Writes = append(c.unit.Writes, store.Write{
			Kind: mariposa.KindAttachment, ID: r.ID, Delete: true, Event: mariposa.Event{Kind: "network.detached", Project: spec.Project, Reason: mariposa.Asked(why)},
		})
	}
}

// sharesNetworks refuses to move a project that is on a network of its organization.
func (e *edit) sharesNetworks() error {
	for _, r := range e.s.Picture.NetworksOf(e.record.ID) {
		if spec := r.Spec.(*mariposa.NetworkSpec); spec.Project == "" {
			return conflict("%s shares network %s with others of its organization: take it out of the manifest, or out of sharing, before the project moves", e.spec.Name, spec.Name)
		}
	}
	return nil
}
