package auth

import (
	"cmp"
	"strings"

	"mariposa"
	"mariposa/store"
)

// Denial is the cause of an error about a denied permission, with the project or
// organization if there is one.
type Denial struct{ On *store.Record }

func (Denial) Error() string { return "denied" }

// Require checks a permission on a project or organization, or on neither if nil. The
// error says which role is missing. Every permission is checked here.
func (d *Directory) Require(c *Caller, p Permission, on *store.Record) error {
	return d.RequireTo(c, p, on, "")
}

// RequireTo is like Require with a description of the action for the error, such as
// scaling. If it is empty, the error describes the permission.
func (d *Directory) RequireTo(c *Caller, p Permission, on *store.Record, doing string) error {
	switch d.May(c, p, on) {
	case Allowed:
		return nil
	case Denied:
		return &mariposa.Error{Code: mariposa.Forbidden, Message: d.explainDenial(c, rows[p], on, doing), Cause: Denial{on}}
	}
	if on != nil {
		if spec, ok := on.Spec.(*mariposa.OrganizationSpec); ok {
			return mariposa.Errorf(mariposa.ResourceNotFound, "there is no organization %q", spec.Name)
		}
	}
	return mariposa.Errorf(mariposa.ResourceNotFound, "there is no such project")
}

// explainDenial returns which role is required and which role the caller has.
func (d *Directory) explainDenial(c *Caller, row Row, on *store.Record, doing string) string {
	what, need, have := cmp.Or(doing, row.Doing), "an admin of the installation", "not one"
	if on != nil {
		switch spec := on.Spec.(type) {
		case *mariposa.ProjectSpec:
			what, need, have = what+" "+spec.Name, "the "+string(row.Project)+" role", withArticle(string(d.RoleIn(c, (*store.Project)(on))))
		case *mariposa.OrganizationSpec:
			role := withArticle(string(d.RoleOf(c, (*store.Organization)(on))))
			what, need, have = what+" "+spec.Name, "being "+withArticle(string(row.Organization))+" of the organization", role
		}
	}
	has := "you are " + have
	switch {
	case c.Bounds.Role != "":
		has = "this token is limited to the " + string(c.Bounds.Role) + " role"
	case !c.Bounds.Unbounded():
		has = "this token is limited to a part of your rights"
	}
	return "Permission denied: " + what + " requires " + need + "; " + has
}

// withArticle returns a role with its article: an operator, a viewer.
func withArticle(role string) string {
	if strings.ContainsAny(role[:min(1, len(role))], "aeio") {
		return "an " + role
	}
	return "a " + role
}

// OwnerOf returns the project or organization that owns a volume or network, on which
// its permissions are checked; nil if it is gone. A volume that outlives its project
// belongs to the organization. If that is gone too, installation admins can delete the
// volume.
func (d *Directory) OwnerOf(r *store.Record) *store.Record {
	var project, org string
	switch spec := r.Spec.(type) {
	case *mariposa.VolumeSpec:
		project, org = spec.Project, spec.Organization
	case *mariposa.NetworkSpec:
		project, org = spec.Project, spec.Organization
	}
	if project != "" {
		return d.picture.Projects.Get(project).Record()
	}
	owner := d.picture.Orgs.Get(org)
	if owner == nil && r.Kind == mariposa.KindVolume {
		return &store.Record{Kind: mariposa.KindOrg, ID: org, Halves: store.Halves{Spec: &mariposa.OrganizationSpec{}}}
	}
	return owner.Record()
}
