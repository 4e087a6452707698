package mariposa

import "time"

// UserSpec is a person or a robot that may have access.
type UserSpec struct {
	Name         string    `json:"name"`
	Email        string    `json:"email,omitempty"`
	Admin        bool      `json:"admin,omitempty"`    // runs the installation: may do everything
	Disabled     bool      `json:"disabled,omitempty"` // its tokens grant no access
	Organization string    `json:"organization"`       // the user's own
	Created      time.Time `json:"created"`
	Author       string    `json:"author,omitempty"`
}

// UserStatus is empty: a user has no status of its own.
type UserStatus struct{}

// The first user and its organization have the same ids everywhere, so that any
// number of replicas can make them at once.
const (
	FirstUser         = "00000000-0000-7000-8000-000000000001"
	FirstOrganization = "00000000-0000-7000-8000-000000000002"
	FirstName         = "admin"
)

// OrganizationSpec is a group of users that owns projects. Every user has a
// personal one. Users and organizations share one namespace.
type OrganizationSpec struct {
	Name     string             `json:"name"`
	Personal string             `json:"personal,omitempty"` // the user it belongs to
	Members  map[string]OrgRole `json:"members,omitempty"`  // by user id
	Base     Role               `json:"base_role"`          // what every member may do in every project
	Quota    Quota              `json:"quota,omitzero"`
	Created  time.Time          `json:"created"`
	Author   string             `json:"author,omitempty"`
}

// OrganizationStatus is empty: what an organization uses is in the ledger.
type OrganizationStatus struct{}

// Quota bounds what the projects of an organization may ask for. Nil: no limit.
type Quota struct {
	Projects  *int   `json:"projects,omitempty"`
	Instances *int   `json:"instances,omitempty"`
	MilliCPU  *int64 `json:"milli_cpu,omitempty"`
	Memory    *int64 `json:"memory,omitempty"`
}

// OrgRole is the role of a user in an organization.
type OrgRole string

const (
	OrgOwner  OrgRole = "owner"
	OrgMember OrgRole = "member"
)

// Role is the role of a user in a project. Each includes the ones before it.
type Role string

const (
	RoleNone     Role = "none"
	RoleViewer   Role = "viewer"
	RoleDeployer Role = "deployer"
	RoleOperator Role = "operator"
	RoleAdmin    Role = "admin"
)

// Roles lists the roles that can be given, weakest first.
var Roles = []Role{RoleViewer, RoleDeployer, RoleOperator, RoleAdmin}

// Rank orders roles: a higher one includes all rights of a lower one. An
// unknown role ranks as none.
func (r Role) Rank() int {
	for i, known := range Roles {
		if r == known {
			return i + 1
		}
	}
	return 0
}

// LedgerOf names the ledger accounts of what an organization's projects ask
// for, and of how many projects there are. The second counts projects in
// Resources.Instances.
func LedgerOf(organization string) (resources, projects string) {
	return "organization/" + organization, "organization/" + organization + "/projects"
}
