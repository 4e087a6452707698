package postgres

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"mariposa"
	"mariposa/store"
	"mariposa/store/postgres/pgtest"
)

// auditPlans adds the expected plans of audit log queries: a list reads only what its
// reader may see.
func auditPlans(plans map[string][]string) {
	filters := store.AuditQuery{Actor: "u", Action: "a.", Outcome: "denied", Since: time.Unix(1, 0), Until: time.Unix(2, 0), Before: 7, Limit: 10}
	for _, scope := range []struct {
		project       string
		organizations []string
		parts         []string
	}{
		{"p", nil, []string{"Index Scan Backward using audit_project", "Index Cond: project = $1"}},
		{"p", []string{"o"}, []string{"Index Scan Backward using audit_project", "Index Cond: project = $1"}},
		// At most a page of each organization is sorted.
		{"", []string{"o", "p"}, []string{"Index Scan Backward using audit_organization", "Index Cond: organization = unnest$1", "Sort Key: audit.id"}},
	} {
		for q, bound := range map[*store.AuditQuery]string{{}: "", {Limit: 10}: "", {Outcome: "denied"}: "", {Before: 7}: " id + 0 < $", &filters: " id + 0 < $"} {
			scoped := *q
			scoped.Project, scoped.Organizations = scope.project, scope.organizations
			parts := slices.Clone(scope.parts)
			parts[1] += bound
			plans[auditQuery(&scoped).text] = parts
		}
	}
	plans[auditQuery(&filters).text] = []string{"Index Scan Backward using audit_outcome", "id + 0 < $"}
	for _, q := range []store.AuditQuery{{}, {Limit: 10}, {Actor: "u", Action: "a.b", Outcome: "done"}} {
		plans[auditQuery(&q).text] = []string{"Index Scan Backward using audit_pkey"}
	}
	plans[auditQuery(&store.AuditQuery{Actor: "u", Before: 7}).text] = []string{"Index Scan Backward using audit_pkey", "Index Cond: id < $1"}
}

func audited(objects ...string) store.Unit {
	var u store.Unit
	for _, o := range objects {
		u.Audit = append(u.Audit, mariposa.Audit{Action: "a.b", Object: o})
	}
	return u
}

