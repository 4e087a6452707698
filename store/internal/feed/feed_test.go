package feed

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"mariposa/store"
)

// After any sequence of commits and trims, the feed returns from memory exactly what a
// plain list would, or reports that it cannot.
func TestRecentIsAPartOfTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := New(rapid.IntRange(1, 20).Draw(t, "count"), rapid.IntRange(1, 200).Draw(t, "bytes"))
		start := rapid.Int64Range(0, 5).Draw(t, "start")
		f.Reset(0, start)
		revision, trimmed := start, int64(0)
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 6), 0, 12).Draw(t, "commits") {
			var changes []store.Change
			for range n {
				revision++
				changes = append(changes, store.Change{Revision: revision})
			}
			f.Publish(changes, n*10)
		}
		if rapid.Bool().Draw(t, "trim") {
			trimmed = rapid.Int64Range(0, revision).Draw(t, "point")
			f.Trimmed(trimmed)
		}
		after, limit := rapid.Int64Range(0, revision+2).Draw(t, "after"), rapid.IntRange(0, 8).Draw(t, "limit")
		changes, ok, err := f.Recent(after, limit)
		switch {
		case after < trimmed:
			if !errors.Is(err, store.ErrTooOld) {
				t.Fatalf("after %d, trimmed at %d: %v", after, trimmed, err)
			}
			return
		case err != nil:
			t.Fatal(err)
		case !ok:
			if after >= revision || after == revision-1 && revision > start {
				t.Fatalf("after %d of %d must be at hand", after, revision)
			}
			return
		}
		want := max(0, revision-after)
		if limit > 0 {
			want = min(want, int64(limit))
		}
		if int64(len(changes)) != want {
			t.Fatalf("after %d of %d: %d changes, want %d", after, revision, len(changes), want)
		}
		for i, c := range changes {
			if c.Revision != after+1+int64(i) {
				t.Fatalf("change %d has revision %d", i, c.Revision)
			}
		}
	})
}

// Two readers of the same log offer the commits that they find, each at its own speed and
// from any position. The feed contains every commit once and in order, or reports that it
// does not.
func TestOffersFromTwoReadersMakeOneLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var log [][]store.Change
		var newest int64
		for _, n := range rapid.SliceOfN(rapid.IntRange(1, 5), 1, 12).Draw(t, "commits") {
			var changes []store.Change
			for range n {
				newest++
				changes = append(changes, store.Change{Revision: newest})
			}
			log = append(log, changes)
		}
		f := New(rapid.IntRange(1, 20).Draw(t, "count"), 1<<20)
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			_, before := f.Bounds()
			changes := log[rapid.IntRange(0, len(log)-1).Draw(t, "commit")]
			first, last := changes[0].Revision, changes[len(changes)-1].Revision
			if rapid.IntRange(0, 9).Draw(t, "skip") == 0 {
				f.Advance(last)
				if _, after := f.Bounds(); after != max(before, last) {
					t.Fatalf("advanced from %d to %d: at %d", before, last, after)
				}
				continue
			}
			has := f.Offer(changes, 1)
			if _, after := f.Bounds(); has != (last <= after) || after != before && (first != before+1 || after != last) {
				t.Fatalf("offered %d to %d at %d: %v, then at %d", first, last, before, has, after)
			}
		}
		_, at := f.Bounds()
		for after := range at {
			changes, ok, err := f.Recent(after, 0)
			if err != nil || ok && int64(len(changes)) != at-after {
				t.Fatalf("after %d of %d: %d changes, %v", after, at, len(changes), err)
			}
			for i := range changes {
				if changes[i].Revision != after+1+int64(i) {
					t.Fatalf("change %d after %d has revision %d", i, after, changes[i].Revision)
				}
			}
		}
	})
}
