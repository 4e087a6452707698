package seal

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/store"
)

// wrappedWith counts the keys in a store by the outer key they are wrapped with.
func wrappedWith(t testing.TB, st Keys) map[string]int {
	t.Helper()
	records, err := st.List(t.Context(), store.Query{Kind: mariposa.KindKey})
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for _, r := range records {
		n[r.Spec.(*mariposa.KeySpec).Key]++
	}
	return n
}

// finished fails unless a rotation left one key in the ring's file and everything
// wrapped with it.
func finished(t testing.TB, r *Ring, st Keys, primary string) {
	t.Helper()
	now, names := r.Names()
	if now != primary || len(names) != 1 {
		t.Fatalf("in the ring: %q, want %s alone", names, primary)
	}
	if with := wrappedWith(t, st); len(with) != 1 || with[primary] == 0 {
		t.Fatalf("wrapped with %v, want %s alone", with, primary)
	}
}

func TestARotationWrapsEverythingAnewAndChangesNoKey(t *testing.T) {
	t.Parallel()
	st, path := newStore(), keyFile(t)
	v := ready(t, mustOpen(t, path), st)
	old, _ := v.ring.Names()
	digests := map[string]string{}
	for i := range keysPerPage + keysPerCommit + 7 {
		owner := fmt.Sprintf("p%05d", i)
		digests[owner] = give(t, v, st, owner)
	}
	before, err := st.Get(t.Context(), mariposa.KindKey, "p00000")
	if err != nil {
		t.Fatal(err)
	}

	total := len(digests) + 1
	last, calls := -1, 0
	primary, n, err := v.Rotate(t.Context(), st, func(done, of int) {
		if done < last || of != total {
			t.Errorf("%d of %d after %d", done, of, last)
		}
		last = done
		calls++
	})
	if err != nil || n != total || last != total || calls < 5 || primary == old {
		t.Fatalf("%s, %d, %v; %d of %d was told", primary, n, err, last, total)
	}
	finished(t, v.ring, st, primary)
	finished(t, mustOpen(t, path), st, primary)
	after, err := st.Get(t.Context(), mariposa.KindKey, "p00000")
	if err != nil {
		t.Fatal(err)
	}
	if a, b := before.Spec.(*mariposa.KeySpec), after.Spec.(*mariposa.KeySpec); !b.Created.Equal(a.Created) || string(a.Wrapped) == string(b.Wrapped) || after.Project != before.Project {
		t.Fatalf("%+v became %+v", before, after)
	}
	restarted := NewVault(mustOpen(t, path), st)
	for owner, digest := range digests {
		holds(t, v, owner, digest)
		holds(t, restarted, owner, digest)
	}
	if again, n, err := v.Rotate(t.Context(), st, nil); err != nil || again == primary || n != total {
		t.Fatal(again, n, err)
	}
}

// mortal dies after so many writes: of units to the store, and of the key file.
// A file whose writing it dies of was replaced or was not.
type mortal struct {
	Keys
	home
	lives    int
	replaced bool
}

var errDead = errors.New("the process has died")

func (m *mortal) dies() bool { m.lives--; return m.lives < 0 }

func (m *mortal) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	var results []store.Result
	for _, u := range units {
		if m.dies() {
			results = append(results, store.Result{Err: errDead})
		} else {
			results = append(results, m.Keys.Commit(ctx, u)...)
		}
	}
	return results
}

func (m *mortal) List(ctx context.Context, q store.Query) ([]store.Record, error) {
	if m.lives < 0 {
		return nil, errDead
	}
	return m.Keys.List(ctx, q)
}

func (m *mortal) change(f func(keySet) keySet) (keySet, error) {
	if m.dies() {
		if m.lives == -1 && m.replaced {
			_, _ = m.home.change(f)
		}
		return nil, errDead
	}
	return m.home.change(f)
}

