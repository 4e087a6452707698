// Package volume keeps volumes in a directory of this machine, for drivers whose instances see
// a volume as a directory.
//
// A volume without a size is a plain directory, and the file system it is in is its limit. A
// volume with a size is a file system of its own, in a sparse file that is mounted through a loop
// device: a full volume is full for its instances only. The kernel frees the loop device when
// the file system is unmounted, and the files say everything else. So an agent that is killed at
// any point leaves nothing behind that the next one does not find.
//
// The package does not know which instances use a volume.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/statefile"
)

// Names of volumes that are incomplete, because their creation or removal was interrupted.
const (
	newPrefix  = ".new-"
	gonePrefix = ".gone-"
)

// sizedPrefix begins the name of an empty file that says that a volume has a size. It is beside the
// volume: what is in a volume without a size was written by its instances.
const sizedPrefix = ".sized-"

// Options configure a store.
type Options struct {
	Dir   string // of the volumes, created with the first one
	Owner int    // the user and group that own a new volume
	Mode  fs.FileMode
	// RemoveAll deletes a tree that instances may have written.
	RemoveAll func(path string) error
}

// Store is the volumes in a directory. There are no concurrent calls for one volume.
type Store struct{ options Options }

// New returns the volumes in a directory.
func New(o Options) *Store { return &Store{options: o} }

func (s *Store) at(id string) string { return filepath.Join(s.options.Dir, id) }

// Path returns where the content of a volume is: below its directory if it has a size.
func (s *Store) Path(id string) string {
	if s.isLimited(id) {
		return s.limited(id).data()
	}
	return s.at(id)
}

// isLimited reports whether a volume has a size.
func (s *Store) isLimited(id string) bool {
	_, err := os.Lstat(s.at(sizedPrefix + id))
	return err == nil
}

