package api_test

import (
	"net/http"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// testTeams is a server with two organizations. In acme, olga is an owner; mia and max
// are members, which makes them viewers of its project shop; vera, dora, oleg and ada
// are not members but each have a role in shop. In umbra there is only ulla, with the
// project dark. Sam has no role anywhere.
type testTeams struct {
	*testServer
	users map[string]string // ids by name
	keys  map[string]string // a token of each
	acme  string
	umbra string
	shop  contract.Changed
	dark  contract.Changed
	// In shop: an instance of its service web, an unmanaged instance, a volume, a
	// network, and a token of ada.
	instance, single, volume, network, token string
	// In dark: an instance.
	darkInstance string
}

const teamsManifest = `services:
  web: {compute_type: dummy, scale: 2, environment: {MODE: "{{ .meta.mode }}", KEY: "{{ .meta.key }}"}}
  db: {compute_type: dummy}
metadata:
  mode: {default: calm}
  key: {secret: true}
`

var roles = map[string]mariposa.Role{
	"vera": mariposa.RoleViewer, "dora": mariposa.RoleDeployer, "oleg": mariposa.RoleOperator, "ada": mariposa.RoleAdmin,
}

func newTestTeams(t testing.TB, options ...option) *testTeams {
	t.Helper()
	w := &testTeams{testServer: newTestServer(t, options...), users: map[string]string{"admin": mariposa.FirstUser}, keys: map[string]string{"admin": adminToken}}
	for _, name := range []string{"olga", "mia", "max", "vera", "dora", "oleg", "ada", "sam", "ulla"} {
		w.users[name] = want[contract.Changed](w.call("POST", "/v1/users", contract.NewUser{Name: name}), http.StatusCreated).ID
		w.keys[name] = w.mint(contract.NewToken{Name: "first", User: name})
	}
	w.acme = want[contract.Changed](w.asUser("olga").call("POST", "/v1/organizations", contract.NewOrganization{Name: "acme"}), 201).ID
	w.umbra = want[contract.Changed](w.asUser("ulla").call("POST", "/v1/organizations", contract.NewOrganization{Name: "umbra"}), 201).ID
	for _, name := range []string{"mia", "max"} {
		want[contract.Changed](w.asUser("olga").call("PUT", "/v1/organizations/acme/members/"+name, contract.MemberChange{Role: "member"}), 200)
	}
	w.shop = want[contract.Changed](w.asUser("olga").call("POST", "/v1/projects?name=shop&organization=acme", teamsManifest), 201)
	w.dark = want[contract.Changed](w.asUser("ulla").call("POST", "/v1/projects?name=dark&organization=umbra", teamsManifest), 201)
	for name, role := range roles {
		want[contract.Changed](w.asUser("olga").call("PUT", "/v1/projects/"+w.shop.ID+"/users/"+name, contract.MemberChange{Role: string(role)}), 200)
	}
	for _, id := range []string{w.shop.ID, w.dark.ID} {
		want[contract.Changed](w.call("PUT", "/v1/projects/"+id+"/metadata/key", contract.MetadataValue{Value: []byte(`"sesame-` + id + `"`)}), 200)
		want[contract.Changed](w.call("PUT", "/v1/projects/"+id+"/metadata/mode", contract.MetadataValue{Value: []byte(`"calm"`)}), 200)
	}
	want[contract.Changed](w.call("PUT", "/v1/packages/small", contract.Package{Name: "small", Memory: 1 << 20, CPU: 1}), 200)
	w.node("n1", mariposa.NodeSpec{Name: "host-n1", Dummy: true}, mariposa.NodeStatus{State: mariposa.NodeRunning, Capabilities: declaredCapabilities})
	w.instance, w.single, w.darkInstance = newID(), newID(), newID()
	w.testServer.instance(w.instance, w.shop.ID, "web", "n1", mariposa.StateRunning, nil)
	w.testServer.instance(w.single, w.shop.ID, "", "n1", mariposa.StateRunning, func(s *mariposa.InstanceSpec) {
		s.Name, s.Managed, s.Definition = "probe", false, []byte(`{"compute_type":"dummy"}`)
	})
	w.testServer.instance(w.darkInstance, w.dark.ID, "web", "n1", mariposa.StateRunning, nil)
	w.volume = newID()
	w.testServer.volume(w.volume, mariposa.VolumeSpec{Name: "data", Project: w.shop.ID, ServiceName: "web", Slot: 9, Node: "n1"})
	w.network = newID()
	w.testServer.network(w.network, mariposa.NetworkSpec{Name: "backend", Project: w.shop.ID})
	w.token = want[contract.Tokens](w.asUser("ada").call("GET", "/v1/tokens", nil), 200).Tokens[0].ID
	return w
}

// asUser returns a client with a token of a user.
func (w *testTeams) asUser(user string) *testServer { return w.as(w.keys[user]) }

// mint creates a token as the admin.
func (h *testServer) mint(ask contract.NewToken) string {
	h.t.Helper()
	return want[contract.Token](h.as(adminToken).call("POST", "/v1/tokens", ask), http.StatusCreated).Secret
}

// forge writes a token to the store without any checks.
func (h *testServer) forge(spec mariposa.TokenSpec) string {
	h.t.Helper()
	secret := "mrp_" + newID()
	spec.Use, spec.Hash, spec.Created = mariposa.TokenUser, mariposa.HashToken(secret), time.Now()
	h.commit(store.Unit{Writes: []store.Write{{Kind: mariposa.KindToken, ID: mariposa.TokenID(spec.Hash), Spec: &spec}}})
	return secret
}
