package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"

	"github.com/google/uuid"

	"mariposa/store"
	"mariposa/store/internal/codec"
)

// Restore creates the file of a store from a dump, as a new incarnation. The new file is
// complete and on disk before it takes the place of the old one, if any: whenever the
// process ends, one of the two is there. It fails while another process uses the store,
// and with store.ErrNotEmpty if there is something to replace and replace is false. It
// returns the revision at which the store continues.
func Restore(ctx context.Context, path string, from store.DumpSource, replace bool) (revision int64, err error) {
	if path, err = prepare(path); err != nil {
		return 0, err
	}
	held, err := lockFile(path + ".lock")
	if err != nil {
		return 0, fmt.Errorf("store %s: %w", path, err)
	}
	r := restorer{path: path, next: path + ".restoring", from: from}
	defer r.clean()
	revision, err = r.run(ctx, replace)
	if err := errors.Join(err, held.free()); err != nil {
		return 0, fmt.Errorf("store %s: %w", path, err)
	}
	return revision, nil
}

// restorer is one restore in progress.
type restorer struct {
	path, next string
	from       store.DumpSource
	codec      *codec.Codec
	statements *statements
}

func (r *restorer) run(ctx context.Context, replace bool) (int64, error) {
	replaced, err := r.settleOld(ctx, replace)
	if err != nil {
		return 0, err
	}
	r.clean() // what a killed restore left
	if err := createFile(r.next); err != nil {
		return 0, err
	}
	revision := store.RestoredRevision(r.from.Head().Revision, replaced)
	if err := r.fill(ctx, revision); err != nil {
		return 0, err
	}
	if err := syncPath(r.next); err != nil {
		return 0, err
	}
	if err := os.Rename(r.next, r.path); err != nil {
		return 0, err
	}
	return revision, syncPath(filepath.Dir(r.path))
}

// clean removes the new file, unless it has taken its place already.
func (r *restorer) clean() {
	for _, suffix := range []string{"", "-journal", "-wal", "-shm"} {
		_ = os.Remove(r.next + suffix)
	}
}

// settleOld checks what is to be replaced and returns its revision. It merges its
// write-ahead log into the file: the log would otherwise be taken for that of the new
// file.
func (r *restorer) settleOld(ctx context.Context, replace bool) (revision int64, err error) {
	if info, err := os.Stat(r.path); errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return 0, r.requireNoLog()
	} else if err != nil {
		return 0, err
	}
	db, err := openDB(r.path, writing)
	if err != nil {
		return 0, err
	}
	db.SetMaxOpenConns(1)
	any := false
	err = db.QueryRowContext(ctx, "SELECT (SELECT value FROM meta WHERE key = 'revision'), EXISTS (SELECT 1 FROM objects)").Scan(&revision, &any)
	if err == nil && any && !replace {
		err = store.ErrNotEmpty
	}
	if err == nil {
		_, err = db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	}
	if err = errors.Join(err, db.Close()); err != nil {
		if errors.Is(err, store.ErrNotEmpty) {
			return 0, err
		}
		return 0, fmt.Errorf("cannot read the present state: %w: move its files away (%s*), then restore again", err, r.path)
	}
	return revision, r.requireNoLog()
}

// requireNoLog fails if there is a write-ahead log with content.
func (r *restorer) requireNoLog() error {
	if info, err := os.Stat(r.path + "-wal"); err == nil && info.Size() > 0 {
		return fmt.Errorf("there is a log %s-wal that could not be merged into its file: move both away, then restore again", r.path)
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(r.path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Settings of the connection that fills a new file: it is worth nothing until it is
// complete.
var filling = url.Values{
	"_journal_mode": {"OFF"}, "_synchronous": {"OFF"},
	"_pragma": {"page_size(8192)", "cache_size(-65536)", "temp_store(MEMORY)", "locking_mode(EXCLUSIVE)"},
}

func (r *restorer) fill(ctx context.Context, revision int64) (err error) {
	db, err := openDB(r.next, filling)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	if err := migrate(ctx, db); err != nil {
		return err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if r.codec, err = codec.New(); err != nil {
		return err
	}
	defer r.codec.Close()
	if r.statements, err = prepareAll(ctx, conn); err != nil {
		return err
	}
	defer r.statements.close()
	if _, err := conn.ExecContext(ctx, "BEGIN"); err != nil {
		return err
	}
	if err := r.load(ctx); err != nil {
		return err
	}
	if err := r.putMeta(ctx, conn, revision); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, "COMMIT")
	return err
}

func (r *restorer) load(ctx context.Context) error {
	for {
		it, err := r.from.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err == nil:
			err = r.put(ctx, it)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// put stores one item. Leases are released: those who held them belong to the time that
// is lost.
func (r *restorer) put(ctx context.Context, it *store.DumpItem) error {
	s := r.statements
	switch {
	case it.Object != nil:
		o := it.Object
		state, err := codec.ArchivedState(o)
		if err != nil {
			return err
		}
		var status any // a nil slice would be stored as an empty status, not as none
		if o.Status != nil {
			status = o.Status
		}
		return s.put.exec(ctx, []any{string(o.Kind), o.ID, o.Project, o.Archived, o.Revision, o.SpecRevision, o.StatusRevision, o.Spec, status, string(state)})
	case it.Chunk != nil:
		return r.putChunk(ctx, it.Chunk)
	case it.Lease != nil:
		return s.putLease.exec(ctx, []any{it.Lease.Name, "", it.Lease.Epoch, int64(0), ""})
	case it.Claim != nil:
		c := it.Claim
		return s.putClaim.exec(ctx, []any{c.Node, c.Taken.Instances, c.Taken.MilliCPU, c.Taken.Memory})
	case it.Audit != nil:
		e, err := codec.AuditOf(it.Audit)
		if err != nil {
			return fmt.Errorf("audit entry %d: %w", it.Audit.ID, err)
		}
		return s.putAudit.exec(ctx, []any{e.ID, nanosOf(e.Time), e.Organization, e.Project, e.Actor, e.ActorName, e.For, e.ForName, e.Action, string(e.Outcome), it.Audit.Body})
	}
	return errors.New("unknown item")
}

func (r *restorer) putChunk(ctx context.Context, c *store.EncodedChunk) error {
	projects, tasks, err := r.codec.TagsOf(c)
	if err != nil {
		return err
	}
	if _, err := r.statements.appendChange.ExecContext(ctx, c.First, c.Last, nanosOf(c.At), c.Body); err != nil {
		return err
	}
	var args []any
	for _, p := range projects {
		args = append(args, c.First, p.Project, p.Changes, p.Bytes)
	}
	if err := r.statements.tagProject.exec(ctx, args); err != nil {
		return err
	}
	args = args[:0]
	for _, task := range tasks {
		args = append(args, c.First, task)
	}
	return r.statements.tagTask.exec(ctx, args)
}

// putMeta stores the identity and the counters. The log is complete only from the new
// revision on: readers of the time that is lost must begin anew.
func (r *restorer) putMeta(ctx context.Context, conn *sql.Conn, revision int64) error {
	h := r.from.Head()
	values := map[string]any{
		"cluster": h.Cluster, "incarnation": uuid.NewString(), "revision": revision, "trimmed": revision, "audit": h.Audit.Last, "audit_lag": h.Audit.Lag,
	}
	for key, value := range values {
		if _, err := conn.ExecContext(ctx, "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value); err != nil {
			return err
		}
	}
	return nil
}

// syncPath makes a file or a directory durable.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
