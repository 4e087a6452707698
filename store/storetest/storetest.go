// Package storetest checks that a store fulfills the contract of package store: one suite
// that each implementation must pass, including a comparison with the memory model over
// random units.
//
// It owns what the contract means in practice. It does not know how a store implements
// the contract, and uses it only through store.Store.
package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/store"
)

// Harness is an empty store to test, and a way to let time pass for it. Tests advance its
// clock by hours, so the time that they take themselves does not matter.
type Harness struct {
	Store   store.Store
	Advance func(time.Duration)

	// Reopen closes the store and opens it again; nil for a store that is not durable.
	Reopen func() store.Store
}

// Factory returns a harness; what it opened is closed by t.Cleanup at the latest.
type Factory func(t *testing.T) Harness

// Run runs the suite.
func Run(t *testing.T, open Factory) {
	for _, group := range []map[string]func(*testing.T, Harness){unitTests, readTests, listTests, feedTests, leaseTests, ledgerTests, concurrencyTests, durabilityTests, auditTests} {
		for name, test := range group {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, open(t))
			})
		}
	}
	t.Run("random units come to the same as in the model", func(t *testing.T) {
		t.Parallel()
		compareWithModel(t, open)
	})
}

// Clock is a clock whose time changes only by Advance.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

var _ clock.Clock = (*Clock)(nil)

// NewClock returns a clock that starts at a fixed time.
func NewClock() *Clock {
	return &Clock{now: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)}
}

// Now returns the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance lets time pass.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// After panics: stores set no timers.
func (c *Clock) After(time.Duration, func()) func() { panic("a store sets no timers") }

func nodeSpec(word string) *mariposa.NodeSpec { return &mariposa.NodeSpec{Name: word} }

func nodeStatus(word string) *mariposa.NodeStatus {
	return &mariposa.NodeStatus{Reason: mariposa.TextReason(word)}
}

func putNode(id, word string) store.Write {
	return store.Write{Kind: mariposa.KindNode, ID: id, Spec: nodeSpec(word), Event: mariposa.Event{Kind: "node.written", Node: id, Reason: mariposa.TextReason(word)}}
}

func statNode(id, word string) store.Write {
	return store.Write{Kind: mariposa.KindNode, ID: id, Status: nodeStatus(word), Event: mariposa.Event{Kind: "node.said", Node: id, Reason: mariposa.TextReason(word)}}
}

func removeNode(id string) store.Write {
	return store.Write{Kind: mariposa.KindNode, ID: id, Delete: true, Event: mariposa.Event{Kind: "node.removed", Node: id}}
}

func unit(writes ...store.Write) store.Unit { return store.Unit{Writes: writes} }

// commit expects every unit to succeed.
func commit(t testing.TB, s store.Store, units ...store.Unit) []store.Result {
	t.Helper()
	results := s.Commit(context.Background(), units...)
	if len(results) != len(units) {
		t.Fatalf("%d units gave %d results", len(units), len(results))
	}
	for i, r := range results {
		if r.Err != nil {
			t.Fatalf("unit %d: %v", i, r.Err)
		}
	}
	return results
}

// refuse expects one unit to fail with an error.
func refuse(t testing.TB, s store.Store, want error, u store.Unit) {
	t.Helper()
	if r := s.Commit(context.Background(), u); len(r) != 1 || !errors.Is(r[0].Err, want) || r[0].First != 0 || r[0].Last != 0 {
		t.Fatalf("got %+v, want %v", r, want)
	}
}

func get(t testing.TB, s store.Store, k mariposa.Kind, id string) store.Record {
	t.Helper()
	r, err := s.Get(context.Background(), k, id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func absent(t testing.TB, s store.Store, k mariposa.Kind, id string) {
	t.Helper()
	if r, err := s.Get(context.Background(), k, id); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("%s %s is there: %+v, %v", k, id, r, err)
	}
}

// feed reads everything after a revision.
func feed(t testing.TB, s store.Store, after int64) []store.Change {
	t.Helper()
	changes, err := s.Changes(context.Background(), after, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

func snapshot(t testing.TB, s store.Store) (map[string]store.Record, int64) {
	t.Helper()
	found := make(map[string]store.Record)
	revision, err := s.Snapshot(context.Background(), func(r store.Record) error {
		found[string(r.Kind)+"/"+r.ID] = r
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found, revision
}

// render makes values comparable across stores: by content, not by pointer.
func render(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func same(t testing.TB, what string, got, want any) {
	t.Helper()
	if g, w := render(got), render(want); g != w {
		t.Fatalf("%s:\n got %s\nwant %s", what, g, w)
	}
}

func revisions(changes []store.Change) []int64 {
	var rs []int64
	for _, c := range changes {
		rs = append(rs, c.Revision)
	}
	return rs
}

// gapless expects the revisions of changes to count up by one from first.
func gapless(t testing.TB, changes []store.Change, first int64) {
	t.Helper()
	for i, c := range changes {
		if c.Revision != first+int64(i) {
			t.Fatalf("change %d has revision %d, want %d", i, c.Revision, first+int64(i))
		}
	}
}

func numbered(prefix string, n int) string { return fmt.Sprintf("%s-%04d", prefix, n) }
