package picture

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"mariposa"
	"mariposa/manifest"
	"mariposa/store"
)

// Shelf keeps the versions that are in use, read and checked once, so that all
// who need a definition share it.
type Shelf struct {
	store store.Store

	mu       sync.Mutex
	versions map[string]*Version
}

// Version is a submitted manifest with what it says.
type Version struct {
	Spec     *mariposa.VersionSpec
	Manifest *manifest.Project

	fault error // why it cannot be read; that too is found out once
}

// ErrUnreadable: a stored manifest that this binary cannot read, as an older
// binary may meet after a newer one.
var ErrUnreadable = errors.New("the stored manifest cannot be read")

// shelfSize bounds how many versions are kept; beyond it some are read again.
const shelfSize = 20_000

// NewShelf makes an empty shelf before a store.
func NewShelf(st store.Store) *Shelf {
	return &Shelf{store: st, versions: map[string]*Version{}}
}

// Version returns one version of a project.
func (s *Shelf) Version(ctx context.Context, project string, number int) (*Version, error) {
	id := mariposa.VersionID(project, number)
	s.mu.Lock()
	v := s.versions[id]
	s.mu.Unlock()
	if v != nil && v.fault != nil {
		return nil, v.fault
	}
	if v != nil {
		return v, nil
	}
	r, err := s.store.Get(ctx, mariposa.KindVersion, id)
	if err != nil {
		return nil, err
	}
	spec := r.Spec.(*mariposa.VersionSpec)
	m, err := manifest.Parse(spec.Manifest)
	if err != nil {
		err = fmt.Errorf("%w: version %d: %w", ErrUnreadable, number, err)
		s.keep(id, &Version{fault: err})
		return nil, err
	}
	v = &Version{Spec: spec, Manifest: m}
	s.keep(id, v)
	return v, nil
}

func (s *Shelf) keep(id string, v *Version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other := range s.versions {
		if len(s.versions) < shelfSize {
			break
		}
		delete(s.versions, other)
	}
	s.versions[id] = v
}
