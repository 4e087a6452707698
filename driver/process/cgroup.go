package process

import (
	"cmp"
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

// hierarchy contains the paths of this machine's cgroups: version 1 with a tree for each
// controller, or version 2 with one tree. On a machine with both, the controllers of
// version 1 are used, because a controller belongs to one tree only.
type hierarchy struct {
	Memory  string `json:"memory,omitempty"` // version 1
	CPU     string `json:"cpu,omitempty"`    // version 1
	Pids    string `json:"pids,omitempty"`   // version 1
	Unified string `json:"unified,omitempty"`
}

func findHierarchy() hierarchy {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return hierarchy{}
	}
	return parseHierarchy(string(b))
}

func parseHierarchy(mounts string) hierarchy {
	var h hierarchy
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		switch options := "," + f[3] + ","; {
		case f[2] == "cgroup2" && h.Unified == "":
			h.Unified = f[1]
		case f[2] == "cgroup" && strings.Contains(options, ",memory,"):
			h.Memory = f[1]
		case f[2] == "cgroup" && strings.Contains(options, ",cpu,"):
			h.CPU = f[1]
		case f[2] == "cgroup" && strings.Contains(options, ",pids,"):
			h.Pids = f[1]
		}
	}
	if h.Memory != "" || h.CPU != "" || h.Pids != "" {
		h.Unified = ""
	}
	return h
}

// groupName returns the name of an instance's cgroups. The root is part of it, so that a
// copy of a root does not affect the processes of the original.
func groupName(root, id string) string {
	return fmt.Sprintf("%s.%08x", id, hashOf(root))
}

// groupOf returns the cgroups that an instance has or would have.
func (d *Driver) groupOf(e *entry) group {
	return group{dirs: d.hierarchy.dirs(groupName(d.rootOf(e), e.id)), unified: d.hierarchy.Unified != ""}
}

// dirs returns the paths that the groups of a name would have.
func (h hierarchy) dirs(name string) []string {
	var list []string
	for _, mount := range []string{h.Memory, h.CPU, h.Pids, h.Unified} {
		if mount != "" {
			list = append(list, filepath.Join(mount, "mariposa", name))
		}
	}
	return list
}

// group is the cgroups of one instance. They contain all its processes, including those
// that left their process group and session.
type group struct {
	dirs    []string
	unified bool
	ooms    int // OOM kills counted before this run
}

// makeGroup creates the groups of an instance and sets its limits. limits describes what
// could not be set. A group without directories does not exist.
func (h hierarchy) makeGroup(s *spec) (g group, limits string) {
	var set limitsSet
	stale := group{dirs: h.dirs(s.Group)}
	_ = stale.remove()
	memory, cpu, err := h.makeDirs(s, &g)
	if s.Memory > 0 {
		set.memory(s, h.limitMemory(memory, s.Memory, err))
	}
	if s.MilliCPU > 0 {
		set.cpu(s, h.limitCPU(cpu, s.MilliCPU, err))
	}
	if s.Processes > 0 { // without a group, the limit of its uid applies
		_ = h.limitProcesses(s)
	}
	g.ooms = g.oomKills()
	return g, set.describe()
}

// makeDirs creates the directories: the one for memory always, since it also lists the
// instance's processes, and the one for cpu if cpu is limited.
func (h hierarchy) makeDirs(s *spec, g *group) (memory, cpu string, err error) {
	make := func(mount string) (string, error) {
		dir := filepath.Join(mount, "mariposa", s.Group)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
		g.dirs = append(g.dirs, dir)
		return dir, nil
	}
	if h.Unified != "" {
		g.unified = true
		dir, err := make(h.Unified)
		if err == nil {
			h.delegate()
		}
		return dir, dir, err
	}
	if h.Memory != "" {
		if memory, err = make(h.Memory); err != nil {
			return "", "", err
		}
	}
	if h.CPU != "" && s.MilliCPU > 0 {
		if cpu, err = make(h.CPU); err != nil {
			return memory, "", err
		}
	}
	if h.Pids != "" && s.Processes > 0 {
		if _, err = make(h.Pids); err != nil {
			return memory, cpu, err
		}
	}
	return memory, cpu, nil
}

// delegate enables limits for groups below ours. Errors show up when a limit is set.
func (h hierarchy) delegate() {
	for _, dir := range []string{h.Unified, filepath.Join(h.Unified, "mariposa")} {
		for _, c := range []string{"+memory", "+cpu", "+pids"} {
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(c), 0)
		}
	}
}

