package storetest

import (
	"errors"
	"slices"
	"testing"

	"mariposa"
	"mariposa/store"
)

var readTests = map[string]func(*testing.T, Harness){
	"Get answers ErrNotFound for what never was": func(t *testing.T, h Harness) {
		absent(t, h.Store, mariposa.KindNode, "a")
		absent(t, h.Store, "sofa", "a")
	},

	"an archived object is out of snapshots but can be read": func(t *testing.T, h Harness) {
		commit(t, h.Store, unit(putNode("a", "1"), putNode("b", "1")))
		w := statNode("a", "over")
		w.Archive = true
		commit(t, h.Store, unit(w))
		commit(t, h.Store, unit(statNode("a", "still over")))
		if r := get(t, h.Store, mariposa.KindNode, "a"); !r.Archived || r.StatusRevision != 4 {
			t.Fatalf("archived: %s", render(r))
		}
		found, revision := snapshot(t, h.Store)
		if _, in := found["node/a"]; in || len(found) != 1 || revision != 4 {
			t.Fatalf("snapshot at %d: %s", revision, render(found))
		}
		list, err := h.Store.List(t.Context(), store.Query{Kind: mariposa.KindNode})
		if err != nil || len(list) != 2 {
			t.Fatalf("list: %s, %v", render(list), err)
		}
		for _, c := range feed(t, h.Store, 2) {
			if !c.Record.Archived {
				t.Fatalf("change of an archived object: %s", render(c))
			}
		}
	},

	"a snapshot goes kind by kind and leaves versions out": func(t *testing.T, h Harness) {
		for _, k := range mariposa.Kinds {
			for _, id := range []string{"b", "a"} {
				commit(t, h.Store, unit(store.Write{Kind: k, ID: id, Project: "p", Spec: mariposa.NewSpec(k)}))
			}
		}
		var kinds []mariposa.Kind
		revision, err := h.Store.Snapshot(t.Context(), func(r store.Record) error {
			if len(kinds) == 0 || kinds[len(kinds)-1] != r.Kind {
				kinds = append(kinds, r.Kind)
			}
			return nil
		})
		if err != nil || revision != int64(2*len(mariposa.Kinds)) {
			t.Fatalf("revision %d, %v", revision, err)
		}
		want := slices.DeleteFunc(slices.Clone(mariposa.Kinds), func(k mariposa.Kind) bool { return k.LoadedOnDemand() })
		same(t, "kinds", kinds, want)
	},

	"a snapshot ends with the visitor's error": func(t *testing.T, h Harness) {
		commit(t, h.Store, unit(putNode("a", "1"), putNode("b", "1")))
		enough, seen := errors.New("enough"), 0
		_, err := h.Store.Snapshot(t.Context(), func(store.Record) error {
			seen++
			return enough
		})
		if !errors.Is(err, enough) || seen != 1 {
			t.Fatalf("%v after %d", err, seen)
		}
	},

	"a snapshot's visitor may use the store": func(t *testing.T, h Harness) {
		commit(t, h.Store, unit(putNode("a", "1"), putNode("b", "1")))
		revision, err := h.Store.Snapshot(t.Context(), func(r store.Record) error {
			if _, err := h.Store.Get(t.Context(), r.Kind, r.ID); err != nil {
				return err
			}
			return h.Store.Commit(t.Context(), unit(statNode(r.ID, "seen")))[0].Err
		})
		if err != nil || revision != 2 {
			t.Fatalf("revision %d, %v", revision, err)
		}
		same(t, "later changes", revisions(feed(t, h.Store, revision)), []int64{3, 4})
	},

	"an open store says who it is": func(t *testing.T, h Harness) {
		id, err := h.Store.Identity(t.Context())
		if err != nil || id.Cluster == "" || id.Incarnation == "" || id.Cluster == id.Incarnation {
			t.Fatalf("%+v, %v", id, err)
		}
		if err := h.Store.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		same(t, "feed after a ping", len(feed(t, h.Store, 0)), 0)
	},
}
