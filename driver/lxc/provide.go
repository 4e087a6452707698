package lxc

import (
	"context"
	"fmt"
	"slices"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/bridge"
)

// A volume is a directory; package volume keeps it. Its files have the ids that containers see, so
// that any container can use it.

// Provide creates a volume or a network, unless it exists. A network has no path. A volume may
// become larger.
func (d *Driver) Provide(ctx context.Context, r driver.Resource) (string, error) {
	ctx, leave, err := d.enterResource(ctx, r)
	if err != nil {
		return "", err
	}
	defer leave()
	if r.Kind != mariposa.KindVolume {
		return "", d.options.Networks.Provide(ctx, mariposa.ComputeInfrastructure, r.ID, r.Name)
	}
	return d.volumes.Provide(ctx, r)
}

// enterResource checks a resource, and makes Close wait for the operation.
func (d *Driver) enterResource(ctx context.Context, r driver.Resource) (context.Context, func(), error) {
	switch r.Kind {
	case mariposa.KindVolume, mariposa.KindNetwork, mariposa.KindAttachment:
	default:
		return nil, nil, fmt.Errorf("system containers have no %s: %w", r.Kind, driver.ErrNotSupported)
	}
	if checkID(r.ID) != nil {
		return nil, nil, fmt.Errorf("invalid id %q of a %s", r.ID, r.Kind)
	}
	return d.gate.Enter(ctx)
}

// Withdraw removes a volume with its content, or a network, unless an instance uses it.
func (d *Driver) Withdraw(ctx context.Context, r driver.Resource) error {
	ctx, leave, err := d.enterResource(ctx, r)
	if err != nil {
		return err
	}
	defer leave()
	if by := d.usedBy(r); by != "" {
		return fmt.Errorf("instance %s still uses it", by)
	}
	if r.Kind != mariposa.KindVolume {
		return d.options.Networks.Withdraw(ctx, r.ID)
	}
	return d.volumes.Withdraw(r.ID)
}

// usedBy returns the id of an instance that uses a resource: a running one for a volume; any for
// a network, in which it keeps its address.
func (d *Driver) usedBy(r driver.Resource) string {
	d.roster.Lock()
	defer d.roster.Unlock()
	by := ""
	d.roster.Each(func(e *entry) {
		switch {
		case !e.Observed.Running:
		case r.Kind == mariposa.KindVolume && slices.Contains(e.held.volumes, r.ID),
			r.Kind != mariposa.KindVolume && slices.ContainsFunc(e.held.links, func(l bridge.Link) bool { return l.Network == r.ID }):
			by = e.ID
		}
	})
	return by
}

// Provided returns the volumes and networks of this node.
func (d *Driver) Provided(ctx context.Context) ([]driver.Resource, error) {
	_, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	all, err := d.volumes.List()
	if err != nil {
		return nil, err
	}
	networks, err := d.options.Networks.Provided(mariposa.ComputeInfrastructure)
	return append(all, networks...), err
}
