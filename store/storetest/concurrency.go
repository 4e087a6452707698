package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"mariposa"
	"mariposa/store"
)

const (
	writers = 8
	rounds  = 25
)

var concurrencyTests = map[string]func(*testing.T, Harness){
	"writers at once get ranges of their own and readers one order": func(t *testing.T, h Harness) {
		var readers sync.WaitGroup
		feeds := make([][]store.Change, 3)
		for i := range feeds {
			readers.Go(func() { feeds[i] = follow(t, h.Store) })
		}
		ranges := writeAll(t, h.Store)
		commit(t, h.Store, unit(putNode(theEnd, "")))
		readers.Wait()

		all := feed(t, h.Store, 0)
		gapless(t, all, 1)
		owner := make(map[int64]string)
		for _, r := range ranges {
			for revision := r.First; revision <= r.Last; revision++ {
				if owner[revision] != "" {
					t.Fatalf("revision %d was given to %s and %s", revision, owner[revision], r.unit)
				}
				owner[revision] = r.unit
				same(t, "unit of the change", all[revision-1].Event.Actor, r.unit)
			}
		}
		for _, got := range feeds {
			same(t, "feed of a reader", revisions(got), revisions(all))
		}
		same(t, "replay", replay(nil, all), live(t, h.Store))
	},

	"a snapshot and the feed after it have no gap while others write": func(t *testing.T, h Harness) {
		done := make(chan struct{})
		var readers sync.WaitGroup
		for range 3 {
			readers.Go(func() {
				type point struct {
					found    map[string]store.Record
					revision int64
				}
				var points []point
				for stop := false; !stop; {
					select {
					case <-done:
						stop = true
					default:
					}
					found, revision := snapshot(t, h.Store)
					points = append(points, point{found, revision})
					if len(points) == 64 { // keep every other one: comparing them takes longer than reading
						for i := range 32 {
							points[i] = points[2*i+1]
						}
						points = points[:32]
					}
				}
				want := live(t, h.Store)
				for _, p := range points {
					for k, r := range p.found {
						if r.Revision > p.revision {
							t.Errorf("%s at %d in a snapshot of %d", k, r.Revision, p.revision)
						}
					}
					changes := feed(t, h.Store, p.revision)
					gapless(t, changes, p.revision+1)
					if render(replay(p.found, changes)) != render(want) {
						t.Errorf("the snapshot of %d and %d changes after it differ from the truth", p.revision, len(changes))
					}
				}
			})
		}
		writeAll(t, h.Store)
		close(done)
		readers.Wait()
	},

	"of many with the same requirement one wins": func(t *testing.T, h Harness) {
		commit(t, h.Store, unit(putNode("a", "0")))
		for range 10 {
			at := get(t, h.Store, mariposa.KindNode, "a").SpecRevision
			var won atomic.Int64
			var wg sync.WaitGroup
			for i := range writers {
				wg.Go(func() {
					r := h.Store.Commit(t.Context(), store.Unit{
						Require: []store.Require{{Kind: mariposa.KindNode, ID: "a", SpecRevision: at, StatusRevision: -1}},
						Writes:  []store.Write{putNode("a", numbered("by", i))},
						Urgent:  i%2 == 0,
					})[0]
					if r.Err == nil {
						won.Add(1)
					} else if !errors.Is(r.Err, store.ErrConflict) {
						t.Error(r.Err)
					}
				})
			}
			wg.Wait()
			same(t, "winners", won.Load(), 1)
		}
	},

	"units given up while others write are done or not, never half": givenUp,
}

type span struct {
	store.Result
	unit string
}

// writeAll runs writers that create, change and remove objects, some of them shared.
func writeAll(t *testing.T, s store.Store) []span {
	var mu sync.Mutex
	var spans []span
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range rounds {
				name := fmt.Sprintf("%d.%d", w, i)
				own, shared := numbered(fmt.Sprintf("own-%d", w), i), numbered("shared", i%5)
				u := unit(putNode(own, name), putNode(shared, name), statNode(own, name))
				if i%3 == 0 {
					u.Writes = append(u.Writes, removeNode(own))
				}
				if i%7 == 0 {
					u.Writes = append(u.Writes, store.Write{Kind: mariposa.KindNode, ID: shared, Archive: true})
				}
				for j := range u.Writes {
					u.Writes[j].Event.Actor = name
				}
				u.Urgent = w == 0
				r := s.Commit(context.Background(), u)[0]
				if r.Err != nil || r.First == 0 {
					t.Errorf("unit %s: %+v", name, r)
				}
				mu.Lock()
				spans = append(spans, span{r, name})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return spans
}

// theEnd is written last, so that readers of the feed know when to stop.
const theEnd = "the end"

// follow reads the feed in small steps until the end.
func follow(t *testing.T, s store.Store) []store.Change {
	var all []store.Change
	var after int64
	for {
		if err := s.Wait(context.Background(), after); err != nil {
			t.Error(err)
			return all
		}
		changes, err := s.Changes(context.Background(), after, 17)
		if err != nil || len(changes) == 0 {
			t.Errorf("after %d: %d changes, %v", after, len(changes), err)
			return all
		}
		all = append(all, changes...)
		after = changes[len(changes)-1].Revision
		if changes[len(changes)-1].Record.ID == theEnd {
			return all
		}
	}
}

// replay applies changes to records, using only the feed.
func replay(records map[string]store.Record, changes []store.Change) map[string]store.Record {
	now := make(map[string]store.Record)
	for k, r := range records {
		now[k] = r
	}
	for _, c := range changes {
		key := string(c.Record.Kind) + "/" + c.Record.ID
		if c.Deleted || c.Record.Archived {
			delete(now, key)
			continue
		}
		now[key] = c.Record
	}
	return now
}

func live(t *testing.T, s store.Store) map[string]store.Record {
	found, _ := snapshot(t, s)
	return found
}

// givenUp cancels contexts in the middle of commits. Whatever result a caller gets, each
// unit is in the feed completely or not at all, and a unit reported as done is there.
func givenUp(t *testing.T, h Harness) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := make(map[string]bool)
	for w := range writers {
		wg.Go(func() {
			for i := range rounds {
				ctx, cancel := context.WithCancel(context.Background())
				name := fmt.Sprintf("%d.%d", w, i)
				go cancel()
				r := h.Store.Commit(ctx, unit(putNode("a-"+name, name), putNode("b-"+name, name)))[0]
				if r.Err != nil && !errors.Is(r.Err, context.Canceled) {
					t.Error(r.Err)
				}
				mu.Lock()
				done[name] = r.Err == nil
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	found := make(map[string]int)
	for _, c := range feed(t, h.Store, 0) {
		found[c.Event.Reason.Detail]++
	}
	for name, told := range done {
		if n := found[name]; n != 0 && n != 2 || told != (n == 2) {
			t.Errorf("unit %s: told done %v, %d of 2 writes there", name, told, n)
		}
	}
}
