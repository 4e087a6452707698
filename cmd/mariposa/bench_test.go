package main_test

import (
	"encoding/json"
	"slices"
	"testing"
)

// TestTheBenchmarkPrintsWhatTheContractNames runs a small one for real.
func TestTheBenchmarkPrintsWhatTheContractNames(t *testing.T) {
	t.Parallel()
	h := &house{t: t, dir: t.TempDir()}
	out, errs, code := h.mariposa("", "bench", "converge", "--instances", "500", "--nodes", "3", "--kills", "5")
	if code != 0 {
		t.Fatalf("exit %d\n%s", code, errs)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	for _, name := range []string{
		"instances", "nodes", "projects", "store", "up_s", "up_per_s", "repair_s", "repaired", "roll_s", "down_s", "event_to_create_ms",
		"event_to_create_busy_ms", "commit_ms", "fsync_ms", "rss_mb", "cpu_s", "idle_cpu_pct",
	} {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is missing in %s", name, out)
		}
	}
	zero := func(name string) bool { n, ok := got[name].(float64); return !ok || n == 0 }
	if figures := []string{"up_per_s", "repaired", "roll_s", "rss_mb", "cpu_s"}; slices.ContainsFunc(figures, zero) {
		t.Errorf("something was not measured: %s", out)
	}
}
