// Package statefile writes the small files in which drivers keep what they know of an instance.
// Readers see the old or the new content, whenever a process is killed. The package does not know
// what the files contain.
package statefile

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
)

// Prefix begins the names of files that are incomplete.
const Prefix = ".new-"

// Write replaces a file with a value as JSON, which only root may read.
func Write(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Replace(path, b, 0o600, 0, 0)
}

// Read reads a value from a file with JSON.
func Read(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// Replace replaces a file, and sets its owner.
func Replace(path string, content []byte, mode os.FileMode, uid, gid int) error {
	f, err := os.CreateTemp(filepath.Dir(path), Prefix)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err == nil {
		err = os.Lchown(f.Name(), uid, gid)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // it is incomplete; the error is returned
	}
	return err
}

// IsGone reports that there is no such file.
func IsGone(err error) bool { return errors.Is(err, os.ErrNotExist) }

// IgnoreMissing returns an error unless it says that there is no such file.
func IgnoreMissing(err error) error {
	if IsGone(err) {
		return nil
	}
	return err
}
