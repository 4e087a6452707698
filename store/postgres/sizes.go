package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mariposa"
	"mariposa/store"
)

// sumSizes adds up lengths, which the server knows without reading the bytes. The kinds
// are part of the text, as in the index by project.
const sumSizes = `SELECT kind, sum(octet_length(spec) + coalesce(octet_length(status), 0))::bigint FROM objects
	WHERE kind IN ('version', 'metadata', 'part') AND kind = ANY($1) AND project = $2 GROUP BY kind`

// Sizes adds up the sizes of a project's objects.
func (s *Store) Sizes(ctx context.Context, project string) (map[mariposa.Kind]int64, error) {
	if !isName(project) {
		return map[mariposa.Kind]int64{}, s.usable(ctx)
	}
	kinds := make([]string, len(store.SizedKinds))
	for i, k := range store.SizedKinds {
		kinds[i] = string(k)
	}
	var sizes map[mariposa.Kind]int64
	err := s.read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		sizes = map[mariposa.Kind]int64{}
		rows, err := conn.Query(ctx, sumSizes, kinds, project)
		if err != nil {
			return err
		}
		var kind string
		var n int64
		_, err = pgx.ForEachRow(rows, []any{&kind, &n}, func() error {
			sizes[mariposa.Kind(kind)] = n
			return nil
		})
		return err
	})
	return sizes, err
}
