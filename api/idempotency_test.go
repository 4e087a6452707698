package api_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/api"
	"mariposa/change"
	"mariposa/contract"
	"mariposa/store"
)

func TestAChangeRepeatedWithItsKeyIsDoneOnce(t *testing.T) {
	t.Parallel()
	f := &failingStore{}
	h := newTestServer(t, withStore(func(s store.Store) store.Store { f.Store = s; return f }))
	post := func(name, key string) reply {
		return h.call("POST", "/v1/projects?name="+name, hello, "Idempotency-Key", key)
	}
	answers := make([]reply, 10)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = post("shop", "k1") })
	}
	all.Wait()
	replayed := 0
	for _, r := range answers {
		want[contract.Changed](r, 201)
		if string(r.body) != string(answers[0].body) {
			t.Errorf("another answer: %s", r.body)
		}
		if r.header.Get("Idempotency-Replayed") != "" {
			replayed++
		}
	}
	if replayed != 9 || h.picture.Projects.Len() != 1 {
		t.Errorf("%d answers were given again, %d projects are there", replayed, h.picture.Projects.Len())
	}
	post("shop", "k2").wantError(409, mariposa.Conflict, "already")
	post("other", "k1").wantError(409, mariposa.Conflict, "Idempotency-Key")
	post("other", fmt.Sprintf("%0300d", 1)).wantError(400, mariposa.InvalidArgument)

	f.fail(store.ErrUnavailable)
	post("later", "k3").wantError(503, mariposa.Unavailable)
	f.err.Store(nil)
	want[contract.Changed](post("later", "k3"), 201) // what failed is tried anew
}

func TestAKeyDoesNotLetLargeBodiesIn(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	huge := "services: {}\n#" + string(make([]byte, 10<<20))
	h.call("POST", "/v1/projects?name=big", huge, "Idempotency-Key", "k").wantError(413, mariposa.TooLarge)
}

// A stored response is replayed after a restart and by other replicas.
func TestAnAnswerOutlivesItsServer(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	first := h.call("POST", "/v1/projects?name=shop", hello, "Idempotency-Key", "k1")
	made := want[contract.Changed](first, 201)
	other := h.restart()
	again := other.call("POST", "/v1/projects?name=shop", hello, "Idempotency-Key", "k1")
	if again.status != 201 || string(again.body) != string(first.body) || again.header.Get("Idempotency-Replayed") != "true" || again.header.Get("Content-Type") != first.header.Get("Content-Type") {
		t.Errorf("after a restart: %d %s %s, at first %s", again.status, again.header, again.body, first.body)
	}
	answers := make([]reply, 20)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			at := []*testServer{h, other}[i%2]
			answers[i] = at.call("PUT", "/v1/projects/"+made.ID+"/metadata/n", "value", append(plainText, "Idempotency-Key", "k2")...)
		})
	}
	all.Wait()
	for _, r := range answers {
		if r.status != 200 || string(r.body) != string(answers[0].body) {
			t.Errorf("of two replicas at once: %d %s, and %s", r.status, r.body, answers[0].body)
		}
	}
	if n := len(want[contract.Versions](h.call("GET", "/v1/projects/"+made.ID+"/versions", nil), 200).Versions); n != 2 {
		t.Errorf("it created %d versions", n)
	}
	counted := 0
	for i := range 5 {
		r := []*testServer{h, other}[i%2].call("POST", "/v1/projects/"+made.ID+"/metadata/c/incr", nil, "Idempotency-Key", "k3")
		if want[contract.Changed](r, 200).Value != "1" {
			counted++
		}
	}
	if counted > 0 {
		t.Errorf("it was counted %d times more", counted)
	}
}

