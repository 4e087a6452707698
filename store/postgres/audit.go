package postgres

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"mariposa"
	"mariposa/store"
	"mariposa/store/internal/batch"
	"mariposa/store/internal/codec"
	"mariposa/store/internal/trail"
)

const (
	addAudit = `INSERT INTO audit (id, at, organization, project, actor, actor_name, for_id, for_name, action, outcome, body) SELECT * FROM
		unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::bytea[])`
	setAudit = "UPDATE counter SET revision = revision + $1, audit = $2, audit_lag = $3 WHERE one"

	firstAction = "SELECT action FROM audit WHERE action >= $1 AND action < $2 ORDER BY action LIMIT 1"
	nextAction  = "SELECT action FROM audit WHERE action > $1 AND action < $2 ORDER BY action LIMIT 1"

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

// Audit reads by the indexes that have the answer's parts in order, all of them
// as they are at one moment.
func (s *Store) Audit(ctx context.Context, q store.AuditQuery) ([]mariposa.Audit, error) {
	for _, word := range append([]string{q.Project, q.Actor, q.Action, q.Outcome}, q.Organizations...) {
		if !isName(word) {
			return nil, s.usable(ctx) // no entry has it
		}
	}
	answer := trail.NewAnswer(q.Limit)
	err := s.read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			answer = trail.NewAnswer(q.Limit) // a connection may have died over the last
			return readAudit(ctx, tx, &q, answer)
		})
	})
	if err != nil {
		return nil, err
	}
	return answer.Entries, nil
}

func readAudit(ctx context.Context, tx pgx.Tx, q *store.AuditQuery, answer *trail.Answer) error {
	arms, err := trail.Arms(q, func(prefix string) ([]string, error) { return auditActions(ctx, tx, prefix) })
	if err != nil {
		return err
	}
	for _, arm := range arms {
		query, args := auditQuery(q, arm, answer.Floor())
		entries, err := scanAudit(ctx, tx, query, args)
		if err != nil {
			return err
		}
		answer.Add(entries)
	}
	return nil
}

// auditQuery asks for the key where there is no other index to go by, and for
// the expression that the other indexes have where there is one.
func auditQuery(q *store.AuditQuery, arm trail.Arm, floor int64) (query string, args []any) {
	id := "id"
	if arm.Column != "" {
		id = "(id + 0)"
	}
	terms, args := arm.Where(q)
	add := func(term string, value any) { terms, args = append(terms, term), append(args, value) }
	if q.Before > 0 {
		add(id+" < ?", q.Before)
	}
	if !q.Since.IsZero() {
		floor = max(floor, q.Since.UnixMicro()-1)
		add("at >= ?", trail.TimeToMicro(q.Since))
	}
	if !q.Until.IsZero() {
		add("at < ?", trail.TimeToMicro(q.Until))
		add(id+" <= ? + (SELECT audit_lag FROM counter WHERE one)", q.Until.UnixMicro())
	}
	add(id+" > ?", floor)
	query = "SELECT id, at, body FROM audit WHERE " + strings.Join(terms, " AND ") + " ORDER BY " + id + " DESC"
	if q.Limit > 0 {
		query, args = query+" LIMIT ?", append(args, q.Limit)
	}
	return numbered(query), args
}

// numbered turns question marks into $1, $2 and so on.
func numbered(query string) string {
	var b strings.Builder
	for i, part := range strings.Split(query, "?") {
		if i > 0 {
			b.WriteString("$" + strconv.Itoa(i))
		}
		b.WriteString(part)
	}
	return b.String()
}

func scanAudit(ctx context.Context, tx pgx.Tx, query string, args []any) ([]mariposa.Audit, error) {
	rows, err := tx.Query(ctx, query, args...)
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

// auditActions jumps from one action to the next: there are few of them, each in
// any number of entries.
func auditActions(ctx context.Context, tx pgx.Tx, prefix string) (actions []string, err error) {
	last, query := prefix, firstAction
	for {
		err := tx.QueryRow(ctx, query, last, trail.After(prefix)).Scan(&last)
		if errors.Is(err, pgx.ErrNoRows) {
			return actions, nil
		}
		if err != nil {
			return nil, err
		}
		actions, query = append(actions, last), nextAction
	}
}

// TrimAudit forgets the oldest entries, step by step. Those who trim at once pass
// over each other's share.
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
