package picture

import (
	"context"
	"errors"
	"slices"
	"strings"

	"mariposa"
	"mariposa/seal"
	"mariposa/store"
)

// masks hide the secrets of one project. They are valid until there are newer values.
type masks struct {
	newest int
	made   map[maskOf]*seal.Mask
}

// maskOf describes what a mask covers.
type maskOf struct {
	since   int    // the oldest generation covered
	without string // keys that are not covered
}

const (
	// maskGenerations and maskBytes limit what one mask covers, in addition to the newest
	// values and those that the instance was created with.
	maskGenerations = 100
	maskBytes       = 1 << 20
	// maskProjects limits the number of projects whose masks are cached.
	maskProjects = 10_000
)

// Mask returns a mask that hides the secrets of a project in the output of an instance:
// the values that it was created with and all values that it could read since. It returns
// the same mask until there are newer values. A nil mask hides nothing.
//
// Protected secrets are masked only in the output of instances that receive them. Masking
// them elsewhere would allow an attack: a user who may run a program, but not read the
// secret, could print a million guesses and see which one is masked.
func (s *VersionCache) Mask(ctx context.Context, project *store.Project, instance *mariposa.InstanceSpec) (*seal.Mask, error) {
	without, err := s.notGiven(ctx, project, instance)
	if err != nil {
		return nil, err
	}
	return s.mask(ctx, project, instance, without)
}

// MaskAll returns a mask for all secrets of a project, for output of users who may read
// them.
func (s *VersionCache) MaskAll(ctx context.Context, project *store.Project, instance *mariposa.InstanceSpec) (*seal.Mask, error) {
	return s.mask(ctx, project, instance, nil)
}

func (s *VersionCache) mask(ctx context.Context, project *store.Project, instance *mariposa.InstanceSpec, without []string) (*seal.Mask, error) {
	spec := project.Spec()
	of := maskOf{since: spec.Metadata, without: strings.Join(without, " ")}
	if instance.Number > 0 && instance.Number != spec.Number {
		v, err := s.known(ctx, project.ID, instance.Number)
		if err != nil {
			return nil, err
		}
		if v != nil {
			of.since = v.Spec.Metadata
		}
	}
	s.mu.Lock()
	if known := s.masks[project.ID]; known != nil && known.newest == spec.Metadata {
		if m, made := known.made[of]; made {
			s.mu.Unlock()
			return m, nil
		}
	}
	s.mu.Unlock()
	secrets, err := s.secrets(ctx, project.ID, of.since, spec.Metadata, without)
	if err != nil {
		return nil, err
	}
	return s.putMask(project.ID, of, spec.Metadata, seal.NewMask(secrets)), nil
}

// notGiven lists the protected keys that an instance does not receive, neither from the
// version that it was created from nor from the current one.
func (s *VersionCache) notGiven(ctx context.Context, project *store.Project, instance *mariposa.InstanceSpec) ([]string, error) {
	protected := project.Spec().Protected
	if len(protected) == 0 || !instance.Managed {
		return nil, nil
	}
	numbers := []int{instance.Number}
	if st := project.Status(); st != nil && st.Services[instance.ServiceName] != nil {
		numbers = append(numbers, st.Services[instance.ServiceName].Number)
	}
	without := slices.Clone(protected)
	for _, n := range numbers {
		v, err := s.known(ctx, project.ID, n)
		if err != nil {
			return nil, err
		}
		if v == nil { // lost: it may receive any key
			return nil, nil
		}
		without = slices.DeleteFunc(without, func(key string) bool { return v.Manifest.Holds(instance.ServiceName, key) })
	}
	return without, nil
}

// known returns a version, or nil if it is lost.
func (s *VersionCache) known(ctx context.Context, project string, number int) (*Version, error) {
	v, err := s.Version(ctx, project, number)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, ErrUnreadable) {
		return nil, nil //nolint:nilnil // a lost version is not an error
	}
	return v, err
}

// secrets returns the secrets of the first and the last generation, and of as many
// generations in between as the limits allow, newest first, without some keys.
// Generations may have been deleted.
func (s *VersionCache) secrets(ctx context.Context, project string, first, last int, without []string) ([]string, error) {
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
		for _, secret := range values.Secrets(without...) {
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

// between lists the generations between two, newest first.
func between(first, last int) (all []int) {
	for n := last - 1; n > first && n > last-maskGenerations; n-- {
		all = append(all, n)
	}
	return all
}

// putMask caches a mask, unless there are newer values in the meantime.
func (s *VersionCache) putMask(project string, of maskOf, newest int, m *seal.Mask) *seal.Mask {
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
		known = &masks{newest: newest, made: map[maskOf]*seal.Mask{}}
		s.masks[project] = known
	}
	if known.newest > newest {
		return m
	}
	if made, there := known.made[of]; there { // created twice concurrently: return the same pointer to all
		return made
	}
	known.made[of] = m
	return m
}
