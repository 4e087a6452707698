package auth

import (
	"time"

	"mariposa"
	"mariposa/store"
)

// Caller is the authenticated caller of a request.
type Caller struct {
	User  string // id
	Name  string
	Admin bool   // admin of the installation
	Home  string // the default organization for looking up names
	Token string // id of the token; empty for the server itself
	// Session reports whether the caller is a person who is signed in to the web page.
	Session bool
	// Proved is when that person last proved who they are; zero: never in this session.
	Proved time.Time

	// By is the actual caller, when an admin acts for User.
	By, ByName string

	Bounds Bounds
}

// Bounds restrict a token to a part of its user's rights. Zero fields restrict
// nothing.
type Bounds struct {
	Organization string
	Project      string
	Role         mariposa.Role
}

// Unbounded reports whether the bounds restrict nothing.
func (b Bounds) Unbounded() bool { return b == Bounds{} }

// Within reports whether the bounds allow no more than outer.
func (b Bounds) Within(outer Bounds) bool {
	return (outer.Organization == "" || b.Organization == outer.Organization) &&
		(outer.Project == "" || b.Project == outer.Project) &&
		(outer.Role == "" || (b.Role != "" && b.Role.Rank() <= outer.Role.Rank()))
}

// Actor is the caller's name for events and tasks.
func (c *Caller) Actor() string {
	if c.By != "" && c.By != c.User {
		return c.Name + " (by " + c.ByName + ")"
	}
	return c.Name
}

// RequireProof refuses a person at the web page who has not proved for some time who they are: the
// browser may be in other hands. Callers with a token are governed by their roles alone.
func (c *Caller) RequireProof(now time.Time) error {
	if !c.Session || now.Sub(c.Proved).Abs() < mariposa.ProofLifetime {
		return nil
	}
	return mariposa.Errorf(mariposa.Reauthentication, "confirm that it is you: enter your password or a token again")
}

// RoleIn returns the caller's role in a project. Owners of the organization are admins.
// Members have the base role of the organization or their role in the project,
// whichever is higher.
func (d *Directory) RoleIn(c *Caller, project *store.Project) mariposa.Role {
	spec := project.Spec()
	if (c.Bounds.Organization != "" && c.Bounds.Organization != spec.Organization) || (c.Bounds.Project != "" && c.Bounds.Project != project.ID) {
		return mariposa.RoleNone
	}
	role := spec.Users[c.User]
	if org := d.organization(spec.Organization); org != nil {
		switch org.Members[c.User] {
		case mariposa.OrgOwner:
			role = mariposa.RoleAdmin
		case mariposa.OrgMember:
			role = strongerOf(role, org.Base)
		}
	}
	if c.Admin {
		role = mariposa.RoleAdmin
	}
	if most := c.Bounds.Role; most != "" && most.Rank() < role.Rank() {
		return most
	}
	return role
}

func strongerOf(a, b mariposa.Role) mariposa.Role {
	if a.Rank() >= b.Rank() {
		return a
	}
	return b
}

// RoleOf returns the caller's role in an organization; empty for none. A token with a
// role below admin never has the rights of an owner.
func (d *Directory) RoleOf(c *Caller, org *store.Organization) mariposa.OrgRole {
	if (c.Bounds.Organization != "" && c.Bounds.Organization != org.ID) || c.Bounds.Project != "" {
		return ""
	}
	role := org.Spec().Members[c.User]
	if c.Admin {
		role = mariposa.OrgOwner
	}
	if role == mariposa.OrgOwner && c.Bounds.Role != "" && c.Bounds.Role != mariposa.RoleAdmin {
		role = mariposa.OrgMember
	}
	return role
}

// May decides on a permission on a project or organization. On is nil for permissions
// on the installation and for those that every caller has.
func (d *Directory) May(c *Caller, p Permission, on *store.Record) Verdict {
	row, known := rows[p]
	switch {
	case !known:
		return Hidden
	case row.Installation:
		if c.Admin && c.Bounds.Unbounded() {
			return Allowed
		}
		return Denied
	case on == nil:
		if row.Project == "" && row.Organization == "" {
			return Allowed
		}
		return Hidden
	}
	switch on.Spec.(type) {
	case *mariposa.ProjectSpec:
		return row.inProject(d.RoleIn(c, (*store.Project)(on)))
	case *mariposa.OrganizationSpec:
		v := row.inOrganization(d.RoleOf(c, (*store.Organization)(on)))
		if v == Allowed && p == CreateProject && c.Bounds.Role == mariposa.RoleViewer {
			return Denied
		}
		return v
	}
	return Hidden
}
