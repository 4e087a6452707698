package kvm

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

// A volume is a directory named by its id, with the file of a disk. The file has holes: it takes
// the room that was written to.

// defaultVolume is the size of a volume whose manifest does not say how large it is.
const defaultVolume = 10 << 30

// Provide creates a volume or a network, unless it exists. A network has no path. A volume may
// become larger.
func (d *Driver) Provide(ctx context.Context, r driver.Resource) (string, error) {
	ctx, leave, err := d.enterResource(ctx, r)
	if err != nil {
		return "", err
	}
	defer leave()
	if r.Kind != mariposa.KindVolume {
		return "", d.options.Networks.Provide(ctx, mariposa.ComputeKVM, r.ID, r.Name)
	}
	path := d.volumePath(r.ID)
	if _, err := os.Stat(path); err == nil {
		return path, d.growVolume(ctx, r)
	}
	if err := makeVolume(d.volumePath(newPrefix+r.ID), r.Size); err != nil {
		return "", fmt.Errorf("cannot create the disk of the volume: %w", err)
	}
	if err := os.Rename(d.volumePath(newPrefix+r.ID), path); err != nil {
		return "", fmt.Errorf("cannot create the disk of the volume: %w", err)
	}
	return path, nil
}

// makeVolume creates the directory of a volume.
func makeVolume(dir string, size int64) error {
	if size == 0 {
		size = defaultVolume
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, volumeDisk), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(roundSize(size)), f.Sync(), f.Close())
}

// roundSize returns the size of a disk, which consists of blocks.
func roundSize(size int64) int64 {
	const block = 512
	return (size + block - 1) / block * block
}

// volumeNode returns the name by which QEMU knows a volume of a machine.
func volumeNode(n int) string { return fmt.Sprintf("volume%d", n) }

// growVolume makes the disk of a volume larger if it is smaller than its size. The machine that
// uses it sees that at once.
func (d *Driver) growVolume(ctx context.Context, r driver.Resource) error {
	file := filepath.Join(d.volumePath(r.ID), volumeDisk)
	info, err := os.Stat(file)
	if err == nil && info.Size() >= roundSize(r.Size) {
		return nil
	}
	if user, at := d.userOf(r.ID); err == nil && user != nil {
		_, err = tell(ctx, user.Dir, order{Do: orderGrow, Name: volumeNode(at), Size: roundSize(r.Size)})
	} else if err == nil {
		err = os.Truncate(file, roundSize(r.Size))
	}
	if err != nil {
		return &driver.GrowError{Err: fmt.Errorf("cannot make the disk of the volume larger: %w", err)}
	}
	return nil
}

// userOf returns the running instance that uses a volume, and which of its volumes that is.
func (d *Driver) userOf(id string) (user *entry, at int) {
	d.roster.Lock()
	defer d.roster.Unlock()
	d.roster.Each(func(e *entry) {
		if n := slices.Index(e.held.volumes, id); n >= 0 && e.Observed.Running {
			user, at = e, n
		}
	})
	return user, at
}

// enterResource checks a resource, and makes Close wait for the operation.
func (d *Driver) enterResource(ctx context.Context, r driver.Resource) (context.Context, func(), error) {
	switch r.Kind {
	case mariposa.KindVolume:
	case mariposa.KindNetwork, mariposa.KindAttachment:
		if d.options.Networks == nil {
			return nil, nil, errors.New("virtual machines have no networks on this node, whose agent was started with --kvm-network user")
		}
	default:
		return nil, nil, fmt.Errorf("virtual machines have no %s: %w", r.Kind, driver.ErrNotSupported)
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
		return fmt.Errorf("cannot remove the disk of the volume: %w", err)
	}
	if err := os.RemoveAll(gone); err != nil {
		return fmt.Errorf("cannot remove the disk of the volume: %w", err)
	}
	return nil
}

// usedBy returns the id of a running instance that uses a resource.
func (d *Driver) usedBy(r driver.Resource) (by string) {
	d.roster.Lock()
	defer d.roster.Unlock()
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
	if d.options.Networks == nil {
		return all, nil
	}
	networks, err := d.options.Networks.Provided(mariposa.ComputeKVM)
	return append(all, networks...), err
}

// clearVolumes completes removals that were interrupted because the agent was killed.
func (d *Driver) clearVolumes() {
	dir := filepath.Join(d.options.Dir, volumesDir)
	list, _ := os.ReadDir(dir) // unreadable ones are removed another time
	for _, f := range list {
		if strings.HasPrefix(f.Name(), gonePrefix) || strings.HasPrefix(f.Name(), newPrefix) {
			_ = os.RemoveAll(filepath.Join(dir, f.Name()))
		}
	}
}
