package cli

import (
	"net/http"
	"strings"
	"time"

	"mariposa"
	"mariposa/contract"
)

// planted is a secret that must be shown only on request.
const planted = "hunter2-planted"

func ptr[T any](v T) *T { return &v }

// settle adds users, organizations and tokens to the fake server.
func (f *fake) settle() {
	ann := contract.User{ID: annID, Name: "ann", Email: "ann@example.com", Admin: true, Organization: "o-ann", OrganizationName: "ann", Created: noon}
	bob := contract.User{ID: "u-bob", Name: "bob", Disabled: true, Organization: "o-bob", OrganizationName: "bob", Created: noon.Add(5 * time.Minute)}
	laptop := contract.Token{ID: tokenID, Name: "laptop", User: annID, UserName: "ann", Created: noon, LastUsed: after(9 * time.Minute), LastFrom: "10.0.0.7", Current: true}
	ci := contract.Token{
		ID: "0199c000-0000-7000-8000-0000000000f4", Name: "ci", User: annID, UserName: "ann", Organization: acmeID, OrganizationName: "acme", Project: helloID, ProjectName: "hello",
		Role: mariposa.RoleDeployer, Created: noon, Expires: after(90 * 24 * time.Hour),
	}
	spent := contract.Token{ID: "0199d000-0000-7000-8000-0000000000f5", Name: "old", User: annID, UserName: "ann", Organization: acmeID, OrganizationName: "acme", Created: noon, Expires: after(time.Minute)}
	acme := contract.Organization{ID: acmeID, Name: "acme", Role: mariposa.OrgOwner, BaseRole: mariposa.RoleViewer, Members: 2, Projects: 1, Created: noon}
	own := contract.Organization{ID: "o-ann", Name: "ann", Personal: true, Role: mariposa.OrgOwner, BaseRole: mariposa.RoleNone, Members: 1, Created: noon}
	f.give("GET /v1/user", contract.Whoami{User: ann, Token: laptop})
	f.give("GET /v1/users", contract.Users{Users: []contract.User{ann, bob}})
	f.give("GET /v1/users/bob", bob)
	f.give("GET /v1/users/bob/organizations", contract.Organizations{Organizations: []contract.Organization{{ID: "o-bob", Name: "bob", Personal: true, Role: mariposa.OrgOwner, Members: 1, Created: noon}}})
	f.give("GET /v1/users/bob/user", contract.Whoami{User: bob, Token: laptop})
	f.give("POST /v1/users", contract.Changed{ID: "u-cem", Name: "cem"})
	f.give("PUT /v1/users/bob", contract.Changed{ID: "u-bob", Name: "bob"})
	f.give("DELETE /v1/users/bob", contract.Changed{ID: "u-bob", Name: "bob"})
	made := ci
	made.Secret = "mrp_TOPSECRET"
	f.give("POST /v1/tokens", made)
	f.give("GET /v1/tokens/"+tokenID, laptop)
	f.give("GET /v1/tokens/"+ci.ID, ci)
	parent, join := spent, contract.Token{
		ID: "0199e000-0000-7000-8000-0000000000f6", Name: "rack-7", Use: mariposa.TokenJoin, Created: noon, Expires: after(24 * time.Hour), Uses: ptr(10), Joined: ptr(3), LastUsed: after(5 * time.Minute), LastFrom: "10.0.0.8", ParentName: "laptop",
	}
	below := ci
	below.Made, parent.Made = []contract.Token{laptop}, []contract.Token{ci, join}
	parent.Made[0] = below
	f.give("GET /v1/tokens/"+spent.ID, parent)
	f.give("PUT /v1/tokens/"+spent.ID, contract.Changed{ID: spent.ID, Name: "old", Reason: "2 tokens taken over"})
	f.on("DELETE /v1/tokens/"+spent.ID, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("cascade") == "true" {
			writeJSON(w, contract.Changed{ID: spent.ID, Name: "old", Reason: "3 tokens that it created revoked too"})
			return
		}
		refuse(mariposa.Conflict, "token old made 3 tokens, which would end with it")(w, r)
	})
	f.on("GET /v1/tokens", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("use") == "join" {
			writeJSON(w, contract.Tokens{Tokens: []contract.Token{join}})
			return
		}
		writeJSON(w, contract.Tokens{Tokens: []contract.Token{laptop, ci, spent}})
	})
	f.give("DELETE /v1/tokens/"+join.ID, contract.Changed{ID: join.ID, Name: join.Name})
	f.give("DELETE /v1/tokens/"+tokenID, contract.Changed{ID: tokenID, Name: "laptop"})
	f.give("DELETE /v1/tokens/"+ci.ID, contract.Changed{ID: ci.ID, Name: "ci"})
	f.give("GET /v1/organizations", contract.Organizations{Organizations: []contract.Organization{acme, own}})
	f.give("GET /v1/organizations/acme", acme)
	f.give("POST /v1/organizations", contract.Changed{ID: "o-new", Name: "new"})
	f.give("PUT /v1/organizations/acme", contract.Changed{ID: acmeID, Name: "acme"})
	f.give("DELETE /v1/organizations/acme", contract.Changed{ID: acmeID, Name: "acme"})
	f.give("GET /v1/organizations/acme/members", contract.Members{Members: []contract.Member{{User: annID, UserName: "ann", Role: "owner"}, {User: "u-bob", UserName: "bob", Role: "member"}}})
	f.give("PUT /v1/organizations/acme/members/bob", contract.Changed{ID: acmeID, Name: "acme"})
	f.give("DELETE /v1/organizations/acme/members/bob", contract.Changed{ID: acmeID, Name: "acme"})
	f.give("DELETE /v1/organizations/acme/members/ann", contract.Changed{ID: acmeID, Name: "acme"})
	quota := contract.Quota{
		Organization: acmeID, OrganizationName: "acme", Limits: contract.QuotaLimits{Instances: ptr(3), Memory: ptr(int64(2) << 30)},
		Used:   contract.QuotaUsed{Projects: 1, Instances: 3, CPU: 1.5, Memory: 1536 << 20},
		Stored: contract.QuotaStored{Used: 5_300_000, PerProject: 256 << 20},
	}
	policy := contract.Policy{Organization: acmeID, OrganizationName: "acme", ComputeTypes: []mariposa.ComputeType{"docker", "dummy"}, HostPorts: true, DefaultPackage: "tiny"}
	f.give("GET /v1/organizations/acme/policy", policy)
	f.give("PUT /v1/organizations/acme/policy", policy)
	settings := contract.Settings{Quota: contract.QuotaLimits{Instances: ptr(50), Memory: ptr(int64(16) << 30)}, OrganizationsPerUser: ptr(3), StoredPerProject: 256 << 20}
	f.give("GET /v1/settings", settings)
	f.give("PUT /v1/settings", settings)
	f.give("GET /v1/organizations/acme/quota", quota)
	f.give("PUT /v1/organizations/acme/quota", quota)
	f.give("GET /v1/packages", contract.Packages{Packages: []contract.Package{{Name: "small-512m", Family: "small", Memory: 512 << 20, CPU: 0.5, Disk: 10 << 30}, {Name: "tiny", Memory: 100, CPU: 1}}})
	f.give("PUT /v1/packages/small", contract.Changed{ID: "small", Name: "small"})
	f.give("DELETE /v1/packages/small", contract.Changed{ID: "small", Name: "small"})
	f.give("POST /v1/keys/rotate", contract.KeyRotation{Key: "k-7f3a", Rewrapped: 12})
}

