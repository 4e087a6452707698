package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/statefile"
)

// A container sees two things of the node: a directory with its live values, and its files,
// each at its own path. Both are mounted read-only, and kept in memory where the machine can.
const (
	recordDir = "records"
	mountDir  = "/run/mariposa" // inside the container
	mdataFile = "mdata.json"
	filesDir  = "files" // beside the directory that is mounted
	valuesDir = "values"
)

// record is what the driver keeps of an instance on disk: the engine cannot change the labels
// of a container.
type record struct {
	ManualRestarts int  `json:"bounces,omitempty"`
	Limited        bool `json:"limited,omitempty"` // its workload has limits
	Pending        bool `json:"pending,omitempty"` // its container is being created or removed, so there may be none
}

func (d *Driver) recordPath(id string) string {
	return filepath.Join(d.options.Dir, recordDir, id+".json")
}

// readRecord returns the record of an instance; an empty one if there is none.
func (d *Driver) readRecord(id string) (r record) {
	if b, err := os.ReadFile(d.recordPath(id)); err == nil {
		_ = json.Unmarshal(b, &r) // a damaged one counts as none
	}
	return r
}

func (d *Driver) writeRecord(id string, r record) error {
	b, err := json.Marshal(r)
	if err == nil {
		err = replaceFile(d.recordPath(id), b, nil)
	}
	if err != nil {
		return fmt.Errorf("cannot record the instance on this node: %w", err)
	}
	return nil
}

// markPending records that the container of an instance is being created or removed. If the agent is
// killed meanwhile, and there is no container, the next one removes the files of the instance.
func (d *Driver) markPending(id string) error {
	r := d.readRecord(id)
	r.Pending = true
	return d.writeRecord(id, r)
}

// privatePath returns the directory of an instance's files and values.
func (d *Driver) privatePath(id string) string {
	if dir := d.memory.Find(); dir != "" {
		return filepath.Join(dir, id)
	}
	return filepath.Join(d.options.Dir, "private", id)
}

// owner is a user of a container.
type owner struct{ uid, gid int }

// writePrivate creates the files and values of an instance. It is called while the instance
// does not run. A file that existed keeps its inode: a container that is started again has it
// mounted.
func (d *Driver) writePrivate(i driver.Instance, to owner) error {
	dir := d.privatePath(i.ID)
	for _, sub := range []string{filesDir, valuesDir} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return fmt.Errorf("cannot create the directory of its files: %w", err)
		}
	}
	if err := give(filepath.Join(dir, valuesDir), to, 0o700); err != nil {
		return fmt.Errorf("cannot give its values to the user of the container: %w", err)
	}
	for n, f := range i.Workload.Files {
		path := filepath.Join(dir, filesDir, strconv.Itoa(n))
		_ = os.Chmod(path, 0o600) // it may be there from an earlier start
		err := os.WriteFile(path, []byte(f.Value), 0o600)
		if err == nil {
			err = give(path, to, 0o400)
		}
		if err != nil {
			return fmt.Errorf("cannot create its file %q: %w", f.Name, errors.Unwrap(err))
		}
	}
	return d.writeValues(i.ID, i.Mdata.Values, to)
}

// writeValues replaces the values of an instance atomically.
func (d *Driver) writeValues(id string, values []mariposa.Variable, to owner) error {
	object := make(map[string]string, len(values))
	for _, v := range values {
		object[v.Name] = v.Value
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // people read it too
	err := encoder.Encode(object)
	path := filepath.Join(d.privatePath(id), valuesDir, mdataFile)
	if old, readErr := os.ReadFile(path); readErr == nil && bytes.Equal(old, b.Bytes()) {
		return give(path, to, 0o400) // whoever watches the file is not woken without a change
	}
	if err == nil {
		err = replaceFile(path, b.Bytes(), &to)
	}
	if err != nil {
		return fmt.Errorf("cannot write the live values of an instance: %w", err)
	}
	return nil
}

// give gives a file or a directory to a user of a container. An agent that is not root cannot:
// then everyone may read it, in a directory that only the agent and the container can reach.
func give(path string, to owner, mode os.FileMode) error {
	err := os.Chown(path, to.uid, to.gid)
	if errors.Is(err, os.ErrPermission) && os.Geteuid() != 0 {
		mode, err = mode|(mode>>3|mode>>6)&0o055, nil
	}
	return errors.Join(err, os.Chmod(path, mode))
}

// replaceFile writes a file so that readers see either the old or the new content.
func replaceFile(path string, content []byte, to *owner) error {
	f, err := os.CreateTemp(filepath.Dir(path), statefile.Prefix)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil && to != nil {
		err = give(f.Name(), *to, 0o400)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // it is incomplete; the error is returned
	}
	return err
}

// removePrivate removes the files, values and record of an instance.
func (d *Driver) removePrivate(id string) error {
	if err := errors.Join(os.RemoveAll(d.privatePath(id)), ignoreMissing(os.Remove(d.recordPath(id)))); err != nil {
		return fmt.Errorf("cannot remove the files of an instance: %w", err)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// PublishValues replaces the values that a container can read.
func (d *Driver) PublishValues(ctx context.Context, id string, values []mariposa.Variable) error {
	_, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	dir := filepath.Join(d.privatePath(id), valuesDir)
	info, err := os.Stat(dir)
	if err != nil {
		return driver.ErrNotFound
	}
	e := d.entry(id)
	e.valuesMu.Lock()
	defer e.valuesMu.Unlock()
	stat := info.Sys().(*syscall.Stat_t)
	return d.writeValues(id, values, owner{int(stat.Uid), int(stat.Gid)})
}

// PublishedValues returns the values that a container can read.
func (d *Driver) PublishedValues(ctx context.Context, id string) ([]mariposa.Variable, error) {
	_, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	b, err := os.ReadFile(filepath.Join(d.privatePath(id), valuesDir, mdataFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, driver.ErrNotFound
	}
	var values map[string]string
	if err == nil {
		err = json.Unmarshal(b, &values)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the live values of an instance: %w", err)
	}
	list := make([]mariposa.Variable, 0, len(values))
	for name, value := range values {
		list = append(list, mariposa.Variable{Name: name, Value: value})
	}
	slices.SortFunc(list, func(a, b mariposa.Variable) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}
