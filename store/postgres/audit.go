package postgres

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"mariposa"
	"mariposa/store"
	"mariposa/store/internal/batch"
	"mariposa/store/internal/codec"
)

const (
	addAudit = `INSERT INTO audit (id, at, organization, project, actor, actor_name, for_id, for_name, action, outcome, body) SELECT * FROM
		unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::bytea[])`
	setAudit = "UPDATE counter SET revision = revision + $1, audit = $2, audit_lag = $3 WHERE one"

	oldestAudit = "SELECT clock_timestamp() - make_interval(secs => $1), audit_lag FROM counter WHERE one"
	trimAudit   = `DELETE FROM audit WHERE id = ANY (ARRAY
		(SELECT id FROM audit WHERE id <= $1 AND at < $2 ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED))`
)

// queueAudit adds the group's entries in one statement.
func queueAudit(q *pgx.Batch, g *batch.Group) {
	n := len(g.Audit)
	ids, times, bodies := make([]int64, n), make([]time.Time, n), make([][]byte, n)
	var columns [8][]string
	for i := range columns {
		columns[i] = make([]string, n)
	}
	for i := range g.Audit {
		e := &g.Audit[i]
		ids[i], times[i], bodies[i] = e.ID, e.Time, e.JSON
		for c, word := range [...]string{e.Organization, e.Project, e.Actor, e.ActorName, e.For, e.ForName, e.Action, string(e.Outcome)} {
			columns[c][i] = word
		}
	}
	q.Queue(addAudit, ids, times, columns[0], columns[1], columns[2], columns[3], columns[4], columns[5], columns[6], columns[7], bodies)
}

// Audit reads the log from its newest entry backwards.
func (s *Store) Audit(ctx context.Context, q store.AuditQuery) (found []mariposa.Audit, err error) {
	for _, word := range append([]string{q.Project, q.Actor, q.Action, q.Outcome}, q.Organizations...) {
		if !isName(word) {
			return nil, s.usable(ctx) // no entry can match
		}
	}
	err = s.read(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		found, err = readAudit(ctx, conn, auditQuery(&q))
		return err
	})
	return found, err
}

// auditQuery uses the index by project or organizations, which bound what a reader may
// see, so that no list reads entries of others. Across all organizations, there is an
// index of denied and failed actions; other lists walk the log. The indexes are on an
// expression instead of the id, because by the primary key the planner might walk the
// log too.
func auditQuery(q *store.AuditQuery) *query {
	const entries = "SELECT id, at, body FROM audit WHERE "
	b := new(query)
	switch {
	case q.Project != "":
		b.add(entries + "project <> '' AND project = ").arg(q.Project)
		if q.Organizations != nil {
			b.add(" AND organization = ANY (").arg(q.Organizations).add(")")
		}
		return b.auditFilters(q, "(id + 0)")
	case q.Organizations != nil: // the newest of each, then the newest of those
		b.add("SELECT n.* FROM (SELECT DISTINCT unnest(").arg(q.Organizations).add("::text[])) AS o (id) CROSS JOIN LATERAL (")
		b.add(entries+"organization = o.id").auditFilters(q, "(id + 0)")
		return b.add(") AS n ORDER BY n.id DESC").limit(q.Limit)
	case q.Outcome != "" && q.Outcome != string(mariposa.AuditDone):
		return b.add(entries+"outcome <> 'done'").auditFilters(q, "(id + 0)")
	}
	return b.add(entries+"true").auditFilters(q, "id")
}

// auditFilters adds the other conditions of the query. Times bound the ids too:
// store.AuditMark says how they relate.
func (b *query) auditFilters(q *store.AuditQuery, id string) *query {
	if q.Before > 0 {
		b.add(" AND " + id + " < ").arg(q.Before)
	}
	if !q.Since.IsZero() {
		b.add(" AND " + id + " >= ").arg(q.Since.UnixMicro()).add(" AND at >= ").arg(nextMicro(q.Since))
	}
	if !q.Until.IsZero() {
		b.add(" AND " + id + " <= ").arg(q.Until.UnixMicro()).add(" + (SELECT audit_lag FROM counter WHERE one) AND at < ").arg(nextMicro(q.Until))
	}
	if q.Actor != "" {
		b.add(" AND ").arg(q.Actor).add(" IN (actor, actor_name, for_id, for_name)")
	}
	if strings.HasSuffix(q.Action, ".") {
		b.add(" AND starts_with(action, ").arg(q.Action).add(")")
	} else if q.Action != "" {
		b.add(" AND action = ").arg(q.Action)
	}
	if q.Outcome != "" {
		b.add(" AND outcome = ").arg(q.Outcome)
	}
	return b.add(" ORDER BY " + id + " DESC").limit(q.Limit)
}

// nextMicro rounds a time up to a microsecond: a stored time, which has no smaller unit,
// is before the result exactly if it is before t.
func nextMicro(t time.Time) time.Time {
	if whole := t.Truncate(time.Microsecond); whole.Before(t) {
		return whole.Add(time.Microsecond)
	}
	return t
}

func readAudit(ctx context.Context, conn *pgx.Conn, b *query) ([]mariposa.Audit, error) {
	rows, err := conn.Query(ctx, b.text, b.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []mariposa.Audit
	for rows.Next() {
		var id int64
		var at time.Time
		var body []byte
		if err := rows.Scan(&id, &at, &body); err != nil {
			return nil, err
		}
		a, err := codec.DecodeAudit(id, at.UTC(), body)
		if err != nil {
			return nil, err
		}
		found = append(found, a)
	}
	return found, rows.Err()
}

// TrimAudit deletes the oldest entries, step by step. Concurrent calls skip each other's
// rows.
func (s *Store) TrimAudit(ctx context.Context, maxAge time.Duration) (removed int64, err error) {
	if maxAge <= 0 {
		return 0, s.usable(ctx)
	}
	for {
		var n int64
		err := s.read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			var oldest time.Time
			var lag int64
			if err := conn.QueryRow(ctx, oldestAudit, maxAge.Seconds()).Scan(&oldest, &lag); err != nil {
				return err
			}
			done, err := conn.Exec(ctx, trimAudit, oldest.UnixMicro()+lag, oldest, trimStep)
			n = done.RowsAffected()
			return err
		})
		if err != nil {
			return removed, err
		}
		removed += n
		if n < trimStep {
			return removed, nil
		}
	}
}
