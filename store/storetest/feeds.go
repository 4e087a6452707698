package storetest

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
)

var feedTests = map[string]func(*testing.T, Harness){
	"the feed says what happened, in order": func(t *testing.T, h Harness) {
		commit(t, h.Store, unit(putNode("a", "1"), statNode("a", "2")))
		commit(t, h.Store, unit(removeNode("a")))
		changes := feed(t, h.Store, 0)
		gapless(t, changes, 1)
		same(t, "last state", changes[1].Record, store.Record{
			Kind: mariposa.KindNode, ID: "a", Revision: 2, SpecRevision: 1, StatusRevision: 2,
			Halves: store.Halves{Spec: nodeSpec("1"), Status: nodeStatus("2")},
		})
		same(t, "event", changes[1].Event, mariposa.Event{Kind: "node.said", Node: "a", Reason: mariposa.TextReason("2")})
		for _, c := range changes {
			if c.Time.IsZero() || c.Time.Location() != time.UTC {
				t.Fatalf("time %v", c.Time)
			}
		}
	},

	"any revision resumes with the same rest": func(t *testing.T, h Harness) {
		for i := range 10 {
			commit(t, h.Store, unit(putNode("a", numbered("w", i)), statNode("a", "s")), unit(putNode(numbered("n", i), "1")))
		}
		all := feed(t, h.Store, 0)
		gapless(t, all, 1)
		for after := range all {
			same(t, numbered("after", after), feed(t, h.Store, int64(after)), all[after:])
			part, err := h.Store.Changes(t.Context(), int64(after), 4)
			if err != nil {
				t.Fatal(err)
			}
			same(t, numbered("four after", after), part, all[after:min(after+4, len(all))])
		}
	},

	"the future answers nothing": func(t *testing.T, h Harness) {
		commit(t, h.Store, unit(putNode("a", "1")))
		for _, after := range []int64{1, 2, 1000} {
			same(t, "future", len(feed(t, h.Store, after)), 0)
		}
	},

	"Trim forgets by number and answers ErrTooOld exactly below its point": func(t *testing.T, h Harness) {
		for i := range 20 {
			commit(t, h.Store, unit(putNode("a", numbered("w", i)), statNode("a", "s")))
		}
		all := feed(t, h.Store, 0)
		if point, err := h.Store.Trim(t.Context(), 0, 0); err != nil || point != 0 {
			t.Fatalf("trim without limits: %d, %v", point, err)
		}
		for _, keep := range []int64{100, 31, 30, 7, 1} {
			point, err := h.Store.Trim(t.Context(), 0, keep)
			if err != nil {
				t.Fatal(err)
			}
			if point > max(0, 40-keep) {
				t.Fatalf("keeping %d forgot up to %d", keep, point)
			}
			trimmedAt(t, h.Store, all, point)
		}
		commit(t, h.Store, unit(putNode("b", "1")))
		same(t, "after trimming", revisions(feed(t, h.Store, 40)), []int64{41})
	},

	"Trim forgets by age": func(t *testing.T, h Harness) {
		commit(t, h.Store, unit(putNode("a", "1"), putNode("b", "1")))
		commit(t, h.Store, unit(putNode("c", "1")))
		h.Advance(3 * time.Hour)
		commit(t, h.Store, unit(putNode("d", "1")))
		all := feed(t, h.Store, 0)
		point, err := h.Store.Trim(t.Context(), 2*time.Hour, 0)
		if err != nil || point != 3 {
			t.Fatalf("trimmed at %d, %v", point, err)
		}
		trimmedAt(t, h.Store, all, 3)
		h.Advance(3 * time.Hour)
		if point, err = h.Store.Trim(t.Context(), 2*time.Hour, 0); err != nil || point != 4 {
			t.Fatalf("trimmed at %d, %v", point, err)
		}
		trimmedAt(t, h.Store, all, 4)
		found, revision := snapshot(t, h.Store)
		if len(found) != 4 || revision != 4 {
			t.Fatalf("trimming the log touched objects: %d at %d", len(found), revision)
		}
	},

	"Thin deletes the oldest changes of one project alone": thin,
	"a part of the log counts for one project":             logSizes,
	"History selects by project and by task, newest first": history,

	"Wait returns at once for the past": func(t *testing.T, h Harness) {
		commit(t, h.Store, unit(putNode("a", "1")))
		if err := h.Store.Wait(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	},

	"Wait wakes everybody who waits": func(t *testing.T, h Harness) {
		woken := make(chan error, 8)
		for range cap(woken) {
			go func() {
				err := h.Store.Wait(context.Background(), 0)
				if changes, _ := h.Store.Changes(context.Background(), 0, 1); err == nil && len(changes) != 1 {
					err = errors.New("woken without a change")
				}
				woken <- err
			}()
		}
		commit(t, h.Store, unit(statNode("gone", "x"))) // no change: does not end a Wait
		commit(t, h.Store, unit(putNode("a", "1")))
		for range cap(woken) {
			if err := <-woken; err != nil {
				t.Fatal(err)
			}
		}
	},

	"Wait ends with its context": func(t *testing.T, h Harness) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- h.Store.Wait(ctx, 0) }()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	},
}

