package api_test

import (
	"fmt"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/reason"
)

// Every reason comes with its code, for programs.
func TestACodeStandsBesideEveryReason(t *testing.T) {
	t.Parallel()
	const failing = "services:\n  web: {compute_type: dummy, dummy: {fail_prop: \"yes\"}, update: {min_healthy: 0, on_failure: %s}}\n"
	for _, c := range []struct {
		name, manifest string
		status         mariposa.Status
		code           mariposa.ReasonCode
		says           string
		task           mariposa.ReasonCode // once it has ended; empty: it goes on
	}{
		{"blocked-by-nodes", "services:\n  web: {compute_type: dummy, ports: [\"443:443\"], scale: 2}\n", mariposa.StatusBlocked, mariposa.ReasonNoNode, "no node fits this dummy instance: port 443 taken (1 of 1)", ""},
		{"blocked-by-metadata", "metadata: {mode: {required: true}}\nservices:\n  web: {compute_type: dummy, environment: {M: \"{{ .meta.mode }}\"}}\n", mariposa.StatusBlocked, mariposa.ReasonNeedsMetadata, "set it with `mariposa meta set mode VALUE`", ""},
		{"backing-off", fmt.Sprintf(failing, "continue"), mariposa.StatusBackingOff, mariposa.ReasonBackingOff, "in a row; next retry ", ""},
		{"failed", fmt.Sprintf(failing, "pause"), mariposa.StatusFailed, mariposa.ReasonStoppedFailures, "; retry with `mariposa project converge`, or go back with `mariposa project revert`", mariposa.ReasonStoppedFailures},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newTestServer(t, withPlanner)
			h.joinGated("n1")
			id := ""
			if c.task == "" {
				id = *h.create("shop", c.manifest).Task
			} else { // an update of what is well
				h.create("shop", "services:\n  web: {compute_type: dummy}\n")
				h.awaitRest("shop")
				id = h.putManifest("shop", c.manifest, "")
			}
			h.until("the service to be "+string(c.status), func() bool { return h.of("shop", "web").Status == c.status && h.state("shop").Status == c.status })
			web, whole := h.of("shop", "web"), h.state("shop")
			if web.ReasonCode != c.code || !strings.Contains(web.Reason, c.says) {
				t.Errorf("web is %s: %s", web.ReasonCode, web.Reason)
			}
			if whole.ReasonCode != c.code || !strings.HasPrefix(whole.Reason, "web: ") {
				t.Errorf("the project is %s: %s", whole.ReasonCode, whole.Reason)
			}
			if p := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200); p.ReasonCode != c.code {
				t.Errorf("the project is shown as %s: %s", p.ReasonCode, p.Reason)
			}
			task := h.task(id)
			if c.task == "" && (task.ReasonCode != mariposa.ReasonAsked || task.Reason == "") {
				t.Errorf("the open task has %s: %s", task.ReasonCode, task.Reason)
			}
			if c.task != "" {
				task = h.awaitTask(id, mariposa.TaskFailed)
				if task.ReasonCode != c.task || !strings.HasPrefix(task.Reason, "web: the rollout of version 2 stopped after 3 failures: ") {
					t.Errorf("the task ended by %s: %s", task.ReasonCode, task.Reason)
				}
			}
			known := map[mariposa.ReasonCode]bool{}
			for _, code := range reason.Codes() {
				known[code] = true
			}
			for _, step := range task.Steps {
				if (step.Reason == "") != (step.ReasonCode == "") || step.ReasonCode != "" && !known[step.ReasonCode] {
					t.Errorf("step %+v", step)
				}
			}
			for _, i := range h.instances("shop", "web") {
				if !known[i.ReasonCode] || i.Reason == "" {
					t.Errorf("%s is %s: %s", i.Name, i.ReasonCode, i.Reason)
				}
			}
			seen := map[mariposa.ReasonCode]bool{}
			for _, e := range want[contract.Events](h.call("GET", "/v1/events?since=0", nil), 200).Events {
				seen[e.ReasonCode] = true
				if e.Reason != "" && !known[e.ReasonCode] {
					t.Errorf("event %s is %q: %s", e.Kind, e.ReasonCode, e.Reason)
				}
			}
			if !seen[c.code] {
				t.Errorf("no event has %s: %v", c.code, seen)
			}
		})
	}
}
