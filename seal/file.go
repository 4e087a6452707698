package seal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// file keeps a ring's keys outside the store.
type file struct{ path string }

// document is the file's content, as described in the package comment.
type document struct {
	About   string     `json:"about"`
	Format  int        `json:"format"`
	Primary string     `json:"primary"`
	Keys    []namedKey `json:"keys"`
}

type namedKey struct {
	Name string `json:"name"`
	Key  []byte `json:"key"`
}

const (
	about = "Mariposa's keys. Without this file the secrets in the store cannot be decrypted: keep a copy of it, separate from the store and its backups."
	// maxFile is far above the size of a file with many keys.
	maxFile = 1 << 20
)

func (f file) String() string { return f.path }

// make writes a file with a new key unless there is one. The file appears whole or not
// at all: it is written under another name and then linked to its own, which fails for
// all but the first.
func (f file) make() error {
	if _, err := os.Stat(f.path); !errors.Is(err, fs.ErrNotExist) {
		return nil // load reports what is wrong with it, if anything
	}
	written, err := f.write(keySet{newOuter()}, nil)
	if err == nil {
		err = os.Link(written, f.path)
		_ = os.Remove(written) // a rotation removes what is left over
	}
	if _, there := os.Stat(f.path); there == nil {
		err = f.syncFolder() // whoever made it: it must be durable before it is used
	}
	if err != nil {
		return fmt.Errorf("create key file %s: %w", f.path, err)
	}
	return nil
}

func (f file) load() (keySet, error) {
	opened, err := f.open()
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	return f.read(opened)
}

// open refuses a file that anyone but its owner can read or change.
func (f file) open() (*os.File, error) {
	// Opening a pipe must not block until its other end opens.
	opened, err := os.OpenFile(f.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("key file %s does not exist: restore it from your copy; the secrets in the store cannot be decrypted without it", f.path)
	}
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	info, err := opened.Stat()
	switch {
	case err != nil:
		err = fmt.Errorf("read key file: %w", err)
	case !info.Mode().IsRegular():
		err = fmt.Errorf("key file %s is not a regular file: use another path", f.path)
	case info.Mode().Perm()&0o077 != 0:
		err = fmt.Errorf("key file %s is accessible to other users (mode %04o): run chmod 600 %s", f.path, info.Mode().Perm(), f.path)
	}
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	return opened, nil
}

func (f file) read(opened *os.File) (keySet, error) {
	b, err := io.ReadAll(io.LimitReader(opened, maxFile))
	if err != nil {
		return nil, fmt.Errorf("read key file: %w", err)
	}
	set, err := decode(b)
	if err != nil {
		return nil, fmt.Errorf("key file %s %w", f.path, err)
	}
	return set, nil
}

// change holds a lock on the file from reading to replacing it, so that changes of
// other processes are not lost.
func (f file) change(fn func(keySet) keySet) (keySet, error) {
	locked, err := f.lock()
	if err != nil {
		return nil, err
	}
	defer locked.Close() // releases the lock
	old, err := f.read(locked)
	if err != nil {
		return nil, err
	}
	set := fn(old)
	if slices.EqualFunc(old, set, func(a, b outer) bool { return a.name == b.name }) {
		return old, nil
	}
	if err := f.replace(set, locked); err != nil {
		return nil, fmt.Errorf("write key file %s: %w", f.path, err)
	}
	return set, nil
}

// lock locks the file for a change. If it was replaced while lock waited, lock takes
// the new one.
func (f file) lock() (*os.File, error) {
	for {
		opened, err := f.open()
		if err != nil {
			return nil, err
		}
		for {
			if err = syscall.Flock(int(opened.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
				break
			}
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock key file %s: %w", f.path, err), opened.Close())
		}
		mine, err := opened.Stat()
		if err != nil {
			return nil, errors.Join(err, opened.Close())
		}
		current, err := os.Stat(f.path)
		if err == nil && os.SameFile(mine, current) {
			return opened, nil
		}
		_ = opened.Close() // it was replaced; opening it again reports any error
	}
}

// replace replaces the locked file. Owner and mode stay, so that a rotation by root
// does not lock the server out.
func (f file) replace(set keySet, locked *os.File) error {
	target, err := filepath.EvalSymlinks(f.path)
	if err != nil {
		return err
	}
	f.path = target
	info, err := locked.Stat()
	if err != nil {
		return err
	}
	f.sweep()
	written, err := f.write(set, info)
	if err != nil {
		return err
	}
	if err := os.Rename(written, f.path); err != nil {
		return errors.Join(err, os.Remove(written))
	}
	return f.syncFolder()
}

// write writes the keys to a new file in the same directory and returns its name.
func (f file) write(set keySet, like fs.FileInfo) (name string, err error) {
	made, err := os.CreateTemp(filepath.Dir(f.path), f.leftovers()) // with mode 0600
	if err != nil {
		return "", err
	}
	if _, err = made.Write(encode(set)); err == nil && like != nil {
		err = matchMode(made, like)
	}
	if err = errors.Join(err, made.Sync(), made.Close()); err != nil {
		return "", errors.Join(err, os.Remove(made.Name()))
	}
	return made.Name(), nil
}

func matchMode(made *os.File, like fs.FileInfo) error {
	if owner, ok := like.Sys().(*syscall.Stat_t); ok {
		if err := made.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	return made.Chmod(like.Mode().Perm())
}

// leftovers is the name pattern of temporary files.
func (f file) leftovers() string { return "." + filepath.Base(f.path) + ".new-*" }

// sweep removes temporary files of processes that died while writing: they contain
// keys.
func (f file) sweep() {
	old, _ := filepath.Glob(filepath.Join(filepath.Dir(f.path), f.leftovers()))
	for _, name := range old {
		_ = os.Remove(name) // the next rotation tries again
	}
}

// syncFolder makes a new name in the directory survive a power failure.
func (f file) syncFolder() error {
	folder, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

func encode(set keySet) []byte {
	d := document{About: about, Format: format, Primary: set[0].name}
	for _, k := range set {
		d.Keys = append(d.Keys, namedKey{k.name, k.key})
	}
	b, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		panic("seal: encode the key file: " + err.Error())
	}
	return append(b, '\n')
}

// decode parses a file's content. Its errors continue a sentence that begins with the
// file's name and show none of the content: a damaged key is still most of a key.
func decode(b []byte) (keySet, error) {
	const restore = "restore it from your copy; do not delete it: the secrets in the store cannot be decrypted without it"
	var d document
	dec := json.NewDecoder(bytes.NewReader(b))
	if dec.Decode(&d) != nil || dec.More() {
		return nil, errors.New("is damaged, it is not valid JSON: " + restore)
	}
	if d.Format != format {
		return nil, fmt.Errorf("has format %d, but this version of Mariposa supports format %d: use the version that wrote the file", d.Format, format)
	}
	var set keySet
	for i, k := range d.Keys {
		if len(k.Key) != keySize {
			return nil, fmt.Errorf("is damaged, key %d of %d has the wrong length: %s", i+1, len(d.Keys), restore)
		}
		key := outerKey(k.Key)
		if key.name != k.Name {
			return nil, fmt.Errorf("is damaged, key %d of %d does not match its name: %s", i+1, len(d.Keys), restore)
		}
		if key.name == d.Primary {
			set = append(keySet{key}, set...)
		} else {
			set = append(set, key)
		}
	}
	if len(set) == 0 || set[0].name != d.Primary {
		return nil, errors.New("is damaged, its primary key is not among its keys: " + restore)
	}
	return set, nil
}
