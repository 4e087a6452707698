package backup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/store/backup"
	"mariposa/store/postgres"
	"mariposa/store/postgres/pgtest"
	"mariposa/store/sqlite"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openSQLite(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	st, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	must(t, err)
	t.Cleanup(func() { _ = st.Close() })
	return st
}

func openPostgres(t *testing.T, url string) *postgres.Store {
	t.Helper()
	st, err := postgres.Open(t.Context(), url, postgres.Options{})
	must(t, err)
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// populate fills a store with some of everything.
func populate(t *testing.T, st store.Store) {
	t.Helper()
	at := time.Now()
	event := func(kind, project, task string) mariposa.Event {
		return mariposa.Event{Kind: kind, Project: project, Task: task, Reason: mariposa.Asked("a test")}
	}
	var units []store.Unit
	for i := range 40 {
		p := fmt.Sprintf("p%d", i%3)
		units = append(units, store.Unit{
			Writes: []store.Write{
				{Kind: mariposa.KindProject, ID: p, Project: p, Spec: &mariposa.ProjectSpec{Name: p, Number: i}, Event: event("project.updated", p, "")},
				{Kind: mariposa.KindTask, ID: fmt.Sprintf("t%02d", i), Project: p, Spec: &mariposa.TaskSpec{Project: p}, Event: event("task.queued", p, fmt.Sprintf("t%02d", i))},
				{Kind: mariposa.KindInstance, ID: fmt.Sprintf("i%02d", i), Project: p, Spec: &mariposa.InstanceSpec{Name: "i", Project: p, Node: "n"}},
				{Kind: mariposa.KindVersion, ID: fmt.Sprintf("v%02d", i), Project: p, Spec: &mariposa.VersionSpec{Project: p, Number: i}},
			},
			Claims: []store.Claim{{Node: "n", Take: mariposa.Resources{Instances: 1, Memory: int64(i)}}},
			Audit:  []mariposa.Audit{{Actor: "u", Action: "project.update", Outcome: mariposa.AuditDone, Project: p, Reason: fmt.Sprint(i)}},
		})
	}
	for i := range 20 {
		id, p := fmt.Sprintf("t%02d", i), fmt.Sprintf("p%d", i%3)
		units = append(units,
			store.Unit{Writes: []store.Write{{
				Kind: mariposa.KindTask, ID: id, Archive: true, Status: &mariposa.TaskStatus{State: mariposa.TaskCompleted}, Event: event("task.completed", p, id),
			}}},
			store.Unit{Writes: []store.Write{{Kind: mariposa.KindInstance, ID: fmt.Sprintf("i%02d", i), Status: &mariposa.InstanceStatus{State: mariposa.StateRunning, Since: at}}}},
		)
	}
	units = append(units, store.Unit{Writes: []store.Write{{Kind: mariposa.KindInstance, ID: "i39", Delete: true}}})
	for _, u := range units { // each a commit of its own
		must(t, st.Commit(t.Context(), u)[0].Err)
	}
	for range 3 {
		_, err := st.Seize(t.Context(), "replica", "node/n")
		must(t, err)
	}
	_, err := st.Hold(t.Context(), "replica", time.Hour, "replica/a", "shard/1")
	must(t, err)
	_, err = st.Thin(t.Context(), "p1", store.LogSize{Changes: 10}, 60)
	must(t, err)
}

// contents is everything in a store that a restore keeps.
type contents struct {
	Records  map[mariposa.Kind][]store.Record
	Ledger   map[string]mariposa.Resources
	History  []store.Change
	OfTask   []store.Change
	Sizes    map[string]int64
	Audit    []mariposa.Audit
	Finished []store.Record
	Cluster  string
}

func read(t *testing.T, st store.Store) (c contents) {
	t.Helper()
	ctx := t.Context()
	c.Records, c.Sizes = map[mariposa.Kind][]store.Record{}, map[string]int64{}
	var err error
	for _, k := range mariposa.Kinds {
		c.Records[k], err = st.List(ctx, store.Query{Kind: k})
		must(t, err)
	}
	c.Ledger, err = st.Ledger(ctx)
	must(t, err)
	c.History, err = st.History(ctx, store.HistoryQuery{})
	must(t, err)
	c.OfTask, err = st.History(ctx, store.HistoryQuery{Task: "t05"})
	must(t, err)
	c.Audit, err = st.Audit(ctx, store.AuditQuery{})
	must(t, err)
	c.Finished, err = st.List(ctx, store.Query{Kind: mariposa.KindTask, State: mariposa.TaskCompleted})
	must(t, err)
	sizes, err := st.LogSizes(ctx)
	must(t, err)
	for p, s := range sizes {
		c.Sizes[p] = s.Changes
	}
	id, err := st.Identity(ctx)
	must(t, err)
	c.Cluster = id.Cluster
	for i := range c.History { // PostgreSQL has no smaller unit
		c.History[i].Time = c.History[i].Time.Truncate(time.Microsecond)
	}
	for i := range c.OfTask {
		c.OfTask[i].Time = c.OfTask[i].Time.Truncate(time.Microsecond)
	}
	for i := range c.Audit {
		c.Audit[i].Time = c.Audit[i].Time.Truncate(time.Microsecond)
	}
	return c
}

func same(t *testing.T, what string, got, want contents) {
	t.Helper()
	g, w := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range g.NumField() {
		if !reflect.DeepEqual(g.Field(i).Interface(), w.Field(i).Interface()) {
			t.Errorf("%s: %s differs\n got %+v\nwant %+v", what, g.Type().Field(i).Name, g.Field(i).Interface(), w.Field(i).Interface())
		}
	}
}

// save backs a store up.
func save(t *testing.T, st store.Store) []byte {
	t.Helper()
	var file bytes.Buffer
	w, err := backup.NewWriter(&file, "1.2.3")
	must(t, err)
	must(t, st.Dump(t.Context(), w.Dump()))
	_, err = w.End()
	must(t, err)
	return file.Bytes()
}

func source(t *testing.T, file []byte) *backup.Reader {
	t.Helper()
	r, err := backup.NewReader(bytes.NewReader(file))
	must(t, err)
	t.Cleanup(r.Close)
	return r
}

func TestABackupMovesBetweenSQLiteAndPostgreSQL(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	one := openSQLite(t, filepath.Join(dir, "one.db"))
	populate(t, one)
	want := read(t, one)
	if len(want.Records[mariposa.KindTask]) != 40 || len(want.Finished) != 20 || len(want.OfTask) == 0 || len(want.Audit) != 40 || want.Sizes["p1"] >= want.Sizes["p2"] {
		t.Fatalf("the store was not filled: %+v", want)
	}
	before, err := one.Identity(ctx)
	must(t, err)

	url := pgtest.Shared(t).Database(t, "")
	revision, err := postgres.Restore(ctx, url, source(t, save(t, one)), false)
	must(t, err)
	two := openPostgres(t, url)
	same(t, "SQLite to PostgreSQL", read(t, two), want)
	checkIncarnation(t, two, before, revision)

	path := filepath.Join(dir, "three.db")
	_, err = sqlite.Restore(ctx, path, source(t, save(t, two)), false)
	must(t, err)
	three := openSQLite(t, path)
	same(t, "PostgreSQL to SQLite", read(t, three), want)
	checkIncarnation(t, three, before, 2_000_000_000)

	// It can be used, and continues where it should.
	for _, st := range []store.Store{two, three} {
		last, err := st.Revision(ctx)
		must(t, err)
		res := st.Commit(ctx, store.Unit{Writes: []store.Write{{Kind: mariposa.KindProject, ID: "new", Project: "new", Spec: &mariposa.ProjectSpec{Name: "new"}}}})[0]
		if res.Err != nil || res.First != last+1 {
			t.Errorf("the first change: %+v after %d", res, last)
		}
		changes, err := st.Changes(ctx, last, 0)
		if err != nil || len(changes) != 1 {
			t.Errorf("changes: %v %v", changes, err)
		}
		if l, err := st.Seize(ctx, "r", "node/n"); err != nil || l.Epoch != 4 {
			t.Errorf("the epoch of a session: %+v %v", l, err)
		}
	}
}

func checkIncarnation(t *testing.T, st store.Store, before store.Identity, revision int64) {
	t.Helper()
	ctx := t.Context()
	now, err := st.Identity(ctx)
	if err != nil || now.Cluster != before.Cluster || now.Incarnation == before.Incarnation {
		t.Errorf("identity %+v after %+v: %v", now, before, err)
	}
	newest, err := st.Revision(ctx)
	if err != nil || newest != revision || newest < 1_000_000_000 {
		t.Errorf("revision %d instead of %d: %v", newest, revision, err)
	}
	if _, err := st.Changes(ctx, 100, 0); !errors.Is(err, store.ErrTooOld) {
		t.Errorf("a reader from the time that is lost: %v", err)
	}
	if held, err := st.Leases(ctx, ""); err != nil || len(held) != 0 {
		t.Errorf("leases are held: %v %v", held, err)
	}
}

func TestARestoreReplacesOnlyIfItMay(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	from := openSQLite(t, filepath.Join(dir, "from.db"))
	populate(t, from)
	file, want := save(t, from), read(t, from)

	path := filepath.Join(dir, "to.db")
	to := openSQLite(t, path)
	write := store.Unit{Writes: []store.Write{{Kind: mariposa.KindProject, ID: "old", Project: "old", Spec: &mariposa.ProjectSpec{Name: "old"}}}}
	must(t, to.Commit(ctx, write)[0].Err)
	if _, err := sqlite.Restore(ctx, path, source(t, file), true); err == nil || !strings.Contains(err.Error(), "in use by process") {
		t.Errorf("while a server uses it: %v", err)
	}
	must(t, to.Close())
	if _, err := sqlite.Restore(ctx, path, source(t, file), false); !errors.Is(err, store.ErrNotEmpty) {
		t.Errorf("not forced: %v", err)
	}
	_, err := sqlite.Restore(ctx, path, source(t, file), true)
	must(t, err)
	same(t, "SQLite", read(t, openSQLite(t, path)), want)

	url := pgtest.Shared(t).Database(t, "")
	pg := openPostgres(t, url)
	must(t, pg.Commit(ctx, write)[0].Err)
	if _, err := postgres.Restore(ctx, url, source(t, file), false); !errors.Is(err, store.ErrNotEmpty) {
		t.Errorf("not forced: %v", err)
	}
	_, err = postgres.Restore(ctx, url, source(t, file), true)
	must(t, err)
	<-pg.Rewound() // a server that was running notices
	if res := pg.Commit(ctx, write)[0]; !errors.Is(res.Err, store.ErrRewound) {
		t.Errorf("a server that was running can still write: %+v", res)
	}
	same(t, "PostgreSQL", read(t, openPostgres(t, url)), want)
}

// A replica that was stopped during the restore has an open connection and the epoch of a
// lease that the restored store has too.
func TestAServerCannotWriteToARestoredDatabase(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := pgtest.Shared(t).Database(t, "")
	old := openPostgres(t, url)
	populate(t, old)
	file := save(t, old)
	l, err := old.Seize(ctx, "old", "node/n")
	must(t, err)
	_, err = postgres.Restore(ctx, url, source(t, file), true)
	must(t, err)
	again := openPostgres(t, url)
	now, err := again.Seize(ctx, "new", "node/n")
	must(t, err)
	if now.Epoch != l.Epoch {
		t.Fatalf("epoch %d, and %d before", now.Epoch, l.Epoch)
	}
	res := old.Commit(ctx, store.Unit{
		Fences: []store.Fence{{Lease: "node/n", Epoch: l.Epoch}},
		Writes: []store.Write{{Kind: mariposa.KindProject, ID: "stray", Project: "stray", Spec: &mariposa.ProjectSpec{Name: "stray"}}},
	})[0]
	if !errors.Is(res.Err, store.ErrRewound) {
		t.Errorf("it wrote: %+v", res)
	}
}

// Whatever is wrong with a file, nothing changes.
func TestADamagedBackupChangesNothing(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	from := openSQLite(t, filepath.Join(dir, "from.db"))
	populate(t, from)
	file := save(t, from)
	path := filepath.Join(dir, "to.db")
	to := openSQLite(t, path)
	must(t, to.Commit(ctx, store.Unit{Writes: []store.Write{{Kind: mariposa.KindProject, ID: "old", Project: "old", Spec: &mariposa.ProjectSpec{Name: "old"}}}})[0].Err)
	want := read(t, to)
	must(t, to.Close())
	url := pgtest.Shared(t).Database(t, "")

	check := func(what string, bad []byte) {
		t.Helper()
		if _, _, _, err := backup.Verify(bytes.NewReader(bad), nil); err == nil {
			t.Fatalf("%s: it is accepted", what)
		}
		r, err := backup.NewReader(bytes.NewReader(bad))
		if err != nil {
			return
		}
		defer r.Close()
		if _, err := sqlite.Restore(ctx, path, r, true); err == nil {
			t.Fatalf("%s: it is restored", what)
		}
		if r, err := backup.NewReader(bytes.NewReader(bad)); err == nil && what[len(what)-1] == '7' { // PostgreSQL takes longer
			if _, err := postgres.Restore(ctx, url, r, true); err == nil {
				t.Fatalf("%s: it is restored", what)
			}
			r.Close()
		}
	}
	for n := 0; n < len(file); n += 1 + len(file)/37 {
		check(fmt.Sprintf("cut at %d", n), file[:n])
	}
	for n := 0; n < len(file); n += 1 + len(file)/83 {
		bad := bytes.Clone(file)
		bad[n] ^= 1 << (n % 8)
		check(fmt.Sprintf("a flipped bit at %d", n), bad)
	}
	check("something appended", append(bytes.Clone(file), 'x'))
	same(t, "after all of them", read(t, openSQLite(t, path)), want)
	if left, err := filepath.Glob(path + ".restoring*"); err != nil || len(left) > 0 {
		t.Errorf("left over: %v %v", left, err)
	}
	if all, err := openPostgres(t, url).List(ctx, store.Query{Kind: mariposa.KindProject}); err != nil || len(all) > 0 {
		t.Errorf("a damaged backup was restored: %v %v", all, err)
	}
}

func TestWhatABackupSaysAboutItself(t *testing.T) {
	t.Parallel()
	st := openSQLite(t, filepath.Join(t.TempDir(), "a.db"))
	populate(t, st)
	file := save(t, st)
	if !bytes.HasPrefix(file, []byte("mariposa-backup 1 1.2.3\n")) {
		t.Errorf("it begins with %q", file[:30])
	}
	h, sum, size, err := backup.Verify(bytes.NewReader(file), nil)
	must(t, err)
	revision, err := st.Revision(t.Context())
	must(t, err)
	if h.Revision != revision || h.Release != "1.2.3" || h.Schema != store.Schema || time.Since(h.Time) > time.Minute || size != int64(len(file)) {
		t.Errorf("header %+v, size %d", h, size)
	}
	if sum.Objects != 3+40+39+40 || sum.Claims != 1 || sum.Leases != 3 || sum.Audit != 40 {
		t.Errorf("summary %+v", sum)
	}
	for name, text := range map[string]string{
		"a newer format": strings.Replace(string(file), "mariposa-backup 1 1.2.3", "mariposa-backup 9 9.9.9", 1),
		"a newer schema": strings.Replace(string(file), fmt.Sprintf(`"schema":%d`, store.Schema), `"schema":9`, 1),
	} {
		if _, err := backup.NewReader(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "newer than this one") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{"", "hello", "mariposa-backup", strings.Repeat("x", 1000)} {
		if _, err := backup.NewReader(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "not a backup") {
			t.Errorf("%q: %v", text, err)
		}
	}
	var failed bytes.Buffer
	w, err := backup.NewWriter(&failed, "1.2.3")
	must(t, err)
	must(t, w.Dump().Head(store.DumpHead{Identity: store.Identity{Cluster: "c"}, Schema: store.Schema}))
	must(t, w.Fail("the disk is full"))
	if _, _, _, err := backup.Verify(&failed, nil); err == nil || !strings.Contains(err.Error(), "making it failed: the disk is full") {
		t.Errorf("a failed backup: %v", err)
	}
}

// A dump without a server leaves an older schema as it is.
func TestAStoreThatNoServerUsesIsDumped(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	st := openSQLite(t, path)
	populate(t, st)
	nothing := store.Dump{Head: func(store.DumpHead) error { return nil }, Item: func(*store.DumpItem) error { return nil }}
	if err := sqlite.DumpFile(t.Context(), path, nothing); err == nil || !strings.Contains(err.Error(), "in use by process") {
		t.Errorf("while it is used: %v", err)
	}
	var items, direct int
	count := func(n *int) store.Dump {
		return store.Dump{Head: func(store.DumpHead) error { return nil }, Item: func(*store.DumpItem) error { *n++; return nil }}
	}
	must(t, st.Dump(t.Context(), count(&items)))
	must(t, st.Close())
	must(t, sqlite.DumpFile(t.Context(), path, count(&direct)))
	if items == 0 || items != direct {
		t.Errorf("%d items, and %d directly", items, direct)
	}
	if err := sqlite.DumpFile(t.Context(), filepath.Join(t.TempDir(), "none.db"), nothing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that does not exist: %v", err)
	}
	stop := errors.New("stop")
	pg := openPostgres(t, pgtest.Shared(t).Database(t, ""))
	populate(t, pg)
	for _, s := range []store.Store{openSQLite(t, path), pg} {
		err := s.Dump(t.Context(), store.Dump{Head: func(store.DumpHead) error { return nil }, Item: func(*store.DumpItem) error { return stop }})
		if !errors.Is(err, stop) {
			t.Errorf("an error of the receiver: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err = s.Dump(ctx, store.Dump{Head: func(store.DumpHead) error { cancel(); return nil }, Item: func(*store.DumpItem) error { return nil }})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled dump: %v", err)
		}
	}
}

func FuzzReader(f *testing.F) {
	var small bytes.Buffer
	w, err := backup.NewWriter(&small, "dev")
	if err != nil {
		f.Fatal(err)
	}
	d := w.Dump()
	_ = d.Head(store.DumpHead{Identity: store.Identity{Cluster: "c", Incarnation: "i"}, Schema: store.Schema, Revision: 5})
	_ = d.Item(&store.DumpItem{Object: &store.EncodedObject{Kind: "project", ID: "p", Spec: []byte("{}")}})
	_ = d.Item(&store.DumpItem{Lease: &store.Lease{Name: "l", Epoch: 3}})
	_, _ = w.End()
	f.Add(small.Bytes())
	f.Add(small.Bytes()[:40])
	f.Fuzz(func(t *testing.T, file []byte) {
		r, err := backup.NewReader(bytes.NewReader(file))
		if err != nil {
			return
		}
		defer r.Close()
		for {
			if _, err := r.Next(); err != nil {
				if complete := errors.Is(err, io.EOF); complete != (r.Summary() != nil) {
					t.Errorf("the end: %v, summary %v", err, r.Summary())
				}
				return
			}
		}
	})
}
