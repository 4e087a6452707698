package change

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/converge"
	"mariposa/manifest"
	"mariposa/store"
)

// DeleteVolume adds a tombstone to a volume: its node removes it once it can be
// reached, and then the record is deleted.
func (c *Changer) DeleteVolume(ctx context.Context, req *Request, id string) (*contract.Changed, error) {
	return c.commit(ctx, req, id, func() (*attempt, error) {
		r := c.Picture.Volumes.Get(id)
		if r == nil || c.Directory.OwnerOf(r.Record()) == nil {
			return nil, notFound("the volume no longer exists")
		}
		if err := c.authorize(req, c.Directory.OwnerOf(r.Record())); err != nil {
			return nil, err
		}
		spec := r.Spec()
		a := &attempt{answer: contract.Changed{ID: r.ID, Name: spec.Name, Reason: "node " + cmp.Or(c.name(mariposa.KindNode, spec.Node), spec.Node) + " deletes it"}}
		if !c.reachable(spec.Node) {
			a.answer.Reason += " when it is reachable again"
		}
		if spec.Goal == mariposa.GoalGone {
			return a, nil
		}
		if err := c.requireVolumeUnused(ctx, r); err != nil {
			return nil, err
		}
		c.addTombstone(req, a, r)
		return a, nil
	})
}

// requireVolumeUnused refuses to delete a volume that is in use, or will be.
func (c *Changer) requireVolumeUnused(ctx context.Context, r *store.Volume) error {
	spec := r.Spec()
	what := spec.Title()
	for _, i := range slices.Backward(c.Picture.InstancesOn(spec.Node)) { // by id, and ids increase: the newest first
		user := i.Spec()
		switch {
		case user.Kept || mariposa.StateOf(user, i.Status()) == mariposa.StateDestroyed: // it no longer uses anything
		case !mounts(user, r.ID):
		case user.Orphaned:
			return conflict("%s is used by instance %s, a leftover of project %s on node %s: delete the volume after the instance is removed",
				what, user.Name, c.projectOf(spec), cmp.Or(c.name(mariposa.KindNode, spec.Node), spec.Node))
		default:
			return conflict("%s is used by instance %s: first scale service %s down, stop it, or remove it from the manifest", what, user.Name, user.ServiceName)
		}
	}
	service, err := c.serviceNeeding(ctx, r)
	switch {
	case err != nil || service == "":
		return err
	case spec.Shared:
		return conflict("%s will be used again: service %s needs another instance; first scale %s down, stop it, or remove it from the manifest", what, service, service)
	}
	return conflict("%s will be used again: service %s needs an instance in that slot; first scale %s down, stop it, or remove it from the manifest", what, service, service)
}

// projectOf returns the name of a volume's project, or its former name if it is gone.
func (c *Changer) projectOf(spec *mariposa.VolumeSpec) string {
	return cmp.Or(c.name(mariposa.KindProject, spec.Project), spec.ProjectName)
}

// serviceNeeding returns the service for which the goal of a volume's project is to create an
// instance that would use it; empty if there is none.
func (c *Changer) serviceNeeding(ctx context.Context, r *store.Volume) (string, error) {
	spec := r.Spec()
	project := c.Picture.Projects.Get(spec.Project)
	st := project.Status()
	if st == nil || project.Spec().Deleting {
		return "", nil
	}
	if ss := st.Services[spec.ServiceName]; !spec.Shared && (ss == nil || ss.ID != spec.Service) {
		return "", nil
	}
	view, err := c.view(project.ID, st, func(n int) (converge.Definitions, error) { return c.definitions(ctx, project.ID, n) })
	if err != nil {
		return "", err
	}
	return nextUser(view, st, spec), nil
}

// nextUser returns the service that will start an instance with a volume; empty if there is none.
func nextUser(view *converge.View, st *mariposa.ProjectStatus, spec *mariposa.VolumeSpec) string {
	for _, name := range slices.Sorted(maps.Keys(st.Services)) {
		def := view.Definition(st.Services[name].Number, name)
		switch {
		case !usesVolume(def, spec.Name) || slices.Contains(def.SharedVolumes, spec.Name) != spec.Shared:
		case spec.Shared && view.WillFillAny(name), name == spec.ServiceName && view.WillFill(name, spec.Slot):
			return name
		}
	}
	return ""
}

