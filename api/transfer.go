package api

import (
	"context"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

type copyProjectInput struct {
	OfProject
	Body contract.Copy
}

func (s *server) copyProject(ctx context.Context, in *copyProjectInput) (*document[contract.Changed], error) {
	if err := checkName("project", in.Body.Name); err != nil {
		return nil, err
	}
	from, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	org, err := s.findDestination(ctx, firstOf(in.Body.Organization, from.Spec.(*mariposa.ProjectSpec).Organization))
	if err != nil {
		return nil, err
	}
	changed, err := s.commit(ctx, mariposa.NameID(org.ID, in.Body.Name), func() (*change, error) {
		if err := s.authorizeAgain(ctx, from); err != nil {
			return nil, err
		}
		d, err := s.copied(ctx, from, in.Body.Metadata)
		if err != nil {
			return nil, err
		}
		return s.beginProject(ctx, org, in.Body.Name, *d, "copied from "+from.Spec.(*mariposa.ProjectSpec).Name)
	})
	if err != nil {
		return nil, err
	}
	return answer(*changed)
}

// copied is the first version of a copy: the newest manifest, and the named values.
func (s *server) copied(ctx context.Context, from *store.Record, keys []string) (*draft, error) {
	spec := from.Spec.(*mariposa.ProjectSpec)
	newest, err := s.Shelf.Version(ctx, from.ID, spec.Number)
	if err != nil {
		return nil, err
	}
	values, _, err := s.valuesOf(ctx, from)
	if err != nil {
		return nil, err
	}
	if err := s.mayRead(ctx, from, values, keys); err != nil {
		return nil, err
	}
	d := &draft{cause: mariposa.CauseManifest, bytes: newest.Spec.Manifest, json: newest.Spec.JSON, parsed: newest.Manifest}
	d.message = "copied from " + spec.Name + ", version " + numbered(spec.Version, spec.Number)
	for _, key := range keys {
		value, set := values.Get(key)
		if !set {
			return nil, invalid("metadata: project %s has no value for %q", spec.Name, shorten(key))
		}
		if d.values, err = d.values.Set(key, value.Text, value.Secret, s.Clock.Now()); err != nil {
			return nil, err
		}
	}
	return d, nil
}

type moveProjectInput struct {
	OfProject
	Body contract.Move
}

func (s *server) moveProject(ctx context.Context, in *moveProjectInput) (*document[contract.Changed], error) {
	if in.Body.Organization == "" {
		return nil, invalid("organization is missing: say where to move the project")
	}
	org, err := s.findDestination(ctx, in.Body.Organization)
	if err != nil {
		return nil, err
	}
	return s.change(ctx, in.OfProject, func(e *edit) (*change, error) {
		if e.spec.Organization == org.ID {
			return &e.change, nil
		}
		if r := s.Picture.ProjectNamed(org.ID, e.spec.Name); r != nil {
			return nil, conflict("organization %s has a project %s already: rename one of them first", org.Spec.(*mariposa.OrganizationSpec).Name, e.spec.Name)
		}
		if err := e.sharesNetworks(); err != nil {
			return nil, err
		}
		e.move(org)
		return e.done("moved to organization " + org.Spec.(*mariposa.OrganizationSpec).Name)
	})
}

// move changes the owner: its name, and what is reserved for it, move along. Nothing
// that an instance is made from changes.
func (e *edit) move(org *store.Record) {
	old, next := mariposa.NameID(e.spec.Organization, e.spec.Name), mariposa.NameID(org.ID, e.spec.Name)
	e.unit.Require = append(e.unit.Require,
		store.Require{Kind: mariposa.KindName, ID: next, Absent: true},
		store.Require{Kind: mariposa.KindOrg, ID: org.ID, SpecRevision: -1, StatusRevision: -1})
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
	c := caller(e.ctx)
	e.spec.Users = withRole(e.spec.Users, c.User, mariposa.RoleAdmin)
	e.spec.Organization = org.ID
}