// A key belongs to one user and one request, for a day. The stored response is
// encrypted, and is not sent to a token with fewer rights.
func TestAKeyBelongsToItsUserAndRequest(t *testing.T) {
	t.Parallel()
	now := &shiftedClock{}
	w := newTestTeams(t, withClock(now))
	body := contract.NewToken{Name: "robot <&>"}
	post := func(h *testServer, body any) reply { return h.call("POST", "/v1/tokens", body, "Idempotency-Key", "k") }
	first := post(w.asUser("ada"), body)
	made := want[contract.Token](first, 201)
	if again := post(w.asUser("ada"), body); string(again.body) != string(first.body) {
		t.Errorf("at first %s, then %s", first.body, again.body)
	}
	if other := want[contract.Token](post(w.asUser("olga"), body), 201); other.Secret == made.Secret || other.UserName != "olga" {
		t.Errorf("another user with the same key got %+v", other)
	}
	if other := want[contract.Token](w.call("POST", "/v1/users/ada/tokens", contract.NewToken{Name: "other"}, "Idempotency-Key", "k"), 201); other.Secret == made.Secret {
		t.Error("who acts for ada got her answer")
	}
	post(w.asUser("ada"), contract.NewToken{Name: "another"}).wantError(409, mariposa.Conflict, "Idempotency-Key")
	w.asUser("ada").call("POST", "/v1/organizations", contract.NewOrganization{Name: "other"}, "Idempotency-Key", "k").wantError(409, mariposa.Conflict)
	w.asUser("ada").call("POST", "/v1/tokens?x=1", body, "Idempotency-Key", "k").wantError(409, mariposa.Conflict)
	bound := w.as(w.forge(mariposa.TokenSpec{User: w.users["ada"], Role: mariposa.RoleViewer}))
	post(bound, body).wantError(403, mariposa.Forbidden)
	if found := findPlanted(w.everything(), []string{made.Secret}); found != "" {
		t.Errorf("the store holds %s", found)
	}
	if contains(w.logs.String(), made.Secret) {
		t.Error("the log holds a token")
	}
	now.turn(25 * time.Hour)
	post(w.asUser("ada"), body).wantError(409, mariposa.Conflict, "already") // it is a new request by now
	if err := change.ForgetAnswers(w.ctx, w.store, now.Now().Add(48*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if left := must(w.store.List(w.ctx, store.Query{Kind: mariposa.KindAnswer}))(t); len(left) != 0 {
		t.Errorf("%d answers are kept for ever", len(left))
	}
}

// A change repeated with its key is done once, and the response is identical byte for byte.
func TestEveryChangeCanBeRepeated(t *testing.T) {
	long(t)
	t.Parallel()
	bodies := map[string]string{
		"put-project-user": `{"role":"operator"}`, "act-on-project": `{"action":"freeze"}`,
		"refresh-images": `{}`, "create-service": `{"name":"more","compute_type":"dummy"}`, "put-service": `{"compute_type":"dummy"}`,
		"put-service-manifest": `{"compute_type":"dummy","scale":7}`,
		"put-member":           `{"role":"member"}`, "act-on-instance": `{"action":"stop"}`,
	}
	for _, rt := range api.UserRoutes() {
		if rt.Method == "GET" || rt.Audit == "" { // which changes nothing
			continue
		}
		// Some need more than is here: tests of cmd/mariposa with an engine and with a virtual machine
		// repeat them. Signing out ends the session that would repeat it, and only a session can be
		// confirmed, as another test does.
		if rt.ID == "adopt-container" || strings.HasSuffix(rt.ID, "-snapshot") || rt.ID == "sign-out" || rt.ID == "confirm-session" {
			continue
		}
		t.Run(rt.ID, func(t *testing.T) { // each with a server that ends with it
			canBeRepeated(t, rt, bodies[rt.ID])
		})
	}
}

// canBeRepeated sends a change twice; its body is that of the route's sample unless given.
func canBeRepeated(t *testing.T, rt api.Route, body string) {
	t.Helper()
	w := newTestTeams(t)
	q := w.sample(rt)
	q.body = cmp.Or(body, q.body)
	switch rt.ID {
	case "increment-metadata-key", "decrement-metadata-key":
		q.path = strings.Replace(q.path, "/mode/", "/n/", 1)
	case "create-instance":
		w.join("n7")
		w.until("the node", func() bool {
			r := w.picture.Nodes.Get("n7")
			return r.Status() != nil
		})
	case "put-manifest", "delete-project":
		q.path += "?force=true"
	case "update-project":
		q.body = `{"name":"renamed"}`
	case "delete-tag":
		want[contract.Changed](w.call("POST", "/v1/projects/"+w.shop.ID+"/tags", contract.NewTag{Tag: "good", Version: "1"}), 201)
		q.path = "/v1/projects/" + w.shop.ID + "/tags/good"
	case "delete-organization":
		q.path = "/v1/organizations/" + want[contract.Changed](w.call("POST", "/v1/organizations", contract.NewOrganization{Name: "brief"}), 201).ID
	case "delete-node":
		w.node("n9", mariposa.NodeSpec{Name: "n9"}, mariposa.NodeStatus{State: mariposa.NodeUnknown})
		q.path = "/v1/nodes/n9"
	case "attach-volume": // one that a deleted project has left
		left := newID()
		w.testServer.volume(left, mariposa.VolumeSpec{Name: "data", ServiceName: "db", Slot: 1, Node: "n1", Organization: w.acme})
		kept := want[contract.Changed](w.call("POST", "/v1/projects?name=kept&organization=acme", "services: {db: {compute_type: dummy, scale: 0, volumes: [data:/d]}}\nvolumes: {data: }\n"), 201)
		st := settled(kept)
		st.Services = map[string]*mariposa.ServiceStatus{"db": {ID: "s-db", Number: 1}}
		w.plan(kept.ID, st)
		q.path, q.body = "/v1/volumes/"+left+"/attach", `{"project":"`+kept.ID+`"}`
	case "delete-registry":
		w.logIn()
	case "delete-password":
		want[contract.Changed](w.call("PUT", "/v1/users/ada/password", contract.Password{Password: "correct horse battery"}), 200)
		q.path = "/v1/users/ada/password"
	case "move-project":
		q.body = `{"organization":"umbra"}`
	case "approve-version", "withdraw-approval": // whoever submits it approves it
		v := want[contract.Changed](w.call("PUT", "/v1/projects/"+w.shop.ID+"/manifest?force=true", vaultOf("serve", "")), 200)
		q.path = strings.Replace(q.path, "/versions/1/", "/versions/"+v.Version+"/", 1)
		if rt.ID == "approve-version" {
			want[contract.Changed](w.call("DELETE", q.path, nil), 200)
		}
	}
	var sent any
	if q.body != "" {
		sent = []byte(q.body)
	}
	send := func() reply { return w.call(rt.Method, q.path, sent, "Idempotency-Key", "k") }
	first := send()
	if first.status >= 300 {
		t.Errorf("%s %s answered %d %s", q, q.body, first.status, first.body)
		return
	}
	done := func() int64 {
		if rt.ID == "create-instance" { // its node goes on with it meanwhile
			return int64(w.picture.Instances.Len())
		}
		changes := must(w.store.Changes(w.ctx, 0, 0))(t)
		return int64(len(slices.DeleteFunc(changes, func(c store.Change) bool {
			// The use of a token is noted when there is time, and a node that hesitates on a busy
			// machine is judged meanwhile.
			return (c.Record.Kind == mariposa.KindToken || c.Record.Kind == mariposa.KindNode) && !c.Spec
		})))
	}
	before := done()
	again := send()
	if again.status != first.status || string(again.body) != string(first.body) || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%s answered %d %s, and then %d %s", q, first.status, first.body, again.status, again.body)
	}
	if done() != before {
		t.Errorf("%s was done twice", q)
	}
}