// addTombstone writes a volume's tombstone. If its node is gone, nothing can remove
// it, so the record is deleted at once.
func (c *Changer) addTombstone(req *Request, a *attempt, r *store.Volume) {
	spec := *r.Spec()
	spec.Goal, spec.Task, spec.Reason = mariposa.GoalGone, "", mariposa.Asked(req.actor()+" deleted it")
	w := store.Write{
		Kind: mariposa.KindVolume, ID: r.ID, Spec: &spec,
		Event: mariposa.Event{Kind: "volume.deleting", Project: spec.Project, Service: spec.ServiceName, Node: spec.Node, Actor: req.actor(), Reason: spec.Reason},
	}
	if c.Picture.Nodes.Get(spec.Node) == nil {
		w.Spec, w.Delete, w.Event.Kind = nil, true, "volume.deleted"
		a.answer.Reason = "its node was removed, so only its record is deleted"
	}
	a.unit.Unchanged(r)
	a.unit.Put(w)
	a.unit.Audit = []mariposa.Audit{{
		Kind: string(mariposa.KindVolume), Object: r.ID, ObjectName: spec.Owner() + " " + spec.Name,
		Organization: c.orgOf(spec.Project, spec.Organization), Project: spec.Project, ProjectName: c.projectOf(&spec), Reason: spec.Reason.Detail,
	}}
}

// requireVolumeSizes refuses a manifest with a size that a volume cannot get: file systems can
// grow, but not shrink. Without a size in the manifest, volumes stay as they are.
func (e *edit) requireVolumeSizes(p *manifest.Project) error {
	all := map[string]manifest.Volume{}
	for _, v := range p.Volumes {
		all[v.Name] = v
	}
	for _, r := range e.c.Picture.VolumesOf(e.record.ID) {
		spec := r.Spec()
		size := all[spec.Name].Size
		if spec.Goal != mariposa.GoalKept || size == 0 || size == spec.Size || all[spec.Name].Shared != spec.Shared ||
			!spec.Shared && !usesVolume(p.ByName[spec.ServiceName], spec.Name) {
			continue
		}
		what := "volumes." + spec.Name + ".size: " + spec.Title()
		switch {
		case spec.Size == 0:
			return conflict("%s was created without a size and cannot get one: remove the size, use another name for a new volume, or delete the volume first (volume rm %s:%s)",
				what, spec.Owner(), spec.Name)
		case size < spec.Size:
			return conflict("%s has %s and cannot become smaller: use at least that size, use another name for a new volume, or delete the volume first (volume rm %s:%s)",
				what, formatBytes(spec.Size), spec.Owner(), spec.Name)
		}
	}
	return nil
}

// usesVolume reports whether a service has a volume of a name.
func usesVolume(def *mariposa.Service, name string) bool {
	return def != nil && slices.ContainsFunc(def.Volumes, func(text string) bool { return mariposa.ParseMount(text).Name == name })
}

// forgetVolumes deletes the volumes of a removed node, and returns those that should
// have been kept.
func (c *Changer) forgetVolumes(a *attempt, node, why string) (lost []string) {
	for _, r := range c.Picture.VolumesOn(node) {
		spec := r.Spec()
		if spec.Goal == mariposa.GoalKept {
			lost = append(lost, spec.Name+" of "+spec.Owner())
		}
		a.unit.Unchanged(r)
		a.unit.Delete(r.Kind, r.ID, mariposa.Event{Kind: "volume.deleted", Project: spec.Project, Service: spec.ServiceName, Reason: mariposa.Asked(why)})
	}
	return lost
}

// listSome lists a few of many names.
func listSome(all []string) string {
	const few = 5
	if len(all) <= few {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:few], ", "), len(all)-few)
}

// orgOf returns the organization of a project, or otherwise if the project is gone.
func (c *Changer) orgOf(project, otherwise string) string {
	if r := c.Picture.Projects.Get(project); r != nil {
		return r.Spec().Organization
	}
	return otherwise
}
