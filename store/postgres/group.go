package postgres

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mariposa"
	"mariposa/store"
	"mariposa/store/internal/batch"
	"mariposa/store/internal/codec"
)

const (
	registerWriter = "INSERT INTO writers (id, seq, seen) VALUES ($1, 0, clock_timestamp()) ON CONFLICT DO NOTHING"
	lockWriter     = "SELECT seq FROM writers WHERE id = $1 FOR UPDATE"
	markWriter     = "UPDATE writers SET seq = $2, seen = clock_timestamp() WHERE id = $1"

	// Only writers lock rows of the table writers.
	endSilent = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
		AND wait_event = 'ClientRead' AND state_change < clock_timestamp() - make_interval(secs => $1)
		AND pid IN (SELECT pid FROM pg_locks WHERE relation = 'writers'::regclass AND mode = 'RowShareLock' AND granted)`

	// These lock rows in the order of the array, and insert missing ones; the update
	// never happens, but its row is locked anyway.
	lockLeases = `INSERT INTO leases (name, holder, epoch) SELECT name, '', 0 FROM unnest($1::text[]) AS n (name)
		ON CONFLICT (name) DO UPDATE SET name = excluded.name WHERE false`
	lockLedger = `INSERT INTO ledger (node, instances, milli_cpu, memory) SELECT node, 0, 0, 0 FROM unnest($1::text[]) AS n (node)
		ON CONFLICT (node) DO UPDATE SET node = excluded.node WHERE false`

	// Rows are looked up one by one, in the order of the array. With the shorter "= ANY
	// ($1)" the planner chooses whether to look up or to walk the index and compare, and
	// for a table that seems empty it prefers to walk.
	findLeases = "SELECT l.* FROM unnest($1::text[]) AS n (name) CROSS JOIN LATERAL (SELECT " + leaseColumns +
		" FROM leases WHERE leases.name = n.name OFFSET 0) AS l"
	shareLeases = "SELECT l.* FROM unnest($1::text[]) AS n (name) CROSS JOIN LATERAL (SELECT " + leaseColumns +
		" FROM leases WHERE leases.name = n.name FOR SHARE) AS l"
	findLedger = "SELECT l.* FROM unnest($1::text[]) AS n (node) CROSS JOIN LATERAL (SELECT " + ledgerColumns +
		" FROM ledger WHERE ledger.node = n.node OFFSET 0) AS l"
	findObjects = "SELECT o.* FROM unnest($2::text[]) AS n (id) CROSS JOIN LATERAL (SELECT " + objectColumns +
		" FROM objects WHERE objects.kind = $1 AND objects.id = n.id OFFSET 0) AS o"

	lockCounter = "SELECT revision, audit, audit_lag FROM counter WHERE one FOR UPDATE"
	setCounter  = "UPDATE counter SET revision = revision + $1 WHERE one"

	leaseColumns  = "name, holder, epoch, until, note"
	ledgerColumns = "node, instances, milli_cpu, memory"
	objectColumns = "kind, id, project, archived, rev, spec_rev, status_rev, spec, status"
	putObjects    = "INSERT INTO objects (" + objectColumns + `, state) SELECT * FROM
		unnest($1::text[], $2::text[], $3::text[], $4::boolean[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bytea[], $9::bytea[], $10::text[])
		ON CONFLICT (kind, id) DO UPDATE SET
		project = excluded.project, archived = excluded.archived, rev = excluded.rev, spec_rev = excluded.spec_rev,
		status_rev = excluded.status_rev, spec = excluded.spec, status = excluded.status, state = excluded.state`
	removeObject = "DELETE FROM objects WHERE kind = $1 AND id = $2"

	addChanges = "INSERT INTO changes (first, last, at, body) VALUES ($1, $2, $3, $4)"
	tagProject = "INSERT INTO change_project (first, project, changes, bytes) SELECT $1, * FROM unnest($2::text[], $3::bigint[], $4::bigint[])"
	tagTask    = "INSERT INTO change_task (first, task) SELECT $1, unnest($2::text[])"
	notify     = "NOTIFY " + channel

	putLeases = `INSERT INTO leases (name, holder, epoch, until, note) SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::timestamptz[], $5::text[])
		ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, epoch = excluded.epoch, until = excluded.until, note = excluded.note`
	putLedger = `INSERT INTO ledger (node, instances, milli_cpu, memory) SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[])
		ON CONFLICT (node) DO UPDATE SET instances = excluded.instances, milli_cpu = excluded.milli_cpu, memory = excluded.memory`
)

// base is the state on which a group builds: everything that it touches, locked and as
// it is.
type base struct {
	revision int64     // of the newest change, if the counter is locked
	now      time.Time // by the server's clock, once all locks are held
	objects  map[batch.Key]*codec.Object
	leases   map[string]store.Lease
	ledger   map[string]mariposa.Resources
	audit    store.AuditMark // if the counter is locked
}

func (g *base) Audited() store.AuditMark { return g.audit }

func (g *base) Object(k batch.Key) *codec.Object { return g.objects[k] }

func (g *base) Lease(name string) store.Lease {
	if l, known := g.leases[name]; known {
		return l
	}
	return store.Lease{Name: name}
}

func (g *base) Claimed(node string) mariposa.Resources { return g.ledger[node] }

// begin opens a transaction, locks what the batch touches and reads it, in one round
// trip. Each statement of the transaction has its own snapshot: what is read after a
// lock is obtained includes the changes of its last owner.
func (w *writer) begin(ctx context.Context, b *batch.Batch) (*base, error) {
	g := &base{
		objects: make(map[batch.Key]*codec.Object),
		leases:  make(map[string]store.Lease),
		ledger:  make(map[string]mariposa.Resources),
	}
	var q pgx.Batch
	q.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	q.Queue(lockWriter, w.id).QueryRow(func(row pgx.Row) error {
		var seq int64
		return row.Scan(&seq)
	})
	g.queueLeases(&q, b)
	g.queueLedger(&q, b)
	_, have := w.log.feed.Bounds()
	ids := touched(b)
	locked := len(ids) > 0 || b.Audits()
	if locked {
		q.Queue(lockCounter).QueryRow(func(row pgx.Row) error { return row.Scan(&g.revision, &g.audit.Last, &g.audit.Lag) })
	}
	// A separate statement, because within another one the time could be read before that
	// one waits for its lock. A restored database may have leases with the same epochs, so
	// fences alone would not keep this replica from writing to it.
	var incarnation string
	q.Queue("SELECT clock_timestamp(), (" + readIncarnation + ")").QueryRow(func(row pgx.Row) error { return row.Scan(&g.now, &incarnation) })
	for _, kind := range slices.Sorted(maps.Keys(ids)) {
		q.Queue(findObjects, string(kind), ids[kind]).Query(g.readObjects)
	}
	if err := w.conn.SendBatch(ctx, &q).Close(); err != nil {
		return nil, err
	}
	if incarnation != w.log.guard.incarnation {
		return nil, w.log.guard.report("it is a new incarnation")
	}
	if locked {
		if err := w.log.guard.checkRevision(g.revision, have); err != nil {
			return nil, err
		}
	}
	g.now = g.now.UTC()
	return g, nil
}

// queueLeases locks leases: for reading if the batch only reads them, else all of them
// for writing, because locking in two rounds can deadlock with a replica that does the
// same in another order.
func (g *base) queueLeases(q *pgx.Batch, b *batch.Batch) {
	names, changing := make(map[string]struct{}), false
	b.Leases(func(name string, change bool) {
		names[name] = struct{}{}
		changing = changing || change
	})
	if len(names) == 0 {
		return
	}
	sorted, find := slices.Sorted(maps.Keys(names)), shareLeases
	if changing {
		q.Queue(lockLeases, sorted)
		find = findLeases
	}
	q.Queue(find, sorted).Query(func(rows pgx.Rows) error { return scanLeases(rows, g.leases) })
}

func (g *base) queueLedger(q *pgx.Batch, b *batch.Batch) {
	nodes := make(map[string]struct{})
	b.Nodes(func(node string) { nodes[node] = struct{}{} })
	if len(nodes) == 0 {
		return
	}
	sorted := slices.Sorted(maps.Keys(nodes))
	q.Queue(lockLedger, sorted)
	q.Queue(findLedger, sorted).Query(func(rows pgx.Rows) error { return scanLedger(rows, g.ledger) })
}

// touched returns the ids of each kind that a batch reads or writes.
func touched(b *batch.Batch) map[mariposa.Kind][]string {
	seen, ids := make(map[batch.Key]struct{}), make(map[mariposa.Kind][]string)
	b.Keys(func(k batch.Key) {
		if _, known := seen[k]; !known {
			seen[k] = struct{}{}
			ids[k.Kind] = append(ids[k.Kind], k.ID)
		}
	})
	return ids
}

func (g *base) readObjects(rows pgx.Rows) error {
	for rows.Next() {
		o, err := scanObject(rows)
		if err != nil {
			return err
		}
		g.objects[batch.Key{Kind: o.Kind, ID: o.ID}] = o
	}
	return rows.Err()
}

var errRolledBack = errors.New("the server rolled the transaction back")

// statements returns the rest of the transaction: everything that the group wrote, and
// the commit, in one round trip.
func (w *writer) statements(a *attempt) (*pgx.Batch, error) {
	g, q := a.group, new(pgx.Batch)
	if len(g.Changes) > 0 {
		chunk, err := w.log.codec.Chunk(g.Changes, g.After)
		if err != nil {
			return nil, err
		}
		a.size = chunk.Size
		queueObjects(q, g)
		first := g.Changes[0].Revision
		q.Queue(addChanges, first, g.Revision, g.Now, chunk.Body)
		projects, tasks := g.Tags(chunk)
		queueTags(q, first, projects)
		if len(tasks) > 0 {
			q.Queue(tagTask, first, tasks)
		}
		q.Queue(notify)
	}
	if len(g.Leases) > 0 {
		queueLeases(q, g.Leases)
	}
	if len(g.Ledger) > 0 {
		queueLedger(q, g.Ledger)
	}
	q.Queue(markWriter, w.id, a.seq)
	switch {
	case len(g.Audit) > 0:
		queueAudit(q, g)
		q.Queue(setAudit, int64(len(g.Changes)), g.Mark.Last, g.Mark.Lag)
	case len(g.Changes) > 0:
		q.Queue(setCounter, int64(len(g.Changes)))
	}
	q.Queue("COMMIT").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() != "COMMIT" {
			return errRolledBack
		}
		return nil
	})
	return q, nil
}

func queueTags(q *pgx.Batch, first int64, tags []batch.Tag) {
	projects, changes, bytes := make([]string, len(tags)), make([]int64, len(tags)), make([]int64, len(tags))
	for i, t := range tags {
		projects[i], changes[i], bytes[i] = t.Project, t.Changes, t.Bytes
	}
	q.Queue(tagProject, first, projects, changes, bytes)
}

func queueObjects(q *pgx.Batch, g *batch.Group) {
	n := len(g.Objects)
	kinds, ids, projects := make([]string, 0, n), make([]string, 0, n), make([]string, 0, n)
	archived := make([]bool, 0, n)
	revs, specRevs, statusRevs := make([]int64, 0, n), make([]int64, 0, n), make([]int64, 0, n)
	specs, statuses, states := make([][]byte, 0, n), make([][]byte, 0, n), make([]string, 0, n)
	for _, k := range g.Written() {
		o := g.Objects[k]
		if o == nil {
			q.Queue(removeObject, string(k.Kind), k.ID)
			continue
		}
		kinds, ids, projects = append(kinds, string(o.Kind)), append(ids, o.ID), append(projects, o.Project)
		archived = append(archived, o.Archived)
		revs, specRevs, statusRevs = append(revs, o.Revision), append(specRevs, o.SpecRevision), append(statusRevs, o.StatusRevision)
		specs, statuses, states = append(specs, o.SpecJSON), append(statuses, o.StatusJSON), append(states, string(o.ArchivedState()))
	}
	if len(ids) > 0 {
		q.Queue(putObjects, kinds, ids, projects, archived, revs, specRevs, statusRevs, specs, statuses, states)
	}
}

func queueLeases(q *pgx.Batch, leases map[string]store.Lease) {
	n := len(leases)
	names, holders, notes := make([]string, 0, n), make([]string, 0, n), make([]string, 0, n)
	epochs, untils := make([]int64, 0, n), make([]*time.Time, 0, n)
	for _, name := range slices.Sorted(maps.Keys(leases)) {
		l := leases[name]
		var until *time.Time
		if !l.Until.IsZero() {
			until = &l.Until
		}
		names, holders, notes = append(names, l.Name), append(holders, l.Holder), append(notes, l.Note)
		epochs, untils = append(epochs, l.Epoch), append(untils, until)
	}
	q.Queue(putLeases, names, holders, epochs, untils, notes)
}

func queueLedger(q *pgx.Batch, ledger map[string]mariposa.Resources) {
	n := len(ledger)
	nodes, instances, cpus, memories := make([]string, 0, n), make([]int64, 0, n), make([]int64, 0, n), make([]int64, 0, n)
	for _, node := range slices.Sorted(maps.Keys(ledger)) {
		r := ledger[node]
		nodes, instances = append(nodes, node), append(instances, int64(r.Instances))
		cpus, memories = append(cpus, r.MilliCPU), append(memories, r.Memory)
	}
	q.Queue(putLedger, nodes, instances, cpus, memories)
}
