package change

import (
	"cmp"
	"context"
	"slices"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/converge"
	"mariposa/manifest"
	"mariposa/store"
)

// AttachVolume gives a volume that a deleted project has left to a project of the same
// organization. The project's planner takes it over before it creates another instance in the
// slot. No instance changes.
func (c *Changer) AttachVolume(ctx context.Context, req *Request, id, project string, to contract.VolumeAttachment) (*contract.Changed, error) {
	return c.commit(ctx, req, project, func() (*attempt, error) { // two volumes are not given to one slot at the same time
		r := c.Picture.Volumes.Get(id)
		if r == nil || c.Directory.OwnerOf(r.Record()) == nil {
			return nil, notFound("the volume no longer exists")
		}
		if err := c.authorize(req, c.Directory.OwnerOf(r.Record())); err != nil {
			return nil, err
		}
		p := c.Picture.Projects.Get(project)
		if p == nil {
			return nil, notFound("the project no longer exists")
		}
		if err := c.Directory.Require(req.Caller, auth.AttachVolume, p.Record()); err != nil {
			return nil, err
		}
		if was := r.Spec(); was.Project == "" && was.Organization != p.Spec().Organization {
			return nil, notFound("project %s is not in organization %s, which owns the volume", p.Spec().Name, cmp.Or(c.name(mariposa.KindOrg, was.Organization), was.Organization))
		}
		spec, err := c.attachedSpec(ctx, r.Spec(), p, to)
		if err != nil {
			return nil, err
		}
		a := &attempt{answer: contract.Changed{ID: r.ID, Name: spec.Name, Reason: c.attachedReason(spec, p)}}
		if was := r.Spec(); was.Project == p.ID && was.SameSlot(spec) && was.Goal == mariposa.GoalKept {
			return a, nil
		}
		if err := c.requireAttachable(ctx, r, p, spec); err != nil {
			return nil, err
		}
		if err := c.requireTogether(ctx, p, spec); err != nil {
			return nil, err
		}
		spec.Reason = mariposa.Asked(req.actor() + " attached it")
		a.unit.Unchanged(r)
		a.unit.Unchanged(p) // it is not deleted or moved meanwhile
		a.unit.Put(store.Write{
			Kind: mariposa.KindVolume, ID: r.ID, Project: p.ID, Spec: spec,
			Event: mariposa.Event{Kind: "volume.attached", Project: p.ID, Service: spec.ServiceName, Node: spec.Node, Actor: req.actor(), Reason: spec.Reason},
		})
		a.unit.Audit = []mariposa.Audit{{
			Kind: string(mariposa.KindVolume), Object: r.ID, ObjectName: spec.Owner() + " " + spec.Name,
			Organization: p.Spec().Organization, Project: p.ID, ProjectName: p.Spec().Name, Reason: spec.Reason.Detail,
		}}
		return a, nil
	})
}

// attachedReason says what comes of an attached volume.
func (c *Changer) attachedReason(spec *mariposa.VolumeSpec, p *store.Project) string {
	who := spec.Owner() + " of project " + p.Spec().Name + " uses it from its next start"
	if spec.Shared {
		who = "the services of project " + p.Spec().Name + " that name it use it from their next start"
	}
	return who + " on node " + cmp.Or(c.name(mariposa.KindNode, spec.Node), spec.Node)
}

// attachedSpec returns a volume as it is once it is attached: by default to the slot and the name
// that it had.
func (c *Changer) attachedSpec(ctx context.Context, was *mariposa.VolumeSpec, p *store.Project, to contract.VolumeAttachment) (*mariposa.VolumeSpec, error) {
	project := p.Spec()
	v, err := c.Cache.Version(ctx, p.ID, project.Number)
	if err != nil {
		return nil, err
	}
	spec := *was
	spec.Project, spec.ProjectName, spec.Organization, spec.Task, spec.Attaching = p.ID, "", "", "", true
	spec.Name = cmp.Or(to.Name, was.Name)
	at := slices.IndexFunc(v.Manifest.Volumes, func(v manifest.Volume) bool { return v.Name == spec.Name })
	if at < 0 {
		return nil, conflict("project %s has no volume %s in its manifest: declare it first, or choose another name", project.Name, spec.Name)
	}
	if err := requireSizeFits(was, project.Name, v.Manifest.Volumes[at]); err != nil {
		return nil, err
	}
	if spec.Shared = v.Manifest.Volumes[at].Shared; spec.Shared {
		return &spec, shareAttached(&spec, project.Name, v.Manifest, to)
	}
	spec.ServiceName, spec.Slot = cmp.Or(to.Service, was.ServiceName), cmp.Or(to.Slot, was.Slot, 1)
	def := v.Manifest.ByName[spec.ServiceName]
	switch {
	case spec.ServiceName == "":
		return nil, conflict("%s belonged to no slot, and project %s does not share a volume %s: choose a slot (--as SERVICE.1:%s)", was.Title(), project.Name, spec.Name, spec.Name)
	case def == nil:
		return nil, conflict("project %s has no service %s in its manifest: declare it first, or choose another one", project.Name, spec.ServiceName)
	case !usesVolume(def, spec.Name):
		return nil, conflict("service %s of project %s does not use a volume %s: add it to the manifest first, or choose another one", spec.ServiceName, project.Name, spec.Name)
	case def.Compute != was.Compute:
		return nil, errCompute(&spec, def)
	}
	spec.Service = project.Services[spec.ServiceName]
	return &spec, nil
}

