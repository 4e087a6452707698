package api_test

import (
	"fmt"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// modal returns a manifest with a service that uses a value; a bad one never starts.
func modal(version int, bad, onMetadata string) string {
	return fmt.Sprintf("services:\n  web: {compute_type: dummy, scale: 2, environment: {V: \"%d-{{ .meta.mode }}\"}, dummy: {fail_prop: %q}, "+
		"update: {min_healthy: 0, on_failure: rollback%s}}\nmetadata: {mode: {default: \"0\"}}\n", version, bad, onMetadata)
}

// Values set after a version was rolled back or dropped belong to the version in force.
// A reprovision applies them.
func TestValuesSetAfterARollbackTakeEffect(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	drop := func(h *testServer, project string) {
		freeze := h.startTask(project, `{"action":"freeze"}`)
		h.awaitState(freeze, mariposa.TaskActive)
		task := h.putManifest(project, modal(2, "no", ""), "")
		want[contract.Terminated](h.call("DELETE", "/v1/queue/"+task, nil), 202)
		h.awaitTask(h.startTask(project, `{"action":"thaw"}`), mariposa.TaskCompleted)
	}
	rollBack := func(h *testServer, project string) {
		h.awaitTask(h.putManifest(project, modal(2, "yes", ""), ""), mariposa.TaskFailed)
	}
	for name, c := range map[string]struct {
		lose       func(h *testServer, project string)
		onMetadata string
		set        func(h *testServer, project string) contract.Changed
		value      string
	}{
		"one key": {rollBack, "", func(h *testServer, p string) contract.Changed {
			return want[contract.Changed](h.call("PUT", "/v1/projects/"+p+"/metadata/mode", contract.MetadataValue{Value: []byte(`"wild"`)}), 200)
		}, "wild"},
		"a document": {rollBack, "", func(h *testServer, p string) contract.Changed {
			return want[contract.Changed](h.call("PUT", "/v1/projects/"+p+"/metadata?force=true", "mode: wild\n", "Content-Type", "application/yaml"), 200)
		}, "wild"},
		"a counter": {rollBack, "", func(h *testServer, p string) contract.Changed {
			return want[contract.Changed](h.call("POST", "/v1/projects/"+p+"/metadata/mode/incr?by=7", nil), 200)
		}, "7"},
		"a dropped version": {drop, "", func(h *testServer, p string) contract.Changed {
			return want[contract.Changed](h.call("PUT", "/v1/projects/"+p+"/metadata/mode", contract.MetadataValue{Value: []byte(`"wild"`)}), 200)
		}, "wild"},
		"a service that is reprovisioned for it": {rollBack, ", on_metadata: reprovision", func(h *testServer, p string) contract.Changed {
			return want[contract.Changed](h.call("PUT", "/v1/projects/"+p+"/metadata/mode", contract.MetadataValue{Value: []byte(`"wild"`)}), 200)
		}, "wild"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, project := h.in(t), "p"+newID()[28:]
			first := modal(1, "no", c.onMetadata)
			h.create(project, first)
			h.awaitRest(project)
			c.lose(h, project)
			h.awaitRest(project)
			set := c.set(h, project)
			if set.Number != 3 || !contains(set.Reason, "version 2 is not in force: the values are applied to the manifest of version 1") {
				t.Errorf("it answered %+v", set)
			}
			h.until("the values to be in force", func() bool {
				return want[contract.Project](h.call("GET", "/v1/projects/"+project, nil), 200).Number == 3 && h.of(project, "web").Version == set.Version
			})
			if got := string(h.call("GET", "/v1/projects/"+project+"/manifest", nil).body); got != first {
				t.Errorf("the newest manifest is %s", got)
			}
			if c.onMetadata == "" {
				h.awaitTask(h.startTask(project, `{"action":"reprovision"}`), mariposa.TaskCompleted)
			} else {
				h.awaitTask(*set.Task, mariposa.TaskCompleted)
			}
			if got := h.values(project, "web"); got != "2 of V=1-"+c.value {
				t.Errorf("they run with %s", got)
			}
			h.awaitTask(h.putManifest(project, modal(4, "no", ""), ""), mariposa.TaskCompleted) // life goes on
			if got := h.values(project, "web"); got != "2 of V=4-"+c.value {
				t.Errorf("later they run with %s", got)
			}
		})
	}
}
