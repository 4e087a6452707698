package api

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/picture"
	"mariposa/store"
)

type listVolumesInput struct {
	InProject
	Service string `query:"service" doc:"id or name of a service"`
	Node    string `query:"node" doc:"id or name of a node"`
	Limit   int    `query:"limit" minimum:"1" maximum:"10000" default:"1000"`
	Marker  string `query:"marker" doc:"the marker of the previous page" maxLength:"255"`
}

func (s *server) listVolumes(ctx context.Context, in *listVolumesInput) (*document[contract.Volumes], error) {
	if err := s.checkMarker(mariposa.KindVolume, in.Marker); err != nil {
		return nil, err
	}
	records, err := s.volumesFor(ctx, in)
	if err != nil {
		return nil, err
	}
	var page contract.Volumes
	page.Volumes, page.Marker = pageOf(records, in.Marker, in.Limit, s.viewer(ctx).volume)
	return answer(page)
}

// pageOf returns up to limit records after a marker, sorted by id. Next is the marker
// of the next page; empty if there is none.
func pageOf[S, T, D any](records []*store.Of[S, T], marker string, limit int, show func(*store.Of[S, T]) D) (page []D, next string) {
	page = []D{}
	last := ""
	for _, r := range records {
		if r.ID <= marker {
			continue
		}
		if len(page) == limit {
			return page, last
		}
		page, last = append(page, show(r)), r.ID
	}
	return page, ""
}

// volumesFor lists the matching volumes that the caller can see, by id.
func (s *server) volumesFor(ctx context.Context, in *listVolumesInput) ([]*store.Volume, error) {
	g := s.newVisibility(ctx, caller(ctx))
	var found []*store.Volume
	switch project, err := s.projectID(ctx, in.InProject); {
	case err != nil:
		return nil, err
	case project != "":
		found = s.Picture.VolumesOf(project)
	case in.Organization != "":
		org, err := s.organizationID(ctx, in.Organization)
		if err != nil {
			return nil, err
		}
		found = s.volumesIn(org)
	default:
		found = s.Picture.Volumes.All()
	}
	node := ""
	if in.Node != "" {
		r, err := s.findNode(in.Node)
		if err != nil {
			return nil, err
		}
		node = r.ID
	}
	found = slices.DeleteFunc(found, func(r *store.Volume) bool {
		spec := r.Spec()
		return !s.seesVolume(g, spec) || in.Service != "" && in.Service != spec.ServiceName && in.Service != spec.Service || node != "" && node != spec.Node
	})
	if len(found) == 0 { // callers without volumes on a node cannot see it
		_, err := s.resolveNodeFilter(g, in.Node)
		return nil, err
	}
	return found, nil
}

