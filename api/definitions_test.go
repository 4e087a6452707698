package api_test

import (
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

func TestServicesAreAddedReplacedAndTakenOutOneByOne(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", "# ours\nservices:\n  web: {compute_type: dummy, scale: 2} # two\n")
	const path = "/v1/projects/shop/services"
	manifest := func() string { return string(h.call("GET", "/v1/projects/shop/manifest", nil).body) }

	added := want[contract.Changed](h.call("POST", path, map[string]any{"name": "db", "compute_type": "dummy"}), 201)
	if added.Number != 2 || added.Task == nil || manifest() != "# ours\nservices:\n  web: {compute_type: dummy, scale: 2} # two\n  db:\n    compute_type: dummy\n" {
		t.Errorf("%+v\n%s", added, manifest())
	}
	h.call("POST", path+"?name=db", "compute_type: dummy\n", "Content-Type", "application/yaml").wantError(409, mariposa.Conflict, "PUT")
	h.call("POST", path, "compute_type: dummy\n", "Content-Type", "application/yaml").wantError(400, mariposa.InvalidArgument, "name is missing")
	h.call("PUT", path+"/db", "compute_type: nothing\n", "Content-Type", "application/yaml").wantError(400, mariposa.InvalidArgument, "compute_type")
	h.call("PUT", path+"/none", "compute_type: dummy\n", "Content-Type", "application/yaml").wantError(404, mariposa.ResourceNotFound)
	h.call("PUT", path+"/db?previous=1", "compute_type: dummy\n", "Content-Type", "application/yaml").wantError(409, mariposa.Conflict)

	put := want[contract.Changed](h.call("PUT", path+"/db/manifest?previous=2&message=more", "compute_type: dummy\nscale: 3\n", "Content-Type", "application/yaml"), 200)
	if put.Number != 3 || !strings.Contains(manifest(), "scale: 3") {
		t.Errorf("%+v\n%s", put, manifest())
	}
	if got := h.call("GET", path+"/db/manifest", nil); string(got.body) != "compute_type: dummy\nscale: 3\n" {
		t.Errorf("the service is %s", got.body)
	}
	gone := want[contract.Changed](h.call("DELETE", path+"/db", nil), 202)
	if gone.Number != 4 || strings.Contains(manifest(), "db:") {
		t.Errorf("%+v\n%s", gone, manifest())
	}
	h.call("DELETE", path+"/db", nil).wantError(404, mariposa.ResourceNotFound)
}
