package change

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/picture"
	"mariposa/store"
)

const (
	maxRegistries    = 50
	maxUsername      = 255
	maxLoginPassword = 16 << 10 // some registries use documents as passwords
)

// SetRegistry sets the login of an organization to a registry of images.
func (c *Changer) SetRegistry(ctx context.Context, req *Request, org, registry string, to contract.RegistryLogin) (*contract.Registry, error) {
	if err := mariposa.CheckRegistry(registry); err != nil {
		return nil, err
	}
	switch {
	case to.Username == "" || len(to.Username) > maxUsername || strings.ContainsAny(to.Username, ":\x00\r\n"):
		return nil, invalid("username: give 1 to %d bytes, without a colon or a line break", maxUsername)
	case to.Password == "" || len(to.Password) > maxLoginPassword || strings.ContainsRune(to.Password, 0):
		return nil, invalid("password: give 1 to %d bytes", maxLoginPassword)
	}
	return commit(ctx, c, req, org, func() (*store.Unit, contract.Registry, error) {
		unit, spec, err := c.editOrganization(req, org)
		if err != nil {
			return nil, contract.Registry{}, err
		}
		if _, known := spec.Registries[registry]; !known && len(spec.Registries) >= maxRegistries {
			return nil, contract.Registry{}, conflict("organization %s already has logins to %d registries, which is the limit: remove one first", spec.Name, maxRegistries)
		}
		now := c.Clock.Now().UTC()
		box, err := c.Vault.Box(ctx, org)
		if errors.Is(err, store.ErrNotFound) {
			var key store.Unit
			if box, key, err = c.Vault.NewKey(ctx, org, now); err == nil {
				unit.Require, unit.Writes = append(unit.Require, key.Require...), append(unit.Writes, key.Writes...)
			}
		}
		if err != nil {
			return nil, contract.Registry{}, err
		}
		if spec.Registries = maps.Clone(spec.Registries); spec.Registries == nil {
			spec.Registries = map[string]mariposa.RegistrySpec{}
		}
		spec.Registries[registry] = mariposa.RegistrySpec{
			Username: to.Username, Password: box.Seal([]byte(to.Password), picture.LoginData(org, registry)), Updated: now, Author: req.actor(),
		}
		unit.Put(orgWrite(req, org, spec))
		unit.Audit[0].Object, unit.Audit[0].ObjectName, unit.Audit[0].Reason = org, spec.Name, "login to registry "+registry+" as "+to.Username
		return unit, registryOf(registry, spec.Registries[registry]), nil
	})
}

// RemoveRegistry removes the login of an organization to a registry.
func (c *Changer) RemoveRegistry(ctx context.Context, req *Request, org, registry string) (*contract.Registry, error) {
	return commit(ctx, c, req, org, func() (*store.Unit, contract.Registry, error) {
		unit, spec, err := c.editOrganization(req, org)
		if err != nil {
			return nil, contract.Registry{}, err
		}
		was, known := spec.Registries[registry]
		if !known {
			return nil, contract.Registry{}, notFound("organization %s has no login to registry %s", spec.Name, shorten(registry))
		}
		spec.Registries = maps.Clone(spec.Registries)
		delete(spec.Registries, registry)
		unit.Put(orgWrite(req, org, spec))
		unit.Audit[0].Object, unit.Audit[0].ObjectName, unit.Audit[0].Reason = org, spec.Name, "no login to registry "+registry
		return unit, registryOf(registry, was), nil
	})
}

// RegistriesOf returns the logins of an organization, without passwords.
func RegistriesOf(spec *mariposa.OrganizationSpec) contract.Registries {
	doc := contract.Registries{Registries: []contract.Registry{}}
	for _, name := range slices.Sorted(maps.Keys(spec.Registries)) {
		doc.Registries = append(doc.Registries, registryOf(name, spec.Registries[name]))
	}
	return doc
}

func registryOf(name string, spec mariposa.RegistrySpec) contract.Registry {
	return contract.Registry{Registry: name, Username: spec.Username, Updated: spec.Updated, Author: spec.Author}
}
