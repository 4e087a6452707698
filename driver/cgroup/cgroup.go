// Package cgroup limits and measures the processes of an instance with the control groups of the
// kernel, of version 1 and 2. It does not know what the processes are.
package cgroup

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

	"mariposa/driver/osproc"
)

// maxPIDs is how many processes and threads an instance may have.
const maxPIDs = 4096

// timeout is how long processes are killed, and groups removed, until that has failed.
const timeout = 10 * time.Second

const cpuPeriod = 100_000 // microseconds, the kernel's default

// Hierarchy has the places of this machine's cgroups: version 1 with a tree for each controller,
// or version 2 with one tree. They are below that of the machine's first process.
type Hierarchy struct {
	v1      map[string]string // by controller; empty on a machine with version 2 only
	unified string
	all     []string
}

// Find finds the cgroups of this machine.
func Find() Hierarchy {
	mounts, err1 := os.ReadFile("/proc/self/mounts")
	first, err2 := os.ReadFile("/proc/1/cgroup")
	if err1 != nil || err2 != nil {
		return Hierarchy{}
	}
	return parse(string(mounts), string(first))
}

func parse(mounts, first string) Hierarchy {
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
	h := Hierarchy{v1: map[string]string{}}
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

// IsV2 reports whether limits are those of version 2. On a machine with both, controllers belong
// to version 1.
func (h Hierarchy) IsV2() bool { return h.unified != "" && len(h.v1) == 0 }

// mount returns where the cgroups of a controller are; empty if the machine does not have it.
func (h Hierarchy) mount(controller string) string {
	if h.IsV2() {
		return h.unified
	}
	return h.v1[controller]
}

// Exists reports whether the machine has cgroups.
func (h Hierarchy) Exists() bool { return len(h.all) > 0 }

// Group is the cgroups of one instance, which have its limits.
type Group struct {
	Hierarchy
	Name string
	// Beside are cgroups whose processes belong to the instance too, without its limits.
	Beside []string
}

// String returns the name.
func (g Group) String() string { return g.Name }

// Dir returns the directory of a controller; empty if the machine does not have it.
func (g Group) Dir(controller string) string {
	if mount := g.mount(controller); mount != "" {
		return filepath.Join(mount, g.Name)
	}
	return ""
}

// controllers are those that limit or measure an instance.
var controllers = []string{"memory", "cpu", "cpuacct", "pids", "blkio"}

// Add moves a process with its threads into the cgroups.
func (g Group) Add(pid int) error {
	for _, controller := range controllers {
		dir := g.Dir(controller)
		if dir == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("cannot move process %d into its cgroup: %w", pid, err)
		}
	}
	return nil
}

// Make creates the cgroups. With version 2, a group has processes itself or groups below it: leaf
// says which.
func (g Group) Make(leaf bool) error {
	for _, controller := range controllers {
		dir := g.Dir(controller)
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("cannot create its cgroup: %w", err)
		}
	}
	if g.IsV2() {
		g.enable(leaf)
	}
	return nil
}

// enable turns controllers on for the group and, unless it is a leaf, for those below it. A group
// can turn on only what those above it have turned on. Errors show when a limit is set.
func (g Group) enable(leaf bool) {
	dirs := []string{"."}
	parts := strings.Split(filepath.Clean(g.Name), "/")
	for n := range parts {
		dirs = append(dirs, filepath.Join(parts[:n+1]...))
	}
	if leaf {
		dirs = dirs[:len(dirs)-1]
	}
	for _, dir := range dirs {
		for _, c := range []string{"+memory", "+cpu", "+pids", "+io"} {
			_ = os.WriteFile(filepath.Join(g.unified, dir, "cgroup.subtree_control"), []byte(c), 0)
		}
	}
}

// Limit sets the limits of a workload, and takes away those that it does not have. It describes
// what could not be set.
func (g Group) Limit(memory, milliCPU int64) (missed string) {
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

func (g Group) limitMemory(bytes int64) error {
	if g.IsV2() {
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

func (g Group) limitCPU(milli int64) error {
	quota := max(milli*cpuPeriod/1000, 1000) // the minimum that the kernel accepts
	period, value := strconv.Itoa(cpuPeriod), strconv.FormatInt(quota, 10)
	if g.IsV2() {
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

func (g Group) write(controller, name, value string) error {
	dir := g.Dir(controller)
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

// PIDs lists the processes of an instance.
func (g Group) PIDs() (list []int) {
	for _, mount := range g.all {
		for _, name := range append([]string{g.Name}, g.Beside...) {
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

// KillAll kills every process of an instance until none is left.
func (g Group) KillAll() error {
	for deadline := time.Now().Add(timeout); ; {
		pids := g.PIDs()
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if p, _, ok := osproc.Read(pid); ok {
				p.Kill(unix.SIGKILL)
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d cannot be killed", pids[0])
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Remove deletes the cgroups. A process that has just died keeps its own busy for a moment.
func (g Group) Remove() error {
	for deadline := time.Now().Add(timeout); ; {
		var failed error
		for _, mount := range g.all {
			for _, name := range append([]string{g.Name}, g.Beside...) {
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

// OOMWatch notices that an instance reaches its memory limit.
type OOMWatch struct {
	g      Group
	before int // kills counted before this run, with version 2
	event  int // signaled by the kernel, with version 1; -1 if it is not
}

// WatchOOM begins to watch.
func (g Group) WatchOOM() *OOMWatch {
	w := &OOMWatch{g: g, event: -1}
	if g.IsV2() {
		w.before = g.OOMKills()
		return w
	}
	control, err := os.Open(filepath.Join(g.Dir("memory"), "memory.oom_control"))
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

// Happened reports whether the limit was reached since.
func (w *OOMWatch) Happened() bool {
	if w.event < 0 {
		return w.g.IsV2() && w.g.OOMKills() > w.before
	}
	var count [8]byte
	n, err := unix.Read(w.event, count[:])
	return err == nil && n > 0
}

// OOMKills returns how many processes the kernel has OOM-killed: because the limit
// was reached, or because the machine had none left.
func (g Group) OOMKills() int {
	file := "memory.oom_control"
	if g.IsV2() {
		file = "memory.events"
	}
	b, _ := os.ReadFile(filepath.Join(g.Dir("memory"), file)) // none if it cannot be read
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			count, _ := strconv.Atoi(strings.TrimSpace(n))
			return count
		}
	}
	return 0
}
