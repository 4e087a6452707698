package process

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
)

var _ driver.Provider = (*Driver)(nil)

// These are the prefixes of the variables with the paths of volumes and networks.
const (
	envVolume  = "MARIPOSA_VOLUME_"
	envNetwork = "MARIPOSA_NETWORK_"
)

// A volume is a directory, which only the user of instances can access; package volume keeps it. A
// network is a directory named by its id: its instances on this node create their sockets there.

// Provide creates the directory of a resource unless it exists. A volume may become larger.
func (d *Driver) Provide(ctx context.Context, r driver.Resource) (string, error) {
	path, leave, err := d.enterResource(ctx, r)
	if err != nil {
		return "", err
	}
	defer leave()
	if r.Kind == mariposa.KindVolume {
		return d.volumes.Provide(ctx, r)
	}
	return path, d.makeResourceDir(r.Kind, path)
}

// enterResource returns the path of a resource, and makes Close wait for the operation.
func (d *Driver) enterResource(ctx context.Context, r driver.Resource) (path string, leave func(), err error) {
	if path, err = d.resourcePath(r); err == nil {
		_, leave, err = d.gate.Enter(ctx)
	}
	return path, leave, err
}

// volumeOwner returns the owner of new volumes and networks.
func (d *Driver) volumeOwner() int {
	if d.support.mode == modeRoot {
		return d.options.UIDs.First
	}
	return os.Geteuid()
}

func (d *Driver) makeResourceDir(kind mariposa.Kind, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("cannot create the directory of %ss: %w", kind, err)
	}
	err := os.Mkdir(path, 0o700)
	if owner := d.volumeOwner(); err == nil && owner != os.Geteuid() {
		err = os.Lchown(path, owner, owner)
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot create the directory of the %s: %w", kind, err)
	}
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", path)
	}
	return err
}

// Withdraw removes the directory of a resource, unless an instance of this driver still
// uses it. It renames the directory first: a half-removed one must not be taken for a
// complete one.
func (d *Driver) Withdraw(ctx context.Context, r driver.Resource) error {
	path, leave, err := d.enterResource(ctx, r)
	if err != nil {
		return err
	}
	defer leave()
	if by := d.mountedBy(path); by != "" {
		return fmt.Errorf("instance %s still uses it", by)
	}
	if r.Kind == mariposa.KindVolume {
		return d.volumes.Withdraw(r.ID)
	}
	gone := filepath.Join(filepath.Dir(path), gonePrefix+filepath.Base(path))
	if err := os.Rename(path, gone); err != nil && !isGone(err) {
		return fmt.Errorf("cannot remove the directory of the %s: %w", r.Kind, err)
	}
	return removeAll(gone)
}

// mountedBy returns the name of a running instance that uses a resource.
func (d *Driver) mountedBy(path string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, e := range d.entries {
		if e.observed.Running && slices.Contains(e.uses, path) {
			return id
		}
	}
	return ""
}

// Provided lists the existing resources.
func (d *Driver) Provided(ctx context.Context) ([]driver.Resource, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	all, err := d.volumes.List()
	if err != nil {
		return nil, err
	}
	list, err := os.ReadDir(d.options.Networks)
	if err != nil && !isGone(err) {
		return nil, fmt.Errorf("cannot list the networks: %w", err)
	}
	for _, f := range list {
		if f.IsDir() && checkID(f.Name()) == nil {
			all = append(all, driver.Resource{Kind: mariposa.KindNetwork, ID: f.Name()})
		}
	}
	return all, nil
}

// clearResources completes removals that were interrupted because the agent was killed.
func (d *Driver) clearResources() {
	d.volumes.Clear()
	list, _ := os.ReadDir(d.options.Networks) // unreadable ones are removed another time
	for _, f := range list {
		if strings.HasPrefix(f.Name(), gonePrefix) {
			_ = removeAll(filepath.Join(d.options.Networks, f.Name()))
		}
	}
}

func (d *Driver) resourcePath(r driver.Resource) (string, error) {
	if r.Kind != mariposa.KindVolume && r.Kind != mariposa.KindNetwork {
		return "", fmt.Errorf("compute type process has no %s: %w", r.Kind, driver.ErrNotSupported)
	}
	if checkID(r.ID) != nil {
		return "", fmt.Errorf("invalid id %q of a %s", r.ID, r.Kind)
	}
	if r.Kind == mariposa.KindVolume {
		return d.volumes.Path(r.ID), nil
	}
	return filepath.Join(d.options.Networks, r.ID), nil
}

// variableName returns the name of the variable with the path of a resource. Names of
// resources contain no underscore, so no two share a variable.
func variableName(prefix, name string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// linkVolumes links an instance's volumes at their paths below its working directory. A
// file that the instance itself created there on an earlier run is left in place.
func linkVolumes(work string, volumes []driver.Volume, owner int) error {
	if len(volumes) == 0 {
		return nil
	}
	root, err := os.OpenRoot(work) // paths stay inside it, whatever links the instance has created
	if err != nil {
		return fmt.Errorf("cannot open its working directory: %w", err)
	}
	defer root.Close()
	for _, v := range volumes {
		below, absolute := strings.CutPrefix(filepath.Clean(v.Path), "/")
		if !absolute || !filepath.IsLocal(below) || below == "." {
			return fmt.Errorf("cannot mount its volume %s at %q: the path must be absolute, such as /var/lib/data", v.Name, v.Path)
		}
		if there, err := root.Readlink(below); err == nil && there == v.Source {
			continue
		}
		err := root.MkdirAll(filepath.Dir(below), 0o700)
		for dir := filepath.Dir(below); err == nil && dir != "." && owner != os.Geteuid(); dir = filepath.Dir(dir) {
			err = root.Lchown(dir, owner, owner)
		}
		if err == nil {
			err = root.Symlink(v.Source, below)
		}
		if err != nil {
			return fmt.Errorf("cannot mount its volume %s at %q: the path is already in use: %w", v.Name, v.Path, err)
		}
	}
	return nil
}

// sources returns the directories of an instance's volumes and networks.
func sources(i driver.Instance) []string {
	var all []string
	for _, v := range i.Volumes {
		all = append(all, v.Source)
	}
	for _, n := range i.Networks {
		all = append(all, n.Source)
	}
	return all
}

// sourcesOf reads the sources of a stray from its environment.
func sourcesOf(env []string) []string {
	var all []string
	for _, v := range env {
		if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, envVolume) || strings.HasPrefix(name, envNetwork) {
			all = append(all, value)
		}
	}
	return all
}
