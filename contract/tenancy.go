package contract

import (
	"time"

	"mariposa"
)

// User is a person or a robot.
type User struct {
	ID               string    `json:"id"`
	Name             string    `json:"name"`
	Email            string    `json:"email,omitempty"`
	Admin            bool      `json:"admin" doc:"runs the installation"`
	Disabled         bool      `json:"disabled"`
	Organization     string    `json:"organization" doc:"the user's own"`
	OrganizationName string    `json:"organization_name"`
	Created          time.Time `json:"created"`
}

// Users is a list of users.
type Users struct {
	Users []User `json:"users"`
}

// NewUser requests a user.
type NewUser struct {
	Name  string `json:"name" doc:"a DNS label; it is the name of the user's own organization too"`
	Email string `json:"email,omitempty" maxLength:"255"`
	Admin bool   `json:"admin,omitempty"`
}

// UserChange requests a change of a user; fields that are left out stay as they
// are.
type UserChange struct {
	Email    *string `json:"email,omitempty" maxLength:"255"`
	Admin    *bool   `json:"admin,omitempty"`
	Disabled *bool   `json:"disabled,omitempty"`
}

// Whoami is the caller's identity and its limits.
type Whoami struct {
	User
	For   string `json:"for,omitempty" doc:"the name of the user that the caller acts for"`
	Token Token  `json:"token"`
}

// Organization is a group of users that owns projects.
type Organization struct {
	ID       string           `json:"id"`
	Name     string           `json:"name"`
	Personal bool             `json:"personal" doc:"it is a user's own"`
	Role     mariposa.OrgRole `json:"role,omitempty" doc:"the caller's"`
	BaseRole mariposa.Role    `json:"base_role" doc:"what every member may do in every project"`
	Members  int              `json:"members"`
	Projects int              `json:"projects"`
	Created  time.Time        `json:"created"`
}

// Organizations is a list of organizations.
type Organizations struct {
	Organizations []Organization `json:"organizations"`
}

// NewOrganization requests an organization; the caller becomes its owner.
type NewOrganization struct {
	Name     string        `json:"name"`
	BaseRole mariposa.Role `json:"base_role,omitempty" enum:"none,viewer,deployer,operator,admin" doc:"what every member may do in every project; viewer if left out"`
}

// OrganizationChange requests a change of an organization.
type OrganizationChange struct {
	Name     string        `json:"name,omitempty"`
	BaseRole mariposa.Role `json:"base_role,omitempty" enum:"none,viewer,deployer,operator,admin"`
}

// Member is a user's role in an organization or project.
type Member struct {
	User     string `json:"user"`
	UserName string `json:"user_name"`
	Role     string `json:"role"`
	Via      string `json:"via,omitempty" doc:"of a project: where the role comes from, when it is not given in the project itself"`
}

// Members is a list of members.
type Members struct {
	Members []Member `json:"members"`
}

// MemberChange gives a user a role.
type MemberChange struct {
	Role string `json:"role"`
}

// Quota is an organization's limits and usage.
type Quota struct {
	Organization     string      `json:"organization"`
	OrganizationName string      `json:"organization_name"`
	Limits           QuotaLimits `json:"limits"`
	Used             QuotaUsed   `json:"used"`
	Stored           QuotaStored `json:"stored" doc:"versions and metadata that the store keeps"`
}

// QuotaStored is what the store keeps of an organization's projects.
type QuotaStored struct {
	Used       int64 `json:"used" doc:"bytes, of all its projects"`
	Events     int64 `json:"events" doc:"bytes of their events, beside these"`
	PerProject int64 `json:"per_project" doc:"how many bytes each of them may take: the quota's own figure, or that of the installation"`

	EventsPerProject int64 `json:"events_per_project" doc:"how many bytes of events are kept of each"`
}

// QuotaLimits are the limits of a quota; null: no limit.
type QuotaLimits struct {
	Projects  *int     `json:"projects" minimum:"0"`
	Instances *int     `json:"instances" minimum:"0"`
	CPU       *float64 `json:"cpu" minimum:"0" doc:"cores"`
	Memory    *int64   `json:"memory" minimum:"0" doc:"bytes"`

	StoredPerProject *int64 `json:"stored_per_project" minimum:"0" doc:"bytes that the store keeps of each project; null: as the installation's settings say"`
}

// Policy is what the manifests of an organization may ask for.
type Policy struct {
	Organization     string                 `json:"organization"`
	OrganizationName string                 `json:"organization_name"`
	ComputeTypes     []mariposa.ComputeType `json:"compute_types" doc:"those that services may have"`
	HostPorts        bool                   `json:"host_ports" doc:"services may take fixed ports of nodes, as 8443:443 does"`
	LowPorts         bool                   `json:"low_ports" doc:"among these, ports below 1024"`
	DefaultPackage   string                 `json:"default_package" doc:"the size of services that say none; empty: there is none"`
}

// PolicyChange asks for a change of a policy; what is left out stays as it is.
type PolicyChange struct {
	ComputeTypes   *[]string `json:"compute_types,omitempty" doc:"an empty list allows all"`
	HostPorts      *bool     `json:"host_ports,omitempty"`
	LowPorts       *bool     `json:"low_ports,omitempty"`
	DefaultPackage *string   `json:"default_package,omitempty" maxLength:"100" doc:"empty: none"`
}

