package change

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/reason"
	"mariposa/store"
)

// CreateProject creates a project in an organization.
func (c *Changer) CreateProject(ctx context.Context, req *Request, org *store.Organization, name string, sub Submission) (*contract.Changed, error) {
	d, err := c.firstDraft(name, sub)
	if err != nil {
		return nil, err
	}
	d.resolved = c.resolveNew(ctx, org, d.parsed, nil)
	return c.commit(ctx, req, mariposa.NameID(org.ID, name), func() (*attempt, error) {
		return c.beginProject(ctx, req, org, name, d, "the project was created")
	})
}

// PlanProject forecasts the creation of a project.
func (c *Changer) PlanProject(ctx context.Context, req *Request, org *store.Organization, name string, sub Submission) (*contract.Plan, error) {
	d, err := c.firstDraft(name, sub)
	if err != nil {
		return nil, err
	}
	e, m, err := c.draftProject(ctx, req, org, name, d, "")
	if err != nil {
		return nil, err
	}
	if m.difference, err = e.diffFromGoal(m, nil); err != nil {
		return nil, err
	}
	if err := e.reserve(); err != nil {
		return nil, err
	}
	return e.forecast(m)
}

// firstDraft returns the draft of a project's first version.
func (c *Changer) firstDraft(name string, sub Submission) (d draft, err error) {
	if err := mariposa.CheckName("project", name); err != nil {
		return d, err
	}
	parsed, err := sub.read()
	if err != nil {
		return d, err
	}
	if parsed == nil {
		return d, ErrEmpty
	}
	d = sub.draft(parsed)
	if sub.Metadata == nil {
		return d, nil
	}
	if d.values, err = (*manifest.Values)(nil).Import(sub.Metadata, c.Clock.Now()); err != nil {
		return d, err
	}
	d.given, err = manifest.GivenKeys(sub.Metadata)
	return d, err
}

// beginProject creates a whole project in one commit, from the draft of its first
// version: its name, its spec, that version, and the task that starts it. The caller
// becomes its admin.
func (c *Changer) beginProject(ctx context.Context, req *Request, org *store.Organization, name string, d draft, reason string) (*attempt, error) {
	reason = cmp.Or(d.message, reason)
	e, _, err := c.draftProject(ctx, req, org, name, d, reason)
	if err != nil {
		return nil, err
	}
	if err := e.reserve(); err != nil {
		return nil, err
	}
	spec := e.spec
	own := e.unit.Writes
	e.unit.Writes = nil
	e.write(store.Write{Kind: mariposa.KindName, ID: mariposa.NameID(org.ID, name), Spec: &mariposa.NameSpec{Project: e.record.ID}}, "", nil)
	e.write(store.Write{Kind: mariposa.KindProject, ID: e.record.ID, Spec: &spec}, "project.created", mariposa.Asked(reason))
	e.unit.Put(own...) // its parts come after the project in the event feed
	return &e.attempt, nil
}

// draftProject drafts a project with its first version and the task that starts it.
func (c *Changer) draftProject(ctx context.Context, req *Request, org *store.Organization, name string, d draft, reason string) (*edit, *draftResult, error) {
	if err := c.requireCreator(req, c.Picture.Orgs.Get(org.ID)); err != nil {
		return nil, nil, err
	}
	if r := c.Picture.ProjectNamed(org.ID, name); r != nil {
		return nil, nil, c.errNameTaken(req, r, name)
	}
	id, now := c.NewID(), c.Clock.Now()
	e := &edit{c: c, req: req, ctx: ctx, now: now}
	e.spec = mariposa.ProjectSpec{
		Name: name, Organization: org.ID, Created: now, Author: req.actor(), Users: map[string]mariposa.Role{req.Caller.User: mariposa.RoleAdmin},
		Protected: d.protected,
	}
	begun := e.spec
	e.record = &store.Project{Kind: mariposa.KindProject, ID: id, Halves: store.Halves{Spec: &begun}}
	e.answer = contract.Changed{ID: id, Name: name}
	e.unit.Absent(mariposa.KindName, mariposa.NameID(org.ID, name))
	e.unit.Exists(mariposa.KindOrg, org.ID)
	e.beginAudit()
	m, err := e.makeVersion(d)
	if err != nil {
		return nil, nil, err
	}
	err = e.admit(&mariposa.TaskSpec{
		Task: mariposa.TaskStart, Component: "manifest", Reason: mariposa.Asked(reason),
		Patch: mariposa.Patch{Number: 1, Goal: mariposa.GoalStarted},
	})
	if err != nil {
		return nil, nil, err
	}
	e.claimProject(org.ID, 1)
	return e, m, nil
}

