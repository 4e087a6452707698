package main_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"
)

// These tests run small real benchmarks.

// bench runs a benchmark and returns its output. It checks that all fields are present
// and that the given figures are not zero.
func (h *devServer) bench(names, figures []string, args ...string) map[string]any {
	h.t.Helper()
	out, errs, code := h.mariposa("", append([]string{"bench"}, args...)...)
	if code != 0 {
		h.t.Fatalf("exit %d\n%s", code, errs)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		h.t.Fatalf("%v in %s", err, out)
	}
	for _, name := range append(names, figures...) {
		if _, ok := got[name]; !ok {
			h.t.Errorf("%s is missing in %s", name, out)
		}
	}
	zero := func(name string) bool {
		if p, ok := got[name].(map[string]any); ok {
			return p["p50"] == 0.0
		}
		return got[name] == 0.0
	}
	if slices.ContainsFunc(figures, zero) {
		h.t.Errorf("something was not measured: %s", out)
	}
	return got
}

func TestTheBenchmarkPrintsWhatTheContractNames(t *testing.T) {
	t.Parallel()
	h := &devServer{t: t, dir: t.TempDir()}
	h.bench([]string{
		"instances", "nodes", "projects", "store", "up_s", "repair_s", "down_s", "event_to_create_ms", "event_to_create_busy_ms", "commit_ms", "fsync_ms", "idle_cpu_pct",
	}, []string{"up_per_s", "repaired", "roll_s", "rss_mb", "cpu_s"},
		"converge", "--instances", "500", "--nodes", "3", "--kills", "5")
}

// The second run uses the store of the first run, which must be empty again.
func TestTheBenchmarkOfTheAPILosesNothingAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	h := &devServer{t: t, dir: t.TempDir()}
	for range 2 {
		got := h.bench([]string{"store", "settle_s", "check_busy_us", "fsync_ms", "commit_ms"}, []string{
			"organizations", "projects", "services", "instances", "nodes", "readers", "memberships", "people_per_s", "projects_per_s",
			"projects_ms", "state_ms", "projects_busy_ms", "state_busy_ms", "projects_member_ms", "state_member_ms", "projects_admin_ms", "state_admin_ms",
			"project_ms", "project_denied_ms", "healthz_ms", "check_us", "requests_per_s", "updates", "updates_sent", "updates_per_s", "update_ms",
			"metadata_per_s", "metadata_ms", "deleted_per_s", "rss_mb", "cpu_s",
		}, "api", "--organizations", "3", "--projects", "4", "--services", "2", "--nodes", "2", "--updates", "10", "--readers", "2", "--duration", "50ms",
			"--store", "sqlite:"+filepath.Join(h.dir, "bench.db"))
		if got["updates_lost"] != 0.0 {
			t.Errorf("%v of %v updates were lost", got["updates_lost"], got["updates_sent"])
		}
	}
}

func TestTheBenchmarkOfTheQueueMeasuresAllAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	h := &devServer{t: t, dir: t.TempDir()}
	for range 2 {
		got := h.bench([]string{"store", "settle_s", "commit_ms", "fsync_ms", "admit_one_project_ms"}, []string{
			"projects", "organizations", "history", "nodes", "readers", "history_per_s", "tenant_ms", "tenant_project_ms", "tenant_service_ms",
			"tenant_deep_ms", "member_ms", "admin_ms", "admin_project_ms", "admin_service_ms", "admin_deep_ms", "admin_failed_ms", "open_ms",
			"clients", "admitted", "admitted_per_s", "admit_ms", "admitted_one_project_per_s", "roll", "rss_mb", "cpu_s",
		}, "queue", "--projects", "20", "--history", "30", "--instances", "20", "--nodes", "2", "--clients", "4", "--duration", "50ms",
			"--driver-time", "100ms", "--min-healthy", "100ms", "--store", "sqlite:"+filepath.Join(h.dir, "bench.db"))
		roll := got["roll"].(map[string]any)
		if roll["batches"] != 10.0 || roll["ratio"].(float64) < 1 {
			t.Errorf("a rolling update in less time than it must take: %v", roll)
		}
	}
}

func TestTheBenchmarkOfHealthChecksMeasuresAnAgent(t *testing.T) {
	t.Parallel()
	h := &devServer{t: t, dir: t.TempDir()}
	got := h.bench([]string{"unhealthy", "replaced_or_restarted", "agent_cores", "agent_us_per_check"}, []string{"instances", "checks_per_instance", "poll_s", "wanted_per_s", "checks_per_s", "agent_rss_mb"},
		"health", "--instances", "2", "--checks", "3", "--duration", "1s")
	if got["unhealthy"] != 0.0 || got["replaced_or_restarted"] != 0.0 || got["wanted_per_s"] != 60.0 {
		t.Errorf("%v", got)
	}
}

func TestTheBenchmarkOfThePageMeasuresAllAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	h := &devServer{t: t, dir: t.TempDir()}
	for range 2 {
		got := h.bench([]string{"store", "cpu_ms_per_change_one_page", "cpu_ms_per_change_per_page", "slowdown_pct", "more_cpu_pct", "pages_cpu_s"}, []string{
			"instances", "nodes", "projects", "pages", "project_pages", "changes", "cpu_ms_per_change_without_pages", "kb_to_open_a_page", "kb_per_change_per_page",
			"started", "start_cpu_s_without_pages", "start_cpu_s_with_pages", "rss_mb",
		}, "page", "--instances", "40", "--nodes", "2", "--projects", "2", "--pages", "3", "--project-pages", "1", "--changes", "2", "--interval", "50ms",
			"--started", "100", "--rounds", "1", "--store", "sqlite:"+filepath.Join(h.dir, "bench.db"))
		for _, name := range []string{"start_s_with_pages", "pages_late_ms"} { // all pages have shown everything
			if with, _ := got[name].([]any); len(with) != 1 {
				t.Errorf("%s was not measured: %v", name, got)
			}
		}
	}
}

func TestTheBenchmarkOfRequestsLosesNone(t *testing.T) {
	t.Parallel()
	h := &devServer{t: t, dir: t.TempDir()}
	got := h.bench(nil, []string{"instances", "rate", "clients"}, "requests", "--instances", "2", "--rate", "50", "--clients", "4")
	for _, part := range []string{"steady", "update", "scale_down", "node_drain", "restart", "crash", "haproxy_reloads"} {
		p, _ := got[part].(map[string]any)
		if p["sent"] == nil || p["sent"] == 0.0 {
			t.Errorf("%s was not measured: %v", part, got)
		}
		if p["lost"] != 0.0 && part != "crash" && part != "haproxy_reloads" {
			t.Errorf("%s lost requests: %v", part, p)
		}
	}
}
