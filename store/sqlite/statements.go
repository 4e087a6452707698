package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

const objectColumns = "kind, id, project, archived, rev, spec_rev, status_rev, spec, status"

// statements are prepared once per connection: preparing costs more than
// running.
type statements struct {
	find         many // objects of one kind, by ids
	put          many // objects, whole rows
	tagProject   many
	tagTask      many
	putLease     many
	putClaim     many
	putAudit     many
	remove       *sql.Stmt
	removeClaim  *sql.Stmt
	appendChange *sql.Stmt
	setMeta      *sql.Stmt

	args []any // reused
	all  []*sql.Stmt
}

func prepareAll(ctx context.Context, conn *sql.Conn) (*statements, error) {
	s := new(statements)
	var errs []error
	one := func(query string) *sql.Stmt {
		stmt, err := conn.PrepareContext(ctx, query)
		if err != nil {
			errs = append(errs, err)
			return nil
		}
		s.all = append(s.all, stmt)
		return stmt
	}
	each := func(head, row, tail string) many {
		m := many{width: strings.Count(row, "?")}
		for i, n := range manyRows {
			m.stmts[i] = one(head + strings.TrimSuffix(strings.Repeat(row+",", n), ",") + tail)
		}
		return m
	}
	s.find = each("SELECT "+objectColumns+" FROM objects WHERE kind = ? AND id IN (", "?", ")")
	s.put = each("INSERT INTO objects ("+objectColumns+", state) VALUES ", "(?,?,?,?,?,?,?,?,?,?)", ` ON CONFLICT (kind, id) DO UPDATE SET
		project = excluded.project, archived = excluded.archived, rev = excluded.rev, spec_rev = excluded.spec_rev,
		status_rev = excluded.status_rev, spec = excluded.spec, status = excluded.status, state = excluded.state`)
	s.tagProject = each("INSERT INTO change_project (first, project, changes, bytes) VALUES ", "(?,?,?,?)", "")
	s.tagTask = each("INSERT INTO change_task (first, task) VALUES ", "(?,?)", "")
	s.putLease = each("INSERT INTO leases (name, holder, epoch, until, note) VALUES ", "(?,?,?,?,?)",
		" ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, epoch = excluded.epoch, until = excluded.until, note = excluded.note")
	s.putClaim = each("INSERT INTO ledger (node, instances, milli_cpu, memory) VALUES ", "(?,?,?,?)",
		" ON CONFLICT (node) DO UPDATE SET instances = excluded.instances, milli_cpu = excluded.milli_cpu, memory = excluded.memory")
	s.putAudit = each("INSERT INTO audit ("+auditColumns+") VALUES ", "(?,?,?,?,?,?,?,?,?,?,?)", "")
	s.remove = one("DELETE FROM objects WHERE kind = ? AND id = ?")
	s.removeClaim = one("DELETE FROM ledger WHERE node = ?")
	s.appendChange = one("INSERT INTO changes (first, last, at, body) VALUES (?, ?, ?, ?)")
	s.setMeta = one("UPDATE meta SET value = ? WHERE key = ?")
	if len(errs) > 0 {
		s.close()
		return nil, errors.Join(errs...)
	}
	return s, nil
}

func (s *statements) close() {
	for _, stmt := range s.all {
		_ = stmt.Close() // errors do not matter here
	}
}

// manyRows are the row counts for which statements are prepared, so that any number of
// rows takes few statements.
var manyRows = [...]int{64, 8, 1}

// many is one statement for several row counts.
type many struct {
	width int // arguments per row
	stmts [len(manyRows)]*sql.Stmt
}

// exec runs the statement over rows whose arguments follow each other in args.
func (m *many) exec(ctx context.Context, args []any) error {
	if len(args)%m.width != 0 {
		return fmt.Errorf("%d values do not fill rows of %d", len(args), m.width)
	}
	for i, n := range manyRows {
		for n *= m.width; len(args) >= n; args = args[n:] {
			if _, err := m.stmts[i].ExecContext(ctx, args[:n]...); err != nil {
				return err
			}
		}
	}
	return nil
}
