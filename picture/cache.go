package picture

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"

	"mariposa"
	"mariposa/manifest"
	"mariposa/seal"
	"mariposa/store"
)

// VersionCache keeps the versions in use. Each is read and checked once, so that all
// readers share its definitions. Secrets are decrypted here, in memory only.
type VersionCache struct {
	store store.Store
	vault *seal.Vault

	mu         sync.Mutex
	versions   map[string]*list.Element // of *cached
	recent     list.List                // of *cached, the last used first
	bytes      int                      // the size of versions
	maxBytes   int
	values     map[string]*manifest.Values
	masks      map[string]*masks // by project
	valueBytes int               // the size of values
}

// cached is an entry of the cache.
type cached struct {
	id string
	*Version
}

// Version is a submitted manifest with its values, and the services that they define.
type Version struct {
	Spec     *mariposa.VersionSpec
	Manifest *manifest.Project
	Values   *manifest.Values // nil: none
	Services map[string]*mariposa.Service

	mac   func(parts ...string) string // keyed by the project; nil: no values are set
	fault error                        // why it cannot be read; errors are cached too
}

// HasService reports whether the version defines a service.
func (v *Version) HasService(name string) bool { return v.Services[name] != nil }

// ErrUnreadable: this binary cannot read a stored manifest, for example because a newer
// binary wrote it.
var ErrUnreadable = errors.New("the stored manifest cannot be read")

const (
	// maxVersions limits the number of cached versions. The least recently used ones are
	// dropped.
	maxVersions = 20_000
	// maxVersionBytes limits the size of their manifests and values as text. In memory
	// they take about three times as much.
	maxVersionBytes = 128 << 20
	// maxValueBytes limits the size of the cached values.
	maxValueBytes = 64 << 20
)

// NewVersionCache returns an empty cache for a store.
func NewVersionCache(st store.Store, vault *seal.Vault) *VersionCache {
	return &VersionCache{store: st, vault: vault, versions: map[string]*list.Element{}, maxBytes: maxVersionBytes, values: map[string]*manifest.Values{}, masks: map[string]*masks{}}
}

// Invalidate drops versions that have changed. A version that only increments a
// metadata counter may be overwritten.
func (s *VersionCache) Invalidate(changes []store.Change) {
	for i := range changes {
		if c := &changes[i]; c.Record.Kind == mariposa.KindVersion && (c.Spec || c.Deleted) {
			s.mu.Lock()
			s.drop(s.versions[c.Record.ID])
			s.mu.Unlock()
		}
	}
}

// Version returns one version of a project.
func (s *VersionCache) Version(ctx context.Context, project string, number int) (*Version, error) {
	id := mariposa.VersionID(project, number)
	v := s.find(id)
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
	v, err = s.read(ctx, (*store.Version)(&r).Spec())
	if errors.Is(err, ErrUnreadable) {
		s.put(id, &Version{fault: err})
	}
	if err != nil {
		return nil, err
	}
	s.put(id, v)
	return v, nil
}

func (s *VersionCache) read(ctx context.Context, spec *mariposa.VersionSpec) (*Version, error) {
	m, err := manifest.ParseStored(spec.Manifest)
	if err != nil {
		return nil, fmt.Errorf("%w: version %d: %w", ErrUnreadable, spec.Number, err)
	}
	v := &Version{Spec: spec, Manifest: m}
	if spec.Metadata > 0 {
		box, err := s.vault.Box(ctx, spec.Project)
		if err != nil {
			return nil, err
		}
		if v.Values, err = s.Values(ctx, spec.Project, spec.Metadata); err != nil {
			return nil, err
		}
		v.mac = box.MAC
	}
	v.Services = manifest.Bind(m, v.Values, spec.Packages, spec.Images, v.mac)
	return v, nil
}

