package lxc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxPIDs is how many processes and threads a container may have.
const maxPIDs = 4096

const cpuPeriod = 100_000 // microseconds, the kernel's default

// hierarchy has the places of this machine's cgroups: version 1 with a tree for each controller,
// or version 2 with one tree. LXC creates the cgroup of a container in every one of them, below
// that of the machine's first process.
type hierarchy struct {
	v1      map[string]string // by controller; empty on a machine with version 2 only
	unified string
	all     []string
}

func findHierarchy() hierarchy {
	mounts, err1 := os.ReadFile("/proc/self/mounts")
	first, err2 := os.ReadFile("/proc/1/cgroup")
	if err1 != nil || err2 != nil {
		return hierarchy{}
	}
	return parseHierarchy(string(mounts), string(first))
}

func parseHierarchy(mounts, first string) hierarchy {
	base := map[string]string{} // by controller; "" is version 2
	for line := range strings.Lines(first) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for _, controller := range strings.Split(f[1], ",") {
			base[controller] = strings.TrimSuffix(f[2], "/init.scope") // of systemd itself
		}
	}
	h := hierarchy{v1: map[string]string{}}
	mounted := map[string]bool{}
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) < 4 || f[2] != "cgroup" && f[2] != "cgroup2" || mounted[f[1]] {
			continue
		}
		mounted[f[1]] = true
		if f[2] == "cgroup2" {
			h.unified = filepath.Join(f[1], base[""])
			h.all = append(h.all, h.unified)
			continue
		}
		for _, option := range strings.Split(f[3], ",") {
			at, known := base[option]
			if !known {
				continue
			}
			dir := filepath.Join(f[1], at)
			if !slices.Contains(h.all, dir) {
				h.all = append(h.all, dir)
			}
			if !strings.HasPrefix(option, "name=") {
				h.v1[option] = dir
			}
		}
	}
	return h
}

// isV2 reports whether limits are those of version 2. On a machine with both, controllers belong
// to version 1.
func (h hierarchy) isV2() bool { return h.unified != "" && len(h.v1) == 0 }

// mount returns where the cgroups of a controller are; empty if the machine does not have it.
func (h hierarchy) mount(controller string) string {
	if h.isV2() {
		return h.unified
	}
	return h.v1[controller]
}

// group is the cgroups of one instance. They have its limits; the container is below them, so
// that they outlive it.
type group struct {
	h    hierarchy
	name string
}

// groupOf returns the cgroups that an instance has or would have.
func (d *Driver) groupOf(id string) group {
	return group{h: d.groups, name: filepath.Join(d.options.Cgroup, fmt.Sprintf("%s.%08x", id, hashOf(d.options.Dir)))}
}

// payload and monitor are the names of the cgroups that LXC creates: of the container, and of
// lxc-start itself, which the limits do not apply to.
func (g group) payload() string { return filepath.Join(g.name, "container") }
func (g group) monitor() string { return g.name + ".monitor" }

// pivot is where lxc-start moves itself before it removes the others.
func (g group) pivot() string { return filepath.Join(filepath.Dir(g.name), "pivot") }

// dir returns the directory of a controller; empty if the machine does not have it.
func (g group) dir(controller string) string {
	if mount := g.h.mount(controller); mount != "" {
		return filepath.Join(mount, g.name)
	}
	return ""
}

// make creates the cgroups.
func (g group) make() error {
	for _, controller := range []string{"memory", "cpu", "pids"} {
		dir := g.dir(controller)
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("cannot create its cgroup: %w", err)
		}
	}
	if g.h.isV2() {
		for dir := filepath.Dir(g.name); ; dir = filepath.Dir(dir) { // errors show when a limit is set
			for _, c := range []string{"+memory", "+cpu", "+pids", "+io"} {
				_ = os.WriteFile(filepath.Join(g.h.unified, dir, "cgroup.subtree_control"), []byte(c), 0)
			}
			if dir == "." {
				break
			}
		}
		for _, c := range []string{"+memory", "+cpu", "+pids", "+io"} {
			_ = os.WriteFile(filepath.Join(g.h.unified, g.name, "cgroup.subtree_control"), []byte(c), 0)
		}
	}
	return nil
}

// limit sets the limits of a workload, and takes away those that it does not have. It describes
// what could not be set.
func (g group) limit(memory, milliCPU int64) (missed string) {
	var failed []string
	try := func(what string, err error) {
		if err != nil {
			failed = append(failed, what+" ("+explainLimit(err)+")")
		}
	}
	err := g.limitMemory(memory)
	if memory > 0 {
		try("memory", err)
	}
	err = g.limitCPU(milliCPU)
	if milliCPU > 0 {
		try("cpu", err)
	}
	try("processes", g.write("pids", "pids.max", strconv.Itoa(maxPIDs)))
	if len(failed) == 0 {
		return ""
	}
	return "not enforced: " + strings.Join(failed, ", ")
}

