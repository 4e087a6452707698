package process

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// privateDir is the private directory of an instance on a machine that cannot keep files
// in memory.
const privateDir = "private"

// memory finds the place for private directories: on a file system in memory, if there is
// one.
type memory struct {
	places []string // the best first
	root   string

	mu  sync.Mutex
	dir string
}

// find returns the directory for private directories; empty if there is none. It may have
// been deleted, for example at the end of a login session.
func (m *memory) find() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := os.Lstat(m.dir); m.dir == "" || err != nil {
		m.dir = openMemory(m.places, m.root)
	}
	return m.dir
}

// memoryPlaces lists where this machine may keep files only in memory, the best first.
// They never reach a disk and are gone after a restart of the machine.
func memoryPlaces() []string {
	var list []string
	if os.Geteuid() == 0 {
		list = append(list, "/run/mariposa")
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		list = append(list, filepath.Join(dir, "mariposa"))
	}
	return append(list, "/dev/shm/mariposa-"+strconv.Itoa(os.Geteuid()))
}

// openMemory creates a directory in memory for the instances of a root; empty if there is
// no place for it. Its name depends on the root, so that several nodes of one machine do
// not conflict.
func openMemory(places []string, root string) string {
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

// privatePath returns the path of an instance's private directory.
func (d *Driver) privatePath(e *entry) string {
	if dir := d.memory.find(); dir != "" {
		return filepath.Join(dir, e.id)
	}
	return filepath.Join(e.dir, privateDir)
}

// clearMemory removes the private directories of instances that no longer exist. An agent
// that was killed during a removal leaves them, or a root that was deleted.
func (d *Driver) clearMemory() {
	dir := d.memory.find()
	if dir == "" {
		return
	}
	list, _ := os.ReadDir(dir) // unreadable ones are removed another time
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range list {
		if name := f.Name(); d.entries[name] == nil || strings.HasPrefix(name, newPrefix) {
			_ = removeAll(filepath.Join(dir, name))
		}
	}
}
