package postgres

import (
	"testing"

	"mariposa/store"
	"mariposa/store/postgres/pgtest"
)

// Commits of older releases have no sizes, so each project gets an equal share.
func TestAnOlderLogGetsSizes(t *testing.T) {
	t.Parallel()
	target := pgtest.Shared(t).Database(t, "")
	withSchema(t, target, 5)
	conn := dial(t, target)
	do(t, conn, `INSERT INTO changes VALUES (1, 10, 'epoch', convert_to(repeat('x', 100), 'UTF8')), (11, 11, 'epoch', convert_to(repeat('x', 30), 'UTF8'))`)
	do(t, conn, "INSERT INTO change_project VALUES (1, 'p'), (1, 'q'), (11, 'p')")
	do(t, conn, "UPDATE counter SET revision = 11")
	s := open(t, target, Options{})
	sizes, err := s.LogSizes(t.Context())
	if err != nil || len(sizes) != 2 || sizes["p"] != (store.LogSize{Changes: 6, Bytes: 80}) || sizes["q"] != (store.LogSize{Changes: 5, Bytes: 50}) {
		t.Fatalf("sizes %+v, %v", sizes, err)
	}
}
