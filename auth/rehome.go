package auth

import (
	"context"
	"errors"

	"mariposa"
	"mariposa/picture"
	"mariposa/store"
)

// Rehome moves projects whose organization does not exist to that of the first user:
// early releases put them into an organization called default, where users could not
// see them. Each project moves in one commit with its name, so Rehome can run at any
// time, repeatedly and on any number of replicas. Left are the names of projects that
// cannot move because another project there has the same name.
func Rehome(ctx context.Context, st store.Store, p *picture.Picture) (moved, left []string, err error) {
	for _, r := range p.Projects.All() {
		spec := r.Spec()
		if spec.Deleting || p.Orgs.Get(spec.Organization) != nil {
			continue
		}
		switch err := st.Commit(ctx, rehome(r))[0].Err; {
		case err == nil:
			moved = append(moved, spec.Name)
		case !errors.Is(err, store.ErrConflict):
			return moved, left, err
		case p.ProjectNamed(mariposa.FirstOrganization, spec.Name) != nil: // otherwise another replica has done it
			left = append(left, spec.Name)
		}
	}
	return moved, left, nil
}

// rehome returns the unit that moves one project with its name and reserved quota.
func rehome(r *store.Project) (unit store.Unit) {
	spec := *r.Spec()
	old := spec.Organization
	spec.Organization = mariposa.FirstOrganization
	name := mariposa.NameID(spec.Organization, spec.Name)
	why := "its organization " + old + " does not exist"
	from, fromCount := mariposa.LedgerOf(old)
	to, toCount := mariposa.LedgerOf(spec.Organization)
	one := mariposa.Resources{Instances: 1}
	unit.Unchanged(r)
	unit.Absent(mariposa.KindOrg, old)
	unit.Exists(mariposa.KindOrg, spec.Organization)
	unit.Absent(mariposa.KindName, name)
	unit.Delete(mariposa.KindName, mariposa.NameID(old, spec.Name), mariposa.Event{})
	unit.Put(store.Write{Kind: mariposa.KindName, ID: name, Spec: &mariposa.NameSpec{Project: r.ID}}, store.Write{
		Kind: mariposa.KindProject, ID: r.ID, Project: r.ID, Spec: &spec,
		Event: mariposa.OwnEvent("project.updated", r.ID, &mariposa.Reason{Code: mariposa.ReasonRehomed, Subject: old}),
	})
	unit.GiveBack(from, spec.Demand)
	unit.GiveBack(fromCount, one)
	unit.Take(to, spec.Demand, mariposa.Resources{})
	unit.Take(toCount, one, mariposa.Resources{})
	unit.Audit = []mariposa.Audit{{
		Actor: "mariposa", ActorName: "mariposa", Action: "project.move", Outcome: mariposa.AuditDone, Kind: string(mariposa.KindProject),
		Object: r.ID, ObjectName: spec.Name, Organization: spec.Organization, Project: r.ID, ProjectName: spec.Name, Reason: why,
	}}
	return unit
}
