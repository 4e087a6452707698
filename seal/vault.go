package seal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"mariposa"
	"mariposa/store"
)

// Vault provides the boxes of owners. It is safe for concurrent use.
type Vault struct {
	ring   *Ring
	source Source

	mu    sync.RWMutex
	boxes map[string]*Box // an owner's inner key never changes
}

// Source reads the wrapped keys.
type Source interface {
	Get(ctx context.Context, kind mariposa.Kind, id string) (store.Record, error)
}

// Keys lists and changes the wrapped keys.
type Keys interface {
	List(ctx context.Context, q store.Query) ([]store.Record, error)
	Commit(ctx context.Context, units ...store.Unit) []store.Result
}

// maxBoxes bounds the cached boxes, about 1 KB each. Those of deleted owners are
// evicted over time.
const maxBoxes = 32768

// NewVault returns a vault for the keys of a ring and of a store.
func NewVault(ring *Ring, st Source) *Vault {
	return &Vault{ring: ring, source: st, boxes: map[string]*Box{}}
}

// Box returns the box of an owner; store.ErrNotFound when it has no key yet.
func (v *Vault) Box(ctx context.Context, owner string) (*Box, error) {
	v.mu.RLock()
	box := v.boxes[owner]
	v.mu.RUnlock()
	if box != nil {
		return box, nil
	}
	_, inner, err := v.inner(ctx, owner)
	if err != nil {
		return nil, err
	}
	box = newBox(inner)
	v.remember(owner, box)
	return box, nil
}

func (v *Vault) remember(owner string, box *Box) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.boxes) >= maxBoxes {
		for any := range v.boxes {
			delete(v.boxes, any)
			break
		}
	}
	v.boxes[owner] = box
}

// NewBox creates the first box of an owner. The caller commits the key together with the
// data that it encrypts, in one unit that requires that the owner has none: of two
// concurrent callers, one fails and retries with Box. NewKey returns such a unit, and
// protects it from a concurrent rotation.
func (v *Vault) NewBox(owner string, now time.Time) (*Box, *mariposa.KeySpec, error) {
	// Another process may have rotated the keys, and a key whose file no longer exists
	// must not encrypt anything: it could not be opened after a restart.
	set, err := v.ring.reload()
	if err != nil {
		return nil, nil, mariposa.Errorf(mariposa.Unavailable, "create a key for %s: %w", ownerName(owner), err)
	}
	inner := make([]byte, keySize)
	_, _ = rand.Read(inner) // never fails
	return newBox(inner), set.wrap(owner, inner, now), nil
}

// NewKey is NewBox with the unit to commit, to which the caller adds the encrypted data.
// The unit fails with store.ErrConflict if the owner got a key in the meantime, or if a
// rotation began: the outer key may then be deleted, so try again. NewKey needs the
// store's own key, which Check creates.
func (v *Vault) NewKey(ctx context.Context, owner string, now time.Time) (*Box, store.Unit, error) {
	// A rotation also rewraps the store's own key before it drops the former outer
	// key. As long as that has not happened, ours is not dropped.
	own, _, err := v.inner(ctx, mariposa.StoreKey)
	if err != nil {
		return nil, store.Unit{}, err
	}
	box, spec, err := v.NewBox(owner, now)
	if err != nil {
		return nil, store.Unit{}, err
	}
	unit := firstKey(spec)
	unit.Unchanged(&own)
	return box, unit, nil
}

// Check is called at startup: it creates the store's own key if there is none, and
// reports what is missing if the ring cannot open it.
func (v *Vault) Check(ctx context.Context, keys Keys, now time.Time) error {
	_, err := v.Box(ctx, mariposa.StoreKey)
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	_, spec, err := v.NewBox(mariposa.StoreKey, now)
	if err != nil {
		return err
	}
	err = keys.Commit(ctx, firstKey(spec))[0].Err
	if errors.Is(err, store.ErrConflict) { // another replica was faster; perhaps with another file
		_, err = v.Box(ctx, mariposa.StoreKey)
		return err
	}
	if err != nil {
		return fmt.Errorf("store the first key: %w", err)
	}
	return nil
}

// Format keeps the keys out of printed output.
func (v *Vault) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "vault") }

// firstKey returns the unit that creates an owner's key.
func firstKey(spec *mariposa.KeySpec) (unit store.Unit) {
	unit.Absent(mariposa.KindKey, spec.Owner)
	unit.Put(keyWrite(spec, "key.created"))
	return unit
}

func keyWrite(spec *mariposa.KeySpec, event string) store.Write {
	w := store.Write{Kind: mariposa.KindKey, ID: spec.Owner, Spec: spec, Event: mariposa.OwnEvent(event, "", nil)}
	if spec.Owner != mariposa.StoreKey {
		w.Project, w.Event.Project = spec.Owner, spec.Owner
	}
	return w
}

// inner reads and opens the inner key of an owner. If its outer key is not in the
// ring, it rereads both for as long as that finds another name: a rotation elsewhere
// may be ahead of the ring, or one here ahead of the record.
func (v *Vault) inner(ctx context.Context, owner string) (store.Record, []byte, error) {
	set, tried := v.ring.keys(), ""
	for {
		rec, err := v.source.Get(ctx, mariposa.KindKey, owner)
		if err != nil {
			return rec, nil, fmt.Errorf("read the key of %s: %w", ownerName(owner), err)
		}
		inner, err := v.open(set, rec)
		var missing *missingKey
		if !errors.As(err, &missing) || missing.name == tried {
			return rec, inner, err
		}
		tried = missing.name
		if set, err = v.ring.reload(); err != nil {
			return rec, nil, mariposa.Errorf(mariposa.Unavailable, "%s: %w", missing, err)
		}
	}
}

// open opens the inner key of a record. Its errors say what can be done.
func (v *Vault) open(set keySet, rec store.Record) ([]byte, error) {
	spec, ok := rec.Spec.(*mariposa.KeySpec)
	if !ok || spec.Owner != rec.ID {
		return nil, mariposa.Errorf(mariposa.Internal, "the stored key of %s belongs to another owner: restore the store from a backup", ownerName(rec.ID))
	}
	inner, err := set.unwrap(spec)
	var missing *missingKey
	switch {
	case errors.As(err, &missing):
		return nil, mariposa.Errorf(mariposa.Unavailable, "%w, which is not in %s: copy a key file that contains it (from another replica or from your backup) to that place", missing, v.ring.home)
	case err != nil:
		return nil, mariposa.Errorf(mariposa.Internal, "the key of %s cannot be decrypted: %w: restore the store from a backup", ownerName(rec.ID), err)
	}
	return inner, nil
}
