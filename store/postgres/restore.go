package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mariposa/store"
	"mariposa/store/internal/codec"
)

// Restore replaces everything in a database by a dump, as a new incarnation, in one
// transaction: if it fails or the process ends, everything is as it was. It fails with
// store.ErrNotEmpty if there is something to replace, and with store.ErrInUse if servers
// are running on it, unless replace is true. Such servers notice that the database has a
// new incarnation, and read it again. It returns the revision at which the store
// continues.
func Restore(ctx context.Context, url string, from store.DumpSource, replace bool) (revision int64, err error) {
	config, err := parse(url)
	if err != nil {
		return 0, err
	}
	r := restorer{from: from, replace: replace}
	if revision, err = r.run(ctx, config.ConnConfig); err != nil {
		return 0, fmt.Errorf("store %s/%s: %w", config.ConnConfig.Host, config.ConnConfig.Database, openError(ctx, err))
	}
	return revision, nil
}

// restorer is one restore in progress.
type restorer struct {
	from    store.DumpSource
	replace bool
	conn    *pgx.Conn
	codec   *codec.Codec
	rows    [len(restoredTables)][][]any // collected for each table
	bytes   int                          // of all of them
}

// restoredTables are the tables of a store, except for those with a single row. The row
// of a running server in writers stays: without it, that server could not find out what
// has become of its last commit.
var restoredTables = [...]struct {
	name    string
	columns []string
}{
	{"objects", strings.Split(objectColumns+", state", ", ")},
	{"changes", []string{"first", "last", "at", "body"}},
	{"change_project", []string{"first", "project", "changes", "bytes"}},
	{"change_task", []string{"first", "task"}},
	{"leases", strings.Split(keptOfLeases, ", ")},
	{"ledger", strings.Split(ledgerColumns, ", ")},
	{"audit", []string{"id", "at", "organization", "project", "actor", "actor_name", "for_id", "for_name", "action", "outcome", "body"}},
}

const (
	objectsTable = iota
	changesTable
	projectsTable
	tasksTable
	leasesTable
	ledgerTable
	auditTable
)

// restoreLockTimeout is how long a restore waits for transactions of running servers, and
// for a backup in progress.
const restoreLockTimeout = 30 * time.Second

func (r *restorer) run(ctx context.Context, config *pgx.ConnConfig) (revision int64, err error) {
	config = config.Copy()
	config.RuntimeParams["statement_timeout"] = "0" // reading the dump may take long
	config.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	config.RuntimeParams["lock_timeout"] = fmt.Sprint(restoreLockTimeout.Milliseconds())
	if r.conn, err = connect(ctx, config); err != nil {
		return 0, err
	}
	defer disconnect(r.conn)
	if err := migrate(ctx, config, r.conn); err != nil {
		return 0, err
	}
	if r.codec, err = codec.New(); err != nil {
		return 0, err
	}
	defer r.codec.Close()
	tx, replaced, err := r.begin(ctx)
	defer rollback(r.conn)
	if err != nil {
		return 0, err
	}
	if err := r.load(ctx); err != nil {
		return 0, err
	}
	revision = store.RestoredRevision(r.from.Head().Revision, replaced)
	if err := r.putMeta(ctx, revision); err != nil {
		return 0, err
	}
	return revision, tx.Commit(ctx)
}

// maxRestoreAttempts bounds how often a restore is aborted in favor of running servers, which
// lock the tables in another order.
const maxRestoreAttempts = 50

// begin begins the transaction of a restore with an empty store, and returns the revision
// of what was there.
func (r *restorer) begin(ctx context.Context) (tx pgx.Tx, replaced int64, err error) {
	for attempt := 1; ; attempt++ {
		if tx, err = r.conn.Begin(ctx); err != nil {
			return nil, 0, err
		}
		if replaced, err = r.clear(ctx); err == nil || !isContended(err) || attempt == maxRestoreAttempts {
			return tx, replaced, err
		}
		rollback(r.conn)
	}
}

// clear checks what is to be replaced, removes it, and returns its revision.
func (r *restorer) clear(ctx context.Context) (revision int64, err error) {
	var names []string
	for _, t := range restoredTables {
		names = append(names, t.name)
	}
	all := strings.Join(names, ", ")
	if _, err := r.conn.Exec(ctx, "LOCK TABLE "+all+", writers, counter, trimmed, meta IN ACCESS EXCLUSIVE MODE"); err != nil {
		return 0, err
	}
	var any bool
	if err := r.conn.QueryRow(ctx, "SELECT (SELECT revision FROM counter), EXISTS (SELECT 1 FROM objects)").Scan(&revision, &any); err != nil {
		return 0, err
	}
	if any && !r.replace {
		return 0, store.ErrNotEmpty
	}
	var live []string
	const replicas = "SELECT coalesce(array_agg(name), '{}') FROM leases WHERE starts_with(name, $1) AND holder <> '' AND until > clock_timestamp()"
	if err := r.conn.QueryRow(ctx, replicas, store.ReplicaPrefix).Scan(&live); err != nil {
		return 0, err
	}
	if len(live) > 0 && !r.replace {
		return 0, store.ErrInUse
	}
	_, err = r.conn.Exec(ctx, "TRUNCATE "+all)
	return revision, err
}

