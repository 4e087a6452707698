package process

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mariposa/driver"
)

// These variables identify a process as ours.
const (
	envRoot        = "MARIPOSA_ROOT"
	envInstance    = "MARIPOSA_INSTANCE"
	envShim        = "MARIPOSA_SHIM" // set for shims instead of envInstance
	envInit        = "MARIPOSA_INIT" // set for inits
	envExec        = "MARIPOSA_EXEC" // set for commands that people run in an instance: the id of the command
	envCluster     = "MARIPOSA_CLUSTER"
	envIncarnation = "MARIPOSA_INCARNATION"
)

// proc is one process as /proc shows it. Pid and start time together identify a process;
// a pid alone does not.
type proc struct {
	pid, parent, session int
	start                uint64 // in clock ticks since boot
}

// readProc reads one process; false if it is gone or a zombie.
func readProc(pid int) (proc, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return proc{}, false
	}
	f, start := parseStat(b)
	if start == 0 || f[0] == "Z" || f[0] == "X" {
		return proc{}, false
	}
	p := proc{pid: pid, start: start}
	p.parent, _ = strconv.Atoi(f[1])
	p.session, _ = strconv.Atoi(f[3])
	return p, true
}

// same reports whether two are the same process, even if its parent has changed.
func (p proc) same(o proc) bool { return p.pid == o.pid && p.start == o.start }

// alive reports whether this process still runs.
func (p proc) alive() bool {
	now, ok := readProc(p.pid)
	return ok && now.same(p)
}

// parseStat splits the stat of a process, from its state on, and returns its start time;
// 0 if there is none.
func parseStat(b []byte) (fields []string, start uint64) {
	// The command in parentheses may itself contain spaces and parentheses.
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return nil, 0
	}
	if fields = strings.Fields(string(b[end+1:])); len(fields) < 20 {
		return nil, 0
	}
	start, _ = strconv.ParseUint(fields[19], 10, 64)
	return fields, start
}

// eachPID calls f for every process of the machine.
func eachPID(f func(pid int)) error {
	dir, err := os.Open("/proc")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			f(pid)
		}
	}
	return nil
}

// open returns a pidfd that is certain to refer to this process, not to a later one with
// the same pid; false if the process is gone.
func (p proc) open() (int, bool) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return -1, false
	}
	if !p.alive() {
		_ = unix.Close(fd)
		return -1, false
	}
	return fd, true
}

// kill sends a signal to this process, if it still runs.
func (p proc) kill(s unix.Signal) {
	if fd, ok := p.open(); ok {
		signal(fd, s)
		_ = unix.Close(fd)
	}
}

// labelled is a process of an instance below our root, or a supervisor of one.
type labelled struct {
	proc
	id     string
	shim   bool
	init   bool
	inside bool   // of an isolated instance
	exec   string // the id of the command, if people run it in an instance
	labels driver.Labels
	env    []string // its initial environment; if inside, that of the init
}

// findLabelled finds every process that is labelled with this root. Processes whose
// environment we may not read are not ours.
//
// A process in an isolated instance can set any label, such as the id of another instance
// or a path. But it cannot leave its PID namespace, so it belongs to the instance that
// the namespace's first process was started for.
func findLabelled(root string) ([]labelled, error) {
	var found []labelled
	inits, inside := map[string]labelled{}, map[string][]labelled{} // by PID namespace
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return nil, err
	}
	err = eachPID(func(pid int) {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		namespace, err := os.Readlink(filepath.Join(dir, "ns/pid"))
		if err != nil {
			return
		}
		b, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil {
			return
		}
		l, ours := parseLabels(root, strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"))
		var lives bool
		if l.proc, lives = readProc(pid); !lives {
			return
		}
		switch {
		case namespace != own && !isFirst(dir):
			inside[namespace] = append(inside[namespace], l)
		case ours && l.init == (namespace != own):
			found = append(found, l)
			inits[namespace] = l
		}
	})
	for namespace, list := range inside {
		init, ours := inits[namespace]
		if !ours {
			continue
		}
		for _, l := range list {
			l.id, l.labels, l.env, l.init, l.inside = init.id, init.labels, init.env, false, true
			found = append(found, l)
		}
	}
	return found, err
}

// isFirst reports whether a process is the first one of its PID namespace.
func isFirst(dir string) bool {
	b, _ := os.ReadFile(filepath.Join(dir, "status")) // fails if it is gone
	for line := range bytes.Lines(b) {
		if ids, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			return bytes.HasSuffix(bytes.TrimSpace(ids), []byte("\t1"))
		}
	}
	return false
}

func parseLabels(root string, env []string) (labelled, bool) {
	l := labelled{env: env}
	ours := false
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		switch name {
		case envRoot:
			ours = value == root
		case envInstance:
			l.id = value
		case envShim:
			l.id, l.shim = value, true
		case envInit:
			l.id, l.init = value, true
		case envExec:
			l.exec = value
		case envCluster:
			l.labels.Cluster = value
		case envIncarnation:
			l.labels.Incarnation = value
		}
	}
	return l, ours && checkID(l.id) == nil
}

// leftoverProcesses finds every process of an instance: its main process, the session of
// that, and those with its label or in its cgroups. If the directory was copied here, the
// main process belongs to the original and is left out.
func (d *Driver) leftoverProcesses(e *entry) ([]proc, error) {
	var list []proc
	main, alive := readProc(e.state.PID)
	alive = alive && (e.spec.Root == d.rootOf(e) || e.stray) && e.state.Boot == d.boot && main.start == e.state.Start
	if alive {
		err := eachPID(func(pid int) {
			if p, ok := readProc(pid); ok && p.session == main.pid {
				list = append(list, p)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	all, err := findLabelled(d.rootOf(e))
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if l.id == e.id {
			list = append(list, l.proc)
		}
	}
	for _, pid := range d.groupOf(e).pids() {
		if p, ok := readProc(pid); ok {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b proc) int { return a.pid - b.pid })
	return slices.Compact(list), nil
}

// bootID identifies this boot of the machine.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// isGone reports whether an error means that a file does not exist.
func isGone(err error) bool { return errors.Is(err, os.ErrNotExist) }
