package api_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
)

// checkReply checks what is true for every response: it is JSON, an error has the form
// of the contract, and there was no internal error.
func checkReply(t *testing.T, r reply) {
	t.Helper()
	if r.status >= 500 && r.status != http.StatusServiceUnavailable {
		t.Fatalf("answered %d: %s", r.status, r.body)
	}
	if r.status >= 400 {
		var f failure
		if err := json.Unmarshal(r.body, &f); err != nil || f.Code == "" || f.Message == "" || f.Errors == nil {
			t.Fatalf("%d is no failure in the words of the contract: %s", r.status, r.body)
		}
	}
}

func FuzzManifests(f *testing.F) {
	h := newTestServer(f)
	c := h.create("shop", hello)
	for _, seed := range []string{hello, "", "{}", "services:", "services: {web: {image: x}}", "\x00", "a: &a [*a]", `{"services":{}}`, "services: {}\n---\n", "\xff\xfe", `{"manifest":null}`, `{"manifest":"services: {}","name":"x"}`, `[]`, `"x"`} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, asJSON bool) {
		h := *h
		h.t = t
		kind := "application/yaml"
		if asJSON {
			kind = "application/json"
		}
		r := h.call("PUT", "/v1/projects/"+c.ID+"/manifest?force=true", body, "Content-Type", kind)
		checkReply(t, r)
		if r.status == 200 {
			got := h.call("GET", "/v1/projects/"+c.ID+"/manifest", nil)
			if _, err := manifest.Parse(got.body); err != nil || (!json.Valid(body) && string(got.body) != string(body)) {
				t.Fatalf("%q came back as %q, %v", body, got.body, err)
			}
		}
		checkReply(t, h.call("POST", "/v1/projects", body, "Content-Type", kind))
		checkReply(t, h.call("POST", "/v1/projects?name=shop", body, "Content-Type", kind)) // the name is taken
		checkReply(t, h.call("GET", "/v1/state", nil))
	})
}

func FuzzActions(f *testing.F) {
	h := newTestServer(f)
	c := h.create("shop", hello)
	h.plan(c.ID, settled(c))
	h.node("n1", mariposa.NodeSpec{Name: "n1", Dummy: true}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	h.instance("i1", c.ID, "web", "n1", mariposa.StateRunning, nil)
	for _, seed := range []string{
		`{"action":"start"}`, `{"action":"scale","scale":{"web":"+1"}}`, `{"action":"scale","scale":5}`, `{"action":"reprovision","rolling":"25%"}`,
		`{}`, `null`, `[]`, `{"action":null}`, `{"action":"scale","scale":{"web":1e400}}`, `{"action":"lose"}`, `{"action":"purge","instances":null}`,
		`{"action":"crash"}`, `{"Action":"start"}`, `{"action":"stop","action":"start"}`, "{\"action\":\"\\ud800\"}", `{"name":"x"}`, `{"manifest":1}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		h := *h
		h.t = t
		for _, path := range []string{"/v1/projects/shop/state", "/v1/projects/shop/services/web/state", "/v1/nodes/n1", "/v1/instances/i1", "/v1/projects/shop"} {
			checkReply(t, h.call("PUT", path, body))
			h.name(c.ID, "shop")
		}
		checkReply(t, h.call("POST", "/v1/instances", body))
	})
}

// name restores the name of a project.
func (h *testServer) name(id, name string) {
	if r := h.call("PUT", "/v1/projects/"+id, contract.ProjectChange{Name: name}); r.status != 200 {
		h.t.Fatalf("answered %d %s", r.status, r.body)
	}
}

func FuzzReferences(f *testing.F) {
	h := newTestServer(f)
	h.fill()
	for _, seed := range []string{"shop", "", ".", "..", "a/b", "%", "%2f", "\x00", "web", "aaaa", "aaaa-i1", "ä", "' or 1=1 --", "1", "-1", "99999999999999999999", "current", "a b", "?", "#", "\xff", "a;b", "users"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, ref string) {
		h := *h
		h.t = t
		p, q := url.PathEscape(ref), url.QueryEscape(ref)
		for _, path := range []string{
			"/v1/projects/" + p, "/v1/projects/shop/versions/" + p, "/v1/projects/shop/services/" + p, "/v1/projects/shop/services/" + p + "/state",
			"/v1/queue/" + p, "/v1/instances/" + p, "/v1/instances/" + p + "/logs", "/v1/nodes/" + p, "/v1/users/" + p + "/projects", "/v1/" + p,
			"/v1/projects?name=" + q, "/v1/projects?organization=" + q, "/v1/state?project=" + q, "/v1/state?service=" + q, "/v1/queue?project=" + q + "&all=true",
			"/v1/queue?marker=" + q + "&all=true", "/v1/queue?service=" + q, "/v1/instances?marker=" + q, "/v1/instances?version=" + q, "/v1/instances?node=" + q,
			"/v1/instances?limit=" + q, "/v1/events?project=" + q, "/v1/events?limit=" + q, "/v1/projects/shop/versions?marker=" + q, "/v1/state?" + q,
		} {
			checkReply(t, h.call("GET", path, nil))
		}
	})
}
