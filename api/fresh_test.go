package api_test

import (
	"context"
	"sync"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// heldFeed is a store whose changes arrive late.
type heldFeed struct {
	store.Store
	gate sync.RWMutex // held for writing while nothing arrives
}

func (s *heldFeed) Changes(ctx context.Context, since int64, limit int) ([]store.Change, error) {
	s.gate.RLock()
	defer s.gate.RUnlock()
	return s.Store.Changes(ctx, since, limit)
}

// A server that has not heard of a change yet never shows it in one answer, and the state
// before it in the next.
func TestALaterReadIsNeverOlder(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", hello)
	count := func() *contract.Changed {
		return want[*contract.Changed](h.call("POST", "/v1/projects/shop/metadata/n/incr", nil), 200)
	}
	count()
	late := &heldFeed{Store: h.store}
	other := *h
	other.store = late
	other.open()
	late.gate.Lock()
	count()
	newest := count() // what the other server shows is deleted
	key, list := "/v1/projects/shop/metadata/n", "/v1/projects/shop/metadata"
	number := func() int { return want[contract.Project](other.call("GET", "/v1/projects/shop", nil), 200).Number }
	for _, path := range []string{key, list} {
		if r := other.call("GET", path, nil); r.status == 200 && number() < newest.Number {
			t.Errorf("%s is newer than the project: %s", path, r.body)
		} else if r.status != 200 {
			r.wantError(503, mariposa.Unavailable, "does not know the newest state yet")
		}
	}
	late.gate.Unlock()
	h.until("the other server follows", func() bool { return number() == newest.Number })
	if k := want[contract.MetadataKey](other.call("GET", key, nil), 200); k.Value != "3" {
		t.Errorf("%+v", k)
	}
}
