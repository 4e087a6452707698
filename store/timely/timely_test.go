package timely_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/store"
	"mariposa/store/memory"
	"mariposa/store/timely"
)

// hanging is a store that does not answer for a while. A commit that was sent is waited
// for, as a database's is; one that was not is dropped with its context.
type hanging struct {
	store.Store
	answers chan struct{} // closed: it answers
	sent    bool          // commits were sent
}

func (h *hanging) Get(ctx context.Context, kind mariposa.Kind, id string) (store.Record, error) {
	select {
	case <-h.answers:
	case <-ctx.Done():
		return store.Record{}, ctx.Err()
	}
	return h.Store.Get(ctx, kind, id)
}

func (h *hanging) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	ended := ctx.Done()
	if h.sent {
		ended = nil
	}
	select {
	case <-h.answers:
	case <-ended:
		return []store.Result{{Err: ctx.Err()}}
	}
	return h.Store.Commit(context.WithoutCancel(ctx), units...)
}

func (h *hanging) Revision(ctx context.Context) (int64, error) {
	select {
	case <-h.answers:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return h.Store.Revision(ctx)
}

func (h *hanging) Ping(ctx context.Context) error {
	_, err := h.Revision(ctx)
	return err
}

const patience = 2 * time.Second

func unit() store.Unit {
	return store.Unit{Writes: []store.Write{{Kind: mariposa.KindNode, ID: "n", Spec: &mariposa.NodeSpec{Name: "n"}}}}
}

// answer makes the store answer, and waits until everybody has noticed.
func (h *hanging) answer() {
	close(h.answers)
	time.Sleep(time.Second)
	synctest.Wait()
}

// in runs a test in virtual time on a store that hangs.
func in(t *testing.T, test func(t *testing.T, h *hanging, actors, requests *timely.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{Store: memory.New(clock.Real{}), answers: make(chan struct{})}
		actors, requests := timely.New(h, patience)
		test(t, h, actors, requests)
	})
}

func TestARequestDoesNotWaitForASilentStore(t *testing.T) {
	in(t, func(t *testing.T, h *hanging, _, requests *timely.Store) {
		defer h.answer()
		began := time.Now()
		if _, err := requests.Get(t.Context(), mariposa.KindNode, "n"); !errors.Is(err, store.ErrUnavailable) || time.Since(began) > 3*time.Second {
			t.Errorf("a read answers %v after %s", err, time.Since(began))
		}
		began = time.Now()
		if err := requests.Commit(t.Context(), unit())[0].Err; !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUncertain) || time.Since(began) > 3*time.Second {
			t.Errorf("a commit that was not sent answers %v after %s", err, time.Since(began))
		}
	})
	in(t, func(t *testing.T, h *hanging, _, requests *timely.Store) {
		h.sent = true
		began := time.Now()
		if err := requests.Commit(t.Context(), unit())[0].Err; !errors.Is(err, store.ErrUncertain) || time.Since(began) > 3*time.Second {
			t.Errorf("a commit that was sent answers %v after %s", err, time.Since(began))
		}
		h.answer()
		if _, err := requests.Get(t.Context(), mariposa.KindNode, "n"); err != nil {
			t.Errorf("the commit of which nothing was known: %v", err)
		}
		if err := requests.Commit(t.Context(), unit())[0].Err; err != nil {
			t.Errorf("once the store answers: %v", err)
		}
	})
}

// Only the first request waits. The others learn from it that the store is silent, until it
// answers again.
func TestRequestsFailAtOnceWhileTheStoreIsSilent(t *testing.T) {
	in(t, func(t *testing.T, h *hanging, _, requests *timely.Store) {
		began := time.Now()
		for range 50 {
			if err := requests.Commit(t.Context(), unit())[0].Err; !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUncertain) {
				t.Fatalf("a commit answers %v", err)
			}
			if _, err := requests.Get(t.Context(), mariposa.KindNode, "n"); !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("a read answers %v", err)
			}
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("they took %s", took)
		}
		time.Sleep(time.Hour) // the store is still asked now and then
		h.answer()
		if err := requests.Commit(t.Context(), unit())[0].Err; err != nil {
			t.Errorf("once the store answers: %v", err)
		}
		if _, err := requests.Get(t.Context(), mariposa.KindNode, "n"); err != nil {
			t.Errorf("once the store answers: %v", err)
		}
	})
}

// The answer to an actor shows that the store is there again.
func TestAnAnswerToAnActorEndsTheSilence(t *testing.T) {
	in(t, func(t *testing.T, h *hanging, actors, requests *timely.Store) {
		defer h.answer()
		if err := requests.Commit(t.Context(), unit())[0].Err; !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("a commit answers %v", err)
		}
		if _, err := actors.Hold(t.Context(), "me", time.Hour, "a"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := requests.Commit(t.Context(), unit())[0].Err; !errors.Is(err, store.ErrUnavailable) || time.Since(began) < time.Second {
			t.Errorf("a commit answers %v after %s: it was not tried", err, time.Since(began))
		}
	})
}

// Others get answers, so the store is slow, not silent.
func TestARequestWaitsForASlowStore(t *testing.T) {
	in(t, func(t *testing.T, h *hanging, actors, requests *timely.Store) {
		h.sent = true
		go func() {
			for range 20 {
				time.Sleep(time.Second)
				if _, err := actors.Hold(context.Background(), "me", time.Hour, "a"); err != nil {
					t.Error(err)
				}
			}
			close(h.answers)
		}()
		if err := requests.Commit(t.Context(), unit())[0].Err; err != nil {
			t.Errorf("after %v", err)
		}
	})
}

// An actor must know the result.
func TestAnActorWaits(t *testing.T) {
	in(t, func(t *testing.T, h *hanging, actors, _ *timely.Store) {
		h.sent = true
		go func() {
			time.Sleep(time.Minute)
			close(h.answers)
		}()
		if err := actors.Commit(t.Context(), unit())[0].Err; err != nil {
			t.Error(err)
		}
	})
}

// A caller that ends its request gets its own error.
func TestACallerMayGiveUp(t *testing.T) {
	in(t, func(t *testing.T, _ *hanging, _, requests *timely.Store) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := requests.Get(ctx, mariposa.KindNode, "n"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a read answers %v", err)
		}
		if err := requests.Commit(ctx, unit())[0].Err; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a commit answers %v", err)
		}
	})
}