// The volumes of the fake server: one in use, and one of a deleted project.
const (
	dataOne = "0198c000-0000-7000-8000-0000000000e1"
	dataTwo = "0198c000-0000-7000-8000-0000000000e2"
)

// store adds the volumes.
func (f *fake) store() {
	one := contract.Volume{
		ID: dataOne, Name: "data", Organization: acmeID, OrganizationName: "acme", Project: helloID, ProjectName: "hello", ServiceName: "db", Slot: "db.1", ComputeType: mariposa.ComputeProcess,
		Node: nodeOne, NodeName: "node1", Size: 1 << 30, State: "made", Goal: mariposa.GoalKept, Path: "/var/lib/mariposa/volumes/" + dataOne, Instance: webOne, InstanceName: "db.1-00ab12", Created: noon, Reason: "made for db.1-00ab12",
	}
	two := contract.Volume{
		ID: dataTwo, Name: "data", Organization: acmeID, OrganizationName: "acme", ProjectName: "former", ServiceName: "db", Slot: "db.2", ComputeType: mariposa.ComputeProcess,
		Node: nodeTwo, NodeName: "node2", State: "unknown", Goal: mariposa.GoalGone, Created: noon, Reason: "its node node2 cannot be reached; the volume will be deleted when the node returns",
	}
	f.give("GET /v1/volumes", contract.Volumes{Volumes: []contract.Volume{one, two}})
	f.give("GET /v1/volumes/"+dataOne, one)
	f.give("GET /v1/volumes/"+dataTwo, two)
	f.give("DELETE /v1/volumes/"+dataOne, contract.Changed{ID: dataOne, Name: "data", Reason: "its node node1 removes it"})
	f.give("DELETE /v1/volumes/"+dataTwo, contract.Changed{ID: dataTwo, Name: "data", Reason: "node node2 deletes it when it is reachable again"})
	f.give("DELETE /v1/projects/"+helloID, contract.Changed{ID: helloID, Name: "hello", Task: ptr(taskOne), Reason: "1 volume will be deleted with it"})
}

