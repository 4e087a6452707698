package postgres

import (
	"context"
	"sync/atomic"
	"testing"

	"mariposa/store"
	"mariposa/store/storetest"
)

func BenchmarkCommit(b *testing.B) {
	storetest.Bench(b, func(b *testing.B) store.Store { return open(b, ownDatabase(b), Options{}) })
}

// Three replicas write concurrently, and each reads what the others write.
func BenchmarkCommitByReplicas(b *testing.B) {
	storetest.Bench(b, func(b *testing.B) store.Store {
		handles := replicas(b, ownDatabase(b), 3)
		return &spread{Store: handles[0], all: handles}
	})
}

// spread distributes calls over the replicas in turn.
type spread struct {
	*Store
	all  []*Store
	next atomic.Uint64
}

func (s *spread) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	return s.all[s.next.Add(1)%uint64(len(s.all))].Commit(ctx, units...)
}