// volumesIn lists the volumes of an organization: those of its projects, and those of
// deleted projects.
func (s *server) volumesIn(org string) []*store.Volume {
	all := s.Picture.RetainedVolumesOf(org)
	for _, p := range s.Picture.ProjectsOf(org) {
		all = append(all, s.Picture.VolumesOf(p.ID)...)
	}
	slices.SortFunc(all, func(a, b *store.Volume) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// seesVolume reports whether the caller can see a volume: they see its project, or have
// a role in the organization that owns it after its project was deleted.
func (s *server) seesVolume(g *visibility, spec *mariposa.VolumeSpec) bool {
	if spec.Project != "" {
		return g.project(spec.Project)
	}
	org := s.Picture.Orgs.Get(spec.Organization)
	return g.all || org != nil && s.directory.RoleOf(g.c, org) != ""
}

// findVolume finds a volume by id or id prefix, among those that the caller can see.
func (s *server) findVolume(ctx context.Context, ref string) (*store.Volume, error) {
	g := s.newVisibility(ctx, caller(ctx))
	return findByID(&s.Picture.Volumes, "volume", ref, func(r *store.Volume) bool { return s.seesVolume(g, r.Spec()) })
}

// findByID finds a record by id or id prefix, among those that the caller can see.
func findByID[S, T any](table *picture.Table[S, T], kind, ref string, sees func(*store.Of[S, T]) bool) (*store.Of[S, T], error) {
	if r := table.Get(ref); r != nil && sees(r) {
		return r, nil
	}
	var found []*store.Of[S, T]
	if len(ref) >= 4 {
		found = slices.DeleteFunc(table.All(), func(r *store.Of[S, T]) bool { return !strings.HasPrefix(r.ID, ref) || !sees(r) })
	}
	switch len(found) {
	case 0:
		return nil, notFound("there is no %s %q", kind, ref)
	case 1:
		return found[0], nil
	}
	return nil, invalid("%q matches more than one %s, including %s and %s: use the full id", ref, kind, found[0].ID, found[1].ID)
}

// ownerOfVolume returns the object on which permissions for a volume are checked: its
// project, or its organization after the project was deleted.
func (s *server) ownerOfVolume(ctx context.Context, ref string) (*store.Record, error) {
	r, err := s.findVolume(ctx, ref)
	if err != nil {
		return nil, err
	}
	if owner := s.directory.OwnerOf(r.Record()); owner != nil {
		return owner, nil
	}
	return nil, notFound("there is no volume %q", ref)
}

type ofVolume struct {
	Volume string `path:"volume" doc:"id, or a prefix of it" maxLength:"255"`
}

func (s *server) getVolume(ctx context.Context, in *ofVolume) (*document[contract.Volume], error) {
	r, err := s.findVolume(ctx, in.Volume)
	if err != nil {
		return nil, err
	}
	return answer(s.viewer(ctx).volume(r))
}

// volume shows a volume.
func (v *viewer) volume(r *store.Volume) contract.Volume {
	spec, st := r.Spec(), r.Status()
	doc := contract.Volume{
		ID: r.ID, Name: spec.Name, Organization: spec.Organization, Project: spec.Project, ProjectName: spec.ProjectName,
		Service: spec.Service, ServiceName: spec.ServiceName, Shared: spec.Shared, ComputeType: spec.Compute,
		Node: spec.Node, NodeName: v.nodeName(spec.Node), Size: spec.Size, State: string(mariposa.ResourcePending), Goal: spec.Goal,
		Created: spec.Created,
	}
	if !spec.Shared {
		doc.Slot = spec.Owner()
	}
	if p := v.projectRecord(spec.Project); p != nil {
		doc.Organization, doc.ProjectName = p.Spec().Organization, p.Spec().Name
	}
	doc.OrganizationName = v.orgName(doc.Organization)
	why := spec.Reason
	if st != nil {
		doc.State, doc.Path, why = string(st.State), st.Path, cmp.Or(mariposa.Reported(st.Reason), why)
	}
	doc.Reason, doc.ReasonCode = v.sentence(why)
	if user := v.instanceUsing(r); user != nil && !v.isPast() {
		doc.Instance, doc.InstanceName = user.ID, user.Spec().Name
	}
	switch {
	case v.unreachable(spec.Node):
		doc.State = string(mariposa.NodeUnknown)
		doc.Reason, doc.ReasonCode = v.sentence(v.unreachableNode(spec.Node))
		if spec.Goal == mariposa.GoalGone {
			doc.Reason += "; the volume will be deleted when the node returns"
		}
	case spec.Goal == mariposa.GoalGone:
		doc.State = "deleting"
	}
	return doc
}

// instanceUsing returns the instance that uses, or may use, a volume; the newest if
// there are several. Preserved instances do not count.
func (v *viewer) instanceUsing(volume *store.Volume) *store.Instance {
	node := volume.Spec().Node
	on, known := v.mounted[node]
	if !known {
		on = map[string]*store.Instance{}
		for _, r := range v.s.Picture.InstancesOn(node) { // by id, and ids increase
			spec := r.Spec()
			if spec.Kept || mariposa.StateOf(spec, r.Status()) == mariposa.StateDestroyed {
				continue
			}
			for _, m := range spec.Mounts {
				on[m.Volume] = r
			}
		}
		v.mounted[node] = on
	}
	return on[volume.ID]
}

type attachVolumeInput struct {
	Volume string `path:"volume" doc:"id, or a prefix of it" maxLength:"255"`
	Body   contract.VolumeAttachment
}

func (s *server) attachVolume(ctx context.Context, in *attachVolumeInput) (*document[contract.Changed], error) {
	r, err := s.findVolume(ctx, in.Volume)
	if err != nil {
		return nil, err
	}
	org := r.Spec().Organization
	if owner := s.Picture.Projects.Get(r.Spec().Project); owner != nil {
		org = owner.Spec().Organization
	}
	project, err := s.findProject(ctx, in.Body.Project, org)
	if err != nil {
		return nil, err
	}
	return changed(s.change.AttachVolume(ctx, request(ctx), r.ID, project.ID, in.Body))
}

func (s *server) deleteVolume(ctx context.Context, in *ofVolume) (*document[contract.Changed], error) {
	r, err := s.findVolume(ctx, in.Volume)
	if err != nil {
		return nil, err
	}
	return changed(s.change.DeleteVolume(ctx, request(ctx), r.ID))
}