// limitMemory sets a memory limit; missing is the reason why it has no directory.
func (h hierarchy) limitMemory(dir string, bytes int64, missing error) error {
	value := strconv.FormatInt(bytes, 10)
	if dir == "" {
		return cmp.Or(missing, errNoController)
	}
	limit, withSwap, swap := "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", value
	if h.Unified != "" {
		limit, withSwap, swap = "memory.max", "memory.swap.max", "0"
	}
	err := writeControl(dir, limit, value)
	if errors.Is(err, unix.EINVAL) { // it had a smaller limit, and the sum with swap may not be below this one
		_ = writeControl(dir, withSwap, swap)
		err = writeControl(dir, limit, value)
	}
	if err != nil {
		return err
	}
	_ = writeControl(dir, withSwap, swap) // missing without swap or swap accounting
	return nil
}

func (h hierarchy) limitCPU(dir string, milli int64, missing error) error {
	const period = 100_000                // microseconds, the kernel's default
	quota := max(milli*period/1000, 1000) // the minimum that the kernel accepts
	q, p := strconv.FormatInt(quota, 10), strconv.Itoa(period)
	if dir == "" {
		return cmp.Or(missing, errNoController)
	}
	if h.Unified != "" {
		return writeControl(dir, "cpu.max", q+" "+p)
	}
	return errors.Join(writeControl(dir, "cpu.cfs_period_us", p), writeControl(dir, "cpu.cfs_quota_us", q))
}

func (h hierarchy) limitProcesses(s *spec) error {
	return writeControl(filepath.Join(cmp.Or(h.Pids, h.Unified), "mariposa", s.Group), "pids.max", strconv.FormatInt(s.Processes, 10))
}

var errNoController = errors.New("this machine has no such cgroup controller")

func writeControl(dir, name, value string) error {
	err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0)
	if errors.Is(err, fs.ErrNotExist) || (errors.Is(err, fs.ErrPermission) && os.Geteuid() == 0) {
		return errNoController // nobody can create files in cgroupfs, so root gets "permission denied"
	}
	return err
}

// explainLimitError explains why a limit could not be set.
func explainLimitError(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "the agent may not create cgroups; run it as root"
	case errors.Is(err, errNoController):
		return errNoController.Error()
	}
	return err.Error()
}

// limitsSet are the limits of an instance that were set, and those that could not be.
type limitsSet struct{ enforced, missed []string }

func (l *limitsSet) memory(s *spec, err error) { l.add("memory "+formatSize(s.Memory), err) }

func (l *limitsSet) cpu(s *spec, err error) {
	l.add("cpu "+strconv.FormatFloat(float64(s.MilliCPU)/1000, 'f', -1, 64), err)
}

func (l *limitsSet) add(what string, err error) {
	if err == nil {
		l.enforced = append(l.enforced, what)
	} else {
		l.missed = append(l.missed, what+" ("+explainLimitError(err)+")")
	}
}

func (l *limitsSet) describe() string {
	var parts []string
	if len(l.enforced) > 0 {
		parts = append(parts, "enforced: "+strings.Join(l.enforced, ", "))
	}
	if len(l.missed) > 0 {
		parts = append(parts, "not enforced: "+strings.Join(l.missed, ", "))
	}
	return strings.Join(parts, "; ")
}

// formatSize formats an amount of memory for people.
func formatSize(bytes int64) string {
	for _, u := range []struct {
		name string
		unit int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if bytes >= u.unit && bytes%u.unit == 0 {
			return fmt.Sprintf("%d %s", bytes/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", bytes)
}

// pids lists the processes in the groups.
func (g group) pids() []int {
	var list []int
	for _, dir := range g.dirs {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
				list = append(list, pid)
			}
		}
	}
	return list
}

// existing returns the groups that exist.
func (g group) existing() group {
	g.dirs = slices.DeleteFunc(slices.Clone(g.dirs), func(dir string) bool {
		_, err := os.Stat(dir)
		return err != nil
	})
	return g
}

// killMembers kills all processes in the groups. Commands that people run in an instance
// are not children of its supervisor, and end with it this way. The supervisor itself may
// be in a group for a moment: by the thread that put the command there.
func (g group) killMembers() {
	for _, pid := range g.pids() {
		if p, ok := readProc(pid); ok && pid != os.Getpid() {
			p.kill(unix.SIGKILL)
		}
	}
}

// oomKills returns how many processes the kernel killed because the memory limit was
// reached.
func (g group) oomKills() int {
	for _, dir := range g.dirs {
		for _, name := range []string{"memory.oom_control", "memory.events"} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(b)) {
				if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
					count, _ := strconv.Atoi(strings.TrimSpace(n))
					return count
				}
			}
		}
	}
	return 0
}

// remove deletes the groups. A process that has just died keeps its group busy for a
// moment.
func (g group) remove() error {
	deadline := time.Now().Add(time.Second)
	for _, dir := range g.dirs {
		for {
			err := unix.Rmdir(dir)
			if err == nil || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) {
				break // without the right to remove it, we have not created it either
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				return fmt.Errorf("cannot remove the cgroup %s: %w", dir, err)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	return nil
}