// The networks of the fake server: a project's own network, a shared one, and two with
// the same name.
const (
	netOne = "0198c000-0000-7000-8000-0000000000d1"
	netTwo = "0198c000-0000-7000-8000-0000000000d2"
)

// connect adds the networks.
func (f *fake) connect() {
	one := contract.Network{
		ID: netOne, Name: "backend", Organization: acmeID, OrganizationName: "acme", Project: helloID, ProjectName: "hello", Created: noon, Instances: 2, Reason: "used by web of hello",
		Projects: []contract.NetworkProject{{Project: helloID, ProjectName: "hello", Instances: 2}},
		Nodes: []contract.NetworkNode{
			{Node: nodeOne, NodeName: "node1", ComputeType: mariposa.ComputeProcess, State: "made", Path: "/var/lib/mariposa/networks/" + netOne, Reason: "made for web.1-00ab12"},
			{Node: nodeTwo, NodeName: "node2", ComputeType: mariposa.ComputeDummy, State: "unknown", Reason: "the node node2 cannot be reached"},
		},
	}
	two := contract.Network{
		ID: netTwo, Name: "twice", Shared: true, Organization: acmeID, OrganizationName: "acme", Created: noon,
		Projects: []contract.NetworkProject{{Project: helloID, ProjectName: "hello"}, {Project: "p2", ProjectName: "shop"}}, Nodes: []contract.NetworkNode{},
	}
	three := contract.Network{ID: dataTwo, Name: "twice", OrganizationName: "acme", Project: helloID, ProjectName: "hello", Created: noon}
	f.give("GET /v1/networks", contract.Networks{Networks: []contract.Network{one, two, three}})
	f.give("GET /v1/networks/"+netOne, one)
	f.give("GET /v1/networks/"+netTwo, two)
	f.on("DELETE /v1/networks/"+netOne, refuse(mariposa.Conflict, "network backend is used by web.1-00ab12 of project hello: first stop them, or remove the network from the manifest"))
	f.give("DELETE /v1/networks/"+netTwo, contract.Changed{ID: netTwo, Name: "twice", Reason: "no node had created it"})
}