// Settings are what is set for the whole installation.
type Settings struct {
	Quota                QuotaLimits `json:"quota" doc:"what a new organization begins with"`
	OrganizationsPerUser *int        `json:"organizations_per_user" doc:"how many organizations a user may own beside their own; null: any number"`
	StoredPerProject     int64       `json:"stored_per_project" doc:"bytes that the store keeps of each project at most, where its organization's quota says nothing else"`
}

// Stored is how many bytes the store keeps of a project.
type Stored struct {
	Versions int64 `json:"versions" doc:"bytes of the versions that are kept"`
	Metadata int64 `json:"metadata" doc:"bytes of all generations of its values"`
	Total    int64 `json:"total"`
	Limit    int64 `json:"limit" doc:"what is over it is refused, once older versions that nothing needs are gone"`

	Events      int64 `json:"events" doc:"bytes of its events that are kept, beside the total"`
	EventsLimit int64 `json:"events_limit" doc:"beyond it, the oldest of its events are deleted"`
}

// QuotaUsed is the sum over the desired state of an organization's projects.
type QuotaUsed struct {
	Projects  int     `json:"projects"`
	Instances int     `json:"instances"`
	CPU       float64 `json:"cpu"`
	Memory    int64   `json:"memory"`
}

// Token is a secret that authenticates a user or lets nodes join; the secret itself is
// shown once.
type Token struct {
	ID               string            `json:"id"`
	Name             string            `json:"name"`
	Use              mariposa.TokenUse `json:"use" enum:"user,admin,join" doc:"whom it lets in: a user, the first user, or nodes that join"`
	User             string            `json:"user"`
	UserName         string            `json:"user_name"`
	Organization     string            `json:"organization,omitempty" doc:"it works only there"`
	OrganizationName string            `json:"organization_name,omitempty"`
	Project          string            `json:"project,omitempty" doc:"it works only there"`
	ProjectName      string            `json:"project_name,omitempty"`
	Role             mariposa.Role     `json:"role,omitempty" doc:"it may do no more than this"`
	Created          time.Time         `json:"created"`
	Expires          *time.Time        `json:"expires"`
	LastUsed         *time.Time        `json:"last_used" doc:"to about a minute"`
	LastFrom         string            `json:"last_from,omitempty"`
	Parent           string            `json:"parent,omitempty" doc:"the id of the token that made it, with which it ends"`
	ParentName       string            `json:"parent_name,omitempty"`
	Uses             *int              `json:"uses,omitempty" doc:"of one for nodes: how many it lets join; 0: any number"`
	Joined           *int              `json:"joined,omitempty" doc:"of one for nodes with a limit: how many it has let join"`
	Made             []Token           `json:"made,omitempty" doc:"of one token: those that it made, and with each those that it made in turn"`
	Current          bool              `json:"current,omitempty" doc:"it is the one that the request came with"`
	Secret           string            `json:"secret,omitempty" doc:"the token itself, in the answer that made it and never again"`
}

// Tokens is a list of tokens.
type Tokens struct {
	Tokens []Token `json:"tokens"`
}

// NewToken requests a token.
type NewToken struct {
	Name         string            `json:"name" maxLength:"100" minLength:"1"`
	Use          mariposa.TokenUse `json:"use,omitempty" enum:"user,join" doc:"join: it lets nodes join, and nobody in, which takes one who runs the installation; user if left out"`
	Uses         *int              `json:"uses,omitempty" minimum:"0" maximum:"1000000" doc:"of one for nodes: how many it lets join; 0: any number; 10 if left out"`
	User         string            `json:"user,omitempty" doc:"whose it is; the caller's if left out"`
	Organization string            `json:"organization,omitempty" doc:"the id or name of the only organization it works in"`
	Project      string            `json:"project,omitempty" doc:"the id or name of the only project it works in"`
	Role         mariposa.Role     `json:"role,omitempty" enum:"viewer,deployer,operator,admin" doc:"no more than this"`
	Expires      string            `json:"expires,omitempty" doc:"a time like 2027-01-31T00:00:00Z, or a span like 12h or 90d; if left out never, or 24h for nodes, which have at most 365d. Never later than the token that makes it"`
}

// TokenAction asks for something to be done with a token.
type TokenAction struct {
	Action string `json:"action" enum:"adopt" doc:"adopt: the tokens that it created become those of the token of this request"`
}

// Package is a named size of an instance.
type Package struct {
	Name   string  `json:"name"`
	Family string  `json:"family,omitempty" maxLength:"100"`
	Memory int64   `json:"memory" minimum:"1" doc:"bytes"`
	CPU    float64 `json:"cpu" minimum:"0" doc:"cores"`
	Disk   int64   `json:"disk,omitempty" minimum:"0" doc:"bytes"`
}

// Packages is a list of packages.
type Packages struct {
	Packages []Package `json:"packages"`
}

// Audit is a page of audit records, newest first.
type Audit struct {
	Records []mariposa.Audit `json:"records"`
	Marker  string           `json:"marker,omitempty" doc:"pass it to get the next page; absent on the last"`
}

// KeyRotation is the result of a rotation of the outer key.
type KeyRotation struct {
	Key       string `json:"key" doc:"the name of the new key"`
	Rewrapped int    `json:"rewrapped" doc:"how many inner keys it seals now"`
}