// flushBytes is how many bytes are collected before they are sent to the server.
const flushBytes = 4 << 20

func (r *restorer) load(ctx context.Context) error {
	for {
		it, err := r.from.Next()
		if errors.Is(err, io.EOF) {
			return r.flush(ctx)
		}
		if err == nil {
			err = r.put(it)
		}
		if err == nil && r.bytes >= flushBytes {
			err = r.flush(ctx)
		}
		if err != nil {
			return err
		}
	}
}

func (r *restorer) flush(ctx context.Context) error {
	for i := range r.rows {
		if len(r.rows[i]) == 0 {
			continue
		}
		t := restoredTables[i]
		if _, err := r.conn.CopyFrom(ctx, pgx.Identifier{t.name}, t.columns, pgx.CopyFromRows(r.rows[i])); err != nil {
			return fmt.Errorf("fill table %s: %w", t.name, err)
		}
		clear(r.rows[i])
		r.rows[i] = r.rows[i][:0]
	}
	r.bytes = 0
	return nil
}

// add collects a row; size is about how many bytes it has.
func (r *restorer) add(table, size int, values ...any) error {
	r.rows[table] = append(r.rows[table], values)
	r.bytes += size + 100
	return nil
}

// put collects the rows of one item. Leases are released: those who held them belong to
// the time that is lost.
func (r *restorer) put(it *store.DumpItem) error {
	switch {
	case it.Object != nil:
		return r.putObject(it.Object)
	case it.Chunk != nil:
		return r.putChunk(it.Chunk)
	case it.Lease != nil:
		if !isName(it.Lease.Name) {
			return badName("lease", it.Lease.Name)
		}
		return r.add(leasesTable, 0, it.Lease.Name, "", it.Lease.Epoch, nil)
	case it.Claim != nil:
		if !isName(it.Claim.Node) {
			return badName("node", it.Claim.Node)
		}
		return r.add(ledgerTable, 0, it.Claim.Node, int64(it.Claim.Taken.Instances), it.Claim.Taken.MilliCPU, it.Claim.Taken.Memory)
	case it.Audit != nil:
		e, err := codec.AuditOf(it.Audit)
		if err != nil {
			return fmt.Errorf("audit entry %d: %w", it.Audit.ID, err)
		}
		return r.add(auditTable, len(it.Audit.Body), e.ID, e.Time, e.Organization, e.Project, e.Actor, e.ActorName, e.For, e.ForName, e.Action, string(e.Outcome), it.Audit.Body)
	}
	return errors.New("unknown item")
}

func (r *restorer) putObject(o *store.EncodedObject) error {
	state, err := codec.ArchivedState(o)
	if err != nil {
		return err
	}
	for _, name := range [...]struct{ what, value string }{{"id", o.ID}, {"project", o.Project}, {"state", string(state)}} {
		if !isName(name.value) {
			return badName(name.what, name.value)
		}
	}
	return r.add(objectsTable, len(o.Spec)+len(o.Status), string(o.Kind), o.ID, o.Project, o.Archived, o.Revision, o.SpecRevision, o.StatusRevision, o.Spec, o.Status, string(state))
}

func (r *restorer) putChunk(c *store.EncodedChunk) error {
	projects, tasks, err := r.codec.TagsOf(c)
	if err != nil {
		return err
	}
	for _, p := range projects {
		if !isName(p.Project) {
			return badName("project", p.Project)
		}
		_ = r.add(projectsTable, 0, c.First, p.Project, p.Changes, p.Bytes)
	}
	for _, task := range tasks {
		if !isName(task) {
			return badName("task", task)
		}
		_ = r.add(tasksTable, 0, c.First, task)
	}
	return r.add(changesTable, len(c.Body), c.First, c.Last, c.At, c.Body)
}

// putMeta stores the identity and the counters, and wakes running servers. The log is
// complete only from the new revision on: readers of the time that is lost must begin
// anew.
func (r *restorer) putMeta(ctx context.Context, revision int64) error {
	h := r.from.Head()
	var q pgx.Batch
	q.Queue("UPDATE counter SET revision = $1, audit = $2, audit_lag = $3 WHERE one", revision, h.Audit.Last, h.Audit.Lag)
	q.Queue("UPDATE trimmed SET revision = $1 WHERE one", revision)
	q.Queue("INSERT INTO meta (key, value) VALUES ('cluster', $1), ('incarnation', $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value", h.Cluster, uuid.NewString())
	q.Queue(notify)
	return r.conn.SendBatch(ctx, &q).Close()
}
