package api_test

import (
	"maps"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// A decoder that replaces invalid characters would store something else than what was
// sent. Every body that is not valid text is refused, and nothing changes.
func TestBodiesThatAreNotTextAreRefused(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", hello)
	const project = "/v1/projects/shop"
	before := h.recorded()
	for _, c := range []struct{ name, method, path, body, field string }{
		{"a value", "PUT", project + "/metadata/mode", `{"value":"a` + "\xff" + `b"}`, "metadata.mode"},
		{"a bare value", "PUT", project + "/metadata/mode", `"` + "\xc3\x28" + `"`, "metadata.mode"},
		{"half of a pair", "PUT", project + "/metadata/mode", `{"value":"\ud800"}`, "metadata.mode"},
		{"the other half", "PUT", project + "/metadata/mode", `{"value":"\\\udc00x"}`, "metadata.mode"},
		{"two first halves", "PUT", project + "/metadata/mode", `"\ud83d\ud83d"`, "metadata.mode"},
		{"metadata of a new project", "POST", "/v1/projects", `{"name":"x","manifest":{"services":{}},"metadata":{"a":"ok","mode":"` + "\xff" + `"}}`, "metadata.mode"},
		{"a manifest inside", "POST", "/v1/projects", `{"name":"x","manifest":"services: {} # ` + "\xff" + `"}`, "manifest"},
		{"metadata of a project", "PUT", project + "?force=true", `{"metadata":{"mode":"` + "\xff" + `"}}`, "metadata.mode"},
		{"a key", "PUT", project + "?force=true", `{"metadata":{"` + "\xff" + `":"x"}}`, "metadata"},
		{"an action", "PUT", project + "/state", `{"action":"stop","services":["web","d` + "\xff" + `"]}`, "services[1]"},
		{"the name of a user", "POST", "/v1/users", `{"name":"ann","email":"\udfff@example.com"}`, "email"},
		{"a list of metadata", "POST", project + "/copy", `{"name":"x","metadata":["` + "\xff" + `"]}`, "metadata[0]"},
		{"an unmanaged instance", "POST", "/v1/instances", `{"project":"shop","compute_type":"dummy","environment":{"A":"` + "\xff" + `"}}`, "environment.A"},
		{"a service", "POST", project + "/services", `{"name":"new","compute_type":"dummy","tags":{"a":"\ud800"}}`, "tags.a"},
		{"the quota", "PUT", "/v1/organizations/admin/quota", `{"` + "\xff" + `":1}`, "body"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := h.in(t).call(c.method, c.path, []byte(c.body)).wantError(400, mariposa.InvalidArgument, "UTF-8", c.field)
			if len(f.Errors) != 1 || f.Errors[0].Field != c.field {
				t.Errorf("the fault is in %+v, not in %s", f.Errors, c.field)
			}
		})
	}
	// Manifests and values that are sent as they are.
	for _, c := range []struct{ name, method, path, body string }{
		{"a JSON manifest", "PUT", project + "/manifest?force=true", `{"services":{"web":{"compute_type":"dummy","tags":{"a":"` + "\xff" + `"}}}}`},
		{"half of a pair in a manifest", "PUT", project + "/manifest?force=true", `{"services":{"web":{"compute_type":"dummy","tags":{"a":"\ud800"}}}}`},
		{"a planned manifest", "POST", project + "/plan", `{"services":{"web":{"compute_type":"dummy","tags":{"a":"` + "\xff" + `"}}}}`},
		{"a JSON service", "PUT", project + "/services/web", `{"compute_type":"dummy","tags":{"a":"` + "\xff" + `"}}`},
		{"all metadata", "PUT", project + "/metadata", `{"mode":"` + "\xff" + `"}`},
		{"half of a pair in all metadata", "PUT", project + "/metadata", `{"mode":"\ud800"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.in(t).call(c.method, c.path, []byte(c.body)).wantError(400, mariposa.InvalidArgument)
		})
	}
	if got := h.recorded(); !maps.Equal(got, before) {
		t.Errorf("what was refused changed something: %v, before %v", got, before)
	}
	for body, value := range map[string]string{`{"value":"\ud83d\ude00"}`: "😀", `{"value":"\\ud800"}`: `\ud800`, `"\ufffd"`: "\ufffd", `"é\n"`: "é\n"} {
		if c := want[contract.Changed](h.call("PUT", project+"/metadata/mode", []byte(body)), 200); c.Value != value {
			t.Errorf("%s became %q", body, c.Value)
		}
	}
}
