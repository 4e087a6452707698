package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mariposa/store/postgres/pgtest"
)

// withStandby makes a standby of a PostgreSQL server that has every commit before it is
// acknowledged, and returns a URL that names both.
func withStandby(t *testing.T, first *pgtest.Server, target string) (second *pgtest.Server, both string) {
	t.Helper()
	second = first.Standby(t)
	must(t, first.Exec("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"))
	const inStep = "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync') THEN RAISE 'not yet'; END IF; END $$"
	(&devServer{t: t, out: &lockedBuffer{}}).await("the standby is in step", func() bool { return first.Exec(inStep) == nil })
	u, err := url.Parse(target)
	must(t, err)
	u.Host += fmt.Sprintf(",127.0.0.1:%d", second.Port)
	u.RawQuery += "&target_session_attrs=read-write"
	return second, u.String()
}

// writer changes a project through any replica, over and over. A change whose result is
// unknown is repeated with the same key until it is acknowledged.
type writer struct {
	name, token string
	urls        []string
	pause       time.Duration // after each pair of changes
	acked       int           // changes that were acknowledged, of each kind
	failed      int           // attempts that were not
	wrong       []string
}

func (w *writer) run(ctx context.Context) {
	for n := 1; ctx.Err() == nil; n++ {
		key := fmt.Sprintf("%s-%d", w.name, n)
		w.change("PUT", "/v1/projects/shop/metadata/"+key, itoa(n), "text/plain", key+"-value")
		w.change("POST", "/v1/projects/shop/metadata/count/incr", "", "application/json", key+"-count")
		w.acked = n
		select {
		case <-ctx.Done():
		case <-time.After(w.pause):
		}
	}
}

// change makes one change and reports whether it was accepted.
func (w *writer) change(method, path, body, kind, key string) bool {
	for try := 0; ; try++ {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		req, err := http.NewRequestWithContext(ctx, method, w.urls[try%len(w.urls)]+path, strings.NewReader(body))
		if err != nil {
			panic(err)
		}
		req.Header.Set("Authorization", "Bearer "+w.token)
		req.Header.Set("Content-Type", kind)
		req.Header.Set("Idempotency-Key", key)
		answer, err := http.DefaultClient.Do(req)
		status, text := 0, []byte(nil)
		if err == nil {
			status = answer.StatusCode
			text, _ = io.ReadAll(answer.Body) // what is cut off is not acknowledged
			_ = answer.Body.Close()
		}
		cancel()
		switch {
		case status/100 == 2 && json.Valid(text):
			return true
		case status == http.StatusConflict && strings.Contains(string(text), "at the same time"): // many change the same project
		case err == nil && status/100 != 5:
			w.wrong = append(w.wrong, fmt.Sprintf("%s %s answered %d %s", method, path, status, text))
			return false
		}
		w.failed++
		time.Sleep(20 * time.Millisecond) // not to wait for anything: so as not to flood the server
	}
}

// The PostgreSQL server is killed under load and its synchronous standby is promoted. What
// was acknowledged is there, and nothing was done twice.
func TestNothingIsLostOrDoubledWhenAStandbyOfTheDatabaseTakesOver(t *testing.T) {
	t.Parallel()
	first := pgtest.New(t)
	target := first.Database(t, "")
	second, both := withStandby(t, first, target)
	c := &cluster{devServer: &devServer{t: t, dir: t.TempDir(), out: &lockedBuffer{}}, store: both}
	c.admin, c.join = c.token(), c.token("--join")
	c.addReplicas(2)
	c.ask(0)
	c.agent("node", 4, c.urls())
	c.create("shop", "services: {d: {compute_type: dummy, scale: 4}}")
	c.converged("shop", "d", 4)
	before := c.names()

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	writers := []*writer{}
	for i := range 3 {
		w := &writer{name: fmt.Sprintf("w%d", i), token: c.admin, urls: []string{c.replicas[i%2].url, c.replicas[(i+1)%2].url}}
		writers = append(writers, w)
		all.Go(func() { w.run(ctx) })
	}
	progress := func(what string, from int) (count int) {
		t.Helper()
		c.await(what, func() bool {
			if v, err := c.MetadataKey(t.Context(), "shop", "count", false); err == nil {
				count = atoi(v.Value)
			}
			return count >= from
		})
		return count
	}
	at := progress("writes before the failure", 10)
	first.Kill()
	must(t, second.Promote())
	progress("writes after the failure", at+20)
	stop()
	all.Wait()

	want := 0
	for _, w := range writers {
		want += w.acked
		if len(w.wrong) > 0 {
			t.Errorf("%s: %d changes were refused: %s", w.name, len(w.wrong), w.wrong[0])
		}
		t.Logf("%s: %d changes of each kind, %d attempts failed", w.name, w.acked, w.failed)
	}
	for i := range c.replicas {
		c.ask(i)
		known, count := map[string]bool{}, 0
		c.await("the last write", func() bool { // what a replica shows may be a moment behind
			values, err := c.Metadata(t.Context(), "shop", false)
			if err != nil {
				return false
			}
			for _, v := range values.Keys {
				if known[v.Key] = true; v.Key == "count" {
					count = atoi(v.Value)
				}
			}
			return count >= want
		})
		if count != want {
			t.Errorf("%d increments were acknowledged, and replica %d counts %d", want, i, count)
		}
		for _, w := range writers {
			for n := 1; n <= w.acked; n++ {
				if key := fmt.Sprintf("%s-%d", w.name, n); !known[key] {
					t.Errorf("%s was acknowledged, and replica %d does not know it", key, i)
				}
			}
		}
	}
	c.must(c.Scale(t.Context(), "shop", map[string]string{"d": "6"}))
	c.converged("shop", "d", 6)
	after := c.names()
	for _, name := range before {
		if !slices.Contains(after, name) {
			t.Errorf("%s was replaced", name)
		}
	}
	if len(after) != 6 {
		t.Errorf("the instances are %v", after)
	}
	if unknown := c.everUnknown(); len(unknown) > 0 {
		t.Errorf("nodes %v have been unknown", unknown)
	}
}