// Values returns one generation of a project's metadata, or nil for generation 0.
func (s *VersionCache) Values(ctx context.Context, project string, number int) (*manifest.Values, error) {
	if number == 0 {
		return nil, nil
	}
	id := mariposa.MetadataID(project, number)
	s.mu.Lock()
	v := s.values[id]
	s.mu.Unlock()
	if v != nil {
		return v, nil
	}
	r, err := s.store.Get(ctx, mariposa.KindMetadata, id)
	if err != nil {
		return nil, err
	}
	box, err := s.vault.Box(ctx, project)
	if err != nil {
		return nil, err
	}
	if v, err = s.openValues(ctx, box, (*store.Metadata)(&r)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, old := range s.values {
		if s.valueBytes+len(v.Document) <= maxValueBytes {
			break
		}
		s.valueBytes -= len(old.Document)
		delete(s.values, other)
	}
	if s.values[id] == nil {
		s.valueBytes += len(v.Document)
		s.values[id] = v
	}
	return v, nil
}

// openValues decrypts a generation: its own values and the parts that it refers to.
func (s *VersionCache) openValues(ctx context.Context, box *seal.Box, r *store.Metadata) (*manifest.Values, error) {
	spec := r.Spec()
	head, err := box.Open(spec.Sealed, []byte(r.ID))
	if err != nil {
		return nil, err
	}
	if spec.Parts == nil { // written by an earlier release, without parts
		return manifest.UnmarshalValues(head)
	}
	parts := make([][]byte, len(spec.Parts))
	for i, ref := range spec.Parts {
		id := ref.ID(spec.Project)
		part, err := s.store.Get(ctx, mariposa.KindPart, id)
		if err != nil {
			return nil, err
		}
		if parts[i], err = box.Open((*store.Part)(&part).Spec().Sealed, []byte(id)); err != nil {
			return nil, err
		}
	}
	return manifest.JoinValues(head, parts)
}

// NewestValues returns the newest values of a project, as ValuesOf does. If the values were
// replaced and deleted since the caller read the project, it rereads the project from the
// store: they can be newer than what the picture shows.
func (s *VersionCache) NewestValues(ctx context.Context, project string, spec *mariposa.ProjectSpec) (*manifest.Values, *manifest.Project, error) {
	for {
		values, declared, err := s.ValuesOf(ctx, project, spec)
		if !errors.Is(err, store.ErrNotFound) {
			return values, declared, err
		}
		r, gone := s.store.Get(ctx, mariposa.KindProject, project)
		if gone != nil || r.Spec.(*mariposa.ProjectSpec).Metadata == spec.Metadata {
			return nil, nil, err
		}
		spec = r.Spec.(*mariposa.ProjectSpec)
	}
}

// ValuesOf returns the values of a project, with secrets marked, and the manifest that
// declares them (an empty one if it is lost). It fails with store.ErrNotFound if the values
// were replaced and deleted since the caller read the project.
func (s *VersionCache) ValuesOf(ctx context.Context, project string, spec *mariposa.ProjectSpec) (*manifest.Values, *manifest.Project, error) {
	values, err := s.Values(ctx, project, spec.Metadata)
	if err != nil {
		return nil, nil, err
	}
	if v, err := s.Version(ctx, project, spec.Number); err == nil {
		return values.WithSecretsMarked(v.Manifest), v.Manifest, nil
	}
	return values, &manifest.Project{}, nil
}

// InitialGoals returns the initial goals of the services of a version, given their ids.
func (v *Version) InitialGoals(ids map[string]string) map[string]*mariposa.ServiceStatus {
	goals := map[string]*mariposa.ServiceStatus{}
	for name, def := range v.Services {
		goals[name] = &mariposa.ServiceStatus{ID: ids[name], Scale: 1, Number: v.Spec.Number, Status: mariposa.StatusConverging}
		if def.Scale != nil {
			goals[name].Scale = *def.Scale
		}
	}
	return goals
}

// find returns a cached version, or nil.
func (s *VersionCache) find(id string) *Version {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.versions[id]
	if e == nil {
		return nil
	}
	s.recent.MoveToFront(e)
	return e.Value.(*cached).Version
}

// put caches a version and drops the least recently used ones if the cache is full. It
// keeps the new version however large it is.
func (s *VersionCache) put(id string, v *Version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(s.versions[id])
	s.bytes += v.size()
	s.versions[id] = s.recent.PushFront(&cached{id, v})
	for len(s.versions) > 1 && (len(s.versions) > maxVersions || s.bytes > s.maxBytes) {
		s.drop(s.recent.Back())
	}
}

// drop removes an entry; nil is ignored. The caller holds the mutex.
func (s *VersionCache) drop(e *list.Element) {
	if e == nil {
		return
	}
	c := s.recent.Remove(e).(*cached)
	s.bytes -= c.size()
	delete(s.versions, c.id)
}

// size is the length of a version's manifest and values as text.
func (v *Version) size() int {
	n := 0
	if v.Spec != nil {
		n += len(v.Spec.Manifest)
	}
	if v.Values != nil {
		n += len(v.Values.Document)
	}
	return n
}
