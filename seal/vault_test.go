package seal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/store"
	"mariposa/store/memory"
)

var birth = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

func newStore() *memory.Store { return memory.New(clock.Real{}) }

// give makes an owner's key and returns a digest that only this key makes.
func give(t testing.TB, v *Vault, st Keys, owner string) string {
	t.Helper()
	box, unit, err := v.NewKey(t.Context(), owner, birth)
	if err == nil {
		err = st.Commit(t.Context(), unit)[0].Err
	}
	if err != nil {
		t.Fatal(err)
	}
	return box.MAC("who")
}

// holds fails unless an owner's box has the key it had when it was made.
func holds(t testing.TB, v *Vault, owner, digest string) {
	t.Helper()
	box, err := v.Box(t.Context(), owner)
	if err != nil {
		t.Fatalf("%s: %v", owner, err)
	}
	if box.MAC("who") != digest {
		t.Fatalf("%s has another key", owner)
	}
}

// ready is a vault whose store has its own key.
func ready(t testing.TB, r *Ring, st store.Store) *Vault {
	t.Helper()
	v := NewVault(r, st)
	if err := v.Check(t.Context(), st, birth); err != nil {
		t.Fatal(err)
	}
	return v
}

// unavailable fails unless an error names a missing key and the file to put it
// into.
func unavailable(t testing.TB, err error, key, path string) {
	t.Helper()
	if mariposa.CodeOf(err) != mariposa.Unavailable || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), path) {
		t.Fatalf("%v; want it to name %s and %s", err, key, path)
	}
}

