package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pressly/goose/v3"

	"mariposa"
	"mariposa/store"
	"mariposa/store/storetest"
)

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

// A list reads only those entries of the audit log that its reader may see; only lists
// of all organizations walk the log, from the newest end.
func TestAListOfTheAuditLogReadsOnlyWhatItsReaderMaySee(t *testing.T) {
	t.Parallel()
	s := open(t, filepath.Join(t.TempDir(), "store"), Options{})
	check := func(b *query, want string) {
		t.Helper()
		plan := planOf(t, s, b.text, b.args)
		others := strings.NewReplacer("SCAN audit\n", "", "SCAN o VIRTUAL TABLE", "", "SCAN json_each VIRTUAL TABLE", "").Replace(plan)
		if !strings.Contains(plan, want) || strings.Contains(others, "SCAN") || strings.Contains(plan, "B-TREE") {
			t.Errorf("%s: want %s\n%s", b.text, want, plan)
		}
	}
	filters := store.AuditQuery{Actor: "u", Action: "a.", Outcome: "denied", Since: time.Unix(1, 0), Until: time.Unix(2, 0), Before: 7, Limit: 10}
	for _, scope := range []struct {
		project       string
		organizations []string
		index         string
	}{
		{"p", nil, "INDEX audit_project (project=?"},
		{"p", []string{"o"}, "INDEX audit_project (project=?"},
		{"", []string{"o", "p"}, "INDEX audit_organization (organization=?"},
	} {
		for q, bounds := range map[*store.AuditQuery]string{{}: ")", {Limit: 10}: ")", {Outcome: "denied"}: ")", {Before: 7}: " AND rowid<?)", &filters: " AND rowid>? AND rowid<?)"} {
			scoped := *q
			scoped.Project, scoped.Organizations = scope.project, scope.organizations
			check(auditQuery(&scoped), scope.index+bounds)
		}
	}
	check(auditQuery(&filters), "INDEX audit_outcome (outcome=? AND rowid>? AND rowid<?)")
	check(auditQuery(&store.AuditQuery{Actor: "u", Before: 7}), "SEARCH audit USING INTEGER PRIMARY KEY (rowid<?)")
	check(auditQuery(&store.AuditQuery{Outcome: "done"}), "SCAN audit\n")
	check(&query{trimAudit, []any{1, 2, 3}}, "SEARCH audit USING INTEGER PRIMARY KEY (rowid<?)")
}

