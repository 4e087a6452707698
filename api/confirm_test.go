package api_test

import (
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/wire"
)

const secretsManifest = "services: {web: {compute_type: dummy, environment: {P: \"{{ .meta.pass }}\"}}}\nmetadata: {pass: {secret: true, required: true, description: to the database}, mode: {choices: [a, b], default: a}}\n"

// sensitive are requests that a person at the web page has to confirm.
var sensitive = []struct {
	method, path string
	body         any
	status       int
}{
	{"GET", "/v1/projects/shop/metadata?reveal=true", nil, 200},
	{"GET", "/v1/projects/shop/metadata/pass?reveal=1", nil, 200},
	{"POST", "/v1/tokens", contract.NewToken{Name: "way-around"}, 201},
	{"POST", "/v1/tokens", contract.NewToken{Name: "link", Use: mariposa.TokenLink}, 201},
	{"POST", "/v1/projects/shop/copy", contract.Copy{Name: "twin", Metadata: []string{"pass"}}, 201},
	{"POST", "/v1/users", contract.NewUser{Name: "mallory"}, 201},
	{"PUT", "/v1/projects/shop/users/eve", contract.MemberChange{Role: "admin"}, 200},
	{"PUT", "/v1/users/eve", contract.UserChange{Admin: new(true)}, 200},
	{"PUT", "/v1/organizations/acme", contract.OrganizationChange{BaseRole: "admin"}, 200},
	{"PUT", "/v1/nodes/evil", contract.NodeAction{Action: "accept"}, 200},
	{"PUT", "/v1/projects/shop/versions/1/approval", nil, 409},
	{"GET", "/v1/backup", nil, 200},
	{"PUT", "/v1/organizations/acme/members/eve", contract.MemberChange{Role: "owner"}, 200},
	{"POST", "/v1/projects/shop/move", contract.Move{Organization: "acme"}, 200},
}

// newShop starts a server with a project that has a secret, and a clock that can be turned.
func newShop(t *testing.T) (*testServer, *shiftedClock) {
	t.Helper()
	later := &shiftedClock{}
	h := newTestServer(t, withClock(later), withPending(1))
	h.create("shop", secretsManifest)
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/pass", contract.MetadataValue{Value: []byte(`"hunter2hunter2"`)}), 200)
	return h, later
}

func TestAPersonConfirmsWhoTheyAreBeforeSensitiveRequests(t *testing.T) {
	t.Parallel()
	h, later := newShop(t)
	want[contract.Changed](h.call("PUT", "/v1/password", contract.Password{Password: horse}), 200)
	want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: "eve"}), 201)
	want[contract.Changed](h.call("POST", "/v1/organizations", contract.NewOrganization{Name: "acme"}), 201)
	if _, _, err := h.announce(wire.Hello{Node: newID(), Key: nodeKey, Name: "evil"}); err != nil {
		t.Fatal(err)
	}
	b := h.signIn(contract.SignIn{User: "admin", Password: horse})
	want[contract.Metadata](b.call("GET", "/v1/projects/shop/metadata?reveal=true", nil, "Accept", "application/json"), 200) // the sign-in was a proof
	later.turn(mariposa.ProofLifetime)
	for _, one := range sensitive {
		b.call(one.method, one.path, one.body, "Accept", "application/json").wantError(403, mariposa.Reauthentication, "confirm that it is you")
	}
	want[contract.Metadata](b.call("GET", "/v1/projects/shop/metadata", nil, "Accept", "application/json"), 200) // masked
	want[contract.Changed](b.call("POST", "/v1/projects/shop/copy", contract.Copy{Name: "bare"}), 201)           // without the secret

	b.call("POST", "/v1/session/proof", contract.Proof{Password: "wrong horse battery"}).wantError(409, mariposa.Conflict, "wrong")
	b.call("POST", "/v1/session/proof", contract.Proof{}).wantError(400, mariposa.InvalidArgument)
	b.call("GET", "/v1/projects/shop/metadata?reveal=true", nil).wantError(403, mariposa.Reauthentication)
	for _, replayed := range []string{"", "true"} {
		r := b.call("POST", "/v1/session/proof", contract.Proof{Password: horse}, "Idempotency-Key", "k")
		if want[contract.Changed](r, 200); r.header.Get("Idempotency-Replayed") != replayed {
			t.Errorf("the proof was answered with %v", r.header)
		}
	}
	for _, one := range sensitive {
		if r := b.call(one.method, one.path, one.body, "Accept", "application/json"); r.status != one.status {
			t.Errorf("after the proof, %s %s answers %d %s", one.method, one.path, r.status, r.body)
		}
	}
	who := want[contract.Whoami](b.call("GET", "/v1/user", nil), 200)
	if !who.HasPassword || who.Token.Proved == nil || later.Now().Sub(*who.Token.Proved).Abs() > time.Minute {
		t.Errorf("the session is %+v", who)
	}
	if records := want[contract.Audit](h.call("GET", "/v1/audit?action=session.confirm&outcome=done", nil), 200).Records; len(records) != 1 || records[0].Reason != "by password" {
		t.Errorf("the audit log has %+v", records)
	}
	// The token does not end with the session that it was created in.
	want[contract.Changed](b.call("DELETE", "/v1/session", nil), 200)
	for _, one := range want[contract.Tokens](h.call("GET", "/v1/tokens", nil), 200).Tokens {
		if one.Name == "way-around" && (one.Parent != "" || one.Expires != nil) {
			t.Errorf("the token is %+v", one)
		}
	}
	if got := want[contract.Token](h.call("GET", "/v1/tokens/way-around", nil), 200); got.Name != "way-around" {
		t.Errorf("the token is %+v", got)
	}
	b = h.signIn(contract.SignIn{User: "admin", Password: horse})
	later.turn(2 * mariposa.ProofLifetime)
	b.call("GET", "/v1/projects/shop/metadata?reveal=true&organization=acme", nil).wantError(403, mariposa.Reauthentication)
	// A script is governed by its role.
	want[contract.Metadata](h.call("GET", "/v1/projects/shop/metadata?reveal=true&organization=acme", nil, "Accept", "application/json"), 200)
	h.call("POST", "/v1/session/proof", contract.Proof{Password: horse}).wantError(409, mariposa.Conflict)
}

