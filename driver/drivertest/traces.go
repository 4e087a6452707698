package drivertest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mariposa/driver/memdir"
)

// Traces returns what an instance has left on the machine: files in the directory of its node,
// cgroups, processes, mounts and private files.
func Traces(dir, id string) (all []string) {
	walk := func(root string) {
		_ = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.Contains(filepath.Base(path), id) {
				all = append(all, path)
				return fs.SkipDir
			}
			return nil // it may be gone
		})
	}
	walk(dir)
	walk("/sys/fs/cgroup")
	for _, place := range memdir.Places() {
		walk(place)
	}
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is valid
	for _, path := range paths {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), id) {
			all = append(all, path+": "+strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	b, _ := os.ReadFile("/proc/self/mountinfo") // always there
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, id) {
			all = append(all, "mount "+strings.TrimSpace(line))
		}
	}
	return all
}
