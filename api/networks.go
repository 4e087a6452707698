package api

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

type listNetworksInput struct {
	InProject
	Limit  int    `query:"limit" minimum:"1" maximum:"10000" default:"1000"`
	Marker string `query:"marker" doc:"the marker of the previous page" maxLength:"255"`
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

// networksFor lists the matching networks that the caller can see, by id.
func (s *server) networksFor(ctx context.Context, in *listNetworksInput) ([]*store.Network, error) {
	g := s.newVisibility(ctx, caller(ctx))
	var found []*store.Network
	switch project, err := s.projectID(ctx, in.InProject); {
	case err != nil:
		return nil, err
	case project != "":
		found = s.Picture.NetworksOf(project)
	default:
		found = s.Picture.Networks.All()
	}
	org := ""
	if in.Organization != "" && in.Project == "" {
		var err error
		if org, err = s.organizationID(ctx, in.Organization); err != nil {
			return nil, err
		}
	}
	v := s.viewer(ctx)
	return slices.DeleteFunc(found, func(r *store.Network) bool {
		spec := r.Spec()
		return !s.seesNetwork(g, spec.Project, spec.Organization) || org != "" && org != v.orgOfNetwork(spec)
	}), nil
}

// seesNetwork reports whether the caller can see a network: they see its project, or have a
// role in the organization of a shared network.
func (s *server) seesNetwork(g *visibility, project, organization string) bool {
	if project != "" {
		return g.project(project)
	}
	org := s.Picture.Orgs.Get(organization)
	return g.all || org != nil && s.directory.RoleOf(g.c, org) != ""
}

// findNetwork finds a network by id or id prefix, among those that the caller can see.
func (s *server) findNetwork(ctx context.Context, ref string) (*store.Network, error) {
	g := s.newVisibility(ctx, caller(ctx))
	sees := func(r *store.Network) bool {
		spec := r.Spec()
		return s.seesNetwork(g, spec.Project, spec.Organization)
	}
	return findByID(&s.Picture.Networks, "network", ref, sees)
}

// ownerOfNetwork returns the object on which permissions for a network are checked: its
// project, or the organization of a shared network.
func (s *server) ownerOfNetwork(ctx context.Context, ref string) (*store.Record, error) {
	r, err := s.findNetwork(ctx, ref)
	if err != nil {
		return nil, err
	}
	if owner := s.directory.OwnerOf(r.Record()); owner != nil {
		return owner, nil
	}
	return nil, notFound("there is no network %q", ref)
}

type ofNetwork struct {
	Network string `path:"network" doc:"id, or a prefix of it" maxLength:"255"`
}

func (s *server) getNetwork(ctx context.Context, in *ofNetwork) (*document[contract.Network], error) {
	r, err := s.findNetwork(ctx, in.Network)
	if err != nil {
		return nil, err
	}
	return answer(s.viewer(ctx).network(r))
}

// network shows a network with those of its projects that the caller can see.
func (v *viewer) network(r *store.Network) contract.Network {
	spec := r.Spec()
	doc := contract.Network{
		ID: r.ID, Name: spec.Name, Shared: spec.Project == "", Organization: v.orgOfNetwork(spec), Project: spec.Project,
		Projects: []contract.NetworkProject{}, Nodes: []contract.NetworkNode{}, Created: spec.Created,
	}
	doc.Reason, doc.ReasonCode = v.sentence(spec.Reason)
	doc.OrganizationName = v.orgName(doc.Organization)
	if spec.Project != "" {
		doc.ProjectName = v.projectName(spec.Project)
	}
	if v.isPast() {
		return doc
	}
	g := v.s.newVisibility(v.ctx, caller(v.ctx))
	for _, id := range spec.Projects() {
		n := len(v.instancesByNetwork(id)[r.ID])
		doc.Instances += n
		if g.project(id) {
			doc.Projects = append(doc.Projects, contract.NetworkProject{Project: id, ProjectName: v.projectName(id), Instances: n})
		}
	}
	for _, part := range v.s.Picture.AttachmentsOf(r.ID) {
		doc.Nodes = append(doc.Nodes, v.attachment(part))
	}
	slices.SortFunc(doc.Nodes, func(a, b contract.NetworkNode) int {
		return cmp.Or(compareNaturally(a.NodeName, b.NodeName), strings.Compare(a.Node, b.Node), cmp.Compare(a.ComputeType, b.ComputeType))
	})
	return doc
}

// orgOfNetwork returns the organization of a network's project, or of a shared network.
func (v *viewer) orgOfNetwork(spec *mariposa.NetworkSpec) string {
	if p := v.projectRecord(spec.Project); p != nil {
		return p.Spec().Organization
	}
	return spec.Organization
}

// attachment shows the attachment of a network to a node.
func (v *viewer) attachment(r *store.Attachment) contract.NetworkNode {
	spec := r.Spec()
	doc := contract.NetworkNode{Node: spec.Node, NodeName: v.nodeName(spec.Node), ComputeType: spec.Compute, State: string(mariposa.ResourcePending)}
	why := spec.Reason
	if st := r.Status(); st != nil {
		doc.State, doc.Path, why = string(st.State), st.Path, cmp.Or(mariposa.Reported(st.Reason), why)
	}
	switch {
	case v.unreachable(spec.Node):
		doc.State, why = string(mariposa.NodeUnknown), v.unreachableNode(spec.Node)
	case spec.Goal == mariposa.GoalGone:
		doc.State = "deleting"
	}
	doc.Reason, doc.ReasonCode = v.sentence(why)
	return doc
}

// attachedNetwork shows a network by its attachment only, because the network may be gone.
func (v *viewer) attachedNetwork(r *store.Attachment) contract.Network {
	spec := r.Spec()
	of := &mariposa.NetworkSpec{Name: spec.Name, Project: spec.Project, Organization: spec.Organization}
	return contract.Network{
		ID: spec.Network, Name: spec.Name, Shared: spec.Project == "", Organization: v.orgOfNetwork(of), OrganizationName: v.orgName(v.orgOfNetwork(of)),
		Project: spec.Project, ProjectName: v.projectName(spec.Project), Projects: []contract.NetworkProject{}, Nodes: []contract.NetworkNode{v.attachment(r)},
	}
}

// instancesByNetwork returns a project's instances by network. Preserved instances are
// not connected.
func (v *viewer) instancesByNetwork(project string) map[string][]*store.Instance {
	on, known := v.joined[project]
	if !known {
		on = map[string][]*store.Instance{}
		for _, r := range v.s.Picture.InstancesOf(project) {
			spec := r.Spec()
			if spec.Kept || mariposa.StateOf(spec, r.Status()) == mariposa.StateDestroyed {
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

func (s *server) deleteNetwork(ctx context.Context, in *ofNetwork) (*document[contract.Changed], error) {
	r, err := s.findNetwork(ctx, in.Network)
	if err != nil {
		return nil, err
	}
	return changed(s.change.DeleteNetwork(ctx, request(ctx), r.ID))
}