// A person who opened a link may have no password: a token of theirs proves who they are.
func TestAPersonWithoutAPasswordConfirmsWithAToken(t *testing.T) {
	t.Parallel()
	h, _ := newShop(t)
	want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: "eve", Admin: true}), 201)
	of := func(ask contract.NewToken) string {
		return want[contract.Token](h.call("POST", "/v1/tokens", ask), 201).Secret
	}
	other, viewer, own := of(contract.NewToken{Name: "eve", User: "eve"}), of(contract.NewToken{Name: "screen", Role: "viewer"}), of(contract.NewToken{Name: "mine"})
	b := h.signIn(contract.SignIn{Link: of(contract.NewToken{Name: "link", Use: mariposa.TokenLink})})
	b.call("GET", "/v1/projects/shop/metadata?reveal=true", nil).wantError(403, mariposa.Reauthentication) // a link is no proof
	b.call("POST", "/v1/session/proof", contract.Proof{Password: horse}).wantError(409, mariposa.Conflict, "you have no password")
	for _, wrong := range []string{other, viewer, "mrp_nothing", b.cookie} {
		b.call("POST", "/v1/session/proof", contract.Proof{Token: wrong}).wantError(409, mariposa.Conflict, "not a valid token of admin")
	}
	want[contract.Changed](b.call("POST", "/v1/session/proof", contract.Proof{Token: own}), 200)
	want[contract.Metadata](b.call("GET", "/v1/projects/shop/metadata?reveal=true", nil, "Accept", "application/json"), 200)

	bounded := h.signIn(contract.SignIn{Token: viewer}) // the token was the proof, and the role still counts
	bounded.call("GET", "/v1/projects/shop/metadata?reveal=true", nil).wantError(403, mariposa.Forbidden)
}

func TestGuessingPasswordsInASessionIsThrottled(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withClock(newStoppedClock()))
	want[contract.Changed](h.call("PUT", "/v1/password", contract.Password{Password: horse}), 200)
	b := h.signIn(contract.SignIn{User: "admin", Password: horse})
	for i := 0; ; i++ {
		r := b.call("POST", "/v1/session/proof", contract.Proof{Password: "wrong horse battery"})
		if r.status == 429 {
			return
		}
		if r.wantError(409, mariposa.Conflict); i > 30 {
			t.Fatal("guessing is not throttled")
		}
	}
}

// The rules of metadata are in plans and lists, so that a program can ask a person for values.
func TestPlansSayWhatAManifestDeclares(t *testing.T) {
	t.Parallel()
	h, _ := newShop(t)
	plan := want[contract.Plan](h.call("POST", "/v1/plan", contract.NewProject{Name: "next", Manifest: []byte(`"` + "services: {web: {compute_type: dummy}}\\nmetadata: {pass: {secret: true, generate: 24}, mode: {required: true, choices: [a, b], description: how}}" + `"`)}), 200)
	if len(plan.Declares) != 2 || plan.Declares[0].Key != "mode" || len(plan.Declares[0].Choices) != 2 || plan.Declares[0].Description != "how" || !plan.Declares[0].Required || plan.Declares[1].Generate != 24 || !plan.Declares[1].Secret {
		t.Errorf("the plan declares %+v", plan.Declares)
	}
	for _, key := range want[contract.Metadata](h.call("GET", "/v1/projects/shop/metadata", nil, "Accept", "application/json"), 200).Keys {
		if key.Key == "mode" && (len(key.Choices) != 2 || key.Type != "string") {
			t.Errorf("the list has %+v", key)
		}
	}
}
