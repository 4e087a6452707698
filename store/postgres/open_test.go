package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/store/postgres/pgtest"
)

func TestReplicasThatStartAtOnceMakeOneStore(t *testing.T) {
	t.Parallel()
	target := pgtest.Start(t) // without any tables
	identities := make([]store.Identity, 5)
	var wg sync.WaitGroup
	for i := range identities {
		wg.Go(func() {
			s, err := Open(context.Background(), target, Options{})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			identities[i], err = s.Identity(context.Background())
			if err != nil {
				t.Error(err)
			}
			commit(t, s, node(fmt.Sprint(i), "1"))
		})
	}
	wg.Wait()
	for _, id := range identities {
		if id != identities[0] || id.Cluster == "" || id.Incarnation == "" || id.Cluster == id.Incarnation {
			t.Errorf("%+v and %+v", id, identities[0])
		}
	}
	conn := dial(t, target)
	if n := ask[int](t, conn, "SELECT count(*) FROM objects"); n != 5 {
		t.Errorf("%d objects", n)
	}
	if n := ask[int](t, conn, "SELECT count(*) FROM writers"); n != 0 {
		t.Errorf("%d writers have left their rows behind", n)
	}
}

func TestANewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	target := ownDatabase(t)
	do(t, dial(t, target), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, true)")
	if _, err := Open(t.Context(), target, Options{}); err == nil || !strings.Contains(err.Error(), "newer version of mariposa (schema 99") {
		t.Fatalf("opening: %v", err)
	}
}

func TestADatabaseOfAnotherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	if err := server.Exec("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), server.URL("latin"), Options{}); err == nil || !strings.Contains(err.Error(), "ENCODING 'UTF8'") {
		t.Fatalf("opening: %v", err)
	}
}

func TestNoErrorTellsThePassword(t *testing.T) {
	t.Parallel()
	const secret = "hush%2Fhush"
	server := pgtest.Shared(t)
	host := fmt.Sprintf("127.0.0.1:%d", server.Port)
	for name, c := range map[string]struct {
		target string
		away   bool
		hint   string
	}{
		"wrong password":    {"postgres://postgres:" + secret + "@" + host + "/postgres?sslmode=disable", false, "password authentication failed"},
		"no such database":  {strings.Replace(server.URL("nowhere"), pgtest.Password, url.QueryEscape(pgtest.Password), 1), false, "nowhere"},
		"nobody there":      {"postgres://postgres:" + secret + "@127.0.0.1:1/x", true, "connection refused"},
		"several hosts":     {"postgres://postgres:" + secret + "@127.0.0.1:1,127.0.0.1:2/x", true, "connection refused"},
		"no URL":            {"postgres://postgres:" + secret + "%zz@127.0.0.1/x", false, "not a URL"},
		"no port":           {"postgres://postgres:" + secret + "@127.0.0.1:port/x", false, "not a URL"},
		"no mode":           {"postgres://postgres:" + secret + "@127.0.0.1/x?sslmode=" + secret, false, "postgres://user:password@host"},
		"pairs":             {"host=127.0.0.1 port=1 user=postgres password=hush/hush", true, "connection refused"},
		"pairs that are no": {"host=127.0.0.1 password=hush/hush sslmode='hush/hush", false, "use postgres://"},
	} {
		_, err := Open(t.Context(), c.target, Options{})
		if err == nil {
			t.Errorf("%s: opened", name)
			continue
		}
		if text := err.Error(); strings.Contains(text, "hush") || strings.Contains(text, pgtest.Password) || strings.Contains(text, "\n") || !strings.Contains(text, c.hint) {
			t.Errorf("%s: %s", name, text)
		}
		if errors.Is(err, store.ErrUnavailable) != c.away {
			t.Errorf("%s: worth another try: %v: %v", name, !c.away, err)
		}
	}
}