func planOf(t testing.TB, s *Store, query string, args []any) string {
	t.Helper()
	rows, err := s.readers.QueryContext(context.Background(), "EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	var plan strings.Builder
	for rows.Next() {
		var n int
		var line string
		if err := rows.Scan(&n, &n, &n, &line); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&plan, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plan.String()
}

func TestTheAuditLogOutlivesAClockThatIsSetBack(t *testing.T) {
	t.Parallel()
	clk := storetest.NewClock()
	path := filepath.Join(t.TempDir(), "store")
	s := open(t, path, Options{Clock: clk})
	start := clk.Now()
	commit(t, s, audited("noon"))
	clk.Advance(-time.Hour)
	commit(t, s, audited("eleven", "eleven-too"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, Options{Clock: clk})
	clk.Advance(30 * time.Minute)
	commit(t, s, audited("half-past"))
	clk.Advance(90 * time.Minute)
	commit(t, s, audited("one"))
	for _, c := range []struct {
		q    store.AuditQuery
		want string
	}{
		{store.AuditQuery{}, "one half-past eleven-too eleven noon"},
		{store.AuditQuery{Since: start}, "one noon"},
		{store.AuditQuery{Until: start}, "half-past eleven-too eleven"},
		{store.AuditQuery{Since: start.Add(-time.Hour), Until: start.Add(-45 * time.Minute)}, "eleven-too eleven"},
		{store.AuditQuery{Since: start.Add(-40 * time.Minute), Until: start.Add(time.Hour)}, "half-past noon"},
	} {
		if got := objectsOf(t, s, c.q); got != c.want {
			t.Errorf("%+v: %s, want %s", c.q, got, c.want)
		}
	}
	if n, err := s.TrimAudit(t.Context(), 80*time.Minute); err != nil || n != 3 {
		t.Errorf("forgot %d, %v", n, err)
	}
	if got := objectsOf(t, s, store.AuditQuery{}); got != "one noon" {
		t.Errorf("left: %s", got)
	}
}

func TestTheAuditLogIsTrimmedInAsManyStepsAsItNeeds(t *testing.T) {
	t.Parallel()
	clk := storetest.NewClock()
	s := open(t, filepath.Join(t.TempDir(), "store"), Options{Clock: clk})
	const old = 2*trimStep + trimStep/2
	for range old / 500 {
		var u store.Unit
		for range 500 {
			u.Audit = append(u.Audit, mariposa.Audit{Action: "a.b"})
		}
		commit(t, s, u)
	}
	clk.Advance(time.Hour)
	commit(t, s, audited("young"))
	if n, err := s.TrimAudit(t.Context(), time.Minute); err != nil || n != old {
		t.Fatalf("forgot %d, %v", n, err)
	}
	if got := objectsOf(t, s, store.AuditQuery{}); got != "young" {
		t.Errorf("left: %s", got)
	}
}

func TestTasksThatEndedBeforeTheirStatesWereIndexedAreFoundByThem(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store")
	older(t, path)
	s := open(t, path, Options{})
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
	path := filepath.Join(t.TempDir(), "store")
	older(t, path)
	s := open(t, path, Options{})
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
	path := filepath.Join(t.TempDir(), "store")
	db := withSchema(t, path, 3)
	const entries = `INSERT INTO audit VALUES (7, 7000, 'o', 'p', 'u1', 'ann', '', '', 'a.b.c', 'done', CAST('{"object":"one"}' AS BLOB)),
		(8, 8000, '', '', 'u2', 'u2', 'u1', 'ann', 'login', 'denied', CAST('{"object":"two"}' AS BLOB))`
	for _, statement := range []string{entries, "UPDATE meta SET value = 8 WHERE key = 'audit'"} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s := open(t, path, Options{})
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
	var indexes string
	const list = "SELECT group_concat(name) FROM (SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'audit' ORDER BY name)"
	if err := s.readers.QueryRowContext(t.Context(), list).Scan(&indexes); err != nil || indexes != "audit_organization,audit_outcome,audit_project" {
		t.Errorf("indexes: %s, %v", indexes, err)
	}
}

// withSchema creates a store with an older schema.
func withSchema(t *testing.T, path string, version int64) *sql.DB {
	t.Helper()
	db, err := openDB(path, writing)
	if err != nil {
		t.Fatal(err)
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	return db
}

// older creates a store with the first schema and some data.
func older(t *testing.T, path string) {
	t.Helper()
	db := withSchema(t, path, 1)
	defer db.Close()
	const ended = `INSERT INTO objects VALUES ('task', 'c', 'p', 1, 0, 0, 0, '{}', CAST('{"state":"completed","reason":"\"state\":\"failed\""}' AS BLOB)),
		('task', 'f', 'p', 1, 0, 0, 0, '{}', CAST('{"state":"failed"}' AS BLOB)), ('task', 'a', 'p', 0, 0, 0, 0, '{}', CAST('{"state":"active"}' AS BLOB))`
	if _, err := db.ExecContext(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"task", "metadata"} {
		if _, err := db.ExecContext(t.Context(), "INSERT INTO objects VALUES (?, 'x', 'p', 0, 0, 0, 0, '{}', NULL), (?, 'y', 'q', 0, 0, 0, 0, '{}', NULL)", kind, kind); err != nil {
			t.Fatal(err)
		}
	}
}
