package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"mariposa/store"
)

// List reads from the highest id down.
func (s *Store) List(ctx context.Context, q store.Query) ([]store.Record, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	q, some := q.Normalize()
	if !some {
		return nil, nil
	}
	found, err := s.list(ctx, q)
	return found, s.readError(err)
}

func (s *Store) list(ctx context.Context, q store.Query) ([]store.Record, error) {
	switch {
	case q.Projects == nil || !q.Kind.IndexedByProject():
		return readObjects(ctx, s.readers, listQuery(q))
	case len(q.Projects) <= manyProjects || q.Limit <= 0:
		return readObjects(ctx, s.readers, mergeQuery(q))
	}
	tx, err := s.readers.BeginTx(ctx, &sql.TxOptions{ReadOnly: true}) // the two queries must see the same state
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	found, err := readObjects(ctx, tx, spanQuery(q))
	if err != nil || len(found) == q.Limit {
		return found, err
	}
	end := spanEnd(q)
	switch err := tx.QueryRowContext(ctx, end.text, end.args...).Scan(&q.Before); {
	case errors.Is(err, sql.ErrNoRows):
		return found, nil // nothing is left
	case err != nil:
		return nil, err
	}
	q.Limit -= len(found)
	rest, err := readObjects(ctx, tx, mergeQuery(q))
	return append(found, rest...), err
}

// Finding the newest objects of many projects takes a lookup for each. For more than
// manyProjects, the newest span of all projects is read first: a caller with that many
// projects mostly finds a page there, unless they have been inactive.
const (
	manyProjects = 100
	span         = 3000
)

// query is a statement with its arguments.
type query struct {
	text string
	args []any
}

// add appends text, and the arguments of its placeholders.
func (b *query) add(text string, args ...any) *query {
	b.text += text
	b.args = append(b.args, args...)
	return b
}

// source adds the table, the index and the rows that a query wants. The kind is part of
// the text: a partial index cannot be used with an argument. The index is named because,
// without statistics, the planner would walk all objects of the kind. For several
// projects, project is the current one.
func (b *query) source(q store.Query, project string) *query {
	b.add(" FROM objects")
	switch {
	case q.State != "" && project != "":
		b.add(" INDEXED BY tasks_ended_of_project")
	case q.State != "":
		b.add(" INDEXED BY tasks_ended")
	case project != "" && q.Kind.IndexedByProject():
		b.add(" INDEXED BY objects_of_project")
	}
	b.add(" WHERE kind = '" + string(q.Kind) + "'")
	if q.State != "" {
		b.add(" AND state <> '' AND state = ?", string(q.State))
	}
	return b
}

func (b *query) before(id string) *query {
	if id != "" {
		b.add(" AND id < ?", id)
	}
	return b
}

func (b *query) limit(n int) *query {
	if n > 0 {
		b.add(" LIMIT ?", n)
	}
	return b
}

// listQuery reads the objects of one project or of any; of several, if there is no index
// for that.
func listQuery(q store.Query) *query {
	b := new(query).add("SELECT "+objectColumns).source(q, q.Project)
	if q.Project != "" {
		b.add(" AND project = ?", q.Project)
	}
	if q.Projects != nil {
		b.add(" AND project IN (SELECT value FROM json_each(?))", list(q.Projects))
	}
	return b.before(q.Before).add(" ORDER BY id DESC").limit(q.Limit)
}

// mergeQuery reads the objects of several projects by merging: it starts with the newest
// of each, and repeatedly takes the newest of all and replaces it by the next of its
// project. The recursive query orders its pending rows by id. So it looks up one row per
// project, plus those that the page needs.
func mergeQuery(q store.Query) *query {
	newest := func(b *query, project, before string) {
		b.add("(SELECT id").source(q, project).add(" AND project = " + project)
		if before == "" {
			b.before(q.Before)
		} else {
			b.add(" AND id < " + before)
		}
		b.add(" ORDER BY id DESC LIMIT 1)")
	}
	b := new(query).add("WITH RECURSIVE newest (of, at) AS (SELECT value, ")
	newest(b, "value", "")
	b.add(" FROM json_each(?) UNION ALL SELECT of, ", list(q.Projects))
	newest(b, "of", "at")
	b.add(" FROM newest WHERE at IS NOT NULL ORDER BY 2 DESC").limit(q.Limit)
	return b.add(") SELECT " + objectColumns + " FROM newest CROSS JOIN objects WHERE kind = '" + string(q.Kind) + "' AND id = at")
}

// spanQuery reads the objects of several projects within the newest span.
func spanQuery(q store.Query) *query {
	b := new(query).add("SELECT "+objectColumns+" FROM (SELECT id AS at, project AS of").source(q, "")
	b.before(q.Before).add(" ORDER BY id DESC LIMIT ?", span)
	b.add(") CROSS JOIN objects WHERE of IN (SELECT value FROM json_each(?)) AND kind = '"+string(q.Kind)+"' AND id = at", list(q.Projects))
	return b.limit(q.Limit)
}

// spanEnd finds the last object of the newest span; none if it ends with the table.
func spanEnd(q store.Query) *query {
	return new(query).add("SELECT id").source(q, "").before(q.Before).add(" ORDER BY id DESC LIMIT 1 OFFSET ?", span-1)
}

// list returns an argument for json_each.
func list(names []string) string {
	text, _ := json.Marshal(names) // never fails for strings
	return string(text)
}

func readObjects(ctx context.Context, from querier, b *query) ([]store.Record, error) {
	var found []store.Record
	err := visitObjects(ctx, from, func(r store.Record) error {
		found = append(found, r)
		return nil
	}, b.text, b.args...)
	// The rows come in this order. Where a join could change it, the query does not
	// request it: SQLite would sort whole rows.
	slices.SortFunc(found, func(a, b store.Record) int { return strings.Compare(b.ID, a.ID) })
	return found, err
}
