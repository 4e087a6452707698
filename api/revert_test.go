package api_test

import (
	"testing"

	"mariposa"
	"mariposa/contract"
)

func TestARevertMakesAnOldVersionCurrentAgain(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	first := h.create("shop", "services: {web: {compute_type: dummy, scale: 3, environment: {MODE: '{{ .meta.mode }}'}}}\nmetadata: {mode: {default: a}}\n")
	path := "/v1/projects/shop"
	want[contract.Changed](h.call("PUT", path+"/metadata/mode", "b", "Content-Type", "text/plain"), 200)
	two := want[contract.Changed](h.call("PUT", path+"/manifest?force=true", "services: {web: {compute_type: dummy, scale: 5}}\n", "Content-Type", "application/yaml"), 200)
	h.call("PUT", path+"/state", []byte(`{"action":"revert","version":"77"}`), "Content-Type", "application/json").wantError(404, mariposa.ResourceNotFound)
	h.call("PUT", path+"/state", []byte(`{"action":"revert","version":"1","services":["web"]}`), "Content-Type", "application/json").wantError(400, mariposa.InvalidArgument)
	back := want[contract.Changed](h.call("PUT", path+"/state", []byte(`{"action":"revert","version":"1","rolling":2,"message":"no"}`), "Content-Type", "application/json"), 202)
	if back.Number != two.Number+1 || back.Version != first.Version || back.Task == nil {
		t.Fatalf("reverted: %+v after %+v and %+v", back, first, two)
	}
	v := want[contract.Version](h.call("GET", path+"/versions/latest", nil), 200)
	if v.Cause != mariposa.CauseRevert || v.Message != "no" || v.Version != first.Version {
		t.Errorf("the version is %+v", v)
	}
	if v := want[contract.Version](h.call("GET", path+"/versions/2", nil), 200); v.Cause != mariposa.CauseMetadata || len(v.MetadataChanged) != 1 {
		t.Errorf("the history is %+v", v)
	}
	if key := want[contract.MetadataKey](h.call("GET", path+"/metadata/mode", nil), 200); key.Set || key.Default != "a" {
		t.Errorf("the value is %+v", key)
	}
	if again := want[contract.Changed](h.call("PUT", path+"/state", []byte(`{"action":"revert","version":"1"}`), "Content-Type", "application/json"), 202); again.Number != back.Number || again.Task != nil {
		t.Errorf("reverted to what is: %+v", again)
	}
}
