// Package auth identifies callers and decides what they are allowed to do. It finds the
// user of a token, and decides on permissions for projects, organizations and the
// installation: allowed, denied or hidden.
//
// It owns the table of roles and permissions. It does not know routes, request bodies
// or what a permission is used for.
package auth

import "mariposa"

// Permission is the name of a permission.
type Permission string

const (
	Ask Permission = "ask" // for any authenticated caller; responses contain only what the caller can see

	ReadProject     Permission = "project.read"
	Deploy          Permission = "project.deploy"
	Operate         Permission = "project.operate"
	ReadSecrets     Permission = "project.secrets"
	Approve         Permission = "project.approve"
	Shell           Permission = "project.shell"
	ManageInstances Permission = "project.instances"
	ManagePeople    Permission = "project.people"
	Administer      Permission = "project.administer"
	AuditProject    Permission = "project.audit"

	ReadOrganization       Permission = "organization.read"
	CreateProject          Permission = "organization.create"
	AdministerOrganization Permission = "organization.administer"
	AuditOrganization      Permission = "organization.audit"

	ReadVolume   Permission = "volume.read"
	DeleteVolume Permission = "volume.delete"
	AttachVolume Permission = "volume.attach"

	ReadNetwork   Permission = "network.read"
	DeleteNetwork Permission = "network.delete"

	RunInstallation Permission = "installation.run"
)

// Row defines what a permission requires: a role in the project, a role in the
// organization, or being an admin of the installation. If it has both roles, the kind
// of the object decides which one applies.
type Row struct {
	Permission   Permission
	Means        string
	Doing        string           // the same for errors, before the name of a project or organization
	Project      mariposa.Role    // at least this
	Organization mariposa.OrgRole // at least this
	Installation bool
}

// Table defines the permissions of all roles. It is the only source of decisions.
var Table = []Row{
	{Permission: Ask, Means: "list visible objects, manage one's own tokens, create an organization"},

	{Permission: ReadProject, Doing: "reading", Means: "see a project, its state, tasks, versions, instances and logs; metadata with secrets masked", Project: mariposa.RoleViewer},
	{Permission: Deploy, Doing: "deploying to", Means: "submit manifests and metadata, tag, revert, reprovision, copy", Project: mariposa.RoleDeployer},
	{Permission: Operate, Doing: "operating", Means: "start, stop, scale, freeze, thaw, pause, resume, accept; end tasks", Project: mariposa.RoleOperator},
	{Permission: ReadSecrets, Doing: "reading secrets of", Means: "read secret metadata", Project: mariposa.RoleOperator},
	{Permission: Approve, Doing: "approving versions of", Means: "approve versions that use protected secrets; protect and unprotect secrets, change protected values", Project: mariposa.RoleOperator},
	{Permission: Shell, Doing: "running commands in", Means: "run commands inside an instance", Project: mariposa.RoleOperator},
	{Permission: ManageInstances, Doing: "managing instances of", Means: "create, stop, restart, replace and remove single instances", Project: mariposa.RoleOperator},
	{Permission: ManagePeople, Doing: "managing the users of", Means: "add users to a project, change their roles, remove them", Project: mariposa.RoleAdmin},
	{Permission: Administer, Doing: "renaming, moving or deleting", Means: "rename, move and delete a project", Project: mariposa.RoleAdmin},
	{Permission: AuditProject, Doing: "reading the audit log of", Means: "read the audit log of a project", Project: mariposa.RoleAdmin},

	{Permission: ReadOrganization, Doing: "reading", Means: "see an organization, its members and its quota", Organization: mariposa.OrgMember},
	{Permission: CreateProject, Doing: "creating projects in", Means: "create a project in an organization", Organization: mariposa.OrgMember},
	{Permission: AdministerOrganization, Doing: "managing", Means: "manage an organization and its members; admin role in all its projects", Organization: mariposa.OrgOwner},
	{Permission: AuditOrganization, Doing: "reading the audit log of", Means: "read the audit log of an organization", Organization: mariposa.OrgOwner},

	// A volume belongs to its project, or to its organization after the project was deleted.
	{Permission: ReadVolume, Doing: "reading volumes of", Means: "see a volume", Project: mariposa.RoleViewer, Organization: mariposa.OrgMember},
	{Permission: DeleteVolume, Doing: "deleting volumes of", Means: "delete a volume and its data", Project: mariposa.RoleAdmin, Organization: mariposa.OrgOwner},
	{Permission: AttachVolume, Doing: "attaching volumes of", Means: "attach a volume of a deleted project to another project", Project: mariposa.RoleAdmin, Organization: mariposa.OrgOwner},

	// A network belongs to its project; a shared network belongs to its organization.
	{Permission: ReadNetwork, Doing: "reading networks of", Means: "see a network", Project: mariposa.RoleViewer, Organization: mariposa.OrgMember},
	{Permission: DeleteNetwork, Doing: "deleting networks of", Means: "delete a network", Project: mariposa.RoleAdmin, Organization: mariposa.OrgOwner},

	{Permission: RunInstallation, Doing: "managing the installation", Means: "manage the installation (nodes, users, quotas, policies, settings, packages, keys) or act for another user", Installation: true},
}

var rows = func() map[Permission]Row {
	m := make(map[Permission]Row, len(Table))
	for _, r := range Table {
		m[r.Permission] = r
	}
	return m
}()

// Verdict is the decision on a permission.
type Verdict uint8

const (
	Hidden Verdict = iota // as if it did not exist
	Denied                // it may be seen, but this action is not allowed
	Allowed
)

func (v Verdict) String() string { return [...]string{"hidden", "denied", "allowed"}[v] }

// inProject decides by a role in a project.
func (r Row) inProject(role mariposa.Role) Verdict {
	switch {
	case role.Rank() == 0:
		return Hidden
	case r.Project == "" || role.Rank() < r.Project.Rank():
		return Denied
	}
	return Allowed
}

// inOrganization decides by a role in an organization.
func (r Row) inOrganization(role mariposa.OrgRole) Verdict {
	switch {
	case role == "":
		return Hidden
	case r.Organization == "" || (r.Organization == mariposa.OrgOwner && role != mariposa.OrgOwner):
		return Denied
	}
	return Allowed
}
