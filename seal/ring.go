package seal

import (
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"mariposa"
)

// Ring contains the outer keys. It is safe for concurrent use.
type Ring struct {
	home home
	mu   sync.Mutex // serializes access to the home, so that the keys held are never older than those seen
	held atomic.Pointer[keySet]
}

// home is where the keys of a ring are kept: in a file, or in memory alone.
type home interface {
	load() (keySet, error)
	// change replaces the keys with the result of f, atomically and exclusively.
	change(f func(keySet) keySet) (keySet, error)
	String() string
}

// keySet is a set of outer keys, the primary one first. A set is immutable and always
// has a primary key.
type keySet []outer

// outer is one outer key. Its name is public.
type outer struct {
	name string
	key  []byte
	wrap cipher.AEAD
}

const keySize = 32

// OpenRing reads the keys from a file. If there is none it creates one with a new key,
// so that concurrent callers all get the same key.
func OpenRing(path string) (*Ring, error) {
	f := file{path}
	if err := f.make(); err != nil {
		return nil, err
	}
	return openRing(f)
}

// ReadRing reads the keys from a file that must exist.
func ReadRing(path string) (*Ring, error) { return openRing(file{path}) }

// NewRing returns a ring that exists only in memory.
func NewRing() *Ring {
	set := keySet{newOuter()}
	r := &Ring{home: &inMemory{set: set}}
	r.held.Store(&set)
	return r
}

func openRing(h home) (*Ring, error) {
	r := &Ring{home: h}
	if _, err := r.reload(); err != nil {
		return nil, err
	}
	return r, nil
}

// Names returns the name of the primary key, and all names with that one first.
func (r *Ring) Names() (primary string, all []string) {
	set := r.keys()
	for _, k := range set {
		all = append(all, k.name)
	}
	return set[0].name, all
}

// Format keeps the keys out of printed output.
func (r *Ring) Format(s fmt.State, _ rune) {
	_, _ = fmt.Fprintf(s, "keys in %s", r.home) // printing does not fail
}

func (r *Ring) keys() keySet { return *r.held.Load() }

// reload reads the home again: another process may have changed the keys.
func (r *Ring) reload() (keySet, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hold(r.home.load())
}

func (r *Ring) change(f func(keySet) keySet) (keySet, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hold(r.home.change(f))
}

func (r *Ring) hold(set keySet, err error) (keySet, error) {
	if err != nil {
		return nil, err
	}
	r.held.Store(&set)
	return set, nil
}

// addKey adds a new primary key; the others stay. If there are others already, a
// rotation did not finish, and its key is used.
func (r *Ring) addKey() error {
	fresh := newOuter()
	_, err := r.change(func(set keySet) keySet {
		if len(set) > 1 {
			return set
		}
		return append(keySet{fresh}, set...)
	})
	return err
}

// dropOthers drops all keys but the primary one, if that still has the given name.
func (r *Ring) dropOthers(primary string) (keySet, error) {
	return r.change(func(set keySet) keySet {
		if set[0].name != primary {
			return set
		}
		return set[:1]
	})
}

// restore adds keys back, without making any of them primary.
func (r *Ring) restore(former keySet) error {
	_, err := r.change(func(set keySet) keySet {
		all := append(keySet{}, set...)
		for _, k := range former {
			if _, there := all.find(k.name); !there {
				all = append(all, k)
			}
		}
		return all
	})
	return err
}

// wrap seals an owner's inner key with the primary key.
func (s keySet) wrap(owner string, inner []byte, created time.Time) *mariposa.KeySpec {
	k := s[0]
	return &mariposa.KeySpec{
		Owner:   owner,
		Key:     k.name,
		Wrapped: sealWith(k.wrap, inner, lengthPrefixed("key", owner, k.name)),
		Created: created,
	}
}

// unwrap opens an inner key. A missingKey error says that another outer key is needed.
func (s keySet) unwrap(spec *mariposa.KeySpec) ([]byte, error) {
	k, there := s.find(spec.Key)
	if !there {
		return nil, &missingKey{owner: spec.Owner, name: spec.Key}
	}
	return openWith(k.wrap, spec.Wrapped, lengthPrefixed("key", spec.Owner, spec.Key))
}

func (s keySet) find(name string) (outer, bool) {
	for _, k := range s {
		if k.name == name {
			return k, true
		}
	}
	return outer{}, false
}

// missingKey says which outer key would open an owner's inner key.
type missingKey struct{ owner, name string }

func (m *missingKey) Error() string {
	return fmt.Sprintf("the secrets of %s need key %s", ownerName(m.owner), m.name)
}

// ownerName returns the name of an owner for messages.
func ownerName(owner string) string {
	if owner == mariposa.StoreKey {
		return "this store"
	}
	return "project or organization " + owner
}

// newOuter returns a random key; the system's random source never fails.
func newOuter() outer {
	key := make([]byte, keySize)
	_, _ = rand.Read(key)
	return outerKey(key)
}

func outerKey(key []byte) outer {
	return outer{
		name: hex.EncodeToString(derive(key, "name")[:8]),
		key:  key,
		wrap: gcm(derive(key, "wrap")),
	}
}

// inMemory keeps a ring's keys for as long as the process runs.
type inMemory struct{ set keySet }

func (m *inMemory) load() (keySet, error) { return m.set, nil }

func (m *inMemory) change(f func(keySet) keySet) (keySet, error) {
	m.set = f(m.set)
	return m.set, nil
}

func (m *inMemory) String() string { return "the memory of this process" }

// Format keeps the key out of printed output.
func (o outer) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "key "+o.name) }
