package mariposa

import (
	"cmp"
	"slices"
	"time"
)

// UserSpec is a person or a program with access.
type UserSpec struct {
	Name         string    `json:"name"`
	Email        string    `json:"email,omitempty"`
	Admin        bool      `json:"admin,omitempty"`    // runs the installation: may do everything
	Disabled     bool      `json:"disabled,omitempty"` // its tokens grant no access
	Organization string    `json:"organization"`       // their personal organization
	Created      time.Time `json:"created"`
	Author       string    `json:"author,omitempty"`
	// Password is the Argon2id hash of the password for the web page; empty: none.
	Password string `json:"password,omitempty"`
	// Identity is who they are at the identity provider; nil: they have not signed in there.
	Identity *Identity `json:"identity,omitempty"`
}

// UserStatus is empty: a user has no status of its own.
type UserStatus struct{}

// The first user and its organization have fixed ids, so that several replicas can
// create them concurrently.
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
	Policy   *Policy            `json:"policy,omitempty"` // nil: everything is allowed, as it was before there were policies
	// Registries are its logins to registries of images, by their hosts.
	Registries map[string]RegistrySpec `json:"registries,omitempty"`
	Created    time.Time               `json:"created"`
	Author     string                  `json:"author,omitempty"`
}

// OrganizationStatus is empty: what an organization uses is in the ledger.
type OrganizationStatus struct{}

// Quota limits what the projects of an organization can use. Nil: no limit.
type Quota struct {
	Projects  *int   `json:"projects,omitempty"`
	Instances *int   `json:"instances,omitempty"`
	MilliCPU  *int64 `json:"milli_cpu,omitempty"`
	Memory    *int64 `json:"memory,omitempty"`
	// StoredPerProject is how many bytes may be stored for each project; nil: the
	// installation's setting.
	StoredPerProject *int64 `json:"stored_per_project,omitempty"`
}

// Policy says what the manifests of an organization may use.
type Policy struct {
	ComputeTypes   []ComputeType `json:"compute_types,omitempty"`   // empty: all of them
	HostPorts      bool          `json:"host_ports,omitempty"`      // host ports are allowed
	LowPorts       bool          `json:"low_ports,omitempty"`       // those below 1024 too
	DefaultPackage string        `json:"default_package,omitempty"` // the size of services that set none
}

// Allows reports whether services may have a compute type.
func (p *Policy) Allows(t ComputeType) bool {
	return p == nil || len(p.ComputeTypes) == 0 || slices.Contains(p.ComputeTypes, t)
}

// AllowsPort reports whether services may use a host port.
func (p *Policy) AllowsPort(port int) bool {
	return p == nil || p.HostPorts && (port >= FirstHighPort || p.LowPorts)
}

// FirstHighPort is the first port that is not privileged.
const FirstHighPort = 1024

// SettingsSpec is what installation admins have set for the whole installation. There is
// one record, with the id SettingsID, once anything is set.
type SettingsSpec struct {
	Quota            Quota  `json:"quota,omitzero"`               // of a new organization: see NewQuota
	OrgsPerUser      *int   `json:"orgs_per_user,omitempty"`      // how many organizations a user may own besides the personal one: see MaxOrgs
	StoredPerProject *int64 `json:"stored_per_project,omitempty"` // bytes; nil: DefaultStoredPerProject
	// StormBreaker is the share of nodes that may vanish within a minute before
	// rescheduling stops, in percent; 0: it never stops; nil: as the servers were started.
	StormBreaker *int `json:"storm_breaker,omitempty"`
}

// Limits of an installation without other settings, so that one user cannot exhaust it.
const (
	DefaultProjects    = 100  // of a new organization
	DefaultInstances   = 1000 // of a new organization
	DefaultOrgsPerUser = 10   // besides the personal one
)

// Unlimited is stored in settings that have a default if an admin has removed the limit.
const Unlimited = -1

// NewQuota returns the quota of a new organization. The defaults do not apply to the personal
// organization of an installation admin.
func (s *SettingsSpec) NewQuota(ofAdmin bool) Quota {
	q := s.Quota
	if projects, instances := DefaultProjects, DefaultInstances; !ofAdmin {
		q.Projects, q.Instances = cmp.Or(q.Projects, &projects), cmp.Or(q.Instances, &instances)
	}
	q.Projects, q.Instances = inForce(q.Projects), inForce(q.Instances)
	return q
}

// MaxOrgs returns how many organizations a user may own besides the personal one; nil: any
// number.
func (s *SettingsSpec) MaxOrgs() *int {
	standard := DefaultOrgsPerUser
	return inForce(cmp.Or(s.OrgsPerUser, &standard))
}

// inForce returns a limit of the settings; nil: none.
func inForce(set *int) *int {
	if set == nil || *set == Unlimited {
		return nil
	}
	return set
}

// SettingsStatus is what the servers found out about the installation as a whole.
type SettingsStatus struct {
	Storm *Storm `json:"storm,omitempty"` // nil: rescheduling is not stopped
}

// Storm is a loss of many nodes at once. It looks like a failure of the network rather
// than of the nodes, so their instances are not replaced until it is over.
type Storm struct {
	Since time.Time `json:"since"` // when the first of the nodes was lost
	Began time.Time `json:"began"` // when so many were lost that rescheduling stopped
	Count int       `json:"count"` // how many nodes are lost; stored: were lost when this was stored
	Of    int       `json:"of"`    // how many there are; stored: were then
}

// DefaultStormBreaker is the share of nodes, in percent, that may vanish within a minute
// before rescheduling stops.
const DefaultStormBreaker = 33

// SettingsID is the id of the installation's settings.
const SettingsID = "installation"

// MinStoredPerProject is the lowest storage limit of a project: enough for a small
// manifest and its values.
const MinStoredPerProject = 64 << 10

// DefaultStoredPerProject is how many bytes may be stored for a project if no other limit
// is set.
const DefaultStoredPerProject = 256 << 20

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

// LedgerOf returns the names of an organization's two ledger accounts: the resources that
// its projects request, and the number of its projects, which is counted in
// Resources.Instances.
func LedgerOf(organization string) (resources, projects string) {
	return "organization/" + organization, "organization/" + organization + "/projects"
}