// trimmedAt expects the log to be complete after a revision, and gone below it.
func trimmedAt(t *testing.T, s store.Store, all []store.Change, point int64) {
	t.Helper()
	for after := range int64(len(all)) + 1 {
		changes, err := s.Changes(t.Context(), after, 1000)
		if after < point {
			if !errors.Is(err, store.ErrTooOld) {
				t.Fatalf("trimmed at %d, after %d: %d changes, %v", point, after, len(changes), err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("trimmed at %d, after %d: %v", point, after, err)
		}
		gapless(t, changes, after+1)
		same(t, "number of changes", len(changes), len(all)-int(after))
	}
	kept, err := s.History(t.Context(), store.HistoryQuery{})
	if err != nil || len(kept) != len(all)-int(point) {
		t.Fatalf("trimmed at %d: history of %d, %v", point, len(kept), err)
	}
}

// change is a write of an instance of a project, with an event.
func change(project, eventProject, task string) store.Write {
	return store.Write{
		Kind: mariposa.KindInstance, ID: "i-" + project, Project: project, Spec: &mariposa.InstanceSpec{Project: project},
		Event: mariposa.Event{Kind: "instance.made", Project: eventProject, Task: task},
	}
}

func logSizes(t *testing.T, h Harness) {
	sizes := func(projects ...string) map[string]store.LogSize {
		t.Helper()
		found, err := h.Store.LogSizes(t.Context(), projects...)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	same(t, "of an empty log", len(sizes()), 0)
	commit(t, h.Store, unit(change("p", "p", "t1"), change("q", "p", ""), putNode("n", "1")), unit(change("p", "", "")))
	commit(t, h.Store, unit(change("p", "q", "")))
	all := sizes()
	for project, want := range map[string]int64{"p": 3, "q": 1, "": 1} {
		if n := all[project]; n.Changes != want || n.Bytes <= 0 {
			t.Errorf("%q has %+v, want %d changes and their bytes", project, n, want)
		}
	}
	same(t, "of two projects", sizes("p", "", "x"), map[string]store.LogSize{"p": all["p"], "": all[""]})
	if h.Reopen != nil {
		h.Store = h.Reopen()
		same(t, "after opening again", sizes(), all)
	}
}

func thin(t *testing.T, h Harness) {
	for range 50 {
		commit(t, h.Store, unit(change("p", "p", "t1"), change("q", "q", "t2"), change("p", "p", "t1")), unit(putNode("n", "1")))
	}
	commit(t, h.Store, unit(change("r", "p", "t3"), change("p", "p", "t3"))) // 201, 202
	all := feed(t, h.Store, 0)
	thin := func(project string, keep store.LogSize, upTo, want int64) {
		t.Helper()
		point, err := h.Store.Thin(t.Context(), project, keep, upTo)
		if err != nil || point != want {
			t.Fatalf("thinned %s to %+v: complete after %d, %v; want %d", project, keep, point, err, want)
		}
		for after := range int64(len(all)) {
			if off := after - want; after%16 != 0 && (off < -2 || off > 2) {
				continue // away from the limit, a few are enough
			}
			changes, err := h.Store.Changes(t.Context(), after, 0)
			if (after < want) != errors.Is(err, store.ErrTooOld) || err == nil && !reflect.DeepEqual(changes, all[after:]) {
				t.Fatalf("after %d of a log that is complete after %d: %d changes, %v", after, want, len(changes), err)
			}
		}
	}
	kept := func(q store.HistoryQuery) (n int) {
		t.Helper()
		changes, err := h.Store.History(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range changes {
			same(t, "a change that is left", c, all[c.Revision-1])
		}
		return len(changes)
	}
	thin("p", store.LogSize{Changes: 101}, 202, 0)           // it has no more than that
	thin("p", store.LogSize{}, 202, 0)                       // no limit
	thin("x", store.LogSize{Changes: 1}, 202, 0)             // no such project
	thin("p", store.LogSize{Changes: 61}, 100, 80)           // 40 changes, of 20 commits
	same(t, "p", kept(store.HistoryQuery{Project: "p"}), 62) // and 201, which mentions it
	same(t, "its task", kept(store.HistoryQuery{Task: "t1"}), 60)
	same(t, "q", kept(store.HistoryQuery{Project: "q"}), 50)
	same(t, "everything", kept(store.HistoryQuery{}), 202-40)
	thin("p", store.LogSize{Changes: 1}, 100, 100) // not above upTo
	same(t, "everything", kept(store.HistoryQuery{}), 202-50)
	thin("q", store.LogSize{Bytes: 1}, 40, 100) // below the complete part of the log
	thin("", store.LogSize{Changes: 1}, 40, 100)
	same(t, "q", kept(store.HistoryQuery{Project: "q"}), 40)
	same(t, "everything", kept(store.HistoryQuery{}), 202-50-20)
	if h.Reopen != nil {
		h.Store = h.Reopen()
	}
	thin("p", store.LogSize{Changes: 1}, 202, 200)
	thin("p", store.LogSize{Bytes: 1}, 202, 202)
	same(t, "what mentions p", kept(store.HistoryQuery{Project: "p"}), 1)
	same(t, "the task of both", kept(store.HistoryQuery{Task: "t3"}), 1)
	same(t, "everything", kept(store.HistoryQuery{}), 40+40+1)
	sizes, err := h.Store.LogSizes(t.Context())
	if err != nil || sizes["p"] != (store.LogSize{}) || sizes["q"].Changes != 40 {
		t.Fatalf("sizes %+v, %v", sizes, err)
	}
	commit(t, h.Store, unit(change("p", "p", "t1")))
	same(t, "the feed goes on", revisions(feed(t, h.Store, 202)), []int64{203})
	h.Advance(time.Hour)
	if point, err := h.Store.Trim(t.Context(), time.Minute, 0); err != nil || point != 203 || kept(store.HistoryQuery{}) != 0 {
		t.Fatalf("trimmed at %d, %v", point, err)
	}
}

func history(t *testing.T, h Harness) {
	commit(t, h.Store, unit(change("p", "p", "t1"), change("q", "q", "t2")))    // 1, 2
	commit(t, h.Store, unit(change("p", "", "t2")), unit(change("p", "q", ""))) // 3, 4
	commit(t, h.Store, unit(putNode("n", "1")), unit(change("q", "", "t1")))    // 5, 6
	for _, c := range []struct {
		q    store.HistoryQuery
		want []int64
	}{
		{store.HistoryQuery{}, []int64{6, 5, 4, 3, 2, 1}},
		{store.HistoryQuery{Limit: 2}, []int64{6, 5}},
		{store.HistoryQuery{Before: 4, Limit: 2}, []int64{3, 2}},
		{store.HistoryQuery{Project: "p"}, []int64{4, 3, 1}},
		{store.HistoryQuery{Project: "q"}, []int64{6, 4, 2}},
		{store.HistoryQuery{Project: "q", Before: 6, Limit: 1}, []int64{4}},
		{store.HistoryQuery{Project: "q", Before: 2}, nil},
		{store.HistoryQuery{Task: "t1"}, []int64{6, 1}},
		{store.HistoryQuery{Task: "t2"}, []int64{3, 2}},
		{store.HistoryQuery{Task: "t2", Project: "p"}, []int64{3}},
		{store.HistoryQuery{Task: "t2", Before: 3}, []int64{2}},
		{store.HistoryQuery{Task: "t3"}, nil},
		{store.HistoryQuery{Project: "x"}, nil},
	} {
		changes, err := h.Store.History(t.Context(), c.q)
		if err != nil {
			t.Fatal(err)
		}
		same(t, render(c.q), revisions(changes), c.want)
		all := feed(t, h.Store, 0)
		for _, found := range changes {
			same(t, "change", found, all[found.Revision-1])
		}
	}
}
