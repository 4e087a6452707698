package auth

import (
	"mariposa"
	"mariposa/store"
)

// Denial is the cause of an error for a denied permission: on which project or
// organization, if any.
type Denial struct{ On *store.Record }

func (Denial) Error() string { return "denied" }

// Require checks a permission on a project or organization, or neither if nil, and
// says what is missing. Every permission is checked here.
func (d *Directory) Require(c *Caller, p Permission, on *store.Record) error {
	switch d.May(c, p, on) {
	case Allowed:
		return nil
	case Denied:
		return &mariposa.Error{Code: mariposa.Forbidden, Message: c.Name + " may not do this" + scopeOf(on) + ": " + describePermission(p, on), Cause: Denial{on}}
	}
	if on != nil {
		if spec, ok := on.Spec.(*mariposa.OrganizationSpec); ok {
			return mariposa.Errorf(mariposa.ResourceNotFound, "there is no organization %q", spec.Name)
		}
	}
	return mariposa.Errorf(mariposa.ResourceNotFound, "there is no such project")
}

func scopeOf(on *store.Record) string {
	if on == nil {
		return ""
	}
	switch spec := on.Spec.(type) {
	case *mariposa.ProjectSpec:
		return " in project " + spec.Name
	case *mariposa.OrganizationSpec:
		return " in organization " + spec.Name
	}
	return ""
}

// describePermission says in words what a permission requires.
func describePermission(p Permission, on *store.Record) string {
	owned := on != nil && on.Kind == mariposa.KindOrg
	for _, row := range Table {
		switch {
		case row.Permission != p:
		case row.Project != "" && !(owned && row.Organization != ""):
			return "to " + row.Means + " takes the role " + string(row.Project) + ", and a token that is not bound to less"
		case row.Organization != "":
			return "to " + row.Means + " takes being " + string(row.Organization) + " of the organization, and a token that is not bound to less"
		case row.Installation:
			return "to " + row.Means + " takes a user who runs the installation, and a token without bounds"
		}
	}
	return "it takes another role"
}

// OwnerOf returns the project or organization that a volume or network belongs to, on
// which its permissions are checked; nil if it is gone. A volume that outlives its
// project belongs to the organization; if that is gone too, the admins of the
// installation may remove it.
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