// markLimited records that a volume has a size.
func (s *Store) markLimited(id string) error {
	f, err := os.OpenFile(s.at(sizedPrefix+id), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// limited returns a volume as one with a size, which it may not be.
func (s *Store) limited(id string) limited { return limited{dir: s.at(id)} }

// Provide creates a volume unless it exists, and returns where its content is. A volume that
// was created with a size gets larger if the size is larger than before, while instances use it;
// it never gets smaller. One that was created without a size stays without. If it cannot be made
// larger, the error is a *driver.GrowError, and the path is valid.
func (s *Store) Provide(ctx context.Context, r driver.Resource) (string, error) {
	if err := checkID(r.ID); err != nil {
		return "", err
	}
	if err := os.MkdirAll(s.options.Dir, 0o700); err != nil {
		return "", fmt.Errorf("cannot create the directory of volumes: %w", err)
	}
	info, err := os.Lstat(s.at(r.ID))
	switch {
	case err == nil && !info.IsDir():
		return "", fmt.Errorf("%s is not a directory", s.at(r.ID))
	case err == nil:
		return s.open(r)
	case !statefile.IsGone(err):
		return "", fmt.Errorf("cannot open the volume: %w", err)
	}
	if err := s.create(ctx, r); err != nil {
		return "", err
	}
	return s.open(r)
}

// checkID refuses an id that is not the name of a file in the directory.
func checkID(id string) error {
	if id == "" || len(id) > 200 || id[0] == '.' || strings.ContainsAny(id, "/\x00") {
		return fmt.Errorf("invalid id %q of a volume", id)
	}
	return nil
}

// create creates a volume under a name that nothing takes for a complete one, and renames it.
func (s *Store) create(ctx context.Context, r driver.Resource) error {
	unfinished := s.at(newPrefix + r.ID)
	err := errors.Join(os.RemoveAll(unfinished), statefile.IgnoreMissing(os.Remove(s.at(sizedPrefix+r.ID))))
	if err == nil && r.Size > 0 {
		err = limited{dir: unfinished}.create(ctx, r.Size)
		if err == nil {
			err = s.markLimited(r.ID)
		}
	} else if err == nil {
		err = s.createData(unfinished)
	}
	if err == nil {
		err = os.Rename(unfinished, s.at(r.ID))
	}
	if err != nil {
		_ = os.RemoveAll(unfinished) // the error is the first one
		return fmt.Errorf("cannot create the volume: %w", err)
	}
	return nil
}

// createData creates the directory for the content of a volume.
func (s *Store) createData(path string) error {
	err := os.Mkdir(path, 0o700)
	if err == nil && s.options.Owner != os.Geteuid() {
		err = os.Lchown(path, s.options.Owner, s.options.Owner)
	}
	if err == nil {
		err = os.Chmod(path, s.options.Mode) // whatever the umask is
	}
	return err
}

// open makes the content of an existing volume accessible.
func (s *Store) open(r driver.Resource) (string, error) {
	if !s.isLimited(r.ID) {
		return s.at(r.ID), s.checkUnmarked(r)
	}
	l := s.limited(r.ID)
	err := l.open(r.Size)
	small := (*driver.GrowError)(nil)
	if err != nil && !errors.As(err, &small) {
		return "", fmt.Errorf("cannot mount the volume: %w", err)
	}
	if err := s.createData(l.data()); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("cannot create the directory of the volume: %w", err)
	}
	return l.data(), err
}

// checkUnmarked refuses a volume that should have a size, looks as if it had one, and has no mark. An
// earlier build may have made it, or its instances may have written these files to get a file system
// of theirs mounted. Only people can tell.
func (s *Store) checkUnmarked(r driver.Resource) error {
	if r.Size == 0 || !s.limited(r.ID).exists() {
		return nil
	}
	return fmt.Errorf("%s contains volume.img and mount, as volumes with a size of earlier builds do. If it was created with a size, run `touch %s` on the node; if its instances have written these files, rename one of them",
		s.at(r.ID), s.at(sizedPrefix+r.ID))
}

// Withdraw removes a volume with its content. It is renamed first: a half-removed one must not
// be taken for a complete one.
func (s *Store) Withdraw(id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	if s.isLimited(id) {
		if err := s.limited(id).unmount(); err != nil {
			return fmt.Errorf("cannot unmount the volume: %w", err)
		}
	}
	gone := s.at(gonePrefix + id)
	if err := os.Rename(s.at(id), gone); err != nil && !statefile.IsGone(err) {
		return fmt.Errorf("cannot remove the directory of the volume: %w", err)
	}
	return errors.Join(s.remove(gone), statefile.IgnoreMissing(os.Remove(s.at(sizedPrefix+id))))
}

// remove removes what is left of a volume.
func (s *Store) remove(path string) error {
	if err := (limited{dir: path}).unmount(); err != nil && !statefile.IsGone(err) {
		return fmt.Errorf("cannot unmount the volume: %w", err)
	}
	if err := s.options.RemoveAll(path); err != nil {
		return fmt.Errorf("cannot remove the directory of the volume: %w", err)
	}
	return nil
}

// Clear completes what was interrupted because the agent was killed: removals, and the creation
// of volumes, of which nothing was used yet.
func (s *Store) Clear() {
	list, _ := os.ReadDir(s.options.Dir) // unreadable ones are removed another time
	for _, f := range list {
		id, marks := strings.CutPrefix(f.Name(), sizedPrefix)
		switch {
		case strings.HasPrefix(f.Name(), gonePrefix) || strings.HasPrefix(f.Name(), newPrefix):
			_ = s.remove(s.at(f.Name()))
		case marks:
			if _, err := os.Lstat(s.at(id)); statefile.IsGone(err) {
				_ = os.Remove(s.at(f.Name()))
			}
		case f.IsDir() && s.limited(f.Name()).isMounted():
			_ = s.markLimited(f.Name()) // of a build that did not do that; nobody else mounts something there
		}
	}
}

// List returns the volumes that exist.
func (s *Store) List() ([]driver.Resource, error) {
	list, err := os.ReadDir(s.options.Dir)
	if err != nil && !statefile.IsGone(err) {
		return nil, fmt.Errorf("cannot list the volumes: %w", err)
	}
	var all []driver.Resource
	for _, f := range list {
		if f.IsDir() && !strings.HasPrefix(f.Name(), ".") {
			r := driver.Resource{Kind: mariposa.KindVolume, ID: f.Name()}
			if s.isLimited(r.ID) {
				r.Size = s.limited(r.ID).size()
			}
			all = append(all, r)
		}
	}
	return all, nil
}
