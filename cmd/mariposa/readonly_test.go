package main_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"mariposa/store/postgres/pgtest"
)

// demand sends a request to the first replica, and returns the answer.
func (c *cluster) demand(method, path, body string) (status int, retryAfter, text string) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.replicas[0].url+path, bytes.NewReader([]byte(body)))
	must(c.t, err)
	r.Header.Set("Authorization", "Bearer "+c.admin)
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err.Error()
	}
	defer answer.Body.Close()
	b, _ := io.ReadAll(answer.Body) // on an error it is incomplete
	return answer.StatusCode, answer.Header.Get("Retry-After"), string(b)
}

// While the database accepts no writes, the sessions of the nodes end. A new instance is
// refused like every other change, and not because no node fits.
func TestAReadOnlyDatabaseRefusesAllChangesAlike(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	c, _ := cabledTo(t, database.Database(t, ""), 1)
	c.agent("node", 2, c.replicas[0].url)
	c.await("all nodes are connected", func() bool { return c.metric(0, "mariposa_sessions") == 2 })
	c.create("shop", "services: {d: {compute_type: dummy, scale: 1}}")
	c.converged("shop", "d", 1)
	setReadOnly := func(mode string) {
		must(t, database.Exec("ALTER SYSTEM SET default_transaction_read_only = "+mode, "SELECT pg_reload_conf()"))
	}
	setReadOnly("on")
	c.await("the sessions have ended", func() bool { return c.metric(0, "mariposa_sessions") == 0 })
	create := `{"project":"shop","name":"alone","compute_type":"dummy"}`
	for _, k := range []struct{ method, path, body, says string }{
		{"POST", "/v1/instances", create, "accept no writes"},
		{"PUT", "/v1/projects/shop/services/d/state", `{"action":"scale","scale":2}`, "accepts no writes"},
	} {
		status, retry, text := c.demand(k.method, k.path, k.body)
		if status != 503 || retry == "" || !strings.Contains(text, k.says) || strings.Contains(text, "disk") {
			t.Errorf("%s %s answers %d, Retry-After %q: %s", k.method, k.path, status, retry, text)
		}
	}
	setReadOnly("off")
	odd := ""
	c.await("the instance can be created", func() bool {
		status, retry, text := c.demand("POST", "/v1/instances", create)
		if status != 201 && (status != 503 || retry == "") {
			odd = fmt.Sprintf("answered %d, Retry-After %q: %s", status, retry, text)
		}
		return status == 201 || odd != ""
	})
	if odd != "" {
		t.Error("after the outage: " + odd)
	}
}