func TestARotationThatDiesAnywhereLosesNothingAndIsFinishedByTheNext(t *testing.T) {
	t.Parallel()
	const owners = 5
	for _, replaced := range []bool{false, true} {
		for lives, alive := 0, false; !alive; lives++ {
			st, path := newStore(), keyFile(t)
			v := ready(t, mustOpen(t, path), st)
			old, _ := v.ring.Names()
			digests := map[string]string{}
			for i := range owners {
				owner := fmt.Sprint("p", i)
				digests[owner] = give(t, v, st, owner)
			}

			m := &mortal{Keys: st, home: file{path}, lives: lives, replaced: replaced}
			ring, err := openRing(m)
			if err != nil {
				t.Fatal(err)
			}
			begun, _, err := NewVault(ring, st).Rotate(t.Context(), m, nil)
			alive = err == nil
			if !alive && !errors.Is(err, errDead) {
				t.Fatal(err)
			}
			if lives < owners+3 && alive || lives > 100 {
				t.Fatalf("with %d lives: alive is %v", lives, alive)
			}

			// The process that runs on while another one rotates, and one that starts.
			for _, w := range []*Vault{v, NewVault(v.ring, st), NewVault(mustOpen(t, path), st)} {
				for owner, digest := range digests {
					holds(t, w, owner, digest)
				}
			}
			next := NewVault(mustOpen(t, path), st)
			primary, _, err := next.Rotate(t.Context(), st, nil)
			if err != nil {
				t.Fatal(err)
			}
			if primary == old || !alive && begun != "" && lives <= owners && primary != begun {
				t.Fatalf("with %d lives: %s began, %s was finished", lives, begun, primary)
			}
			finished(t, mustOpen(t, path), st, primary)
			for owner, digest := range digests {
				holds(t, NewVault(mustOpen(t, path), st), owner, digest)
			}
		}
	}
}

// during does something before each look at the keys and each commit.
type during struct {
	Keys
	do func()
}

func (d during) List(ctx context.Context, q store.Query) ([]store.Record, error) {
	d.do()
	return d.Keys.List(ctx, q)
}

func (d during) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	d.do()
	return d.Keys.Commit(ctx, units...)
}

func TestKeysThatAreMadeDuringARotationAreNotLost(t *testing.T) {
	t.Parallel()
	// when counts the looks and commits of the rotation.
	for when := range 8 {
		for _, how := range []string{"made now", "made before, guarded", "made before, unguarded", "by another replica with a copy of the file"} {
			t.Run(fmt.Sprint(how, " at ", when), func(t *testing.T) {
				t.Parallel()
				st, path := newStore(), keyFile(t)
				v := ready(t, mustOpen(t, path), st)
				give(t, v, st, "p1")
				copied := filepath.Join(t.TempDir(), "keys")
				copyFile(t, path, copied)
				elsewhere := NewVault(mustOpen(t, copied), st)
				box, guarded, err := v.NewKey(t.Context(), "late", birth)
				if err != nil {
					t.Fatal(err)
				}
				unguarded := guarded
				unguarded.Require = nil

				digest, seen := "", 0
				watch := during{st, func() {
					if seen++; seen-1 != when {
						return
					}
					var unit store.Unit
					switch how {
					case "made now":
						digest = give(t, v, st, "late")
						return
					case "made before, guarded":
						unit = guarded
					case "made before, unguarded":
						unit = unguarded
					default:
						// It may know the old key alone, and then must not use it any more.
						if box, unit, err = elsewhere.NewKey(t.Context(), "late", birth); err != nil {
							if mariposa.CodeOf(err) != mariposa.Unavailable {
								t.Error(err)
							}
							return
						}
					}
					if err := st.Commit(t.Context(), unit)[0].Err; err == nil {
						digest = box.MAC("who")
					} else if !errors.Is(err, store.ErrConflict) || how == "made before, unguarded" {
						t.Error(err)
					}
				}}
				primary, _, err := v.Rotate(t.Context(), watch, nil)
				if err != nil {
					t.Fatal(err)
				}
				finished(t, mustOpen(t, path), st, primary)
				if digest != "" {
					holds(t, NewVault(mustOpen(t, path), st), "late", digest)
				} else if when == 0 {
					t.Fatal("nothing had begun, and yet it failed")
				}
			})
		}
	}
}

