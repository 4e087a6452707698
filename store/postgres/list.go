package postgres

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"mariposa/store"
)

// List reads from the highest id down.
func (s *Store) List(ctx context.Context, q store.Query) ([]store.Record, error) {
	q, some := q.Normalize()
	q.Projects = slices.DeleteFunc(q.Projects, func(p string) bool { return !isName(p) })
	if !some || !isName(q.Project) || q.Projects != nil && len(q.Projects) == 0 {
		return nil, s.usable(ctx)
	}
	var found []store.Record
	err := s.read(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		if q.Projects == nil || q.Limit <= 0 || !q.Kind.IndexedByProject() {
			list := listQuery(q)
			found, err = readRecords(ctx, conn, list.text, list.args...)
			return err
		}
		found, err = readNewest(ctx, conn, q)
		return err
	})
	return found, err
}

// Finding the newest objects of many projects takes a lookup for each. For more than
// manyProjects, the newest span of all projects is read first: a caller with that many
// projects mostly finds a page there, unless they have been inactive.
const (
	manyProjects = 100
	span         = 3000
)

// readNewest reads a page of several projects: first the ids, then the objects, in one
// snapshot.
func readNewest(ctx context.Context, conn *pgx.Conn, q store.Query) (found []store.Record, err error) {
	if _, err := conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
		return nil, err
	}
	defer func() {
		if !conn.IsClosed() {
			rollback(conn)
		}
	}()
	ids, err := newestOf(ctx, conn, q)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	return readRecords(ctx, conn, findObjects, string(q.Kind), ids)
}

func newestOf(ctx context.Context, conn *pgx.Conn, q store.Query) ([]string, error) {
	if len(q.Projects) <= manyProjects {
		return merged(ctx, conn, q)
	}
	within := spanQuery(q)
	ids, err := readIDs(ctx, conn, within)
	if err != nil || len(ids) == q.Limit {
		return ids, err
	}
	end := spanEnd(q)
	switch err := conn.QueryRow(ctx, end.text, end.args...).Scan(&q.Before); {
	case errors.Is(err, pgx.ErrNoRows):
		return ids, nil // nothing is left
	case err != nil:
		return nil, err
	}
	q.Limit -= len(ids)
	rest, err := merged(ctx, conn, q)
	return append(ids, rest...), err
}

// merged finds the newest ids of several projects, at first a few of each. More are read
// only for the projects whose few are all on the page: at most a page of each, and there
// are not many such projects.
func merged(ctx context.Context, conn *pgx.Conn, q store.Query) ([]string, error) {
	few := min(q.Limit, q.Limit/len(q.Projects)+8)
	rows, err := readHeads(ctx, conn, q, few)
	if err != nil {
		return nil, err
	}
	page := newestRows(rows, q.Limit)
	var more []string
	for i, p := range q.Projects {
		mine := rows[i]
		if len(mine) == few && few < q.Limit && (len(page) < q.Limit || mine[few-1] >= page[len(page)-1]) {
			more = append(more, p)
			rows[i] = nil
		}
	}
	if len(more) == 0 {
		return page, nil
	}
	q.Projects = more
	whole, err := readHeads(ctx, conn, q, q.Limit)
	return newestRows(append(rows, whole...), q.Limit), err
}

// newestRows returns the newest ids of all rows.
func newestRows(rows [][]string, limit int) []string {
	all := slices.Concat(rows...)
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(b, a) })
	return all[:min(limit, len(all))]
}

// readHeads finds the newest few ids of each project, in the order of the projects.
func readHeads(ctx context.Context, conn *pgx.Conn, q store.Query, few int) ([][]string, error) {
	heads := headsQuery(q, few)
	rows, err := conn.Query(ctx, heads.text, heads.args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make([][]string, len(q.Projects))
	for rows.Next() {
		var i int
		var id string
		if err := rows.Scan(&i, &id); err != nil {
			return nil, err
		}
		found[i-1] = append(found[i-1], id)
	}
	return found, rows.Err()
}

func readIDs(ctx context.Context, conn *pgx.Conn, q *query) ([]string, error) {
	rows, err := conn.Query(ctx, q.text, q.args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// query is a statement with its arguments.
type query struct {
	text string
	args []any
}

func (b *query) add(text string) *query {
	b.text += text
	return b
}

// arg appends an argument.
func (b *query) arg(v any) *query {
	b.args = append(b.args, v)
	return b.add("$" + strconv.Itoa(len(b.args)))
}

// source adds the table and the rows that a query wants. The kind is part of the text,
// and so are the conditions of the indexes by state: a partial index cannot be used with
// an argument.
func (b *query) source(q store.Query, ofProject bool) *query {
	b.add(" FROM objects WHERE kind = '" + string(q.Kind) + "'")
	if q.State == "" {
		return b
	}
	if !ofProject {
		b.add(" AND archived")
	}
	return b.add(" AND state <> '' AND state = ").arg(string(q.State))
}

func (b *query) before(id string) *query {
	if id != "" {
		b.add(" AND id < ").arg(id)
	}
	return b
}

func (b *query) limit(n int) *query {
	if n > 0 {
		b.add(" LIMIT ").arg(n)
	}
	return b
}

// listQuery reads the objects of one project or of any; of several, if no page is
// requested or there is no index for that.
func listQuery(q store.Query) *query {
	b := new(query).add("SELECT "+objectColumns).source(q, q.Project != "" || q.Projects != nil)
	if q.Project != "" {
		b.add(" AND project = ").arg(q.Project)
	}
	if q.Projects != nil {
		b.add(" AND project = ANY (").arg(q.Projects).add(")")
	}
	return b.before(q.Before).add(" ORDER BY id DESC").limit(q.Limit)
}

// headsQuery finds the newest ids of each of several projects.
func headsQuery(q store.Query, few int) *query {
	b := new(query).add("SELECT n.i, o.id FROM unnest(").arg(q.Projects)
	b.add("::text[]) WITH ORDINALITY AS n (project, i) CROSS JOIN LATERAL (SELECT id").source(q, true)
	return b.add(" AND project = n.project").before(q.Before).add(" ORDER BY id DESC LIMIT ").arg(few).add(") AS o")
}

// spanQuery finds the ids of several projects within the newest span.
func spanQuery(q store.Query) *query {
	b := new(query).add("SELECT id FROM (SELECT id, project").source(q, false).before(q.Before).add(" ORDER BY id DESC LIMIT ").arg(span)
	return b.add(") AS newest WHERE project = ANY (").arg(q.Projects).add(") ORDER BY id DESC LIMIT ").arg(q.Limit)
}

// spanEnd finds the last id of the newest span; none if it ends with the table.
func spanEnd(q store.Query) *query {
	return new(query).add("SELECT id").source(q, false).before(q.Before).add(" ORDER BY id DESC LIMIT 1 OFFSET ").arg(span - 1)
}