// furnish adds metadata, tags and the audit log to the fake server. It masks secrets like
// a real server, and reveals them on request.
func (f *fake) furnish() {
	changed := contract.Changed{ID: helloID, Name: "hello", Version: hashTwo, Number: 3}
	f.give("GET /v1/projects/hello/users", contract.Members{Members: []contract.Member{
		{User: annID, UserName: "ann", Role: "admin", Via: "owner of acme"}, {User: "u-bob", UserName: "bob", Role: "deployer"},
	}})
	f.give("PUT /v1/projects/hello/users/bob", changed)
	f.give("DELETE /v1/projects/hello/users/bob", changed)
	f.give("GET /v1/projects/hello/tags", contract.Tags{Tags: []contract.Tag{{Tag: "latest", Version: hashTwo, Number: 2, Automatic: true}, {Tag: "loud", Version: hashTwo, Number: 2}}})
	f.give("POST /v1/projects/hello/tags", contract.Changed{Version: hashTwo, Number: 2})
	f.give("DELETE /v1/projects/hello/tags/loud", changed)
	f.give("POST /v1/projects/hello/copy", contract.Changed{ID: "p-new", Name: "again", Version: hashOne, Number: 1, Task: ptr(taskOne), Missing: []string{"db_password"}})
	f.give("POST /v1/projects/"+helloID+"/move", changed)
	f.give("PUT /v1/projects/"+helloID, contract.Changed{ID: helloID, Name: "howdy"})
	f.give("GET /v1/projects/hello/diff", contract.Diff{
		From:     contract.Version{Version: hashOne, Number: 1, Created: noon, Author: "ann"},
		To:       contract.Version{Version: hashTwo, Number: 2, Created: noon.Add(5 * time.Minute), Author: "ann", Message: "greet louder"},
		Services: []contract.ServiceDiff{{Service: "web", Change: "scale", Fields: []contract.FieldDiff{{Field: "scale", Before: "1", After: "2"}}}},
		Metadata: []contract.ValueDiff{
			{Key: "mode", Change: "changed", Before: "test", After: "production"},
			{Key: "color", Change: "added", After: "blue\x1b[2J"},
			{Key: "db_password", Change: "changed", Secret: true, Before: planted, After: planted},
			{Key: "gone", Change: "removed", Before: "x"},
		},
	})
	f.on("GET /v1/projects/hello/metadata", func(w http.ResponseWriter, r *http.Request) {
		shown := masked(r)
		if strings.Contains(r.Header.Get("Accept"), "yaml") {
			_, _ = w.Write([]byte("mode: production # as it is\ndb_password: " + shown + "\n"))
			return
		}
		writeJSON(w, contract.Metadata{Version: hashTwo, Number: 2, Missing: []string{"license"}, Keys: []contract.MetadataKey{
			{Key: "color", Default: "blue", Declared: true, UsedBy: []string{}},
			{Key: "db_password", Value: shown, Set: true, Secret: true, CAS: "4", Changed: after(0), Declared: true, Required: true, UsedBy: []string{"backend"}},
			{Key: "license", Declared: true, Required: true, Secret: true, Description: "from the vendor", UsedBy: []string{"web"}},
			{Key: "mode", Value: "production", Set: true, CAS: "7", Changed: after(5 * time.Minute), Declared: true, Required: true, Description: "how it runs", UsedBy: []string{"backend", "web"}},
		}})
	})
	f.on("GET /v1/projects/hello/metadata/db_password", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, contract.MetadataKey{Key: "db_password", Value: masked(r), Set: true, Secret: true, CAS: "4"})
	})
	f.give("GET /v1/projects/hello/metadata/mode", contract.MetadataKey{Key: "mode", Value: "production", Set: true, CAS: "7", Description: "how it runs"})
	f.give("GET /v1/projects/hello/metadata/color", contract.MetadataKey{Key: "color", Default: "blue"})
	f.give("GET /v1/projects/hello/metadata/cert", contract.MetadataKey{Key: "cert", Value: "line 1\nline 2\x1b[2J\n", Set: true})
	f.give("GET /v1/projects/hello/metadata/license", contract.MetadataKey{Key: "license", Secret: true, Required: true, Description: "from the vendor"})
	f.give("PUT /v1/projects/hello/metadata", changed)
	mode := changed
	mode.Key, mode.Value, mode.CAS, mode.Reason = "mode", "test", "8", "backend and web are outdated now: reprovision them to take it up"
	f.give("PUT /v1/projects/hello/metadata/mode", mode)
	f.give("PUT /v1/projects/hello/metadata/color", contract.Changed{Version: hashTwo, Number: 4, Key: "color", Value: "red", CAS: "9"})
	secretly := changed
	secretly.Key, secretly.Value, secretly.CAS = "db_password", "••••", "10"
	f.give("PUT /v1/projects/hello/metadata/db_password", secretly)
	f.give("PUT /v1/projects/hello/metadata/license", secretly)
	f.give("DELETE /v1/projects/hello/metadata/mode", contract.Changed{Version: hashTwo, Number: 3, Key: "mode", Missing: []string{"mode"}})
	counted := changed
	counted.Key, counted.Value, counted.CAS = "build", "42", "11"
	f.give("POST /v1/projects/hello/metadata/build/incr", counted)
	f.give("POST /v1/projects/hello/metadata/build/decr", counted)
	audit := contract.Audit{Marker: "3", Records: []mariposa.Audit{
		{ID: 5, Time: noon.Add(5 * time.Minute), ActorName: "ann", From: "10.0.0.7", Action: "manifest.put", Outcome: mariposa.AuditDone, Object: helloID, ObjectName: "hello", ProjectName: "hello", Version: hashTwo, Number: 2, Reason: "greet louder"},
		{ID: 4, Time: noon, ActorName: "ann", ForName: "bob", From: "10.0.0.7", Action: "metadata.set", Outcome: mariposa.AuditDenied, Object: "PUT /v1/projects/hello/metadata/mode", Reason: "bob may not do this"},
		{ID: 3, Time: noon, Actor: "mariposa", Action: "instance.repair", Outcome: mariposa.AuditDone, ProjectName: "hello"},
	}}
	f.on("GET /v1/audit", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("marker") != "" {
			writeJSON(w, contract.Audit{Records: []mariposa.Audit{}})
			return
		}
		writeJSON(w, audit)
	})
	f.give("POST /v1/instances", contract.Changed{ID: "i-new", Name: "shell"})
	f.give("DELETE /v1/instances/"+webOne, contract.Changed{ID: webOne, Name: "web.1-00ab12"})
}

func masked(r *http.Request) string {
	if r.FormValue("reveal") == "true" {
		return planted
	}
	return "••••"
}
