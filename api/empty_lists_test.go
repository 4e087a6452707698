package api_test

import (
	"testing"

	"mariposa"
	"mariposa/contract"
)

// A list or a version that is empty, as a script sends it that found nothing, does not
// mean everything.
func TestAnEmptyListIsRefused(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	h.create("shop", hello)
	h.awaitRest("shop")
	tasks := func() int { return len(want[contract.Tasks](h.call("GET", "/v1/queue?all=true", nil), 200).Tasks) }
	before := tasks()
	for _, action := range []string{"start", "stop", "reprovision", "freeze", "thaw", "pause", "resume", "converge", "accept"} {
		h.putAction("shop", `{"action":"%s","services":[]}`, action).wantError(400, mariposa.InvalidArgument, "services must name at least one service; leave it out for the whole project")
	}
	h.putAction("shop", `{"action":"stop","services":[],"version":"1"}`).wantError(400, mariposa.InvalidArgument, "services must name at least one service")
	for _, field := range []string{"service", "instance", "node"} {
		h.putAction("shop", `{"action":"reprovision","filters":{"%s":[]}}`, field).wantError(400, mariposa.InvalidArgument, "filters."+field+" must name at least one")
	}
	h.putAction("shop", `{"action":"reprovision","filters":{}}`).wantError(400, mariposa.InvalidArgument, "filters must contain at least one")
	h.putAction("shop", `{"action":"scale","services":[],"scale":{"web":1}}`).wantError(400, mariposa.InvalidArgument, "services")
	h.putAction("shop", `{"action":"revert","services":[]}`).wantError(400, mariposa.InvalidArgument, "services")
	for _, action := range []string{"start", "stop", "revert", "reprovision", "freeze", "scale"} {
		h.putAction("shop", `{"action":"%s","version":""}`, action).wantError(400, mariposa.InvalidArgument, "version: must not be empty")
	}
	for _, field := range []string{"version", "image"} {
		h.putAction("shop", `{"action":"reprovision","filters":{"service":"web","%s":""}}`, field).wantError(400, mariposa.InvalidArgument, "filters."+field+": must not be empty")
	}
	h.call("PUT", "/v1/projects/shop/services/web/state", []byte(`{"action":"stop","version":""}`)).wantError(400, mariposa.InvalidArgument, "version: must not be empty")
	h.call("PUT", "/v1/projects/shop/services/web/state", []byte(`{"action":"stop","services":[]}`)).wantError(400, mariposa.InvalidArgument, "services")
	h.call("PUT", "/v1/nodes/n1", []byte(`{"action":"purge","instances":[]}`)).wantError(400, mariposa.InvalidArgument, "instances must name at least one instance")
	if after := tasks(); after != before {
		t.Errorf("what was refused made %d tasks", after-before)
	}
}
