package mariposa

import "time"

// UserSpec is a person or a robot that may be let in.
type UserSpec struct {
	Name         string    `json:"name"`
	Email        string    `json:"email,omitempty"`
	Admin        bool      `json:"admin,omitempty"`    // runs the installation: may do everything
	Disabled     bool      `json:"disabled,omitempty"` // its tokens let nobody in
	Organization string    `json:"organization"`       // the user's own
	Created      time.Time `json:"created"`
	Author       string    `json:"author,omitempty"`
}

// UserStatus is empty: a user has no fate of its own.
type UserStatus struct{}

// The first user and its organization have the same ids everywhere, so that any
// number of replicas can make them at once.
const (
	FirstUser         = "00000000-0000-7000-8000-000000000001"
	FirstOrganization = "00000000-0000-7000-8000-000000000002"
	FirstName         = "admin"
)

// OrganizationSpec is a group of users that owns projects. Every user has one
// alone. Users and organizations share one space of names.
type OrganizationSpec struct {
	Name     string             `json:"name"`
	Personal string             `json:"personal,omitempty"` // the user whose own it is
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

// OrgRole is what a user is in an organization.
type OrgRole string

const (
	OrgOwner  OrgRole = "owner"
	OrgMember OrgRole = "member"
)

// Role is what a user is in a project. Each includes the ones before it.
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

// Rank orders roles: a higher one may do all that a lower one may. What is no
// role ranks as none.
func (r Role) Rank() int {
	for i, known := range Roles {
		if r == known {
			return i + 1
		}
	}
	return 0
}

// LedgerOf names the accounts in which what an organization's projects ask for,
// and how many there are, is kept. Resources.Instances counts projects in the
// second.
func LedgerOf(organization string) (resources, projects string) {
	return "organization/" + organization, "organization/" + organization + "/projects"
}
