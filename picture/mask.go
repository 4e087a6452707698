package picture

import (
	"context"
	"errors"

	"mariposa"
	"mariposa/seal"
	"mariposa/store"
)

// masks hide the secrets of one project. They are valid until there are newer values.
type masks struct {
	newest int
	since  map[int]*seal.Mask // by the oldest generation that each mask covers
}

const (
	// maskGenerations and maskBytes limit what one mask covers, in addition to the newest
	// values and those that an instance was created with.
	maskGenerations = 100
	maskBytes       = 1 << 20
	// maskProjects limits how many projects' masks are kept.
	maskProjects = 10_000
)

// Mask returns a mask for the output of an instance. It hides the project's secrets that
// the instance was created with, and all that it could read since. Number is the version
// that it was created from. The same mask is returned until there are newer values; nil
// hides nothing.
func (s *VersionCache) Mask(ctx context.Context, project *mariposa.ProjectSpec, id string, number int) (*seal.Mask, error) {
	since := project.Metadata
	if number > 0 && number != project.Number {
		v, err := s.Version(ctx, id, number)
		switch {
		case errors.Is(err, store.ErrNotFound), errors.Is(err, ErrUnreadable):
		case err != nil:
			return nil, err
		default:
			since = v.Spec.Metadata
		}
	}
	s.mu.Lock()
	if known := s.masks[id]; known != nil && known.newest == project.Metadata {
		if m, made := known.since[since]; made {
			s.mu.Unlock()
			return m, nil
		}
	}
	s.mu.Unlock()
	secrets, err := s.secrets(ctx, id, since, project.Metadata)
	if err != nil {
		return nil, err
	}
	return s.putMask(id, since, project.Metadata, seal.NewMask(secrets)), nil
}

// secrets returns the secrets of a range of generations: of the first and the last, and
// of as many in between as fit, newest first. Generations that are deleted are skipped.
func (s *VersionCache) secrets(ctx context.Context, project string, first, last int) ([]string, error) {
	var all []string
	seen, bytes := map[string]bool{}, 0
	for _, n := range append([]int{last, first}, between(first, last)...) {
		values, err := s.Values(ctx, project, n)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, secret := range values.Secrets() {
			if seen[secret] || (n != first && n != last && bytes+len(secret) > maskBytes) {
				continue
			}
			seen[secret] = true
			bytes += len(secret)
			all = append(all, secret)
		}
	}
	return all, nil
}

// between lists the generations between two, the newest first.
func between(first, last int) (all []int) {
	for n := last - 1; n > first && n > last-maskGenerations; n-- {
		all = append(all, n)
	}
	return all
}

// putMask caches a mask, unless there are newer values by now.
func (s *VersionCache) putMask(project string, since, newest int, m *seal.Mask) *seal.Mask {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.masks[project]
	if known == nil || known.newest < newest {
		for other := range s.masks {
			if len(s.masks) < maskProjects {
				break
			}
			delete(s.masks, other)
		}
		known = &masks{newest: newest, since: map[int]*seal.Mask{}}
		s.masks[project] = known
	}
	if known.newest > newest {
		return m
	}
	if made, there := known.since[since]; there { // made twice at once: return the same pointer to all
		return made
	}
	known.since[since] = m
	return m
}