func TestAKeyThatChangesUnderARotationIsTriedAgain(t *testing.T) {
	t.Parallel()
	st, path := newStore(), keyFile(t)
	v := ready(t, mustOpen(t, path), st)
	digest := give(t, v, st, "p1")
	give(t, v, st, "gone")
	touched := 0
	primary, _, err := v.Rotate(t.Context(), before{st, func() {
		if touched++; touched > 3 {
			return
		}
		rec, err := st.Get(t.Context(), mariposa.KindKey, "p1")
		if err != nil {
			t.Fatal(err)
		}
		st.Commit(t.Context(), store.Unit{Writes: []store.Write{
			{Kind: mariposa.KindKey, ID: "p1", Spec: rec.Spec},
			{Kind: mariposa.KindKey, ID: "gone", Delete: true},
		}})
	}}, nil)
	if err != nil || touched < 4 {
		t.Fatal(touched, err)
	}
	finished(t, v.ring, st, primary)
	holds(t, NewVault(mustOpen(t, path), st), "p1", digest)
}

func TestARotationThatAnotherOneOvertakesFinishesThatOne(t *testing.T) {
	t.Parallel()
	for when := range 6 {
		st, path := newStore(), keyFile(t)
		v := ready(t, mustOpen(t, path), st)
		digest := give(t, v, st, "p1")
		other := NewVault(mustOpen(t, path), st)
		seen := 0
		primary, _, err := v.Rotate(t.Context(), during{st, func() {
			if seen++; seen-1 != when {
				return
			}
			if _, _, err := other.Rotate(t.Context(), st, nil); err != nil {
				t.Error(err)
			}
			if err := other.ring.addKey(); err != nil { // and dies
				t.Error(err)
			}
		}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		last := mustOpen(t, path)
		if now, _ := last.Names(); now != primary {
			t.Fatalf("overtaken at %d: %s was told, %s is there", when, primary, now)
		}
		holds(t, NewVault(last, st), "p1", digest)
		if _, _, err := NewVault(last, st).Rotate(t.Context(), st, nil); err != nil {
			t.Fatalf("overtaken at %d: %v", when, err)
		}
	}
}

func TestARotationKeepsTheOldKeysWhileSomethingDoesNotOpen(t *testing.T) {
	t.Parallel()
	st, path := newStore(), keyFile(t)
	v := ready(t, mustOpen(t, path), st)
	old, _ := v.ring.Names()
	foreign := NewVault(NewRing(), st)
	_, spec, err := foreign.NewBox("lost", birth)
	if err != nil {
		t.Fatal(err)
	}
	if r := st.Commit(t.Context(), firstKey(spec)); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	_, _, err = v.Rotate(t.Context(), st, nil)
	unavailable(t, err, spec.Key, path)
	if !strings.Contains(err.Error(), "organization lost") {
		t.Fatal(err)
	}
	if _, names := v.ring.Names(); !slices.Contains(names, old) {
		t.Fatalf("%s is gone: %q", old, names)
	}
	if err := v.ring.restore(foreign.ring.keys()); err != nil {
		t.Fatal(err)
	}
	primary, _, err := v.Rotate(t.Context(), st, nil)
	if err != nil {
		t.Fatal(err)
	}
	finished(t, v.ring, st, primary)
}

func TestAReplicaWithACopyOfTheOldFileGoesOnAndAsksForTheNewOne(t *testing.T) {
	t.Parallel()
	st, path, copied := newStore(), keyFile(t), keyFile(t)
	a := ready(t, mustOpen(t, path), st)
	known, unknown := give(t, a, st, "known"), give(t, a, st, "unknown")
	copyFile(t, path, copied)
	b := NewVault(mustOpen(t, copied), st)
	holds(t, b, "known", known)

	primary, _, err := a.Rotate(t.Context(), st, nil)
	if err != nil {
		t.Fatal(err)
	}
	holds(t, b, "known", known)
	_, err = b.Box(t.Context(), "unknown")
	unavailable(t, err, primary, copied)
	copyFile(t, path, copied)
	holds(t, b, "unknown", unknown)
}

func TestManyRotateAtOnceWhileRequestsRun(t *testing.T) {
	t.Parallel()
	st, path := newStore(), keyFile(t)
	v := ready(t, mustOpen(t, path), st)
	digests := map[string]string{}
	for i := range 20 {
		owner := fmt.Sprint("p", i)
		digests[owner] = give(t, v, st, owner)
	}
	requests, rotated := make(chan struct{}), make(chan struct{})
	var readers, rotations sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-rotated:
					return
				case requests <- struct{}{}:
				default:
				}
				fresh := NewVault(v.ring, st) // which remembers nothing
				for owner, digest := range digests {
					box, err := fresh.Box(t.Context(), owner)
					if err != nil || box.MAC("who") != digest {
						t.Errorf("%s: %v", owner, err)
						return
					}
				}
			}
		})
	}
	for range 4 {
		own := NewVault(mustOpen(t, path), st)
		rotations.Go(func() {
			<-requests // some are under way
			for range 3 {
				if _, _, err := own.Rotate(t.Context(), st, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	rotations.Wait()
	close(rotated)
	readers.Wait()
	last := mustOpen(t, path)
	primary, _ := last.Names()
	finished(t, last, st, primary)
}

// Any history of new owners, rotations, deaths and restarts leaves every key
// where the next process finds it.
func TestNoHistoryLosesAKey(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	histories := 0
	rapid.Check(t, func(rt *rapid.T) {
		histories++
		st, path := newStore(), filepath.Join(folder, fmt.Sprint(histories))
		vaults := []*Vault{ready(t, mustOpen(t, path), st), ready(t, mustOpen(t, path), st)}
		digests := map[string]string{}
		var pending []func()
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			i := rapid.IntRange(0, 1).Draw(rt, "process")
			switch rapid.SampledFrom([]string{"owner", "store it", "rotate", "die", "restart"}).Draw(rt, "step") {
			case "owner":
				owner := fmt.Sprint("p", len(digests)+len(pending), "-", histories)
				box, unit, err := vaults[i].NewKey(t.Context(), owner, birth)
				if err != nil {
					rt.Fatal(err)
				}
				pending = append(pending, func() {
					if st.Commit(t.Context(), unit)[0].Err == nil {
						digests[owner] = box.MAC("who")
					}
				})
			case "store it":
				if len(pending) > 0 {
					pending[0]()
					pending = pending[1:]
				}
			case "rotate":
				if _, _, err := vaults[i].Rotate(t.Context(), st, nil); err != nil {
					rt.Fatal(err)
				}
			case "die":
				m := &mortal{
					Keys: st, home: file{path}, lives: rapid.IntRange(0, 6).Draw(rt, "lives"), replaced: rapid.Bool().Draw(rt, "replaced"),
				}
				ring, err := openRing(m)
				if err != nil {
					rt.Fatal(err)
				}
				if _, _, err := NewVault(ring, st).Rotate(t.Context(), m, nil); err != nil && !errors.Is(err, errDead) {
					rt.Fatal(err)
				}
			case "restart":
				vaults[i] = NewVault(mustOpen(t, path), st)
			}
			for owner, digest := range digests {
				holds(t, NewVault(mustOpen(t, path), st), owner, digest)
				holds(t, vaults[i], owner, digest)
			}
		}
	})
}
