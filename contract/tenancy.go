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
	Admin            bool      `json:"admin" doc:"admin of the installation"`
	Disabled         bool      `json:"disabled"`
	Organization     string    `json:"organization" doc:"the user's personal organization"`
	OrganizationName string    `json:"organization_name"`
	Created          time.Time `json:"created"`

	Identity *mariposa.Identity `json:"identity,omitempty" doc:"who the user is at the identity provider; only for the user and for installation admins"`
}

// Users is a list of users.
type Users struct {
	Users []User `json:"users"`
}

// NewUser requests a user.
type NewUser struct {
	Name  string `json:"name" doc:"a DNS label; also the name of the user's personal organization"`
	Email string `json:"email,omitempty" maxLength:"255"`
	Admin bool   `json:"admin,omitempty"`
}

// UserChange requests a change of a user; omitted fields remain unchanged.
type UserChange struct {
	Email    *string `json:"email,omitempty" maxLength:"255"`
	Admin    *bool   `json:"admin,omitempty"`
	Disabled *bool   `json:"disabled,omitempty"`

	OIDCSubject *string `json:"oidc_subject,omitempty" maxLength:"1024" doc:"connects the user to this subject at the identity provider; empty: to none"`
}

// Password requests another password of the caller.
type Password struct {
	Password string `json:"password" maxLength:"1024" doc:"the new password, of at least 12 characters"`
	Current  string `json:"current,omitempty" maxLength:"1024" doc:"the current password; not required if an installation admin asks with a token"`
}

// SignInWays are the ways to sign in to the web page.
type SignInWays struct {
	Password bool   `json:"password"`
	Token    bool   `json:"token"`
	Provider string `json:"provider,omitempty" doc:"name of the identity provider (OpenID Connect): browsers go to /v1/oidc/sign-in"`
}

// SignIn requests a session of the web page, in one of three ways.
type SignIn struct {
	User     string `json:"user,omitempty" maxLength:"255" doc:"name of the user, with a password"`
	Password string `json:"password,omitempty" maxLength:"1024"`
	Token    string `json:"token,omitempty" maxLength:"255" doc:"a token of the user; the session has its restrictions, and ends with it"`
	Link     string `json:"link,omitempty" maxLength:"255" doc:"the secret of a sign-in link, which can be used once"`
}

// Proof confirms that the person who is signed in to the web page is still there, by one of the two.
type Proof struct {
	Password string `json:"password,omitempty" maxLength:"1024"`
	Token    string `json:"token,omitempty" maxLength:"255" doc:"a token of the same user, with at least the rights of the session"`
}

// Session is a person who is signed in to the web page.
type Session struct {
	User     string    `json:"user"`
	UserName string    `json:"user_name"`
	Expires  time.Time `json:"expires"`
}

// Whoami is the caller's identity and its limits.
type Whoami struct {
	User
	For         string `json:"for,omitempty" doc:"name of the user that the caller acts for"`
	HasPassword bool   `json:"has_password" doc:"the user has a password for the web page"`
	Provider    string `json:"provider,omitempty" doc:"name of the provider at which the user signs in to the web page"`
	Access      string `json:"access" doc:"differs after the caller's rights have changed; a stream of events can watch it"`
	Token       Token  `json:"token"`
}

// Organization is a group of users that owns projects.
type Organization struct {
	ID       string           `json:"id"`
	Name     string           `json:"name"`
	Personal bool             `json:"personal" doc:"it is the personal organization of a user"`
	Role     mariposa.OrgRole `json:"role,omitempty" doc:"the caller's role in the organization"`
	BaseRole mariposa.Role    `json:"base_role" doc:"role of every member in every project"`
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
	BaseRole mariposa.Role `json:"base_role,omitempty" enum:"none,viewer,deployer,operator,admin" doc:"role of every member in every project; default: viewer"`
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
	Via      string `json:"via,omitempty" doc:"for a project: where the role comes from, if it is not assigned in the project itself"`
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
	Stored           QuotaStored `json:"stored" doc:"storage used by versions and metadata"`
}

// QuotaStored is the storage used by the projects of an organization.
type QuotaStored struct {
	Used       int64 `json:"used" doc:"bytes used by all projects"`
	Events     int64 `json:"events" doc:"bytes used by events, not included in used"`
	PerProject int64 `json:"per_project" doc:"limit in bytes for each project, from the quota or the settings of the installation"`

	EventsPerProject int64 `json:"events_per_project" doc:"limit in bytes for the events of each project"`
}

// QuotaLimits are the limits of a quota; null: no limit.
type QuotaLimits struct {
	Projects  *int     `json:"projects" minimum:"0"`
	Instances *int     `json:"instances" minimum:"0"`
	CPU       *float64 `json:"cpu" minimum:"0" doc:"cores"`
	Memory    *int64   `json:"memory" minimum:"0" doc:"bytes"`

	StoredPerProject *int64 `json:"stored_per_project" minimum:"0" doc:"bytes of storage for each project; null: the limit in the settings of the installation applies"`
}

// Policy defines what the manifests of an organization can use.
type Policy struct {
	Organization     string                 `json:"organization"`
	OrganizationName string                 `json:"organization_name"`
	ComputeTypes     []mariposa.ComputeType `json:"compute_types" doc:"compute types that services can use"`
	HostPorts        bool                   `json:"host_ports" doc:"services can bind fixed ports of nodes, such as 8443:443"`
	LowPorts         bool                   `json:"low_ports" doc:"services can bind fixed ports below 1024"`
	DefaultPackage   string                 `json:"default_package" doc:"package of services that specify none; empty: no default"`
}

