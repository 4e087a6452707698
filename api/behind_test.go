package api_test

import (
	"context"
	"sync/atomic"
	"testing"

	"mariposa"
	"mariposa/store"
)

// aheadStore is a store that other replicas write to, faster than this one can follow.
type aheadStore struct {
	store.Store
	ahead atomic.Int64
}

func (s *aheadStore) Shared() bool { return true }

func (s *aheadStore) Revision(ctx context.Context) (int64, error) {
	n, err := s.Store.Revision(ctx)
	return n + s.ahead.Load(), err
}

// A server that is behind refuses nothing because of what it does not know: another
// replica may have acknowledged the very thing that the request needs.
func TestAServerThatIsBehindDoesNotRefuseAChange(t *testing.T) {
	t.Parallel()
	s := &aheadStore{}
	h := newTestServer(t, withStore(func(of store.Store) store.Store { s.Store = of; return s }))
	h.create("shop", hello)
	refusals := []struct {
		method, path string
		body         any
		status       int
		code         mariposa.Code
	}{
		{"PUT", "/v1/projects/nosuch/state", `{"action":"start"}`, 404, mariposa.ResourceNotFound},
		{"POST", "/v1/projects?name=shop", hello, 409, mariposa.Conflict},
		{"DELETE", "/v1/projects/shop/metadata/nosuch", nil, 404, mariposa.ResourceNotFound},
	}
	for _, q := range refusals {
		h.call(q.method, q.path, q.body).wantError(q.status, q.code)
	}
	s.ahead.Store(1000)
	for _, q := range refusals {
		h.call(q.method, q.path, q.body).wantError(503, mariposa.Unavailable, "does not know the newest state yet", "nothing was changed")
	}
	h.call("GET", "/v1/projects/nosuch", nil).wantError(404, mariposa.ResourceNotFound)
}