func objectsOf(t testing.TB, s *Store, q store.AuditQuery) string {
	t.Helper()
	found, err := s.Audit(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	var objects []string
	for _, a := range found {
		objects = append(objects, a.Object)
	}
	return strings.Join(objects, " ")
}

// The server's clock cannot be set. But the counter can be set as if the clock had been
// an hour ahead.
func TestTheAuditLogOutlivesAClockThatIsSetBack(t *testing.T) {
	t.Parallel()
	target := database(t)
	s := open(t, target, Options{})
	ahead := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	conn := dial(t, target)
	do(t, conn, `INSERT INTO audit (id, at, organization, project, actor, actor_name, for_id, for_name, action, outcome, body)
		VALUES ($1, $2, '', '', '', '', '', '', 'a.b', 'done', '{"object": "ahead"}')`, ahead.UnixMicro(), ahead)
	do(t, conn, "UPDATE counter SET audit = $1", ahead.UnixMicro())
	commit(t, s, audited("back"), audited("back-too"))
	for _, c := range []struct {
		q    store.AuditQuery
		want string
	}{
		{store.AuditQuery{}, "back-too back ahead"},
		{store.AuditQuery{Since: ahead}, "ahead"},
		{store.AuditQuery{Until: ahead}, "back-too back"},
		{store.AuditQuery{Until: ahead, Action: "a."}, "back-too back"},
		{store.AuditQuery{Since: ahead.Add(-2 * time.Hour), Until: ahead.Add(-time.Hour)}, ""},
	} {
		if got := objectsOf(t, s, c.q); got != c.want {
			t.Errorf("%+v: %s, want %s", c.q, got, c.want)
		}
	}
	do(t, conn, "UPDATE audit SET at = at - interval '1 day' WHERE at < $1", ahead)
	do(t, conn, "UPDATE counter SET audit_lag = audit_lag + $1", (24 * time.Hour).Microseconds())
	if n, err := s.TrimAudit(t.Context(), time.Hour); err != nil || n != 2 {
		t.Errorf("forgot %d, %v", n, err)
	}
}

// Once a reader has seen the newest entry, new ones may only appear above it, whichever
// replica wrote and whichever is read.
func TestEntriesOfReplicasAppearInOneOrder(t *testing.T) {
	t.Parallel()
	handles := replicas(t, database(t), 3)
	done := make(chan struct{})
	var readers, writers sync.WaitGroup
	for _, s := range handles {
		readers.Go(func() {
			var seen []mariposa.Audit
			for stop := false; !stop; {
				select {
				case <-done:
					stop = true
				default:
				}
				now, err := s.Audit(context.Background(), store.AuditQuery{Actor: "u"})
				if err != nil {
					t.Error(err)
					return
				}
				if added := len(now) - len(seen); added < 0 || !slices.Equal(now[added:], seen) {
					t.Errorf("of %d entries, then %d, the older ones differ", len(seen), len(now))
					return
				}
				seen = now
			}
		})
	}
	const each = 60
	for w := range 6 {
		writers.Go(func() {
			for i := range each {
				u := store.Unit{Audit: []mariposa.Audit{{Action: "a.b", Actor: "u", Object: fmt.Sprint(w), Number: i}}}
				if i%2 == 0 {
					u.Writes = node(fmt.Sprint(w), fmt.Sprint(i)).Writes
				}
				if r := handles[w%len(handles)].Commit(context.Background(), u)[0]; r.Err != nil {
					t.Error(r.Err)
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
	all, err := handles[0].Audit(t.Context(), store.AuditQuery{})
	if err != nil || len(all) != 6*each {
		t.Fatalf("%d entries, %v", len(all), err)
	}
	next := map[string]int{}
	for _, a := range slices.Backward(all) {
		if a.Number != next[a.Object] {
			t.Fatalf("entry %d of writer %s where %d was next", a.Number, a.Object, next[a.Object])
		}
		next[a.Object]++
	}
}

func TestTheAuditLogIsTrimmedInAsManyStepsAsItNeeds(t *testing.T) {
	t.Parallel()
	target := database(t)
	handles := replicas(t, target, 2)
	const old = 2*trimStep + trimStep/2
	do(t, dial(t, target), `INSERT INTO audit (id, at, organization, project, actor, actor_name, for_id, for_name, action, outcome, body)
		SELECT n, now() - interval '1 day', '', '', '', '', '', '', 'a.b', 'done', '{}' FROM generate_series(1, $1::int) AS n`, old)
	commit(t, handles[0], audited("young"))
	removed := make([]int64, len(handles))
	var wg sync.WaitGroup
	for i, s := range handles { // concurrently, as replicas do
		wg.Go(func() {
			var err error
			if removed[i], err = s.TrimAudit(context.Background(), time.Hour); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if removed[0]+removed[1] != old {
		t.Errorf("forgot %v of %d", removed, old)
	}
	if got := objectsOf(t, handles[1], store.AuditQuery{}); got != "young" {
		t.Errorf("left: %s", got)
	}
}

func TestTasksThatEndedBeforeTheirStatesWereIndexedAreFoundByThem(t *testing.T) {
	t.Parallel()
	target := pgtest.Shared(t).Database(t, "")
	older(t, target)
	s := open(t, target, Options{})
	for state, want := range map[mariposa.TaskState]string{mariposa.TaskFailed: "f", mariposa.TaskCompleted: "c", mariposa.TaskActive: ""} {
		for _, q := range []store.Query{{}, {Project: "p"}, {Projects: []string{"p", "q"}, Limit: 5}} {
			q.Kind, q.State = mariposa.KindTask, state
			found, err := s.List(t.Context(), q)
			got := ""
			for _, r := range found {
				got += r.ID
			}
			if err != nil || got != want {
				t.Errorf("%s of %q, %q: %q, %v", state, q.Project, q.Projects, got, err)
			}
		}
	}
}

func TestAStoreThatKnewNoAuditLogGetsOne(t *testing.T) {
	t.Parallel()
	target := pgtest.Shared(t).Database(t, "")
	older(t, target)
	s := open(t, target, Options{})
	for _, kind := range []mariposa.Kind{mariposa.KindTask, mariposa.KindMetadata} {
		found, err := s.List(t.Context(), store.Query{Kind: kind, Project: "p"})
		if err != nil || len(found) == 0 || found[0].ID != "x" {
			t.Errorf("%s: %+v, %v", kind, found, err)
		}
	}
	u := node("a", "1")
	u.Audit = audited("first").Audit
	if r := commit(t, s, u); r[0].First != 1 {
		t.Errorf("%+v", r)
	}
	if got := objectsOf(t, s, store.AuditQuery{}); got != "first" {
		t.Errorf("entries: %s", got)
	}
}

func TestAnOlderAuditLogIsKeptWithTheIndexesThatAreInUse(t *testing.T) {
	t.Parallel()
	target := pgtest.Shared(t).Database(t, "")
	withSchema(t, target, 3)
	conn := dial(t, target)
	do(t, conn, `INSERT INTO audit VALUES (7, 'epoch', 'o', 'p', 'u1', 'ann', '', '', 'a.b.c', 'done', '{"object":"one"}'),
		(8, 'epoch', '', '', 'u2', 'u2', 'u1', 'ann', 'login', 'denied', '{"object":"two"}')`)
	do(t, conn, "UPDATE counter SET audit = 8")
	s := open(t, target, Options{})
	commit(t, s, audited("three"))
	for want, qs := range map[string][]store.AuditQuery{
		"three two one": {{}},
		"one":           {{Organizations: []string{"o"}}, {Project: "p"}, {Action: "a.b."}},
		"two":           {{Actor: "u2"}, {Outcome: "denied"}},
		"two one":       {{Actor: "ann"}},
		"three two":     {{Organizations: []string{""}}},
	} {
		for _, q := range qs {
			if got := objectsOf(t, s, q); got != want {
				t.Errorf("%+v: %s, want %s", q, got, want)
			}
		}
	}
	indexes := ask[string](t, conn, "SELECT string_agg(indexname, ',' ORDER BY indexname) FROM pg_indexes WHERE tablename = 'audit'")
	if indexes != "audit_organization,audit_outcome,audit_pkey,audit_project" {
		t.Errorf("indexes: %s", indexes)
	}
}

// withSchema creates a store with an older schema.
func withSchema(t *testing.T, target string, version int64) {
	t.Helper()
	config, err := parse(target)
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*config.ConnConfig)
	defer db.Close()
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
}

// older creates a store with the first schema and some data.
func older(t *testing.T, target string) {
	t.Helper()
	withSchema(t, target, 1)
	conn := dial(t, target)
	do(t, conn, `INSERT INTO objects VALUES ('task', 'c', 'p', true, 0, 0, 0, '{}', convert_to('{"state":"completed","reason":"\"state\":\"failed\""}', 'UTF8')),
		('task', 'f', 'p', true, 0, 0, 0, '{}', '{"state":"failed"}'), ('task', 'a', 'p', false, 0, 0, 0, '{}', '{"state":"active"}')`)
	for _, kind := range []string{"task", "metadata"} {
		do(t, conn, "INSERT INTO objects VALUES ($1, 'x', 'p', false, 0, 0, 0, '{}', NULL), ($1, 'y', 'q', false, 0, 0, 0, '{}', NULL)", kind)
	}
}

func TestATimeBetweenMicrosecondsBecomesTheNext(t *testing.T) {
	t.Parallel()
	whole := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	for nanos, micros := range map[time.Duration]time.Duration{0: 0, 1: 1, 999: 1, 1000: 1, -1: 0, -999: 0, -1000: -1} {
		if got := nextMicro(whole.Add(nanos)); !got.Equal(whole.Add(micros * time.Microsecond)) {
			t.Errorf("%d ns becomes %v", nanos, got)
		}
	}
}
