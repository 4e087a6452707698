package roster_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"mariposa/driver"
	"mariposa/driver/gate"
	"mariposa/driver/roster"
	"mariposa/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

type entry struct {
	roster.Slot
	runs int // of operations
}

var errClosed = errors.New("closed")

func open() (*roster.Roster[*entry], *gate.Gate) {
	g := gate.New(errClosed)
	return roster.New(g, func(id string) *entry { return &entry{Slot: roster.NewSlot(id)} }), g
}

// create makes an instance exist.
func create(r *roster.Roster[*entry]) func(context.Context, *entry) error {
	return func(_ context.Context, e *entry) error {
		e.runs++
		r.Lock()
		defer r.Unlock()
		e.Observed = driver.Observed{ID: e.ID, Running: true}
		return nil
	}
}

// Whatever runs at the same time, an instance has one operation, and one entry.
func TestOperationsOnOneInstanceFollowEachOther(t *testing.T) {
	t.Parallel()
	r, _ := open()
	var all sync.WaitGroup
	busy := map[string]bool{}
	var mu sync.Mutex
	set := func(id string, to bool) {
		mu.Lock()
		defer mu.Unlock()
		if busy[id] == to {
			t.Errorf("two operations work on %s", id)
		}
		busy[id] = to
	}
	for n := range 200 {
		id := fmt.Sprint("i", n%5)
		all.Go(func() {
			_, err := r.Operate(t.Context(), id, func(ctx context.Context, e *entry) error {
				set(id, true)
				defer set(id, false)
				if n%3 == 0 { // it removes the instance
					r.Lock()
					defer r.Unlock()
					e.Observed = driver.Observed{}
					return nil
				}
				return create(r)(ctx, e)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func TestWhatDoesNotExistIsNotFound(t *testing.T) {
	t.Parallel()
	r, g := open()
	failed := errors.New("no")
	if o, err := r.Operate(t.Context(), "a", func(context.Context, *entry) error { return failed }); !errors.Is(err, failed) || o.ID != "a" {
		t.Errorf("got %+v, %v", o, err)
	}
	if r.Has("a") {
		t.Error("a failed start leaves an entry")
	}
	if _, err := r.Find(t.Context(), "a"); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if o, err := r.Operate(t.Context(), "b", create(r)); err != nil || !o.Running {
		t.Errorf("got %+v, %v", o, err)
	}
	if list, err := r.List(t.Context()); err != nil || len(list) != 1 || list[0].ID != "b" {
		t.Errorf("got %v, %v", list, err)
	}
	g.Shut()
	if _, err := r.Find(t.Context(), "b"); !errors.Is(err, errClosed) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := r.Operate(t.Context(), "b", create(r)); !errors.Is(err, errClosed) {
		t.Errorf("after the end: %v", err)
	}
}

func TestAnOperationThatWaitsEndsWithItsContext(t *testing.T) {
	t.Parallel()
	r, g := open()
	_, err := r.Operate(t.Context(), "a", func(context.Context, *entry) error {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.Operate(ctx, "a", create(r)); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		waits, entered := make(chan error, 1), make(chan struct{})
		go func() {
			close(entered)
			_, err := r.Operate(context.Background(), "a", create(r))
			waits <- err
		}()
		<-entered
		g.Shut()
		go g.Wait()
		if err := <-waits; !errors.Is(err, errClosed) {
			t.Errorf("got %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	g.Wait()
}

func TestEventsWaitForTheirReader(t *testing.T) {
	t.Parallel()
	r, _ := open()
	e := &entry{Slot: roster.NewSlot("a")}
	e.Hold()
	e.Observed = driver.Observed{ID: "a", Reason: "exited"}
	r.Add(e)
	e.Release()
	r.TellChange(e)
	var got []driver.Event
	r.Watch(func(e driver.Event) { got = append(got, e) })
	r.Tell(driver.Event{Kind: driver.EngineBack})
	if len(got) != 2 || got[0].Instance.Reason != "exited" || got[1].Kind != driver.EngineBack {
		t.Errorf("got %+v", got)
	}
}
