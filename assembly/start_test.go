package assembly

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"mariposa/clock"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/store/memory"
)

// absentStore is a shared database that is away when its calls with certain numbers arrive.
type absentStore struct {
	store.Store
	shared bool
	calls  atomic.Int64
	from   int64 // the first call that fails, by number
	to     int64 // the first that succeeds again
}

func (s *absentStore) Shared() bool { return s.shared }

func (s *absentStore) away() error {
	if n := s.calls.Add(1); n >= s.from && n < s.to {
		return fmt.Errorf("%w: the connection was refused", store.ErrUnavailable)
	}
	return nil
}

func (s *absentStore) Identity(ctx context.Context) (store.Identity, error) {
	if err := s.away(); err != nil {
		return store.Identity{}, err
	}
	return s.Store.Identity(ctx)
}

func (s *absentStore) Snapshot(ctx context.Context, visit func(store.Record) error) (int64, error) {
	if err := s.away(); err != nil {
		return 0, err
	}
	return s.Store.Snapshot(ctx, visit)
}

func (s *absentStore) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	if err := s.away(); err != nil {
		all := make([]store.Result, len(units))
		for i := range all {
			all[i].Err = err
		}
		return all
	}
	return s.Store.Commit(ctx, units...)
}

// The database can go away at any moment of a start.
func TestAStartWaitsForADatabaseThatGoesAwayMeanwhile(t *testing.T) {
	t.Parallel()
	for from := int64(1); from <= 5; from++ {
		st := &absentStore{Store: memory.New(clock.Real{}), shared: true, from: from, to: from + 3}
		c, err := Start(t.Context(), Config{Store: st, Ring: seal.NewRing(), Listen: "127.0.0.1:0"})
		if err != nil {
			t.Fatalf("away at call %d: %v", from, err)
		}
		answer, err := http.Get(c.URL + "/readyz")
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Errorf("away at call %d: %v %v", from, answer, err)
		}
		_ = answer.Body.Close()
		c.Stop()
		if st.calls.Load() < st.to {
			t.Errorf("there were %d calls", st.calls.Load())
		}
	}
	st := &absentStore{Store: memory.New(clock.Real{}), from: 1, to: 3} // nobody else uses this one
	if _, err := Start(t.Context(), Config{Store: st, Ring: seal.NewRing(), Listen: "127.0.0.1:0"}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("its own store is away: %v", err)
	}
}