func (g group) limitMemory(bytes int64) error {
	if g.h.isV2() {
		value, swap := "max", "max"
		if bytes > 0 {
			value, swap = strconv.FormatInt(bytes, 10), "0"
		}
		_ = g.write("memory", "memory.swap.max", swap) // missing without swap
		return g.write("memory", "memory.max", value)
	}
	value := strconv.FormatInt(bytes, 10)
	if bytes == 0 {
		value = "-1"
	}
	// The limit with swap may not be below the one without, in any moment.
	_ = g.write("memory", "memory.memsw.limit_in_bytes", "-1") // missing without swap accounting
	err := g.write("memory", "memory.limit_in_bytes", value)
	_ = g.write("memory", "memory.memsw.limit_in_bytes", value)
	return err
}

func (g group) limitCPU(milli int64) error {
	quota := max(milli*cpuPeriod/1000, 1000) // the minimum that the kernel accepts
	period, value := strconv.Itoa(cpuPeriod), strconv.FormatInt(quota, 10)
	if g.h.isV2() {
		if milli == 0 {
			value = "max"
		}
		return g.write("cpu", "cpu.max", value+" "+period)
	}
	if milli == 0 {
		value = "-1"
	}
	return errors.Join(g.write("cpu", "cpu.cfs_period_us", period), g.write("cpu", "cpu.cfs_quota_us", value))
}

var errNoController = errors.New("this machine has no such cgroup controller")

func (g group) write(controller, name, value string) error {
	dir := g.dir(controller)
	if dir == "" {
		return errNoController
	}
	err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return errNoController // nobody can create files in cgroupfs, so root gets "permission denied"
	}
	return err
}

func explainLimit(err error) string {
	if errors.Is(err, errNoController) {
		return errNoController.Error()
	}
	return err.Error()
}

// pids lists the processes of an instance: in its container, and lxc-start.
func (g group) pids() (list []int) {
	for _, mount := range g.h.all {
		for _, name := range []string{g.name, g.monitor()} {
			_ = filepath.WalkDir(filepath.Join(mount, name), func(path string, entry fs.DirEntry, err error) error {
				if err == nil && !entry.IsDir() {
					return nil
				}
				b, _ := os.ReadFile(filepath.Join(path, "cgroup.procs")) // it may be gone
				for _, text := range strings.Fields(string(b)) {
					if pid, err := strconv.Atoi(text); err == nil && pid > 0 && !slices.Contains(list, pid) {
						list = append(list, pid)
					}
				}
				return nil
			})
		}
	}
	return list
}

// killAll kills every process of an instance until none is left.
func (g group) killAll() error {
	for deadline := time.Now().Add(supervisorTimeout); ; {
		pids := g.pids()
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if p, _, ok := readProc(pid); ok {
				p.kill(unix.SIGKILL)
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d cannot be killed", pids[0])
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// remove deletes the cgroups. A process that has just died keeps its own busy for a moment.
func (g group) remove() error {
	for deadline := time.Now().Add(supervisorTimeout); ; {
		var failed error
		for _, mount := range g.h.all {
			for _, name := range []string{g.name, g.monitor()} {
				failed = errors.Join(failed, removeTree(filepath.Join(mount, name)))
			}
		}
		if failed == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cannot remove its cgroups: %w", failed)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// removeTree removes a cgroup with those below it.
func removeTree(dir string) error {
	var dirs []string
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	var failed error
	for _, path := range slices.Backward(dirs) {
		if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOENT) {
			failed = fmt.Errorf("%s: %w", path, err)
		}
	}
	return failed
}

// oomWatch notices that a container reaches its memory limit.
type oomWatch struct {
	g      group
	before int // kills counted before this run, with version 2
	event  int // signaled by the kernel, with version 1; -1 if it is not
}

// watchOOM begins to watch.
func (g group) watchOOM() *oomWatch {
	w := &oomWatch{g: g, event: -1}
	if g.h.isV2() {
		w.before = g.oomKills()
		return w
	}
	control, err := os.Open(filepath.Join(g.dir("memory"), "memory.oom_control"))
	if err != nil {
		return w
	}
	defer control.Close() // it was only read
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return w
	}
	if g.write("memory", "cgroup.event_control", fmt.Sprintf("%d %d", event, control.Fd())) != nil {
		_ = unix.Close(event)
		return w
	}
	w.event = event
	return w
}

// happened reports whether the limit was reached since.
func (w *oomWatch) happened() bool {
	if w.event < 0 {
		return w.g.h.isV2() && w.g.oomKills() > w.before
	}
	var count [8]byte
	n, err := unix.Read(w.event, count[:])
	return err == nil && n > 0
}

// oomKills returns how many processes the kernel killed because the limit was reached, with
// version 2.
func (g group) oomKills() int {
	b, _ := os.ReadFile(filepath.Join(g.dir("memory"), "memory.events")) // none if it cannot be read
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			count, _ := strconv.Atoi(strings.TrimSpace(n))
			return count
		}
	}
	return 0
}