// requireCreator checks that the caller may create projects in an organization: roles
// may have changed since the front end found it.
func (c *Changer) requireCreator(req *Request, org *store.Organization) error {
	if org == nil {
		return notFound("the organization no longer exists")
	}
	return c.Directory.Require(req.Caller, auth.CreateProject, org.Record())
}

// errNameTaken returns the error for a name that another project has. It identifies that
// project if the caller may see it.
func (c *Changer) errNameTaken(req *Request, by *store.Project, name string) error {
	if c.Directory.RoleIn(req.Caller, by).Rank() == 0 {
		return conflict("the name %s is taken: choose another", name)
	}
	return conflict("project %s already exists (%s): choose another name, or update that project", name, by.ID)
}

// rename changes the project's name.
func (e *edit) rename(name string) error {
	if r := e.c.Picture.ProjectNamed(e.spec.Organization, name); r != nil {
		return e.c.errNameTaken(e.req, r, name)
	}
	old, next := mariposa.NameID(e.spec.Organization, e.spec.Name), mariposa.NameID(e.spec.Organization, name)
	e.unit.Absent(mariposa.KindName, next)
	e.write(store.Write{Kind: mariposa.KindName, ID: old, Delete: true}, "", nil)
	e.write(store.Write{Kind: mariposa.KindName, ID: next, Spec: &mariposa.NameSpec{Project: e.record.ID}}, "", nil)
	e.spec.Name, e.answer.Name = name, name
	return nil
}

// DeleteProject deletes a project, even while instances run if forced. Its volumes are
// deleted with it, or left to its organization.
func (c *Changer) DeleteProject(ctx context.Context, req *Request, project string, force, volumes bool) (*contract.Changed, error) {
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		if n, first := c.running(e.record.ID); n > 0 && !force {
			what := fmt.Sprintf("%d instances running, including %s", n, first)
			if n == 1 {
				what = "1 instance running, " + first
			}
			return nil, conflict("project %s still has %s: stop the project, or delete it with ?force=true", e.spec.Name, what)
		}
		err := e.admit(&mariposa.TaskSpec{
			Task: mariposa.TaskStop, Component: "delete", Reason: &mariposa.Reason{Code: mariposa.ReasonProjectDeleted}, LiftsFreeze: true,
			Patch: mariposa.Patch{Goal: mariposa.GoalDeleted},
		})
		if err != nil {
			return nil, err
		}
		e.spec.Deleting, e.spec.DropVolumes = true, volumes
		e.answer.Reason = e.volumesAfter()
		e.dismissUnmanaged()
		e.write(store.Write{Kind: mariposa.KindName, ID: mariposa.NameID(e.spec.Organization, e.spec.Name), Delete: true}, "", nil)
		return e.finish("its name is free; the project is deleted once its last instance is removed")
	})
}

// volumesAfter says what happens to the volumes of a deleted project.
func (e *edit) volumesAfter() string {
	n := len(e.c.Picture.VolumesOf(e.record.ID))
	switch {
	case n == 0:
		return ""
	case e.spec.DropVolumes:
		return reason.Many(n, "volume") + " will be deleted with it"
	}
	return reason.Many(n, "volume") + " will move to organization " + e.c.name(mariposa.KindOrg, e.spec.Organization)
}

// running counts the instances of a project that run, or may run.
func (c *Changer) running(project string) (n int, first string) {
	for _, r := range c.Picture.InstancesOf(project) {
		spec := r.Spec()
		switch mariposa.StateOf(spec, r.Status()) {
		case mariposa.StateDestroyed, mariposa.StateStopped, mariposa.StateFailed:
			continue
		}
		if n++; n == 1 {
			first = spec.Name
		}
	}
	return n, first
}

// taskReason returns the reason of the task that this edit added.
func (e *edit) taskReason() string {
	for _, w := range e.unit.Writes {
		if t, ok := w.Spec.(*mariposa.TaskSpec); ok {
			return reason.Sentence(t.Reason)
		}
	}
	return ""
}

func versionLabel(sha string, number int) string { return fmt.Sprintf("%s (number %d)", sha, number) }