func TestAnOwnersKeyIsMadeOnceAndFoundAgain(t *testing.T) {
	t.Parallel()
	st, path := newStore(), keyFile(t)
	v := ready(t, mustOpen(t, path), st)
	if _, err := v.Box(t.Context(), "p1"); !errors.Is(err, store.ErrNotFound) || !strings.Contains(err.Error(), "project or organization p1") {
		t.Fatal(err)
	}
	box, spec, err := v.NewBox("p1", birth)
	if err != nil {
		t.Fatal(err)
	}
	primary, _ := v.ring.Names()
	if spec.Owner != "p1" || spec.Key != primary || !spec.Created.Equal(birth) {
		t.Fatalf("%+v", spec)
	}
	if _, err := v.Box(t.Context(), "p1"); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("what was not committed is found: %v", err)
	}
	sealed := box.Seal([]byte("hunter2!"), []byte("here"))
	if r := st.Commit(t.Context(), store.Unit{Writes: []store.Write{{Kind: mariposa.KindKey, ID: "p1", Spec: spec}}}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	for _, v := range []*Vault{v, NewVault(mustOpen(t, path), st)} {
		for range 2 { // read, then remembered
			box, err := v.Box(t.Context(), "p1")
			if err != nil {
				t.Fatal(err)
			}
			if plain, err := box.Open(sealed, []byte("here")); err != nil || string(plain) != "hunter2!" {
				t.Fatalf("%q, %v", plain, err)
			}
		}
	}
	own, err := v.Box(t.Context(), mariposa.StoreKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.Open(sealed, []byte("here")); err == nil {
		t.Fatal("it opens with another owner's box")
	}
}

func TestOfTwoWhoMakeAnOwnersKeyOneMustTryAgain(t *testing.T) {
	t.Parallel()
	st := newStore()
	v := ready(t, NewRing(), st)
	_, late, err := v.NewKey(t.Context(), "p1", birth)
	if err != nil {
		t.Fatal(err)
	}
	digest := give(t, v, st, "p1")
	if r := st.Commit(t.Context(), late); !errors.Is(r[0].Err, store.ErrConflict) {
		t.Fatal(r[0].Err)
	}
	holds(t, v, "p1", digest)
	rec, err := st.Get(t.Context(), mariposa.KindKey, "p1")
	if err != nil || rec.Project != "p1" {
		t.Fatalf("%+v, %v", rec, err)
	}
}

func TestTheStartMakesTheStoresOwnKeyOnce(t *testing.T) {
	t.Parallel()
	st, path := newStore(), keyFile(t)
	var all sync.WaitGroup
	vaults := make([]*Vault, 8)
	for i := range vaults {
		vaults[i] = NewVault(mustOpen(t, path), st)
		all.Go(func() {
			if err := vaults[i].Check(t.Context(), st, birth); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	box, err := vaults[0].Box(t.Context(), mariposa.StoreKey)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vaults {
		holds(t, v, mariposa.StoreKey, box.MAC("who"))
	}
}

func TestTheStartSaysWhichKeyIsMissing(t *testing.T) {
	t.Parallel()
	st, right, wrong := newStore(), keyFile(t), keyFile(t)
	v := ready(t, mustOpen(t, right), st)
	key, _ := v.ring.Names()
	err := NewVault(mustOpen(t, wrong), st).Check(t.Context(), st, birth)
	unavailable(t, err, key, wrong)
	if !strings.Contains(err.Error(), "copy a key file") || !strings.Contains(err.Error(), "this store") {
		t.Fatal(err)
	}
	unavailable(t, NewVault(NewRing(), st).Check(t.Context(), st, birth), key, "memory")
}

func TestAStartThatLosesTheRaceToAnotherKeyFileIsReported(t *testing.T) {
	t.Parallel()
	st, path := newStore(), keyFile(t)
	v := NewVault(mustOpen(t, path), st)
	first := NewRing()
	err := v.Check(t.Context(), before{st, func() { ready(t, first, st) }}, birth)
	key, _ := first.Names()
	unavailable(t, err, key, path)
}

// before does something just before each commit.
type before struct {
	Keys
	do func()
}

func (b before) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	b.do()
	return b.Keys.Commit(ctx, units...)
}

func TestAKeyThatIsCopiedWhileWeRunIsFound(t *testing.T) {
	t.Parallel()
	st, there, here := newStore(), keyFile(t), keyFile(t)
	v := ready(t, mustOpen(t, there), st)
	digest := give(t, v, st, "p1")
	key, _ := v.ring.Names()

	other := NewVault(mustOpen(t, here), st)
	_, err := other.Box(t.Context(), "p1")
	unavailable(t, err, key, here)
	if !strings.Contains(err.Error(), "project or organization p1") {
		t.Fatal(err)
	}
	_, _, err = other.NewKey(t.Context(), "p2", birth)
	unavailable(t, err, key, here)
	copyFile(t, there, here)
	holds(t, other, "p1", digest)
	give(t, other, st, "p2")
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestNothingIsSealedWithAKeyWhoseFileIsGone(t *testing.T) {
	t.Parallel()
	st, path := newStore(), keyFile(t)
	v := ready(t, mustOpen(t, path), st)
	digest := give(t, v, st, "p1")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_, _, err := v.NewBox("p2", birth)
	unavailable(t, err, "does not exist", path)
	holds(t, v, "p1", digest) // what is known still opens

	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = v.NewKey(t.Context(), "p2", birth)
	unavailable(t, err, "damaged", path)
	if _, err := os.Stat(filepath.Join(filepath.Dir(path), "keys")); err != nil {
		t.Fatal(err)
	}
}

func TestAKeyIsOfNoUseInAnotherPlace(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(own, other *mariposa.KeySpec) *mariposa.KeySpec{
		"another's record":  func(_, other *mariposa.KeySpec) *mariposa.KeySpec { return other },
		"another's wrapped": func(own, other *mariposa.KeySpec) *mariposa.KeySpec { own.Wrapped = other.Wrapped; return own },
		"damaged":           func(own, _ *mariposa.KeySpec) *mariposa.KeySpec { own.Wrapped[20] ^= 1; return own },
		"empty":             func(own, _ *mariposa.KeySpec) *mariposa.KeySpec { own.Wrapped = nil; return own },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newStore()
			v := ready(t, NewRing(), st)
			_, one, err := v.NewBox("p1", birth)
			if err != nil {
				t.Fatal(err)
			}
			_, two, err := v.NewBox("p2", birth)
			if err != nil {
				t.Fatal(err)
			}
			if r := st.Commit(t.Context(), store.Unit{Writes: []store.Write{{Kind: mariposa.KindKey, ID: "p1", Spec: change(one, two)}}}); r[0].Err != nil {
				t.Fatal(r[0].Err)
			}
			_, err = v.Box(t.Context(), "p1")
			if mariposa.CodeOf(err) != mariposa.Internal || !strings.Contains(err.Error(), "project or organization p1") || !strings.Contains(err.Error(), "backup") {
				t.Fatal(err)
			}
			if _, _, err := v.Rotate(t.Context(), st, nil); mariposa.CodeOf(err) != mariposa.Internal {
				t.Fatalf("rotating: %v", err)
			}
		})
	}
}

func TestNoMoreBoxesAreRememberedThanThereIsRoomFor(t *testing.T) {
	t.Parallel()
	v, box := NewVault(NewRing(), newStore()), newBox(counting())
	for i := range maxBoxes + 10 {
		v.remember(fmt.Sprint(i), box)
	}
	if len(v.boxes) != maxBoxes || v.boxes[fmt.Sprint(maxBoxes+9)] == nil {
		t.Fatalf("%d boxes", len(v.boxes))
	}
}

func TestAStoreThatFailsIsReported(t *testing.T) {
	t.Parallel()
	st := newStore()
	v := ready(t, NewRing(), st)
	st.Close()
	if _, err := v.Box(t.Context(), "p1"); !errors.Is(err, store.ErrClosed) {
		t.Error(err)
	}
	if _, _, err := v.NewKey(t.Context(), "p1", birth); !errors.Is(err, store.ErrClosed) {
		t.Error(err)
	}
	if err := NewVault(NewRing(), st).Check(t.Context(), st, birth); !errors.Is(err, store.ErrClosed) {
		t.Error(err)
	}
	if _, _, err := v.Rotate(t.Context(), st, nil); !errors.Is(err, store.ErrClosed) {
		t.Error(err)
	}
}
