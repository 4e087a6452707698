package sqlite

import (
	"path/filepath"
	"testing"

	"mariposa/store"
	"mariposa/store/storetest"
)

func BenchmarkCommit(b *testing.B) {
	storetest.Bench(b, func(b *testing.B) store.Store {
		return open(b, filepath.Join(b.TempDir(), "store"), Options{})
	})
}
