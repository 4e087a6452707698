package postgres

import (
	"testing"

	"mariposa/store"
	"mariposa/store/storetest"
)

func BenchmarkCommit(b *testing.B) {
	storetest.Bench(b, func(b *testing.B) store.Store { return open(b, database(b), Options{}) })
}
