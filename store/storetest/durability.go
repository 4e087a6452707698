package storetest

import (
	"testing"

	"mariposa"
	"mariposa/store"
)

// durabilityTests check that a store is the same after it is reopened. A store without
// Reopen passes them as it is.
var durabilityTests = map[string]func(*testing.T, Harness){
	"everything is there after closing and opening again": func(t *testing.T, h Harness) {
		for i := range 10 {
			commit(t, h.Store, unit(putNode("a", numbered("w", i)), statNode("a", "s"), putNode(numbered("n", i), "1")))
		}
		commit(t, h.Store, unit(removeNode("n-0003")), claim("n", 3, amount(5)))
		hold(t, h.Store, "me", long, "held", "free")
		if err := h.Store.Release(t.Context(), "me", "free"); err != nil {
			t.Fatal(err)
		}
		point, err := h.Store.Trim(t.Context(), 0, 16)
		if err != nil {
			t.Fatal(err)
		}
		before := everythingOf(t, h.Store, point)
		if h.Reopen != nil {
			h.Store = h.Reopen()
		}
		same(t, "after opening again", everythingOf(t, h.Store, point), before)
		trimmedAt(t, h.Store, make([]store.Change, 31), point)
		commit(t, h.Store, fenced("held", 1))
		refuse(t, h.Store, store.ErrFenced, fenced("free", 1))
		same(t, "the next epoch", hold(t, h.Store, "you", long, "free", "held")[0].Epoch, 2)
		refuse(t, h.Store, store.ErrNoCapacity, claim("n", 3, amount(5)))
		same(t, "the next revision", commit(t, h.Store, unit(putNode("b", "1")))[0].First, 33)
		newest, err := h.Store.Revision(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		same(t, "the newest revision", newest, 33)
	},

	"a new incarnation stays": reincarnated,
}

func reincarnated(t *testing.T, h Harness) {
	identity := func() store.Identity {
		t.Helper()
		id, err := h.Store.Identity(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	old := identity()
	if err := h.Store.Reincarnate(t.Context(), "another"); err != nil {
		t.Fatal(err)
	}
	same(t, "an incarnation that is not the old one", identity(), old)
	if err := h.Store.Reincarnate(t.Context(), old.Incarnation); err != nil {
		t.Fatal(err)
	}
	if h.Reopen != nil {
		h.Store = h.Reopen()
	}
	if id := identity(); id.Incarnation == old.Incarnation || id.Cluster != old.Cluster {
		t.Fatalf("%+v after %+v", id, old)
	}
}

func everythingOf(t *testing.T, s store.Store, after int64) []any {
	id, err := s.Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ledger, err := s.Ledger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found, revision := snapshot(t, s)
	return []any{id, ledger, found, revision, feed(t, s, after), get(t, s, mariposa.KindNode, "a")}
}
