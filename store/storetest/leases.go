package storetest

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
)

// long is a time to live that no test outlives; short one that tests let expire.
const (
	long  = 24 * time.Hour
	short = time.Hour
	lapse = 2 * time.Hour
)

var leaseTests = map[string]func(*testing.T, Harness){
	"a free lease is held at epoch 1 and renewed without raising it": func(t *testing.T, h Harness) {
		first := hold(t, h.Store, "me", long, "a", "b")
		if len(first) != 2 || first[0].Name != "a" || first[0].Holder != "me" || first[0].Epoch != 1 || first[0].Until.IsZero() {
			t.Fatalf("%+v", first)
		}
		again := hold(t, h.Store, "me", 2*long, "a")
		if len(again) != 1 || again[0].Epoch != 1 || !again[0].Until.After(first[0].Until) {
			t.Fatalf("%+v", again)
		}
	},

	"the leases under a prefix are listed by name while they are held": func(t *testing.T, h Harness) {
		hold(t, h.Store, "me", long, "b/2", "b/1", "a/1")
		hold(t, h.Store, "you", long, "b/3")
		names := func() (out []string) {
			t.Helper()
			leases, err := h.Store.Leases(t.Context(), "b/")
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range leases {
				out = append(out, l.Name+" "+l.Holder)
			}
			return out
		}
		if got := names(); !slices.Equal(got, []string{"b/1 me", "b/2 me", "b/3 you"}) {
			t.Fatalf("%v", got)
		}
		hold(t, h.Store, "they", short, "b/4")
		h.Advance(lapse)
		if err := h.Store.Release(t.Context(), "me", "b/1"); err != nil {
			t.Fatal(err)
		}
		if got := names(); !slices.Equal(got, []string{"b/2 me", "b/3 you"}) {
			t.Fatalf("%v", got)
		}
	},

	"leases expire by the clock that Time shows": func(t *testing.T, h Harness) {
		now := func() time.Time {
			t.Helper()
			at, err := h.Store.Time(t.Context())
			if err != nil || at.Location() != time.UTC {
				t.Fatalf("%s, %v", at, err)
			}
			return at
		}
		before := now()
		began := hold(t, h.Store, "me", short, "a")[0].Until.Add(-short)
		if after := now(); began.Before(before) || after.Before(began) {
			t.Fatalf("it was held at %s, between %s and %s", began, before, after)
		}
	},

	"what somebody else holds is not taken": func(t *testing.T, h Harness) {
		hold(t, h.Store, "me", long, "a")
		held := hold(t, h.Store, "you", long, "a", "b")
		if len(held) != 1 || held[0].Name != "b" {
			t.Fatalf("%+v", held)
		}
	},

	"a lapsed lease goes to whoever asks, at a higher epoch": func(t *testing.T, h Harness) {
		hold(t, h.Store, "me", short, "a", "b")
		h.Advance(lapse)
		if held := hold(t, h.Store, "you", long, "a"); len(held) != 1 || held[0].Epoch != 2 {
			t.Fatalf("taken over: %+v", held)
		}
		if held := hold(t, h.Store, "me", long, "b"); len(held) != 1 || held[0].Epoch != 2 {
			t.Fatalf("taken back after a lapse: %+v", held)
		}
	},

	"a renewed lease does not lapse": func(t *testing.T, h Harness) {
		hold(t, h.Store, "me", short, "a")
		renewed := hold(t, h.Store, "me", long, "a")
		h.Advance(lapse)
		if held := hold(t, h.Store, "you", long, "a"); len(held) != 0 {
			t.Fatalf("%+v", held)
		}
		commit(t, h.Store, fenced("a", renewed[0].Epoch))
	},

	"Seize takes from anybody, raises the epoch and does not lapse": func(t *testing.T, h Harness) {
		hold(t, h.Store, "me", long, "a")
		for epoch := int64(2); epoch < 5; epoch++ {
			l := seize(t, h.Store, "you", "a")
			same(t, "seized", l, store.Lease{Name: "a", Holder: "you", Epoch: epoch})
		}
		h.Advance(lapse)
		if held := hold(t, h.Store, "me", long, "a"); len(held) != 0 {
			t.Fatalf("%+v", held)
		}
		commit(t, h.Store, fenced("a", 4))
		if l := seize(t, h.Store, "you", "new"); l.Epoch != 1 {
			t.Fatalf("first seizure: %+v", l)
		}
	},

	"Release frees what the holder has and nothing else": func(t *testing.T, h Harness) {
		hold(t, h.Store, "me", long, "a")
		hold(t, h.Store, "you", long, "b")
		if err := h.Store.Release(t.Context(), "me", "a", "b", "never held"); err != nil {
			t.Fatal(err)
		}
		refuse(t, h.Store, store.ErrFenced, fenced("a", 1))
		commit(t, h.Store, fenced("b", 1))
		held := hold(t, h.Store, "they", long, "a", "b", "never held")
		if len(held) != 2 || held[0].Epoch != 2 || held[1].Epoch != 1 {
			t.Fatalf("%+v", held)
		}
		if err := h.Store.Release(t.Context(), "they", "a"); err != nil {
			t.Fatal(err)
		}
		if again := hold(t, h.Store, "they", long, "a"); len(again) != 1 || again[0].Epoch != 3 {
			t.Fatalf("taken again by the one who let go: %+v", again)
		}
	},

	"a fence lets units pass only at its epoch and before the lapse": func(t *testing.T, h Harness) {
		refuse(t, h.Store, store.ErrFenced, fenced("a", 0))
		refuse(t, h.Store, store.ErrFenced, fenced("a", 1))
		hold(t, h.Store, "me", long, "a")
		commit(t, h.Store, fenced("a", 1))
		refuse(t, h.Store, store.ErrFenced, fenced("a", 0))
		refuse(t, h.Store, store.ErrFenced, fenced("a", 2))
		seize(t, h.Store, "you", "a")
		refuse(t, h.Store, store.ErrFenced, fenced("a", 1))
		hold(t, h.Store, "me", long, "b")
		hold(t, h.Store, "me", short, "c")
		also := func(lease string) store.Unit {
			u := fenced("a", 2)
			u.Fences = append(u.Fences, store.Fence{Lease: lease, Epoch: 1})
			return u
		}
		h.Advance(lapse)
		commit(t, h.Store, also("b"))
		refuse(t, h.Store, store.ErrFenced, also("c"))
	},

	"a lease needs a holder": func(t *testing.T, h Harness) {
		if _, err := h.Store.Hold(t.Context(), "", long, "a"); err == nil {
			t.Fatal("held by nobody")
		}
		if _, err := h.Store.Seize(t.Context(), "", "a"); err == nil {
			t.Fatal("seized by nobody")
		}
	},

	"of many who ask for a lease at once one gets it": func(t *testing.T, h Harness) {
		var wg sync.WaitGroup
		got := make(chan store.Lease, 16)
		for i := range cap(got) {
			wg.Go(func() {
				held, err := h.Store.Hold(t.Context(), numbered("holder", i), long, "a")
				if err != nil {
					t.Error(err)
				}
				for _, l := range held {
					got <- l
				}
			})
		}
		wg.Wait()
		if len(got) != 1 {
			t.Fatalf("%d holders", len(got))
		}
	},

	"a note stays with its holder": func(t *testing.T, h Harness) {
		note := func(want string) {
			t.Helper()
			leases, err := h.Store.Leases(t.Context(), "a")
			if err != nil || len(leases) != 1 || leases[0].Note != want {
				t.Fatalf("%+v, %v; want the note %q", leases, err, want)
			}
		}
		if err := h.Store.Announce(t.Context(), "me", "a", "x"); !errors.Is(err, store.ErrFenced) {
			t.Fatalf("announced what nobody holds: %v", err)
		}
		hold(t, h.Store, "me", short, "a")
		if err := h.Store.Announce(t.Context(), "me", "a", "here"); err != nil {
			t.Fatal(err)
		}
		note("here")
		if err := h.Store.Announce(t.Context(), "you", "a", "x"); !errors.Is(err, store.ErrFenced) {
			t.Fatalf("announced what somebody else holds: %v", err)
		}
		if held := hold(t, h.Store, "me", short, "a"); held[0].Note != "here" {
			t.Fatalf("renewed: %+v", held)
		}
		h.Advance(lapse)
		if err := h.Store.Announce(t.Context(), "me", "a", "x"); !errors.Is(err, store.ErrFenced) {
			t.Fatalf("announced an expired lease: %v", err)
		}
		hold(t, h.Store, "me", short, "a")
		note("here")
		h.Advance(lapse)
		hold(t, h.Store, "you", short, "a")
		note("")
	},

	"Trim forgets replicas that are gone": func(t *testing.T, h Harness) {
		dead, left, alive := store.ReplicaPrefix+"dead", store.ReplicaPrefix+"left", store.ReplicaPrefix+"alive"
		hold(t, h.Store, "me", short, dead, left, "shard/1")
		hold(t, h.Store, "me", long, alive)
		if err := h.Store.Release(t.Context(), "me", left); err != nil {
			t.Fatal(err)
		}
		h.Advance(lapse)
		if _, err := h.Store.Trim(t.Context(), 0, 0); err != nil {
			t.Fatal(err)
		}
		var epochs []int64
		for _, l := range hold(t, h.Store, "me", long, dead, left, "shard/1", alive) {
			epochs = append(epochs, l.Epoch)
		}
		same(t, "epochs of a dead replica, one that left, a shard, and a living replica", epochs, []int64{1, 1, 2, 1})
	},

	"leases stay out of the feed": func(t *testing.T, h Harness) {
		hold(t, h.Store, "me", long, "a")
		seize(t, h.Store, "me", "b")
		same(t, "feed", len(feed(t, h.Store, 0)), 0)
	},
}

