package sqlite

import (
	"context"

	"mariposa"
	"mariposa/store"
)

// Sizes adds up lengths. SQLite knows the length of a blob without reading it.
func (s *Store) Sizes(ctx context.Context, project string) (map[mariposa.Kind]int64, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	sizes := map[mariposa.Kind]int64{}
	for _, k := range store.SizedKinds {
		b := new(query).add("SELECT coalesce(sum(length(spec) + coalesce(length(status), 0)), 0)")
		b.source(store.Query{Kind: k}, project).add(" AND project = ?", project)
		var n int64
		if err := s.readers.QueryRowContext(ctx, b.text, b.args...).Scan(&n); err != nil {
			return nil, s.readError(err)
		}
		if n > 0 {
			sizes[k] = n
		}
	}
	return sizes, nil
}
