package picture_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"mariposa"
	"mariposa/picture"
	"mariposa/seal"
	"mariposa/store"
)

// countedStore counts the objects that are read from it.
type countedStore struct {
	store.Store
	reads atomic.Int64
}

func (c *countedStore) Get(ctx context.Context, kind mariposa.Kind, id string) (store.Record, error) {
	c.reads.Add(1)
	return c.Store.Get(ctx, kind, id)
}

// The cache is limited in size, however many large versions are submitted. It keeps those
// used last.
func TestTheCacheOfVersionsIsBoundedBySize(t *testing.T) {
	t.Parallel()
	st := &countedStore{Store: newStore(t)}
	const size, versions = 10_000, 5
	for n := 1; n <= versions; n++ {
		text := fmt.Sprintf("services: {web: {compute_type: dummy, scale: %d}}\n# ", n)
		text += strings.Repeat("x", size-len(text))
		commit(t, st, store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID("p", n), Project: "p", Spec: &mariposa.VersionSpec{Project: "p", Number: n, Manifest: []byte(text)}})
	}
	cache := picture.NewVersionCache(st, seal.NewVault(seal.NewRing(), st))
	cache.Limit(3 * size)
	read := func(number int) (fromStore bool) {
		t.Helper()
		before := st.reads.Load()
		v, err := cache.Version(t.Context(), "p", number)
		if err != nil || *v.Services["web"].Scale != number {
			t.Fatalf("version %d: %+v, %v", number, v, err)
		}
		return st.reads.Load() > before
	}
	for n := 1; n <= versions; n++ {
		read(n)
		read(1) // keep it in use
	}
	for n, wantRead := range map[int]bool{1: false, 4: false, 5: false} {
		if read(n) != wantRead {
			t.Errorf("version %d was read again: it was used a moment ago", n)
		}
	}
	if !read(2) {
		t.Error("version 2 is still kept: the cache has no limit")
	}
	cache.Invalidate([]store.Change{{Record: store.Record{Kind: mariposa.KindVersion, ID: mariposa.VersionID("p", 2)}, Deleted: true}})
	if !read(2) {
		t.Error("version 2 was kept although it has changed")
	}
}