func TestEveryConnectionHasItsLimits(t *testing.T) {
	t.Parallel()
	target := database(t)
	s := open(t, target+"&application_name=one", Options{})
	commit(t, s, node("a", "1"))
	if _, err := s.Get(t.Context(), mariposa.KindNode, "a"); err != nil {
		t.Fatal(err)
	}
	conn := dial(t, target)
	for ask[int](t, conn, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'one'") < 3 {
		time.Sleep(10 * time.Millisecond) // the listener connects in the background
	}
	show := func(name string) (value string) {
		err := s.readers.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	for name, want := range map[string]string{
		"statement_timeout": "15s", "lock_timeout": "5s", "idle_in_transaction_session_timeout": "5s",
		"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan", "jit": "off", "TimeZone": "UTC",
	} {
		if got := show(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if n := s.readers.Config().MaxConns; n != maxReaders {
		t.Errorf("up to %d readers", n)
	}
}

func TestAWriterIsDurableWhereTheServerWouldNotBe(t *testing.T) {
	t.Parallel()
	target := ownDatabase(t)
	do(t, dial(t, target), "ALTER DATABASE "+databaseOf(t, target)+" SET synchronous_commit = off")
	s := open(t, target, Options{})
	commit(t, s, node("a", "1"))
	var setting string
	if err := s.writer.conn.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&setting); err != nil || setting != "on" { // the writer is idle
		t.Fatalf("%s, %v", setting, err)
	}
}

// The server has no statistics of the tables: neither that they are empty at first, nor
// that they have grown. In both cases, every query must look up just the rows it needs.
// Reading more than that from the right index is as bad as reading the whole table.
func TestEveryQueryGoesByAnIndex(t *testing.T) {
	t.Parallel()
	target := pgtest.Shared(t).Database(t, templateDatabase(t)) // a new one: statistics of another test would change the plans
	listed := func(k mariposa.Kind, project string) string {
		query := listQuery(store.Query{Kind: k, Project: project, Before: "x", Limit: 10}).text
		return query
	}
	const failed = mariposa.TaskFailed
	ended := func(project string) string {
		return listQuery(store.Query{Kind: mariposa.KindTask, Project: project, State: failed, Before: "x", Limit: 10}).text
	}
	several := func(state mariposa.TaskState) store.Query {
		return store.Query{Kind: mariposa.KindTask, Projects: []string{"p", "q"}, State: state, Before: "x", Limit: 10}
	}
	historied := func(q store.HistoryQuery) string {
		query, _ := historyQuery(q)
		return query
	}
	plans := map[string][]string{
		listed(mariposa.KindTask, "p"):              {"objects_of_project", "kind = 'task' project = $1 id < $2"},
		listed(mariposa.KindVersion, "p"):           {"objects_of_project", "kind = 'version' project = $1 id < $2"},
		listed(mariposa.KindTask, ""):               {"objects_pkey", "kind = 'task' id < $1"},
		listed(mariposa.KindInstance, "p"):          {"objects_pkey", "kind = 'instance' id < $2"},
		findObjects:                                 {"objects_pkey", "kind = $1 id = n.id"},
		removeObject:                                {"objects_pkey", "kind = $1 id = $2"},
		nextObjects:                                 {"objects_pkey", "kind = $1 id > $2"},
		nextChunks:                                  {"changes_pkey", "first > $1 first < $2"},
		firstChunks:                                 {"changes_pkey", "first >= $1"},
		historied(store.HistoryQuery{}):             {"changes_pkey", "first < $1"},
		historied(store.HistoryQuery{Task: "t"}):    {"change_task_pkey", "task = $2 first < $1", "changes_pkey", "first = change_task.first"},
		historied(store.HistoryQuery{Project: "p"}): {"change_project_pkey", "project = $2 first < $1", "changes_pkey", "first = change_project.first"},
		lockWriter:                                  {"writers_pkey", "id = $1"},
		markWriter:                                  {"writers_pkey", "id = $1"},
		lockCounter:                                 {"counter_pkey", "one = true"},
		setCounter:                                  {"counter_pkey", "one = true"},
		findLeases:                                  {"leases_pkey", "name = n.name"},
		shareLeases:                                 {"leases_pkey", "name = n.name"},
		findLedger:                                  {"ledger_pkey", "node = n.node"},
		forget[0]:                                   {"changes_pkey", "first <= $1"},
		forget[1]:                                   {"change_project_trim", "first + 0 <= $1"},
		forget[2]:                                   {"change_task_trim", "first + 0 <= $1"},
		oldestChunks:                                {"changes_pkey"},
		listed(mariposa.KindMetadata, "p"):          {"objects_of_project", "kind = 'metadata' project = $1 id < $2"},
		listed(mariposa.KindAnswer, "p"):            {"objects_of_project", "kind = 'answer' project = $1 id < $2"},
		ended(""):                                   {"tasks_ended", "state = $1 id < $2"},
		ended("p"):                                  {"tasks_ended_of_project", "project = $2 state = $1 id < $3"},
		headsQuery(several(""), 9).text:             {"objects_of_project", "kind = 'task' project = n.project id < $2"},
		headsQuery(several(failed), 9).text:         {"tasks_ended_of_project", "project = n.project state = $2 id < $3"},
		spanQuery(several("")).text:                 {"objects_pkey", "kind = 'task' id < $1"},
		spanQuery(several(failed)).text:             {"Index Only Scan Backward using tasks_ended", "state = $1 id < $2"},
		spanEnd(several("")).text:                   {"objects_pkey", "kind = 'task' id < $1"},
		spanEnd(several(failed)).text:               {"Index Only Scan Backward using tasks_ended", "state = $1 id < $2"},
		setAudit:                                    {"counter_pkey", "one = true"},
		oldestAudit:                                 {"counter_pkey", "one = true"},
		trimAudit:                                   {"audit_pkey", "id <= $1", "id = ANY $"},
	}
	auditPlans(plans)
	check := func(when string) {
		s := open(t, target, Options{})
		defer s.Close()
		for query, parts := range plans {
			plan, sorts := explain(t, s, query), 0
			for _, part := range parts {
				if strings.HasPrefix(part, "Sort Key") {
					sorts++
				}
				// Without statistics of a table that has grown, several indexes have the
				// same cost.
				if (when != "grown" || strings.Contains(query, "FROM audit")) && !strings.Contains(plan, part) {
					t.Errorf("%s, %s: want %q\n%s", when, query, part, plan)
				}
			}
			if strings.Contains(plan, "Seq Scan") || strings.Count(plan, "Sort Key") > sorts {
				t.Errorf("%s, %s:\n%s", when, query, plan)
			}
		}
	}
	check("empty")
	conn := dial(t, target)
	for _, kind := range mariposa.Kinds {
		do(t, conn, "INSERT INTO objects SELECT $1::text, 'id' || n, 'p' || n % 10, false, n, n, n, '{}', '{}' FROM generate_series(1, 1000) AS n", string(kind))
	}
	do(t, conn, "UPDATE objects SET archived = true, state = 'failed' WHERE kind = 'task' AND rev % 3 = 0")
	do(t, conn, "INSERT INTO changes SELECT n, n, now(), repeat('x', 500)::bytea FROM generate_series(1, 1000) AS n")
	do(t, conn, "INSERT INTO change_task SELECT n, 't' || n % 100 FROM generate_series(1, 1000) AS n")
	do(t, conn, "INSERT INTO change_project SELECT n, 'p' || n % 10 FROM generate_series(1, 1000) AS n")
	do(t, conn, "INSERT INTO leases SELECT 'l' || n, '', 0 FROM generate_series(1, 1000) AS n")
	do(t, conn, `INSERT INTO audit SELECT n, now(), 'o' || n % 10, 'p' || n % 100, 'u' || n % 20, 'v' || n % 20, '', '', 'a.' || n % 30, 'done', '{}'
		FROM generate_series(1, 1000) AS n`)
	check("grown")
	do(t, conn, "ANALYZE")
	check("known")
}

func explain(t *testing.T, s *Store, query string) string {
	t.Helper()
	conn, err := s.readers.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	sd, err := conn.Conn().Prepare(t.Context(), "explained", query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer conn.Conn().Deallocate(t.Context(), "explained")
	args := strings.TrimSuffix(strings.Repeat("NULL,", len(sd.ParamOIDs)), ",")
	if args != "" {
		args = "(" + args + ")"
	}
	rows, err := conn.Query(t.Context(), "EXPLAIN EXECUTE explained"+args)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	var plan strings.Builder
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&plan, line)
	}
	// "Index Cond: ((kind = $1) AND (id = n.id))" to "kind = $1 id = n.id"
	text := strings.NewReplacer("(", "", ")", "", " AND ", " ", "::text", "", "objects.", "", "changes.", "").Replace(plan.String())
	return text
}

func TestWhatTheServerCannotHoldFailsAlone(t *testing.T) {
	t.Parallel()
	s := open(t, database(t), Options{})
	long := strings.Repeat("x", maxName+1)
	bad := func(change func(*store.Write)) store.Unit {
		u := node("b", "1")
		change(&u.Writes[0])
		return u
	}
	units := []store.Unit{
		node("a", "1"),
		bad(func(w *store.Write) { w.ID = "b\x00" }),
		bad(func(w *store.Write) { w.ID = "\xff" }),
		bad(func(w *store.Write) { w.ID = long }),
		bad(func(w *store.Write) { w.Project = long }),
		bad(func(w *store.Write) { w.Event.Project = "\x00" }),
		bad(func(w *store.Write) { w.Event.Task = "\xff" }),
		{Claims: []store.Claim{{Node: "\x00"}}},
		{Fences: []store.Fence{{Lease: "\x00"}}},
		{Require: []store.Require{{Kind: mariposa.KindNode, ID: "\x00", Absent: true}}},
		bad(func(w *store.Write) {
			w.ID = long[1:]
			w.Project = long[1:]
			w.Kind = mariposa.KindTask
			w.Spec = &mariposa.TaskSpec{}
		}),
		bad(func(w *store.Write) {
			w.Spec = &mariposa.NodeSpec{Name: "\x00\xff" + long}
			w.Event.Reason = mariposa.TextReason("\x00\xff")
		}),
	}
	var revision int64
	for i, r := range s.Commit(t.Context(), units...) {
		if good := i == 0 || i >= len(units)-2; good != (r.Err == nil) || r.Err != nil && errors.Is(r.Err, store.ErrUnavailable) {
			t.Errorf("unit %d: %v", i, r.Err)
		} else if good {
			if revision++; r.First != revision {
				t.Errorf("unit %d: %+v", i, r)
			}
		}
	}
	if _, err := s.Get(t.Context(), mariposa.KindNode, "b\x00"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	for _, name := range []string{"\x00", long} {
		if _, err := s.Hold(t.Context(), "me", time.Hour, name); err == nil {
			t.Error("held")
		}
		if _, err := s.Seize(t.Context(), name, "l"); err == nil {
			t.Error("seized")
		}
		if found, err := s.History(t.Context(), store.HistoryQuery{Project: name}); err != nil || len(found) != 0 {
			t.Errorf("%v, %v", found, err)
		}
	}
}

func TestASnapshotMayBeLargeAndItsVisitorSlow(t *testing.T) {
	t.Parallel()
	s := open(t, database(t), Options{})
	var units []store.Unit
	for i := range 2*snapshotPage + 1 {
		units = append(units, node(fmt.Sprintf("n%05d", i), "1"))
	}
	commit(t, s, units...)
	var wg sync.WaitGroup
	for range 2 * maxReaders { // more than there are connections, and each needs a second one
		wg.Go(func() {
			n := 0
			revision, err := s.Snapshot(context.Background(), func(r store.Record) error {
				if n++; n == 1 || n == snapshotPage+1 {
					time.Sleep(10 * time.Millisecond)
					_, err := s.Get(context.Background(), r.Kind, r.ID)
					return err
				}
				return nil
			})
			if err != nil || n != len(units) || revision != int64(len(units)) {
				t.Errorf("%d of %d at %d, %v", n, len(units), revision, err)
			}
		})
	}
	wg.Wait()
}

func TestTrimTakesAsManyStepsAsItNeeds(t *testing.T) {
	t.Parallel()
	target := database(t)
	s := open(t, target, Options{})
	const commits = 2*trimStep + trimStep/2
	conn := dial(t, target)
	do(t, conn, "INSERT INTO changes (first, last, at, body) SELECT n, n, now(), '' FROM generate_series(1, $1::int) AS n", commits)
	do(t, conn, "UPDATE counter SET revision = $1", commits)
	do(t, conn, "INSERT INTO ledger VALUES ('n', 0, 0, 0), ('m', 1, 0, 0)")
	do(t, conn, "INSERT INTO writers VALUES ('gone', 1, now() - interval '31 days'), ('here', 1, now())")
	if point, err := s.Trim(t.Context(), 0, 10); err != nil || point != commits-10 {
		t.Fatalf("trimmed at %d, %v", point, err)
	}
	for query, want := range map[string]int{
		"SELECT count(*) FROM changes": 10,
		"SELECT count(*) FROM ledger":  1,
		"SELECT count(*) FROM writers": 1,
	} {
		if got := ask[int](t, conn, query); got != want {
			t.Errorf("%s: %d", query, got)
		}
	}
}
