package change

import (
	"context"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// CopyProject makes another project in an organization from the newest version of one,
// with the values of the keys that are named.
func (c *Changer) CopyProject(ctx context.Context, req *Request, from, org *store.Record, name string, keys []string) (*contract.Changed, error) {
	if err := checkName("project", name); err != nil {
		return nil, err
	}
	return c.commit(ctx, req, mariposa.NameID(org.ID, name), func() (*attempt, error) {
		if err := c.authorize(req, from); err != nil {
			return nil, err
		}
		d, err := c.copied(ctx, req, from, keys)
		if err != nil {
			return nil, err
		}
		return c.beginProject(ctx, req, org, name, *d, "copied from "+from.Spec.(*mariposa.ProjectSpec).Name)
	})
}

// copied is the first version of a copy: the newest manifest, and the named values.
func (c *Changer) copied(ctx context.Context, req *Request, from *store.Record, keys []string) (*draft, error) {
	spec := from.Spec.(*mariposa.ProjectSpec)
	newest, err := c.Shelf.Version(ctx, from.ID, spec.Number)
	if err != nil {
		return nil, err
	}
	values, _, err := c.Shelf.NewestValues(ctx, from.ID, spec)
	if err != nil {
		return nil, err
	}
	if err := c.mayRead(req, from, values, keys); err != nil {
		return nil, err
	}
	d := &draft{cause: mariposa.CauseManifest, bytes: newest.Spec.Manifest, json: newest.Spec.JSON, parsed: newest.Manifest}
	d.message = "copied from " + spec.Name + ", version " + numbered(spec.Version, spec.Number)
	for _, key := range keys {
		value, set := values.Get(key)
		if !set {
			return nil, invalid("metadata: project %s has no value for %q", spec.Name, shorten(key))
		}
		if d.values, err = d.values.Set(key, value.Text, value.Secret, c.Clock.Now()); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// MoveProject gives a project to another organization.
func (c *Changer) MoveProject(ctx context.Context, req *Request, project string, org *store.Record) (*contract.Changed, error) {
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		if e.spec.Organization == org.ID {
			return &e.attempt, nil
		}
		name := org.Spec.(*mariposa.OrganizationSpec).Name
		if r := c.Picture.ProjectNamed(org.ID, e.spec.Name); r != nil {
			return nil, conflict("organization %s has a project %s already: rename one of them first", name, e.spec.Name)
		}
		if err := e.sharesNetworks(); err != nil {
			return nil, err
		}
		e.move(org)
		return e.done("moved to organization " + name)
	})
}

// move changes the owner: its name, and what is reserved for it, move along. Nothing
// that an instance is made from changes.
func (e *edit) move(org *store.Record) {
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
	former.Reason = "moved to organization " + org.Spec.(*mariposa.OrganizationSpec).Name
	e.unit.Audit[0].Organization, e.unit.Audit[0].Reason = org.ID, former.Reason
	e.unit.Audit = append(e.unit.Audit, former) // both organizations can read of it
	e.spec.Users = withRole(e.spec.Users, e.req.Caller.User, mariposa.RoleAdmin)
	e.spec.Organization = org.ID
}
