package main_test

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"mariposa"
	"mariposa/healthagent"
)

var servedAt = regexp.MustCompile(`url=(http://[0-9.:]+)/v1/healthchecks`)

// startHealthAgent starts a stand-alone health agent and returns its URL.
func (h *devServer) startHealthAgent(project string) string {
	h.t.Helper()
	errs := &lockedBuffer{}
	cmd := program(context.Background(), h.dir, []string{"MARIPOSA_TOKEN=" + h.admin}, "health", "--server", h.URL(), "--project", project, "--listen", "127.0.0.1:0", "--interval", "1s")
	cmd.Stderr = errs
	must(h.t, cmd.Start())
	h.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended, which Wait reports
		if err := cmd.Wait(); err != nil {
			h.t.Errorf("the health agent ended with %v: %s", err, errs)
		}
	})
	h.await("the health agent serves", func() bool { return servedAt.MatchString(errs.String()) })
	return servedAt.FindStringSubmatch(errs.String())[1]
}

// askAgent makes a request and returns the status and the body of the answer.
func askAgent(t *testing.T, method, url string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	must(t, err)
	resp, err := http.DefaultClient.Do(r)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(body)
}

func TestAStandAloneHealthAgentChecksAProject(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.ok("project", "create", "shop", "-m", fileOf(t, served(2, "echo ok > health", "")), "--wait")
	all := h.healthy("shop", 2)
	at := h.startHealthAgent("shop")
	read := func() (doc healthagent.Checks) {
		_, body := askAgent(t, http.MethodGet, at+"/v1/healthchecks")
		must(t, json.Unmarshal([]byte(body), &doc))
		return doc
	}
	h.await("both instances pass the check", func() bool {
		doc := read()
		return len(doc.Checks) == 2 && doc.Checks[0].ID == "web-1" && doc.Checks[0].Health == mariposa.HealthHealthy && len(doc.Checks[0].Instances) == 2
	})
	if inside := read().Checks[1]; inside.Health != mariposa.HealthUnknown || !strings.Contains(inside.Instances[0].Reason, "inside the instance") {
		t.Errorf("a command: %+v", inside)
	}

	if status, body := askAgent(t, http.MethodGet, at+"/v1/healthchecks/web-1/definition"); status != http.StatusOK ||
		strings.TrimSpace(body) != "{type: http, port: 8080, path: /health, poll: 0.2, unhealthy_poll: 0.1, timeout: 20, retries: 1}" {
		t.Errorf("the definition: %d %s", status, body)
	}
	for _, path := range []string{"/v1/healthchecks/web-9", "/v1/healthchecks/web-9/definition"} {
		if status, body := askAgent(t, http.MethodGet, at+path); status != http.StatusNotFound || !strings.Contains(body, "there is no health check with this id") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}

	// A frozen project replaces nothing, so the failure stays.
	h.ok("-j", "shop", "project", "freeze")
	sick := slices.Sorted(maps.Keys(all))[0]
	h.ok("-j", "shop", "instance", "exec", sick, "--", "rm", "health")
	h.await("the failure is seen", func() bool {
		var check healthagent.Check
		_, body := askAgent(t, http.MethodGet, at+"/v1/healthchecks/web-1")
		must(t, json.Unmarshal([]byte(body), &check))
		return check.Health == mariposa.HealthUnhealthy && slices.ContainsFunc(check.Instances, func(r healthagent.Result) bool {
			return r.Instance == all[sick].ID && r.Health == mariposa.HealthUnhealthy && strings.Contains(r.Reason, "answered 404, 2 times in ")
		})
	})

	// Definitions are read again on request, and a server that is away is named.
	h.ok("-j", "shop", "project", "thaw")
	h.ok("-j", "shop", "project", "update", "-m", fileOf(t, strings.Replace(served(1, "echo ok > health", ""), "timeout: 20, retries: 1}", "timeout: 20, retries: 3}", 1)), "--force", "--wait")
	if status, body := askAgent(t, http.MethodPost, at+"/v1/healthchecks/update"); status != http.StatusOK || !strings.Contains(body, `"retries":3`) {
		t.Errorf("an update: %d %s", status, body)
	}
	h.kill()
	if status, body := askAgent(t, http.MethodPost, at+"/v1/healthchecks/update"); status != http.StatusBadGateway || !strings.Contains(body, "cannot read the health checks of shop") {
		t.Errorf("an update without a server: %d %s", status, body)
	}
	if doc := read(); doc.Error == "" || len(doc.Checks) != 2 {
		t.Errorf("without a server: %+v", doc)
	}
	h.start()
}

func TestTheHealthAgentSaysWhatItNeeds(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"health": "--server and --project are required",
		"health --server http://127.0.0.1:1 --project a":                       "a token is required",
		"health --server http://127.0.0.1:1 --project a --interval 1ms":        "--interval must be at least 1s",
		"health --server http://127.0.0.1:1 --project a --token-file /nothing": "cannot read the token",
		"health --server http://192.0.2.1:1 --project a --token-file TOKEN":    "unencrypted",
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "token")
		must(t, os.WriteFile(file, []byte("secret\n"), 0o600))
		args = strings.Replace(args, "TOKEN", file, 1)
		out, errs, code := finish(t, program(t.Context(), dir, nil, strings.Fields(args)...), "")
		if code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit %d, %s%s", args, code, out, errs)
		}
	}
}