// PolicyChange requests a change of a policy; omitted fields remain unchanged.
type PolicyChange struct {
	ComputeTypes   *[]string `json:"compute_types,omitempty" doc:"an empty list allows all compute types"`
	HostPorts      *bool     `json:"host_ports,omitempty"`
	LowPorts       *bool     `json:"low_ports,omitempty"`
	DefaultPackage *string   `json:"default_package,omitempty" maxLength:"100" doc:"empty: no default"`
}

// Settings are the settings of the installation.
type Settings struct {
	Quota                QuotaLimits `json:"quota" doc:"quota of new organizations; by default 100 projects and 1000 instances. It does not apply to the personal organizations of installation admins unless it is set"`
	OrganizationsPerUser *int        `json:"organizations_per_user" doc:"how many organizations a user can own besides the personal one; null: no limit. By default 10"`
	StoredPerProject     int64       `json:"stored_per_project" doc:"limit in bytes for the storage of each project, unless the quota of its organization sets another limit"`
	StormBreaker         *int        `json:"storm_breaker" doc:"if more than this percentage of nodes is lost within a minute, their instances are not replaced; 0: no limit; null: as the servers were started (33 by default)"`
}

// Stored is the storage used by a project.
type Stored struct {
	Versions int64 `json:"versions" doc:"bytes used by versions"`
	Metadata int64 `json:"metadata" doc:"bytes used by current and earlier metadata values"`
	Total    int64 `json:"total"`
	Limit    int64 `json:"limit" doc:"changes beyond the limit are rejected, after unneeded older versions were deleted"`

	Events      int64 `json:"events" doc:"bytes used by events, not included in total"`
	EventsLimit int64 `json:"events_limit" doc:"beyond this limit, the oldest events are deleted"`
}

// QuotaUsed is the sum over the desired state of an organization's projects.
type QuotaUsed struct {
	Projects  int     `json:"projects"`
	Instances int     `json:"instances"`
	CPU       float64 `json:"cpu"`
	Memory    int64   `json:"memory"`
}

// Token authenticates a user or lets nodes join. The secret itself is shown once.
type Token struct {
	ID               string            `json:"id"`
	Name             string            `json:"name"`
	Use              mariposa.TokenUse `json:"use" enum:"user,admin,join,link,session" doc:"user: authenticates a user; admin: authenticates the first user; join: lets nodes join; link: begins one session of the web page; session: a browser that is signed in to the web page"`
	User             string            `json:"user"`
	UserName         string            `json:"user_name"`
	Organization     string            `json:"organization,omitempty" doc:"if set, the token is restricted to it"`
	OrganizationName string            `json:"organization_name,omitempty"`
	Project          string            `json:"project,omitempty" doc:"if set, the token is restricted to it"`
	ProjectName      string            `json:"project_name,omitempty"`
	Role             mariposa.Role     `json:"role,omitempty" doc:"if set, the token grants at most this role"`
	Created          time.Time         `json:"created"`
	Expires          *time.Time        `json:"expires"`
	LastUsed         *time.Time        `json:"last_used" doc:"accurate to about a minute"`
	LastFrom         string            `json:"last_from,omitempty"`
	Parent           string            `json:"parent,omitempty" doc:"id of the token that created this one; both end together"`
	ParentName       string            `json:"parent_name,omitempty"`
	Uses             *int              `json:"uses,omitempty" doc:"for join tokens: how many nodes can join; 0: any number"`
	Joined           *int              `json:"joined,omitempty" doc:"for join tokens with a limit: how many nodes have joined"`
	Made             []Token           `json:"made,omitempty" doc:"tokens created by this token, recursively; only when a single token is requested"`
	Current          bool              `json:"current,omitempty" doc:"this request was sent with this token"`
	Proved           *time.Time        `json:"proved,omitempty" doc:"for sessions: when the person last proved who they are"`
	Secret           string            `json:"secret,omitempty" doc:"the token itself; only in the response that created it"`
}

// Tokens is a list of tokens.
type Tokens struct {
	Tokens []Token `json:"tokens"`
}

// NewToken requests a token.
type NewToken struct {
	Name         string            `json:"name" maxLength:"100" minLength:"1"`
	Use          mariposa.TokenUse `json:"use,omitempty" enum:"user,join,link" doc:"join: lets nodes join but does not authenticate a user; requires an admin of the installation. link: begins one session of the web page as the caller, if a browser opens /#sign-in=SECRET. Default: user"`
	Uses         *int              `json:"uses,omitempty" minimum:"0" maximum:"1000000" doc:"for join tokens: how many nodes can join; 0: any number; default: 10"`
	User         string            `json:"user,omitempty" doc:"the user of the token; default: the caller"`
	Organization string            `json:"organization,omitempty" doc:"id or name of the organization that the token is restricted to"`
	Project      string            `json:"project,omitempty" doc:"id or name of the project that the token is restricted to"`
	Role         mariposa.Role     `json:"role,omitempty" enum:"viewer,deployer,operator,admin" doc:"the highest role that the token grants"`
	Expires      string            `json:"expires,omitempty" doc:"a time such as 2027-01-31T00:00:00Z, or a duration such as 12h or 90d. Default: never; for join tokens 24h, at most 365d; for links 10m, at most 24h. A token never outlives the token that created it"`
}

// TokenAction requests an action on a token.
type TokenAction struct {
	Action string `json:"action" enum:"adopt" doc:"adopt: the token of this request becomes the parent of the tokens that it created"`
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
	Marker  string           `json:"marker,omitempty" doc:"pass it to get the next page; absent on the last page"`
}

// KeyRotation is the result of a rotation of the outer key.
type KeyRotation struct {
	Key       string `json:"key" doc:"name of the new key"`
	Rewrapped int    `json:"rewrapped" doc:"number of project keys that were encrypted with the new key"`
}