// requireSizeFits refuses a volume that cannot have the size in the manifest: a limit is given to a
// new volume only, and none gets smaller.
func requireSizeFits(was *mariposa.VolumeSpec, project string, v manifest.Volume) error {
	switch {
	case v.Size == 0 || v.Size == was.Size:
	case was.Size == 0:
		return conflict("%s was created without a size and cannot get one later, but the manifest of project %s sets a size for volume %s: remove that size first, or choose another name", was.Title(), project, v.Name)
	case v.Size < was.Size:
		return conflict("%s has %s and cannot become smaller, but the manifest of project %s sets %s for volume %s: raise that size first, or choose another name",
			was.Title(), formatBytes(was.Size), project, formatBytes(v.Size), v.Name)
	}
	return nil
}

// shareAttached makes a volume that is attached one that all instances share.
func shareAttached(spec *mariposa.VolumeSpec, project string, m *manifest.Project, to contract.VolumeAttachment) error {
	if to.Service != "" || to.Slot != 0 {
		return invalid("volume %s of project %s is shared, so it has no slot: leave out the service and the slot", spec.Name, project)
	}
	spec.Service, spec.ServiceName, spec.Slot = "", "", 0
	for _, def := range m.Services {
		if usesVolume(def, spec.Name) && def.Compute != spec.Compute {
			return errCompute(spec, def)
		}
	}
	return nil
}

func errCompute(spec *mariposa.VolumeSpec, def *mariposa.Service) error {
	return conflict("the volume was created for compute type %s, and service %s has compute type %s: they cannot use each other's volumes", spec.Compute, def.Name, def.Compute)
}

// requireAttachable refuses a volume that cannot be attached to a slot now.
func (c *Changer) requireAttachable(ctx context.Context, r *store.Volume, p *store.Project, spec *mariposa.VolumeSpec) error {
	was, project := r.Spec(), p.Spec()
	what := was.Title()
	switch {
	case was.Project != "":
		return conflict("%s belongs to project %s: only volumes of deleted projects can be attached", what, c.projectOf(was))
	case was.Goal != mariposa.GoalKept:
		return conflict("%s is being deleted", what)
	case project.Deleting:
		return conflict("project %s is being deleted", project.Name)
	case c.Picture.Nodes.Get(was.Node) == nil:
		return conflict("the node of %s was removed, and its data with it: delete the volume", what)
	}
	for _, i := range c.Picture.InstancesOn(was.Node) {
		if user := i.Spec(); !user.Kept && mariposa.StateOf(user, i.Status()) != mariposa.StateDestroyed && mounts(user, r.ID) {
			return conflict("%s is still used by instance %s, a leftover of project %s: attach it after the instance is removed", what, user.Name, c.projectOf(was))
		}
	}
	return c.requireFreeSlot(ctx, p, spec)
}

// requireFreeSlot refuses a slot that has such a volume, or that is about to get one.
func (c *Changer) requireFreeSlot(ctx context.Context, p *store.Project, spec *mariposa.VolumeSpec) error {
	name := p.Spec().Name
	for _, other := range c.Picture.VolumesOf(p.ID) {
		is := other.Spec()
		switch {
		case is.Goal != mariposa.GoalKept:
		case is.SameSlot(spec) && spec.Shared:
			return conflict("project %s already has a shared volume %s (%s), which may have data: stop its services and delete that volume first, or choose another name", name, spec.Name, other.ID)
		case is.SameSlot(spec):
			return conflict("%s of project %s already has a volume %s (%s), which may have data: stop the service and delete that volume first, or choose another slot or name",
				spec.Owner(), name, spec.Name, other.ID)
		}
	}
	st := p.Status()
	if st == nil {
		return conflict("project %s has not been planned yet: try again shortly", name)
	}
	view, err := c.view(p.ID, st, func(n int) (converge.Definitions, error) { return c.definitions(ctx, p.ID, n) })
	if err != nil {
		return err
	}
	if service := nextUser(view, st, spec); service != "" {
		return conflict("service %s of project %s is about to start with an empty volume: stop it or scale it down, attach the volume, and start it again", service, name)
	}
	return nil
}

// requireTogether refuses a volume on another node than the volumes that an instance would use with
// it: an instance runs on the node of all its volumes.
func (c *Changer) requireTogether(ctx context.Context, p *store.Project, spec *mariposa.VolumeSpec) error {
	v, err := c.Cache.Version(ctx, p.ID, p.Spec().Number)
	if err != nil {
		return err
	}
	uses := func(of, name string, shared bool) bool {
		def := v.Manifest.ByName[of]
		return usesVolume(def, name) && slices.Contains(def.SharedVolumes, name) == shared
	}
	for _, other := range c.Picture.VolumesOf(p.ID) {
		is := other.Spec()
		var together bool
		switch {
		case is.Goal != mariposa.GoalKept || is.Node == spec.Node:
		case spec.Shared && is.Shared:
			together = slices.ContainsFunc(v.Manifest.Services, func(def *mariposa.Service) bool {
				return uses(def.Name, spec.Name, true) && uses(def.Name, is.Name, true)
			})
		case spec.Shared:
			together = uses(is.ServiceName, spec.Name, true) && uses(is.ServiceName, is.Name, false)
		case is.Shared:
			together = uses(spec.ServiceName, is.Name, true)
		default:
			together = is.Service == spec.Service && is.Slot == spec.Slot
		}
		if together {
			return conflict("%s of project %s is on node %s, and this volume is on node %s: the volumes of an instance must be on one node. Choose another slot, or delete the volume that you do not need",
				is.Title(), p.Spec().Name, cmp.Or(c.name(mariposa.KindNode, is.Node), is.Node), cmp.Or(c.name(mariposa.KindNode, spec.Node), spec.Node))
		}
	}
	return nil
}

// mounts reports whether an instance uses a volume.
func mounts(spec *mariposa.InstanceSpec, volume string) bool {
	return slices.ContainsFunc(spec.Mounts, func(m mariposa.Mount) bool { return m.Volume == volume })
}
