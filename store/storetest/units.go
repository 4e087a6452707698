package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
)

var unitTests = map[string]func(*testing.T, Harness){
	"each change gets one revision and each unit a contiguous range": func(t *testing.T, h Harness) {
		r := commit(t, h.Store,
			unit(putNode("a", "1"), putNode("b", "1"), statNode("a", "2")),
			unit(),
			unit(putNode("c", "1")),
		)
		same(t, "results", r, []store.Result{{First: 1, Last: 3}, {}, {First: 4, Last: 4}})
		r = commit(t, h.Store, unit(statNode("gone", "x"), putNode("a", "3"), removeNode("gone"), removeNode("b")))
		same(t, "results", r, []store.Result{{First: 5, Last: 6}})
		gapless(t, feed(t, h.Store, 0), 1)
	},

	"no units give no results": func(t *testing.T, h Harness) {
		if r := h.Store.Commit(t.Context()); len(r) != 0 {
			t.Fatalf("%+v", r)
		}
	},

	"a failed requirement drops its unit whole and leaves its neighbours": func(t *testing.T, h Harness) {
		r := h.Store.Commit(t.Context(),
			unit(putNode("a", "1")),
			store.Unit{
				Require: []store.Require{{Kind: mariposa.KindNode, ID: "a", SpecRevision: 7, StatusRevision: -1}},
				Writes:  []store.Write{putNode("a", "2"), putNode("b", "2")},
				Claims:  []store.Claim{{Node: "a", Take: mariposa.Resources{Instances: 1}}},
			},
			unit(putNode("c", "3")),
		)
		if r[0].Err != nil || !errors.Is(r[1].Err, store.ErrConflict) || r[2].Err != nil {
			t.Fatalf("%+v", r)
		}
		if r[0].First != 1 || r[1].First != 0 || r[2].First != 2 {
			t.Fatalf("a dropped unit took revisions: %+v", r)
		}
		absent(t, h.Store, mariposa.KindNode, "b")
		same(t, "a", get(t, h.Store, mariposa.KindNode, "a").Spec, nodeSpec("1"))
		ledger, err := h.Store.Ledger(t.Context())
		if err != nil || len(ledger) != 0 {
			t.Fatalf("a dropped unit left claims: %v, %v", ledger, err)
		}
	},

	"later units see what earlier ones did": func(t *testing.T, h Harness) {
		require := func(spec, status int64) []store.Require {
			return []store.Require{{Kind: mariposa.KindNode, ID: "a", SpecRevision: spec, StatusRevision: status}}
		}
		commit(t, h.Store,
			store.Unit{Require: []store.Require{{Kind: mariposa.KindNode, ID: "a", Absent: true}}, Writes: []store.Write{putNode("a", "1")}},
			store.Unit{Require: require(1, 0), Writes: []store.Write{statNode("a", "2")}},
			store.Unit{Require: require(1, 2), Writes: []store.Write{removeNode("a")}},
			store.Unit{Require: []store.Require{{Kind: mariposa.KindNode, ID: "a", Absent: true}}, Writes: []store.Write{putNode("a", "4")}},
			store.Unit{Require: require(4, 0)},
		)
		same(t, "status after the object came back", get(t, h.Store, mariposa.KindNode, "a").StatusRevision, 0)
	},

	"requirements look at each half by itself": func(t *testing.T, h Harness) {
		commit(t, h.Store, unit(putNode("a", "1")), unit(statNode("a", "2")), unit(putNode("a", "3")))
		at := func(spec, status int64) store.Unit {
			return store.Unit{Require: []store.Require{{Kind: mariposa.KindNode, ID: "a", SpecRevision: spec, StatusRevision: status}}}
		}
		commit(t, h.Store, at(3, 2), at(-1, 2), at(3, -1), at(-1, -1))
		for _, u := range []store.Unit{at(1, 2), at(3, 0), at(0, -1), at(-1, 3)} {
			refuse(t, h.Store, store.ErrConflict, u)
		}
		refuse(t, h.Store, store.ErrConflict, store.Unit{Require: []store.Require{{Kind: mariposa.KindNode, ID: "a", Absent: true}}})
		refuse(t, h.Store, store.ErrConflict, store.Unit{Require: []store.Require{{Kind: mariposa.KindNode, ID: "gone", SpecRevision: -1, StatusRevision: -1}}})
	},

	"halves are written apart and keep their own revisions": func(t *testing.T, h Harness) {
		commit(t, h.Store, unit(putNode("a", "spec 1")))
		r := get(t, h.Store, mariposa.KindNode, "a")
		if r.Status != nil || r.StatusRevision != 0 || r.SpecRevision != 1 || r.Revision != 1 {
			t.Fatalf("new object: %s", render(r))
		}
		commit(t, h.Store, unit(statNode("a", "status 2")))
		commit(t, h.Store, unit(putNode("a", "spec 3")))
		same(t, "record", get(t, h.Store, mariposa.KindNode, "a"), store.Record{
			Kind: mariposa.KindNode, ID: "a", Revision: 3, SpecRevision: 3, StatusRevision: 2,
			Halves: store.Halves{Spec: nodeSpec("spec 3"), Status: nodeStatus("status 2")},
		})
		both := putNode("a", "spec 4")
		both.Status = nodeStatus("status 4")
		commit(t, h.Store, unit(both))
		r = get(t, h.Store, mariposa.KindNode, "a")
		if r.SpecRevision != 4 || r.StatusRevision != 4 {
			t.Fatalf("both halves: %s", render(r))
		}
		type halves struct{ Spec, Status bool }
		var wrote []halves
		for _, c := range feed(t, h.Store, 0) {
			wrote = append(wrote, halves{c.Spec, c.Status})
		}
		same(t, "halves in the feed", wrote, []halves{{true, false}, {false, true}, {true, false}, {true, true}})
	},

	"writes that have nothing to do take no revision": func(t *testing.T, h Harness) {
		commit(t, h.Store, unit(putNode("a", "1")))
		empty := store.Write{Kind: mariposa.KindNode, ID: "a"}
		archive := store.Write{Kind: mariposa.KindNode, ID: "a", Archive: true}
		gone := store.Write{Kind: mariposa.KindNode, ID: "gone", Archive: true}
		r := commit(t, h.Store, unit(statNode("gone", "x"), removeNode("gone"), empty, gone))
		same(t, "results", r, []store.Result{{}})
		same(t, "first archiving", commit(t, h.Store, unit(archive)), []store.Result{{First: 2, Last: 2}})
		same(t, "second archiving", commit(t, h.Store, unit(archive)), []store.Result{{}})
		absent(t, h.Store, mariposa.KindNode, "gone")
	},

	"the project is taken from writes of the spec that name one": func(t *testing.T, h Harness) {
		put := func(project string) store.Write {
			return store.Write{Kind: mariposa.KindTask, ID: "t", Project: project, Spec: &mariposa.TaskSpec{}}
		}
		commit(t, h.Store, unit(put("p")))
		commit(t, h.Store, unit(put("")))
		commit(t, h.Store, unit(store.Write{Kind: mariposa.KindTask, ID: "t", Project: "x", Status: &mariposa.TaskStatus{}}))
		same(t, "project", get(t, h.Store, mariposa.KindTask, "t").Project, "p")
		commit(t, h.Store, unit(put("q")))
		same(t, "project", get(t, h.Store, mariposa.KindTask, "t").Project, "q")
	},

	"a removal tells what was removed": func(t *testing.T, h Harness) {
		commit(t, h.Store, unit(putNode("a", "1"), statNode("a", "2")))
		before := get(t, h.Store, mariposa.KindNode, "a")
		commit(t, h.Store, unit(removeNode("a")))
		absent(t, h.Store, mariposa.KindNode, "a")
		c := feed(t, h.Store, 2)[0]
		if !c.Deleted || c.Spec || c.Status || c.Revision != 3 {
			t.Fatalf("removal: %s", render(c))
		}
		same(t, "removed record", c.Record, before)
	},

	"what no store could read back is refused": func(t *testing.T, h Harness) {
		for _, w := range []store.Write{
			{Kind: "sofa", ID: "a", Spec: nodeSpec("x")},
			{Kind: mariposa.KindNode, Spec: nodeSpec("x")},
			{Kind: mariposa.KindNode, ID: "a", Spec: &mariposa.TaskSpec{}},
			{Kind: mariposa.KindNode, ID: "a", Status: nodeSpec("x")},
		} {
			if r := h.Store.Commit(t.Context(), unit(putNode("n", "1"), w)); r[0].Err == nil {
				t.Fatalf("%+v was taken", w)
			}
		}
		same(t, "feed", len(feed(t, h.Store, 0)), 0)
	},

	"a context that has ended commits nothing": func(t *testing.T, h Harness) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, r := range h.Store.Commit(ctx, unit(putNode("a", "1")), unit(putNode("b", "1"))) {
			if !errors.Is(r.Err, context.Canceled) {
				t.Fatalf("%+v", r)
			}
		}
		absent(t, h.Store, mariposa.KindNode, "a")
	},

	"a large call keeps the order of its units": func(t *testing.T, h Harness) {
		var units []store.Unit
		for i := range 2500 {
			units = append(units, unit(putNode(numbered("n", i), "1")))
		}
		units[1700].Urgent = true
		for i, r := range commit(t, h.Store, units...) {
			if r.First != int64(i+1) {
				t.Fatalf("unit %d has revision %d", i, r.First)
			}
		}
	},

	"every kind survives the way to the disk and back": func(t *testing.T, h Harness) {
		for _, k := range mariposa.Kinds {
			commit(t, h.Store, unit(store.Write{Kind: k, ID: "x", Project: "p", Spec: mariposa.NewSpec(k), Status: mariposa.NewStatus(k)}))
			r := get(t, h.Store, k, "x")
			same(t, string(k), []any{r.Spec, r.Status}, []any{mariposa.NewSpec(k), mariposa.NewStatus(k)})
		}
	},

	"after Close everything answers ErrClosed": closed,
}

