package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"mariposa"
	"mariposa/wire"
)

// savingDriver is a driver whose snapshots are saved when a test says so.
type savingDriver struct {
	*manualDriver
	began   chan struct{}
	results chan error
}

func (h *savingDriver) Snapshot(context.Context, string, string) error {
	h.began <- struct{}{}
	return <-h.results
}
func (h *savingDriver) Restore(context.Context, string, string) error        { return nil }
func (h *savingDriver) DeleteSnapshot(context.Context, string, string) error { return nil }
func (h *savingDriver) Snapshots(context.Context, string) ([]mariposa.Snapshot, error) {
	return []mariposa.Snapshot{{Name: "old", State: mariposa.SnapshotReady}}, nil
}

// A change that failed is shown to those who have not heard of it, and not for ever.
func TestAFailedSnapshotIsShownForAWhile(t *testing.T) {
	t.Parallel()
	h := &savingDriver{&manualDriver{}, make(chan struct{}, 1), make(chan error, 1)}
	r := newRig(t, h)
	r.connect(wanted("a", 1, processWork()))
	p, _ := r.plug()
	save := func() *wire.Stream {
		t.Helper()
		s := r.ask(p, wire.Open{Instance: "a", Snapshot: &wire.Saving{To: mariposa.SnapshotCreating, Name: "new"}})
		for limit := time.Now().Add(time.Minute); ; {
			r.run()
			select {
			case <-h.began:
				return s
			case <-time.After(time.Millisecond):
			}
			if time.Now().After(limit) {
				t.Fatal("the snapshot does not begin")
			}
		}
	}
	states := func() (all map[string]mariposa.SnapshotState) {
		t.Helper()
		end, pieces := r.ends(r.ask(p, wire.Open{Instance: "a", Snapshot: &wire.Saving{}}))
		if end.Error != "" || len(pieces) != 1 {
			t.Fatalf("the list: %+v, %v", end, pieces)
		}
		var list []mariposa.Snapshot
		if err := json.Unmarshal(pieces[0].Bytes, &list); err != nil {
			t.Fatal(err)
		}
		all = map[string]mariposa.SnapshotState{}
		for _, s := range list {
			all[s.Name] = s.State
		}
		return all
	}

	s := save()
	if is := states(); is["new"] != mariposa.SnapshotCreating || is["old"] != mariposa.SnapshotReady {
		t.Errorf("in progress: %v", is)
	}
	h.results <- errors.New("no room")
	if end, _ := r.ends(s); end.Error != "no room" {
		t.Errorf("the request got %+v", end)
	}
	if is := states(); len(is) != 1 {
		t.Errorf("after the request has heard of it: %v", is)
	}

	for limit := time.Now().Add(time.Minute); states()["new"] != mariposa.SnapshotFailed; {
		if time.Now().After(limit) {
			t.Fatalf("it is shown as %v", states())
		}
		_ = save().Close() // it gives up, which the node may notice only after the end
		for range 10 {
			states()
		}
		h.results <- errors.New("no room")
		for states()["new"] == mariposa.SnapshotCreating {
			time.Sleep(time.Millisecond)
		}
	}
	r.pass(11 * time.Minute)
	if is := states(); len(is) != 1 {
		t.Errorf("much later: %v", is)
	}
}
