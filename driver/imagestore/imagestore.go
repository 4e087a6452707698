// Package imagestore keeps the images of a node: root file systems of system containers,
// and disks and kernels of virtual machines. Containers do not need it; their engine has
// its own.
//
// An image is a directory with its files and a description, which never changes once it is
// there. Several processes may use a store at once: an agent runs instances from it while a
// person imports another image. The package knows neither instances nor drivers.
package imagestore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Kind says what an image contains.
type Kind string

const (
	// Rootfs: the root file system of a system container.
	Rootfs Kind = "rootfs"
	// Disk: the disk of a virtual machine.
	Disk Kind = "disk"
	// Kernel: a kernel, and perhaps an initial RAM disk, that a virtual machine boots
	// directly.
	Kernel Kind = "kernel"
)

// Names of files of images.
const (
	RootfsFile = "rootfs.tar" // not compressed
	DiskFile   = "disk"
	KernelFile = "kernel"
	InitrdFile = "initrd"
)

// Names of options of images.
const (
	FormatOption = "format" // of a disk: qcow2 or raw
	AppendOption = "append" // the command line of a kernel
)

// Image describes an image.
type Image struct {
	ID      string            `json:"id"`
	Name    string            `json:"name"`
	Kind    Kind              `json:"kind"`
	Files   []File            `json:"files"`
	Options map[string]string `json:"options,omitempty"`
	Created time.Time         `json:"created"`
}

// File is a file of an image.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Size returns the size of all files of the image.
func (i *Image) Size() (sum int64) {
	for _, f := range i.Files {
		sum += f.Size
	}
	return sum
}

// File returns one of the image's files.
func (i *Image) File(name string) (File, bool) {
	for _, f := range i.Files {
		if f.Name == name {
			return f, true
		}
	}
	return File{}, false
}

var (
	// ErrNotFound means that the store has no such image.
	ErrNotFound = errors.New("no such image")
	// ErrInUse means that an image cannot be removed because instances use it.
	ErrInUse = errors.New("the image is in use")
)

// Store is the images of a node.
type Store struct{ dir string }

const (
	description = "image.json"
	cacheDir    = "cache"
	usersDir    = "users"
	unfinished  = ".new-"
)

// Open opens the store in a directory, which it creates if necessary.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the image store: %w", err)
	}
	return &Store{dir}, nil
}

// Dir returns the directory of the store.
func (s *Store) Dir() string { return s.dir }

// List returns all images, sorted by name.
func (s *Store) List() ([]*Image, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the image store: %w", err)
	}
	var all []*Image
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		i, err := s.read(e.Name())
		if errors.Is(err, os.ErrNotExist) {
			continue // it is being removed
		}
		if err != nil {
			return nil, err
		}
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b *Image) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func (s *Store) read(id string) (*Image, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, id, description))
	if err != nil {
		return nil, fmt.Errorf("cannot read image %s: %w", id, err)
	}
	i := &Image{}
	if err := json.Unmarshal(b, i); err != nil || i.ID != id {
		return nil, fmt.Errorf("image %s is damaged: its description cannot be read; remove the directory %s", id, filepath.Join(s.dir, id))
	}
	return i, nil
}

// Find returns the image with a name or an id.
func (s *Store) Find(ref string) (*Image, error) {
	if isID(ref) {
		if i, err := s.read(ref); !errors.Is(err, os.ErrNotExist) {
			return i, err
		}
	}
	all, err := s.List()
	if err != nil {
		return nil, err
	}
	for _, i := range all {
		if i.Name == ref {
			return i, nil
		}
	}
	return nil, fmt.Errorf("%w: the image store of this node has none named %q: import it with `mariposa image import`", ErrNotFound, ref)
}

// Path returns where a file of an image is.
func (s *Store) Path(i *Image, file string) string { return filepath.Join(s.dir, i.ID, file) }

// CacheDir returns a directory of an image, which is removed with it. Its content belongs to
// the caller.
func (s *Store) CacheDir(i *Image, name string) (string, error) {
	if _, err := os.Lstat(filepath.Join(s.dir, i.ID, description)); err != nil {
		return "", fmt.Errorf("image %s is gone: %w", i.Name, ErrNotFound)
	}
	dir := filepath.Join(s.dir, i.ID, cacheDir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("cannot create a directory of image %s: %w", i.Name, err)
	}
	return dir, nil
}

// Open opens a file of an image. Reading its end fails if the file is not what was imported.
func (s *Store) Open(i *Image, name string) (io.ReadCloser, error) {
	f, ok := i.File(name)
	if !ok {
		return nil, fmt.Errorf("image %s has no file %s", i.Name, name)
	}
	file, err := os.Open(s.Path(i, name))
	if err != nil {
		return nil, fmt.Errorf("cannot read image %s: %w", i.Name, err)
	}
	return &verified{file: file, want: f.SHA256, image: i.Name, sum: sha256.New()}, nil
}