func closed(t *testing.T, h Harness) {
	s, ctx := h.Store, context.Background()
	commit(t, s, unit(putNode("a", "1")))
	waiting := make(chan error, 1)
	go func() { waiting <- s.Wait(ctx, 1) }()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	answers := map[string]error{
		"Wait before": <-waiting,
		"Commit":      s.Commit(ctx, unit(putNode("b", "1")))[0].Err,
		"Wait":        s.Wait(ctx, 0),
		"Release":     s.Release(ctx, "h", "l"),
		"Ping":        s.Ping(ctx),
	}
	_, answers["Get"] = s.Get(ctx, mariposa.KindNode, "a")
	_, answers["List"] = s.List(ctx, store.Query{Kind: mariposa.KindNode})
	_, answers["Snapshot"] = s.Snapshot(ctx, func(store.Record) error { return nil })
	_, answers["Changes"] = s.Changes(ctx, 0, 1)
	_, answers["History"] = s.History(ctx, store.HistoryQuery{})
	_, answers["Hold"] = s.Hold(ctx, "h", 1, "l")
	_, answers["Seize"] = s.Seize(ctx, "h", "l")
	_, answers["Ledger"] = s.Ledger(ctx)
	_, answers["Identity"] = s.Identity(ctx)
	_, answers["Trim"] = s.Trim(ctx, 0, 0)
	_, answers["Thin"] = s.Thin(ctx, "p", store.LogSize{Changes: 1}, 1)
	_, answers["LogSizes"] = s.LogSizes(ctx)
	_, answers["Audit"] = s.Audit(ctx, store.AuditQuery{})
	_, answers["TrimAudit"] = s.TrimAudit(ctx, time.Hour)
	_, answers["TrimAudit of nothing"] = s.TrimAudit(ctx, 0)
	for name, err := range answers {
		if !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
