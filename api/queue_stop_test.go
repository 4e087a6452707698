package api_test

import (
	"fmt"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// patient returns a manifest with one instance and its stop timeout in seconds.
func patient(timeout int, preserve string) string {
	return fmt.Sprintf("services:\n  web: {compute_type: dummy, scale: 1, stop: {timeout: %d, preservestopped: %q}, update: {min_healthy: 0}}\n", timeout, preserve)
}

// hasLingering waits until an instance of web is stopping without end, and its service
// shows that and how to end it.
func (h *testServer) hasLingering(project string) contract.Instance {
	h.t.Helper()
	var one contract.Instance
	h.until("an instance that takes for ever to stop", func() bool {
		for _, one = range h.instances(project, "web") {
		}
		return one.State == mariposa.StateStopping && strings.Contains(h.of(project, "web").Reason, "force it with `mariposa instance rm --force "+one.Name+"`")
	})
	return one
}

// An instance that never stops is shown as such, and can be killed: after a stop of its
// service, whether it is preserved or not, and when its project is deleted.
func TestWhatStopsForEverCanBeEndedByForce(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	for _, preserve := range []string{"no", "always"} {
		shop := "keeps-" + preserve
		h.create(shop, patient(-1, preserve))
		h.awaitRest(shop)
		for id := range h.instances(shop, "web") {
			h.call("DELETE", "/v1/instances/"+id+"?force=true", nil).wantError(409, mariposa.Conflict, "is not stopping")
		}
		stop := h.startTask(shop, `{"action":"stop"}`)
		one := h.hasLingering(shop)
		h.call("DELETE", "/v1/instances/"+one.ID, nil).wantError(409, mariposa.Conflict, "belongs to service web")
		want[contract.Changed](h.call("DELETE", "/v1/instances/"+one.ID+"?force=true", nil), 200)
		h.awaitTask(stop, mariposa.TaskCompleted)
		if st := h.of(shop, "web"); st.Stopping != 0 || strings.Contains(st.Reason, "stop timeout") {
			t.Errorf("in the end %+v", st)
		}
	}
	h.create("doomed", patient(-1, "no"))
	h.awaitRest("doomed")
	id := h.idOf("doomed")
	want[contract.Changed](h.call("DELETE", "/v1/projects/doomed?force=true", nil), 202)
	var stopping []string
	h.until("it to stop", func() bool {
		stopping = nil
		for _, r := range h.picture.InstancesOf(id) {
			if st := r.Status(); st != nil && st.State == mariposa.StateStopping {
				stopping = append(stopping, r.ID)
			}
		}
		return len(stopping) == 1
	})
	want[contract.Changed](h.call("DELETE", "/v1/instances/"+stopping[0]+"?force=true", nil), 200)
	h.until("the project to be gone", func() bool { return h.picture.Projects.Get(id) == nil })
}

// A shorter stop timeout in a new version applies to instances that are already
// stopping. While frozen, the reason says that an instance is stopping.
func TestAShorterTimeToStopIsHeardByWhatIsStopping(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", patient(-1, "no"))
	h.awaitRest("shop")
	one := ""
	for one = range h.instances("shop", "web") {
	}
	stop := h.startTask("shop", `{"action":"stop"}`)
	h.hasLingering("shop")
	want[contract.Terminated](h.call("DELETE", "/v1/queue/"+stop, nil), 202)
	h.until("the freeze", func() bool { return h.of("shop", "web").Frozen })
	if reason := h.of("shop", "web").Reason; !strings.Contains(reason, "1 instance is stopping") || !strings.Contains(reason, "rm --force") {
		t.Errorf("while frozen, the reason is %q", reason)
	}
	h.startTask("shop", `{"action":"thaw"}`)
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", patient(0, "no")), 200)
	h.until("it to be gone", func() bool { return h.picture.Instances.Get(one) == nil })
}