// CopyProject creates a project in an organization from the newest version of another,
// with the values of the given keys.
func (c *Changer) CopyProject(ctx context.Context, req *Request, from *store.Project, org *store.Organization, name string, keys []string) (*contract.Changed, error) {
	if err := mariposa.CheckName("project", name); err != nil {
		return nil, err
	}
	return c.commit(ctx, req, mariposa.NameID(org.ID, name), func() (*attempt, error) {
		from := c.Picture.Projects.Get(from.ID)
		if from == nil {
			return nil, notFound("the project to copy no longer exists")
		}
		if err := c.authorize(req, from.Record()); err != nil {
			return nil, err
		}
		d, err := c.copyDraft(ctx, req, from, keys)
		if err != nil {
			return nil, err
		}
		return c.beginProject(ctx, req, org, name, *d, "copied from "+from.Spec().Name)
	})
}

// copyDraft returns the draft of a copy's first version: the newest manifest, and the
// given values.
func (c *Changer) copyDraft(ctx context.Context, req *Request, from *store.Project, keys []string) (*draft, error) {
	spec := from.Spec()
	newest, err := c.Cache.Version(ctx, from.ID, spec.Number)
	if err != nil {
		return nil, err
	}
	values, _, err := c.Cache.NewestValues(ctx, from.ID, spec)
	if err != nil {
		return nil, err
	}
	if err := c.requireSecretReader(req, from, values, keys); err != nil {
		return nil, err
	}
	d := &draft{cause: mariposa.CauseManifest, bytes: newest.Spec.Manifest, json: newest.Spec.JSON, parsed: newest.Manifest, images: newest.Spec.Images, given: map[string]bool{}}
	d.message = "copied from " + spec.Name + ", version " + versionLabel(spec.Version, spec.Number)
	for _, key := range keys {
		value, set := values.Get(key)
		if !set {
			return nil, invalid("metadata: project %s has no value for %q", spec.Name, shorten(key))
		}
		if d.values, err = d.values.Set(key, value.Text, value.Secret, c.Clock.Now()); err != nil {
			return nil, err
		}
		if d.given[key] = true; slices.Contains(spec.Protected, key) {
			d.protected = append(d.protected, key)
		}
	}
	slices.Sort(d.protected)
	return d, nil
}

// MoveProject moves a project to another organization.
func (c *Changer) MoveProject(ctx context.Context, req *Request, project string, org *store.Organization) (*contract.Changed, error) {
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		if e.spec.Organization == org.ID {
			return &e.attempt, nil
		}
		org := c.Picture.Orgs.Get(org.ID) // with its current policy
		if err := c.requireCreator(req, org); err != nil {
			return nil, err
		}
		name := org.Spec().Name
		if r := c.Picture.ProjectNamed(org.ID, e.spec.Name); r != nil {
			return nil, conflict("organization %s already has a project %s: rename one of them first", name, e.spec.Name)
		}
		if err := e.requireNoSharedNetworks(); err != nil {
			return nil, err
		}
		if err := e.fitsPolicy(org); err != nil {
			return nil, err
		}
		e.move(org)
		return e.finish("moved to organization " + name)
	})
}

// move changes the owner, and moves the project's name and reserved quota with it.
// Nothing that affects instances changes.
func (e *edit) move(org *store.Organization) {
	old, next := mariposa.NameID(e.spec.Organization, e.spec.Name), mariposa.NameID(org.ID, e.spec.Name)
	e.unit.Absent(mariposa.KindName, next)
	e.unit.Exists(mariposa.KindOrg, org.ID)
	e.write(store.Write{Kind: mariposa.KindName, ID: old, Delete: true}, "", nil)
	e.write(store.Write{Kind: mariposa.KindName, ID: next, Spec: &mariposa.NameSpec{Project: e.record.ID}}, "", nil)
	e.claimProject(e.spec.Organization, -1)
	e.claimProject(org.ID, 1)
	e.claim(e.spec.Organization, mariposa.Resources{}.Minus(e.spec.Demand))
	e.claim(org.ID, e.spec.Demand)
	former := e.unit.Audit[0]
	former.Reason = "moved to organization " + org.Spec().Name
	e.unit.Audit[0].Organization, e.unit.Audit[0].Reason = org.ID, former.Reason
	e.unit.Audit = append(e.unit.Audit, former) // both organizations can read it
	e.spec.Users = withRole(e.spec.Users, e.req.Caller.User, mariposa.RoleAdmin)
	e.spec.Organization = org.ID
}
