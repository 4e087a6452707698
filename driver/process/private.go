package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
)

// These are the contents of a private directory.
const (
	filesDir  = "files"      // the workload's files, at their paths below it
	mdataFile = "mdata.json" // the instance's live values: an object of strings
)

// privateFiles is the private directory of an instance, with its files and values. Only
// the user that the instance runs as can read it. It has its own lock, because values may
// be published while an operation waits.
type privateFiles struct {
	mu    sync.Mutex
	path  string // empty if there is none
	owner int    // the uid that may read it
}

// make recreates the directory. Readers see either the old or the new contents. It is
// called while the instance is not running.
func (f *privateFiles) make(path string, owner int, files, values []mariposa.Variable) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path != "" && f.path != path {
		if err := removeAll(f.path); err != nil {
			return err
		}
	}
	f.path, f.owner = path, owner
	tmp := filepath.Join(filepath.Dir(path), newPrefix+filepath.Base(path))
	if err := errors.Join(removeAll(tmp), removeAll(path)); err != nil {
		return err
	}
	if err := fill(tmp, files, values); err != nil {
		_ = removeAll(tmp) // it is incomplete; the error is returned
		return err
	}
	if err := chownTree(tmp, owner); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func fill(dir string, files, values []mariposa.Variable) error {
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, filesDir), 0o700)
	}
	if err != nil {
		return fmt.Errorf("cannot create the directory of its files: %w", err)
	}
	for _, v := range files {
		if err := writeFile(filepath.Join(dir, filesDir), v.Name, v.Value); err != nil {
			return err
		}
	}
	b, err := encodeValues(values)
	if err != nil {
		return err
	}
	if err := writePrivate(filepath.Join(dir, mdataFile), b); err != nil {
		return fmt.Errorf("cannot write its live values: %w", err)
	}
	return nil
}

// writeFile writes one of the workload's files to its path below a directory. Errors do
// not contain its content.
func writeFile(dir, name, content string) error {
	below, absolute := strings.CutPrefix(filepath.Clean(name), "/")
	if !absolute || !filepath.IsLocal(below) || below == "." || strings.Contains(name, "\x00") {
		return fmt.Errorf("cannot create its file %q: the path must be absolute, such as /run/secrets/db", name)
	}
	path := filepath.Join(dir, below)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = writePrivate(path, []byte(content))
	}
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EEXIST), errors.Is(err, unix.EISDIR):
		return fmt.Errorf("cannot create its file %q: it conflicts with another of its files", name)
	case err != nil:
		return fmt.Errorf("cannot create its file %q: %w", name, errors.Unwrap(err))
	}
	return nil
}

// writePrivate creates a file that only its owner can read.
func writePrivate(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

// publish replaces the values atomically. Publishing the same values again changes
// nothing, so that a process that watches the file is not woken without a change.
func (f *privateFiles) publish(values []mariposa.Variable) error {
	b, err := encodeValues(values)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" {
		return driver.ErrNotFound
	}
	path := filepath.Join(f.path, mdataFile)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b) {
		return nil
	}
	// A directory in memory may have been deleted, for example at the end of a login
	// session.
	if err := os.Mkdir(f.path, 0o700); isGone(err) {
		return driver.ErrNotFound
	}
	tmp := filepath.Join(f.path, "."+mdataFile)
	_ = os.Remove(tmp) // left by an agent that was killed
	if err = writePrivate(tmp, b); err == nil {
		err = errors.Join(chownTree(f.path, f.owner), os.Rename(tmp, path))
	}
	if err != nil {
		return fmt.Errorf("cannot write the live values of an instance: %w", err)
	}
	return nil
}

// published reads the values back.
func (f *privateFiles) published() ([]mariposa.Variable, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" {
		return nil, driver.ErrNotFound
	}
	var values map[string]string
	if err := readJSON(filepath.Join(f.path, mdataFile), &values); err != nil && !isGone(err) {
		return nil, fmt.Errorf("cannot read the live values of an instance: %w", err)
	}
	list := make([]mariposa.Variable, 0, len(values))
	for name, value := range values {
		list = append(list, mariposa.Variable{Name: name, Value: value})
	}
	slices.SortFunc(list, func(a, b mariposa.Variable) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (f *privateFiles) remove() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" {
		return nil
	}
	if err := removeAll(f.path); err != nil {
		return fmt.Errorf("cannot remove the files of an instance: %w", err)
	}
	f.path = ""
	return nil
}

func encodeValues(values []mariposa.Variable) ([]byte, error) {
	object := make(map[string]string, len(values))
	for _, v := range values {
		object[v.Name] = v.Value
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // people read it too
	err := e.Encode(object)
	return b.Bytes(), err
}
