// Package memdir finds directories on file systems in memory, for secrets that must never
// reach a disk. It owns these directories, not what is in them.
package memdir

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dir is a directory in memory that belongs to a root, which is a directory on disk.
type Dir struct {
	places []string // the best first
	root   string

	mu  sync.Mutex
	dir string
}

// New returns the directory of a root. It is created in the first of the places that is in
// memory; see Places.
func New(root string, places []string) *Dir { return &Dir{places: places, root: root} }

// Find returns the path of the directory; empty if there is none. It may have been deleted,
// for example at the end of a login session; then it is created again.
func (d *Dir) Find() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := os.Lstat(d.dir); d.dir == "" || err != nil {
		d.dir = open(d.places, d.root)
	}
	return d.dir
}

// Clear removes what is in the directory, except what the caller still has.
func (d *Dir) Clear(has func(name string) bool, removeAll func(path string) error) {
	dir := d.Find()
	if dir == "" {
		return
	}
	list, _ := os.ReadDir(dir) // unreadable ones are removed another time
	for _, f := range list {
		if !has(f.Name()) {
			_ = removeAll(filepath.Join(dir, f.Name()))
		}
	}
}

// Release removes the directory if it is empty. Find creates it again.
func (d *Dir) Release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = os.Remove(d.dir) // fails unless it is empty
}

// Places lists where this machine may keep files only in memory, the best first.
// They never reach a disk and are gone after a restart of the machine.
func Places() []string {
	var list []string
	if os.Geteuid() == 0 {
		list = append(list, "/run/mariposa")
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		list = append(list, filepath.Join(dir, "mariposa"))
	}
	return append(list, "/dev/shm/mariposa-"+strconv.Itoa(os.Geteuid()))
}

// open creates a directory in memory for the users of a root; empty if there is
// no place for it. Its name depends on the root, so that several nodes of one machine do
// not conflict.
func open(places []string, root string) string {
	sum := sha256.Sum256([]byte(root))
	for _, place := range places {
		dir := filepath.Join(place, hex.EncodeToString(sum[:8]))
		if inMemory(filepath.Dir(place)) && ownDirectory(place) && ownDirectory(dir) {
			return dir
		}
	}
	return ""
}

// inMemory reports whether a directory is on a file system in memory and belongs to us or
// to the system. The owner of the directory could replace our files.
func inMemory(dir string) bool {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil || (fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC) {
		return false
	}
	info, err := os.Stat(dir)
	return err == nil && (ownerOf(info) == 0 || ownerOf(info) == os.Geteuid())
}

// ownDirectory creates a directory that only we can access, or checks that an existing
// one is like that.
func ownDirectory(dir string) bool {
	_ = os.Mkdir(dir, 0o700) // it may exist; it is checked below
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || ownerOf(info) != os.Geteuid() {
		return false
	}
	return info.Mode().Perm() == 0o700 || os.Chmod(dir, 0o700) == nil
}

func ownerOf(info os.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
