package main_test

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"mariposa/store/postgres/pgtest"
)

// After a power cut, everything starts at the same time. A server that waits for its
// database listens, says what it waits for, and serves once the database is there.
func TestAReplicaThatStartsBeforeItsDatabaseWaits(t *testing.T) {
	t.Parallel()
	database := pgtest.Start(t)
	cable, through := newCable(t, database)
	cable.setCut(true)
	c := &cluster{devServer: &devServer{t: t, dir: t.TempDir(), out: &lockedBuffer{}}, store: database}
	c.admin = c.token()
	out := &lockedBuffer{}
	c.spawnProcess(out, []string{"MARIPOSA_STORE=" + through}, "server", "--listen", "127.0.0.1:0")
	listening := regexp.MustCompile(`waiting for the database.*listening=(http://\S+)`)
	c.await("it says what it waits for", func() bool { return listening.MatchString(out.String()) })
	url := listening.FindStringSubmatch(out.String())[1]
	get := func(path string) (int, http.Header, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+c.admin)
		answer, err := http.DefaultClient.Do(r)
		must(t, err)
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		must(t, err)
		return answer.StatusCode, answer.Header, string(b)
	}
	for range 3 { // attempts go on
		if status, _, body := get("/healthz"); status != 200 || !strings.Contains(body, `"starting"`) { // a restart would not help
			t.Errorf("/healthz answers %d: %s", status, body)
		}
		for _, path := range []string{"/readyz", "/v1/projects"} {
			if status, header, body := get(path); status != 503 || header.Get("Retry-After") == "" || !strings.Contains(body, "waiting for the database: ") || !strings.Contains(body, "Unavailable") {
				t.Errorf("%s answers %d: %s", path, status, body)
			}
		}
	}
	if log := out.String(); strings.Count(log, "waiting for the database") != 1 || strings.Contains(log, "failed to connect") {
		t.Errorf("it logs %s", log)
	}
	cable.setCut(false)
	c.await("it runs", func() bool { return strings.Contains(out.String(), "Mariposa is running at "+url) })
	for _, path := range []string{"/healthz", "/readyz", "/v1/projects"} {
		if status, _, body := get(path); status != 200 {
			t.Errorf("%s answers %d: %s", path, status, body)
		}
	}
}