func hold(t *testing.T, s store.Store, holder string, ttl time.Duration, names ...string) []store.Lease {
	t.Helper()
	held, err := s.Hold(t.Context(), holder, ttl, names...)
	if err != nil {
		t.Fatal(err)
	}
	return held
}

func seize(t *testing.T, s store.Store, holder, name string) store.Lease {
	t.Helper()
	l, err := s.Seize(t.Context(), holder, name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func fenced(lease string, epoch int64) store.Unit {
	return store.Unit{Fences: []store.Fence{{Lease: lease, Epoch: epoch}}, Writes: []store.Write{putNode("fenced", "x")}}
}

var ledgerTests = map[string]func(*testing.T, Harness){
	"claims add up and are given back": func(t *testing.T, h Harness) {
		commit(t, h.Store, claim("n", 2, mariposa.Resources{}), claim("n", 3, mariposa.Resources{}), claim("m", 1, mariposa.Resources{}))
		claimed(t, h.Store, map[string]mariposa.Resources{"n": amount(5), "m": amount(1)})
		commit(t, h.Store, claim("n", -4, mariposa.Resources{}), claim("m", -1, mariposa.Resources{}))
		claimed(t, h.Store, map[string]mariposa.Resources{"n": amount(1)})
		same(t, "feed", len(feed(t, h.Store, 0)), 0)
	},

	"claims never go below zero": func(t *testing.T, h Harness) {
		commit(t, h.Store, claim("n", 1, mariposa.Resources{}))
		commit(t, h.Store, claim("n", -9, mariposa.Resources{}))
		claimed(t, h.Store, map[string]mariposa.Resources{})
		commit(t, h.Store, claim("n", 2, mariposa.Resources{}))
		claimed(t, h.Store, map[string]mariposa.Resources{"n": amount(2)})
	},

	"a taking beyond any limit fails its unit whole": func(t *testing.T, h Harness) {
		commit(t, h.Store, claim("n", 3, amount(3)))
		for _, limit := range []mariposa.Resources{{Instances: 3}, {MilliCPU: 399}, {Memory: 4 << 20}} {
			u := claim("n", 1, limit)
			u.Claims = append([]store.Claim{{Node: "m", Take: amount(1)}}, u.Claims...)
			u.Writes = []store.Write{putNode("a", "1")}
			if limit.Memory != 0 {
				u.Claims[1].Take.Memory *= 2
			}
			refuse(t, h.Store, store.ErrNoCapacity, u)
		}
		absent(t, h.Store, mariposa.KindNode, "a")
		claimed(t, h.Store, map[string]mariposa.Resources{"n": amount(3)})
		commit(t, h.Store, claim("n", 1, mariposa.Resources{Instances: 4}))
	},

	"giving back works on an overfull node": func(t *testing.T, h Harness) {
		commit(t, h.Store, claim("n", 5, mariposa.Resources{}))
		commit(t, h.Store, claim("n", -1, amount(2)))
		claimed(t, h.Store, map[string]mariposa.Resources{"n": amount(4)})
		refuse(t, h.Store, store.ErrNoCapacity, claim("n", 1, amount(2)))
	},

	"claims of one unit on one node add up": func(t *testing.T, h Harness) {
		u := claim("n", 2, amount(3))
		u.Claims = append(u.Claims, u.Claims[0])
		refuse(t, h.Store, store.ErrNoCapacity, u)
		u.Claims[1].Limit = amount(4)
		commit(t, h.Store, u)
		claimed(t, h.Store, map[string]mariposa.Resources{"n": amount(4)})
	},

	"no limit is passed by many who claim at once": func(t *testing.T, h Harness) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		taken := 0
		for range 8 {
			wg.Go(func() {
				for range 10 {
					r := h.Store.Commit(t.Context(), claim("n", 1, amount(25)))[0]
					if r.Err != nil && !errors.Is(r.Err, store.ErrNoCapacity) {
						t.Error(r.Err)
					}
					if r.Err == nil {
						mu.Lock()
						taken++
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		same(t, "taken", taken, 25)
		claimed(t, h.Store, map[string]mariposa.Resources{"n": amount(25)})
	},
}

// amount is the resources of n instances in these tests.
func amount(n int64) mariposa.Resources {
	return mariposa.Resources{Instances: int(n), MilliCPU: n * 100, Memory: n << 20}
}

func claim(node string, n int64, limit mariposa.Resources) store.Unit {
	return store.Unit{Claims: []store.Claim{{Node: node, Take: amount(n), Limit: limit}}}
}

func claimed(t *testing.T, s store.Store, want map[string]mariposa.Resources) {
	t.Helper()
	got, err := s.Ledger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	same(t, "ledger", got, want)
}
