package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strings"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/store/internal/batch"
	"mariposa/store/internal/codec"
	"mariposa/store/internal/trail"
)

const (
	auditColumns = "id, at, organization, project, actor, actor_name, for_id, for_name, action, outcome, body"

	firstAction = "SELECT action FROM audit INDEXED BY audit_action WHERE action >= ? AND action < ? ORDER BY action LIMIT 1"
	nextAction  = "SELECT action FROM audit INDEXED BY audit_action WHERE action > ? AND action < ? ORDER BY action LIMIT 1"

	trimAudit = `DELETE FROM audit WHERE id IN
		(SELECT id FROM audit NOT INDEXED WHERE id <= ? AND at < ? ORDER BY id LIMIT ?)`
)

// writeAudit adds the group's entries, many at a time.
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

// Audit reads by the indexes that have the answer's parts in order, all of them
// as they are at one moment.
func (s *Store) Audit(ctx context.Context, q store.AuditQuery) ([]mariposa.Audit, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	found, err := s.readAudit(ctx, &q)
	if err != nil {
		return nil, s.readError(err)
	}
	return found, nil
}

func (s *Store) readAudit(ctx context.Context, q *store.AuditQuery) ([]mariposa.Audit, error) {
	tx, err := s.readers.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	arms, err := trail.Arms(q, func(prefix string) ([]string, error) { return auditActions(ctx, tx, prefix) })
	if err != nil {
		return nil, err
	}
	answer := trail.NewAnswer(q.Limit)
	for _, arm := range arms {
		query, args := auditQuery(q, arm, answer.Floor())
		entries, err := scanAudit(ctx, tx, query, args)
		if err != nil {
			return nil, err
		}
		answer.Add(entries)
	}
	return answer.Entries, nil
}

// auditQuery names the index: without statistics the planner would rather walk
// the whole log.
func auditQuery(q *store.AuditQuery, arm trail.Arm, floor int64) (query string, args []any) {
	index := " NOT INDEXED"
	if arm.Column != "" {
		index = " INDEXED BY audit_" + arm.Column
	}
	terms, args := arm.Where(q)
	add := func(term string, value any) { terms, args = append(terms, term), append(args, value) }
	if q.Before > 0 {
		add("id < ?", q.Before)
	}
	if !q.Since.IsZero() {
		floor = max(floor, q.Since.UnixMicro()-1)
		add("at >= ?", nanosWithin(q.Since))
	}
	if !q.Until.IsZero() {
		add("at < ?", nanosWithin(q.Until))
		add("id <= ? + (SELECT value FROM meta WHERE key = 'audit_lag')", q.Until.UnixMicro())
	}
	add("id > ?", floor)
	query = "SELECT id, at, body FROM audit" + index + " WHERE " + strings.Join(terms, " AND ") + " ORDER BY id DESC"
	if q.Limit > 0 {
		query, args = query+" LIMIT ?", append(args, q.Limit)
	}
	return query, args
}

// nanosWithin is a time that may lie beyond those that can be stored.
func nanosWithin(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return t.UnixNano()
}

func scanAudit(ctx context.Context, q querier, query string, args []any) ([]mariposa.Audit, error) {
	rows, err := q.QueryContext(ctx, query, args...)
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

// auditActions jumps from one action to the next: there are few of them, each in
// any number of entries.
func auditActions(ctx context.Context, tx *sql.Tx, prefix string) (actions []string, err error) {
	last, query := prefix, firstAction
	for {
		err := tx.QueryRowContext(ctx, query, last, trail.After(prefix)).Scan(&last)
		if errors.Is(err, sql.ErrNoRows) {
			return actions, nil
		}
		if err != nil {
			return nil, err
		}
		actions, query = append(actions, last), nextAction
	}
}

// TrimAudit forgets the oldest entries, step by step.
func (s *Store) TrimAudit(ctx context.Context, maxAge time.Duration) (removed int64, err error) {
	if maxAge <= 0 {
		return 0, s.usable(ctx)
	}
	for {
		var n int64
		err := s.queue.Do(ctx, func(g *batch.Group) error {
			g.Also = append(g.Also, func(ctx context.Context) (err error) {
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
