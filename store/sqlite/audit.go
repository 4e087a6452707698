package sqlite

import (
	"context"
	"math"
	"strings"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/store/internal/batch"
	"mariposa/store/internal/codec"
)

const (
	auditColumns = "id, at, organization, project, actor, actor_name, for_id, for_name, action, outcome, body"

	trimAudit = `DELETE FROM audit WHERE id IN
		(SELECT id FROM audit NOT INDEXED WHERE id <= ? AND at < ? ORDER BY id LIMIT ?)`
)

// writeAudit adds the group's entries, many per statement.
func (w *writer) writeAudit(ctx context.Context, g *batch.Group) error {
	if len(g.Audit) == 0 {
		return nil
	}
	args := make([]any, 0, w.statements.putAudit.width*len(g.Audit))
	for i := range g.Audit {
		e := &g.Audit[i]
		args = append(args, e.ID, e.Time.UnixNano(), e.Organization, e.Project, e.Actor, e.ActorName, e.For, e.ForName, e.Action, string(e.Outcome), e.JSON)
	}
	if err := w.statements.putAudit.exec(ctx, args); err != nil {
		return err
	}
	if g.Mark.Lag != w.audit.Lag {
		if err := w.setMeta(ctx, "audit_lag", g.Mark.Lag); err != nil {
			return err
		}
	}
	return w.setMeta(ctx, "audit", g.Mark.Last)
}

func readAuditMark(ctx context.Context, q querier) (m store.AuditMark, err error) {
	values, err := readMeta(ctx, q, "audit", "audit_lag")
	return store.AuditMark{Last: values["audit"], Lag: values["audit_lag"]}, err
}

// Audit reads the log from its newest entry backwards.
func (s *Store) Audit(ctx context.Context, q store.AuditQuery) ([]mariposa.Audit, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	found, err := readAudit(ctx, s.readers, auditQuery(&q))
	if err != nil {
		return nil, s.readError(err)
	}
	return found, nil
}

// auditQuery uses the index by project or organizations, which bound what a reader may
// see, so that no list reads entries of others. Across all organizations, there is an
// index of denied and failed actions; other lists walk the log. The index is named
// because, without statistics, the planner would walk the log each time.
func auditQuery(q *store.AuditQuery) *query {
	const entries = "SELECT id, at, body FROM audit "
	b := new(query)
	switch {
	case q.Project != "":
		b.add(entries+"INDEXED BY audit_project WHERE project <> '' AND project = ?", q.Project)
		if q.Organizations != nil {
			b.add(" AND organization IN (SELECT value FROM json_each(?))", list(q.Organizations))
		}
	case q.Organizations != nil: // the newest of each, then the newest of those
		b.add(entries+"WHERE id IN (SELECT n.id FROM json_each(?) AS o CROSS JOIN audit AS n WHERE n.id IN (", list(q.Organizations))
		b.add("SELECT id FROM audit INDEXED BY audit_organization WHERE organization = o.value").auditFilters(q)
		return b.add(")) ORDER BY id DESC").limit(q.Limit)
	case q.Outcome != "" && q.Outcome != string(mariposa.AuditDone):
		b.add(entries + "INDEXED BY audit_outcome WHERE outcome <> 'done'")
	default:
		b.add(entries + "NOT INDEXED WHERE true")
	}
	return b.auditFilters(q)
}

// auditFilters adds the other conditions of the query. Times bound the ids too:
// store.AuditMark says how they relate.
func (b *query) auditFilters(q *store.AuditQuery) *query {
	if q.Before > 0 {
		b.add(" AND id < ?", q.Before)
	}
	if !q.Since.IsZero() {
		b.add(" AND id >= ? AND at >= ?", q.Since.UnixMicro(), nanosWithin(q.Since))
	}
	if !q.Until.IsZero() {
		b.add(" AND id <= ? + (SELECT value FROM meta WHERE key = 'audit_lag') AND at < ?", q.Until.UnixMicro(), nanosWithin(q.Until))
	}
	if q.Actor != "" {
		b.add(" AND ? IN (actor, actor_name, for_id, for_name)", q.Actor)
	}
	if strings.HasSuffix(q.Action, ".") {
		b.add(" AND substr(action, 1, length(?)) = ?", q.Action, q.Action)
	} else if q.Action != "" {
		b.add(" AND action = ?", q.Action)
	}
	if q.Outcome != "" {
		b.add(" AND outcome = ?", q.Outcome)
	}
	return b.add(" ORDER BY id DESC").limit(q.Limit)
}

// nanosWithin returns a time clamped to those that can be stored.
func nanosWithin(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return t.UnixNano()
}

func readAudit(ctx context.Context, q querier, b *query) ([]mariposa.Audit, error) {
	rows, err := q.QueryContext(ctx, b.text, b.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []mariposa.Audit
	for rows.Next() {
		var id, at int64
		var body []byte
		if err := rows.Scan(&id, &at, &body); err != nil {
			return nil, err
		}
		a, err := codec.DecodeAudit(id, timeOf(at), body)
		if err != nil {
			return nil, err
		}
		found = append(found, a)
	}
	return found, rows.Err()
}

// TrimAudit deletes the oldest entries, step by step.
func (s *Store) TrimAudit(ctx context.Context, maxAge time.Duration) (removed int64, err error) {
	if maxAge <= 0 {
		return 0, s.usable(ctx)
	}
	for {
		var n int64
		err := s.queue.Do(ctx, func(g *batch.Group) error {
			g.ExtraActions = append(g.ExtraActions, func(ctx context.Context) (err error) {
				n, err = s.writer.trimAudit(ctx, g.Now.Add(-maxAge), g.Mark.Lag)
				return err
			})
			return nil
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

func (w *writer) trimAudit(ctx context.Context, oldest time.Time, lag int64) (int64, error) {
	done, err := w.conn.ExecContext(ctx, trimAudit, oldest.UnixMicro()+lag, oldest.UnixNano(), trimStep)
	if err != nil {
		return 0, err
	}
	return done.RowsAffected()
}
