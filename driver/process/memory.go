package process

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// privateDir is the private directory of an instance on a machine that cannot keep files
// in memory.
const privateDir = "private"

func ownerOf(info os.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

// privatePath returns the path of an instance's private directory.
func (d *Driver) privatePath(e *entry) string {
	if dir := d.memory.Find(); dir != "" {
		return filepath.Join(dir, e.id)
	}
	return filepath.Join(e.dir, privateDir)
}

// clearMemory removes the private directories of instances that no longer exist. An agent
// that was killed during a removal leaves them, or a root that was deleted.
func (d *Driver) clearMemory() {
	dir := d.memory.Find()
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
