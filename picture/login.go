package picture

import (
	"context"
	"fmt"
	"slices"

	"mariposa"
	"mariposa/store"
)

// Logins returns an organization's logins to some registries of images, of those that it has.
func (s *VersionCache) Logins(ctx context.Context, org *store.Organization, registries ...string) ([]mariposa.Login, error) {
	var all []mariposa.Login
	for name, spec := range org.Spec().Registries {
		if !slices.Contains(registries, name) {
			continue
		}
		box, err := s.vault.Box(ctx, org.ID)
		if err != nil {
			return nil, fmt.Errorf("the key of organization %s: %w", org.Spec().Name, err)
		}
		password, err := box.Open(spec.Password, LoginData(org.ID, name))
		if err != nil {
			return nil, fmt.Errorf("the login of organization %s to registry %s cannot be read: %w", org.Spec().Name, name, err)
		}
		all = append(all, mariposa.Login{Registry: name, Username: spec.Username, Password: string(password)})
	}
	return all, nil
}

// LoginData is what a sealed password is bound to: it cannot be moved to another organization or
// registry.
func LoginData(org, registry string) []byte { return []byte("registry " + org + " " + registry) }
