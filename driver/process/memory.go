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

// privateDir is where an instance's private folder lies when this machine keeps
// no files in memory for us.
const privateDir = "private"

// memory is where private folders are kept: on a file system in memory, as long
// as there is one.
type memory struct {
	places []string // the best first
	root   string

	mu  sync.Mutex
	dir string
}

// find says where; empty: nowhere. What was there may have been cleared away, at
// the end of a login or so.
func (m *memory) find() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := os.Lstat(m.dir); m.dir == "" || err != nil {
		m.dir = openMemory(m.places, m.root)
	}
	return m.dir
}

// memoryPlaces lists where this machine may keep files in memory alone, the best
// first: what is kept there is on no disk, and gone when the machine is.
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

// openMemory makes a folder in memory for the instances of a root; empty when
// there is no place for it. The root is part of its name, so that several nodes
// of one machine do not meet.
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

// inMemory reports whether a directory lies in memory and belongs to us or to the
// system: another user's could be swapped for something else under us.
func inMemory(dir string) bool {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil || (fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC) {
		return false
	}
	info, err := os.Stat(dir)
	return err == nil && (ownerOf(info) == 0 || ownerOf(info) == os.Geteuid())
}

// ownDirectory makes a directory for ourselves alone, or finds it to be just that.
func ownDirectory(dir string) bool {
	_ = os.Mkdir(dir, 0o700) // it may be there; what counts is what is found
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || ownerOf(info) != os.Geteuid() {
		return false
	}
	return info.Mode().Perm() == 0o700 || os.Chmod(dir, 0o700) == nil
}

func ownerOf(info os.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

// privatePath is where an instance's private folder belongs.
func (d *Driver) privatePath(e *entry) string {
	if dir := d.memory.find(); dir != "" {
		return filepath.Join(dir, e.id)
	}
	return filepath.Join(e.dir, privateDir)
}

// clearMemory takes away the private folders of instances that are no more: an
// agent killed while it removed one, or a root that was wiped, leaves such.
func (d *Driver) clearMemory() {
	dir := d.memory.find()
	if dir == "" {
		return
	}
	list, _ := os.ReadDir(dir) // what cannot be read now is cleared another time
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range list {
		if name := f.Name(); d.entries[name] == nil || strings.HasPrefix(name, newPrefix) {
			_ = removeAll(filepath.Join(dir, name))
		}
	}
}
