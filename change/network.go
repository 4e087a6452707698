package change

import (
	"context"
	"maps"
	"slices"

	"mariposa"
	"mariposa/contract"
	"mariposa/reason"
	"mariposa/store"
)

// DeleteNetwork deletes a network that nothing uses. Its attachments get a tombstone:
// their nodes remove them once they can be reached.
func (c *Changer) DeleteNetwork(ctx context.Context, req *Request, id string) (*contract.Changed, error) {
	return c.commit(ctx, req, id, func() (*attempt, error) {
		r := c.Picture.Networks.Get(id)
		if r == nil || c.Directory.OwnerOf(r.Record()) == nil {
			return nil, notFound("the network no longer exists")
		}
		if err := c.authorize(req, c.Directory.OwnerOf(r.Record())); err != nil {
			return nil, err
		}
		if err := c.requireNetworkUnused(ctx, r); err != nil {
			return nil, err
		}
		return c.endNetwork(req, r), nil
	})
}

// requireNetworkUnused refuses to delete a network that is in use, or will be.
func (c *Changer) requireNetworkUnused(ctx context.Context, r *store.Network) error {
	spec := r.Spec()
	for _, project := range spec.Projects() {
		var users []string
		for _, i := range c.Picture.InstancesOf(project) {
			spec := i.Spec()
			if !spec.Kept && mariposa.StateOf(spec, i.Status()) != mariposa.StateDestroyed &&
				slices.ContainsFunc(spec.Networks, func(j mariposa.Join) bool { return j.Network == r.ID }) {
				users = append(users, spec.Name)
			}
		}
		if len(users) > 0 {
			return conflict("network %s is used by %s of project %s: first stop them, or remove the network from the manifest", spec.Name, listSome(users), c.name(mariposa.KindProject, project))
		}
		service, err := c.wouldJoin(ctx, project, r.ID)
		if err != nil {
			return err
		}
		if service != "" {
			return conflict("network %s will be used again: service %s of project %s needs it; first scale the service down, stop it, or remove the network from the manifest", spec.Name, service, c.name(mariposa.KindProject, project))
		}
	}
	return nil
}

// wouldJoin returns the name of a service whose goal is to have instances on a
// network.
func (c *Changer) wouldJoin(ctx context.Context, project, network string) (string, error) {
	p := c.Picture.Projects.Get(project)
	st := p.Status()
	if st == nil || st.Goal != mariposa.GoalStarted {
		return "", nil
	}
	for _, name := range slices.Sorted(maps.Keys(st.Services)) {
		ss := st.Services[name]
		if ss.Removed || ss.Stopped || ss.Scale == 0 {
			continue
		}
		defs, err := c.definitions(ctx, project, ss.Number)
		if err != nil {
			return "", err
		}
		def := defs[name]
		if def == nil {
			continue
		}
		for _, called := range def.Networks {
			if networkOf(p, def, called) == network {
				return name, nil
			}
		}
	}
	return "", nil
}

// networkOf returns the id of a network that the definition of a project's service
// names.
func networkOf(project *store.Project, def *mariposa.Service, name string) string {
	if slices.Contains(def.Shared, name) {
		return mariposa.NetworkID(project.Spec().Organization, name)
	}
	return mariposa.NetworkID(project.ID, name)
}

// endNetwork deletes a network. All its records must be as read: creating an instance
// on the network at the same time touches its attachment on that node.
func (c *Changer) endNetwork(req *Request, r *store.Network) *attempt {
	spec, why := r.Spec(), req.actor()+" deleted it"
	a := &attempt{answer: contract.Changed{ID: r.ID, Name: spec.Name, Reason: "no node had created it"}}
	notified := req.event("network.deleted", spec.Project, mariposa.Asked(why))
	a.unit.Unchanged(r)
	a.unit.Delete(r.Kind, r.ID, notified)
	parts := c.Picture.AttachmentsOf(r.ID)
	for _, p := range parts {
		spec := p.Spec().WithTombstone(notified.Reason)
		notified.Kind, notified.Node = "network.detaching", spec.Node
		a.unit.Unchanged(p)
		a.unit.Put(store.Write{Kind: mariposa.KindAttachment, ID: p.ID, Spec: spec, Event: notified})
	}
	switch n := len(parts); {
	case n == 1:
		a.answer.Reason = "its node removes it when it is reachable"
	case n > 1:
		a.answer.Reason = reason.Many(n, "node") + " remove it when they are reachable"
	}
	a.unit.Audit = []mariposa.Audit{{
		Kind: string(mariposa.KindNetwork), Object: r.ID, ObjectName: spec.Name, Organization: c.orgOf(spec.Project, spec.Organization),
		Project: spec.Project, ProjectName: c.name(mariposa.KindProject, spec.Project), Reason: why,
	}}
	return a
}

// forgetAttachments deletes the attachments of networks on a removed node.
func (c *Changer) forgetAttachments(a *attempt, node, why string) {
	for _, r := range c.Picture.AttachmentsOn(node) {
		a.unit.Unchanged(r)
		a.unit.Delete(r.Kind, r.ID, mariposa.Event{Kind: "network.detached", Project: r.Spec().Project, Reason: mariposa.Asked(why)})
	}
}

// requireNoSharedNetworks refuses to move a project that is on a shared network of its
// organization.
func (e *edit) requireNoSharedNetworks() error {
	for _, r := range e.c.Picture.NetworksOf(e.record.ID) {
		if spec := r.Spec(); spec.Project == "" {
			return conflict("project %s uses network %s, which its organization shares: remove the network from the manifest, or set shared: false, before you move the project", e.spec.Name, spec.Name)
		}
	}
	return nil
}