// verified is a file whose checksum is compared when its end is read.
type verified struct {
	file        *os.File
	want, image string
	sum         hash.Hash
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.file.Read(p)
	v.sum.Write(p[:n])
	if err == io.EOF && hex.EncodeToString(v.sum.Sum(nil)) != v.want {
		return n, fmt.Errorf("image %s is damaged: %s is not what was imported; remove the image and import it again", v.image, filepath.Base(v.file.Name()))
	}
	return n, err
}

func (v *verified) Close() error { return v.file.Close() }

// Verify compares the files of an image with what was imported.
func (s *Store) Verify(ctx context.Context, i *Image) error {
	for _, f := range i.Files {
		r, err := s.Open(i, f.Name)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, withContext(ctx, r))
		_ = r.Close() // only read
		if err != nil {
			return err
		}
	}
	return nil
}

// withContext returns a reader that fails once the context has ended.
func withContext(ctx context.Context, r io.Reader) io.Reader {
	return readFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return r.Read(p)
	})
}

type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// Hold notes that a user, such as an instance, uses an image, so that it cannot be removed.
func (s *Store) Hold(i *Image, user string) error {
	if !isName(user) {
		return fmt.Errorf("invalid user of an image %q", user)
	}
	return s.locked(func() error {
		if _, err := os.Lstat(filepath.Join(s.dir, i.ID, description)); err != nil {
			return fmt.Errorf("image %s is gone: %w", i.Name, ErrNotFound)
		}
		dir := filepath.Join(s.dir, i.ID, usersDir)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("cannot use image %s: %w", i.Name, err)
		}
		f, err := os.OpenFile(filepath.Join(dir, user), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("cannot use image %s: %w", i.Name, err)
		}
		return f.Close()
	})
}

// Release notes that a user does not use an image any more, whichever it was.
func (s *Store) Release(user string) error {
	if !isName(user) {
		return fmt.Errorf("invalid user of an image %q", user)
	}
	all, err := filepath.Glob(filepath.Join(s.dir, "*", usersDir, user)) // a name has no special characters
	if err != nil {
		return err
	}
	for _, file := range all {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot release an image: %w", err)
		}
	}
	return nil
}

// ReleaseGone releases the images of users that are gone: an agent may have been killed in the middle
// of a start or of a removal. They are those whose names begin with a prefix, and whose rest no one
// has any more.
func (s *Store) ReleaseGone(prefix string, has func(rest string) bool) {
	all, _ := s.List() // what cannot be read is released later
	for _, i := range all {
		users, _ := s.Users(i)
		for _, user := range users {
			if rest, found := strings.CutPrefix(user, prefix); found && !has(rest) {
				_ = s.Release(user) // tried again with the next start of the agent
			}
		}
	}
}

// Users returns who uses an image.
func (s *Store) Users(i *Image) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, i.ID, usersDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all, err
}

// Remove removes the image with a name or an id, unless it is in use.
func (s *Store) Remove(ref string) (*Image, error) {
	var gone *Image
	var trash string
	err := s.locked(func() error {
		i, err := s.Find(ref)
		if err != nil {
			return err
		}
		users, err := s.Users(i)
		if err != nil {
			return err
		}
		switch n := len(users); n {
		case 0:
		case 1:
			return fmt.Errorf("%w: an instance was created from %s: remove it first", ErrInUse, i.Name)
		default:
			return fmt.Errorf("%w: %d instances were created from %s: remove them first", ErrInUse, n, i.Name)
		}
		gone, trash = i, filepath.Join(s.dir, unfinished+i.ID)
		return os.Rename(filepath.Join(s.dir, i.ID), trash) // all of it at once
	})
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(trash); err != nil {
		return nil, fmt.Errorf("image %s is removed, but not all of its files: %w", gone.Name, err)
	}
	return gone, nil
}

// locked runs f while no other process changes the store.
func (s *Store) locked(f func() error) error {
	lock, err := os.OpenFile(filepath.Join(s.dir, ".lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("cannot lock the image store: %w", err)
	}
	defer lock.Close()
	for {
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			if err != nil {
				return fmt.Errorf("cannot lock the image store: %w", err)
			}
			break
		}
	}
	err = f()
	_ = syscall.Flock(int(lock.Fd()), syscall.LOCK_UN) // a child that was just forked may still have the file
	return err
}

var (
	ids   = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	names = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	// refs are the names of images; they may have a tag, as in debian:12, and a path.
	refs = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]*(:[A-Za-z0-9._-]+)?$`)
)

func isID(text string) bool { return ids.MatchString(text) }

func isName(text string) bool { return names.MatchString(text) }
