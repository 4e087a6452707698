package lxc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/bridge"
	"mariposa/driver/statefile"
)

// A volume is a directory named by its id. Its files have the ids that containers see, so that
// any container can use it. It has no size limit: its file system is the limit.

// Provide creates a volume or a network, unless it exists. A network has no path.
func (d *Driver) Provide(ctx context.Context, r driver.Resource) (string, error) {
	ctx, leave, err := d.enterResource(ctx, r)
	if err != nil {
		return "", err
	}
	defer leave()
	if r.Kind != mariposa.KindVolume {
		return "", d.options.Networks.Provide(ctx, mariposa.ComputeInfrastructure, r.ID, r.Name)
	}
	path := d.volumePath(r.ID)
	err = os.Mkdir(path, 0o700)
	if errors.Is(err, os.ErrExist) {
		return path, nil
	}
	if err == nil {
		err = os.Chmod(path, 0o755) // root of the container owns it, and may change that
	}
	if err != nil {
		return "", fmt.Errorf("cannot create the directory of the volume: %w", err)
	}
	return path, nil
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

func (d *Driver) volumePath(id string) string { return filepath.Join(d.options.Dir, volumesDir, id) }

// Withdraw removes a volume with its content, or a network, unless an instance uses it. A volume
// is renamed first: a half-removed one must not be taken for a complete one.
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
	gone := d.volumePath(gonePrefix + r.ID)
	if err := os.Rename(d.volumePath(r.ID), gone); err != nil && !statefile.IsGone(err) {
		return fmt.Errorf("cannot remove the directory of the volume: %w", err)
	}
	if err := removeAll(gone); err != nil {
		return fmt.Errorf("cannot remove the directory of the volume: %w", err)
	}
	return nil
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
	var all []driver.Resource
	volumes, err := os.ReadDir(filepath.Join(d.options.Dir, volumesDir))
	if err != nil {
		return nil, fmt.Errorf("cannot list the volumes: %w", err)
	}
	for _, f := range volumes {
		if f.IsDir() && checkID(f.Name()) == nil {
			all = append(all, driver.Resource{Kind: mariposa.KindVolume, ID: f.Name()})
		}
	}
	networks, err := d.options.Networks.Provided(mariposa.ComputeInfrastructure)
	return append(all, networks...), err
}

// clearVolumes completes removals that were interrupted because the agent was killed.
func (d *Driver) clearVolumes() {
	dir := filepath.Join(d.options.Dir, volumesDir)
	list, _ := os.ReadDir(dir) // unreadable ones are removed another time
	for _, f := range list {
		if strings.HasPrefix(f.Name(), gonePrefix) {
			_ = removeAll(filepath.Join(dir, f.Name()))
		}
	}
}
