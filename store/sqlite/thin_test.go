package sqlite

import (
	"path/filepath"
	"testing"

	"mariposa/store"
)

// Commits of older releases have no sizes, so each project gets an equal share.
func TestAnOlderLogGetsSizes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	db := withSchema(t, path, 5)
	for _, statement := range []string{
		"INSERT INTO changes VALUES (1, 10, 0, zeroblob(100)), (11, 11, 0, zeroblob(30))",
		"INSERT INTO change_project VALUES (1, 'p'), (1, 'q'), (11, 'p')",
		"UPDATE meta SET value = 11 WHERE key = 'revision'",
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s := open(t, path, Options{})
	sizes, err := s.LogSizes(t.Context())
	if err != nil || len(sizes) != 2 || sizes["p"] != (store.LogSize{Changes: 6, Bytes: 80}) || sizes["q"] != (store.LogSize{Changes: 5, Bytes: 50}) {
		t.Fatalf("sizes %+v, %v", sizes, err)
	}
}
