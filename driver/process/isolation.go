package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"mariposa/driver"
)

// Isolation says what a driver does on a machine that cannot isolate instances.
type Isolation int

const (
	// IsolationRequired refuses to start instances there. Running ones can be stopped and
	// removed.
	IsolationRequired Isolation = iota
	// IsolationPreferred runs them there as plain processes of the agent's user.
	IsolationPreferred
	// IsolationOff never isolates. It is for tests, which use it to show what isolation
	// prevents.
	IsolationOff
)

// These are the default limits of an instance.
const (
	DefaultTmpSize   = 64 << 20
	DefaultProcesses = 1024
	maxOpenFiles     = 65536
)

// mode is how instances of this driver are isolated.
type mode string

const (
	modeNone mode = ""     // not isolated: plain processes of the agent's user
	modeRoot mode = "root" // the agent is root: each instance has its own uid
	modeUser mode = "user" // the agent is not root: each instance has its own user namespace
)

// isolationSupport is the isolation that this machine supports, as found by a trial.
type isolationSupport struct {
	mode     mode
	missing  string // why instances cannot be isolated; empty if they can
	landlock int    // Landlock version of the kernel; 0 if none
}

// probeIsolation runs the trial once per program.
var probeIsolation = sync.OnceValue(func() isolationSupport {
	w := isolationSupport{mode: modeRoot, landlock: landlockVersion()}
	if os.Geteuid() != 0 {
		w.mode = modeUser
	}
	// A program that is not dumpable may not map the users of its children.
	shown, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err == nil && shown != 1 && unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) == nil {
		defer unix.Prctl(unix.PR_SET_DUMPABLE, uintptr(shown), 0, 0, 0) //nolint:errcheck // restores the former value
	}
	if err := tryIsolation(w.mode); err != nil {
		w.mode, w.missing = modeNone, err.Error()
	}
	return w
})

// Probe reports how instances can be isolated on this machine. why is empty if they can;
// lacks names the protections that are missing nevertheless.
func Probe() (how, why, lacks string) {
	w := probeIsolation()
	return w.describe(), w.missing, w.missingProtections(findHierarchy())
}

// tryIsolation sets up the isolation of an instance without a command.
func tryIsolation(m mode) error {
	dir, err := os.MkdirTemp("", "mariposa-trial-")
	if err != nil {
		return fmt.Errorf("cannot create a directory for the trial: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := os.Mkdir(filepath.Join(dir, workDir), 0o700); err != nil {
		return err
	}
	s := shim{dir: dir, startRequest: startRequest{Sandbox: &sandbox{
		Mode: m, UID: DefaultUIDs.First, GID: DefaultUIDs.First, Work: filepath.Join(dir, workDir),
		TmpSize: DefaultTmpSize, Processes: DefaultProcesses,
	}}}
	if m == modeUser {
		s.Sandbox.UID, s.Sandbox.GID = os.Geteuid(), os.Getegid()
	}
	s.Sandbox.Binds = systemBinds()
	return s.tryInit()
}

// isolate decides how this driver isolates instances.
func (d *Driver) isolate() error {
	if d.options.Isolation == IsolationOff {
		d.support.missing = "isolation is disabled"
		return nil
	}
	d.support = probeIsolation()
	if d.support.mode == modeRoot {
		if err := d.options.UIDs.check(accountFiles); err != nil {
			return err
		}
	}
	for n, path := range d.options.Paths {
		real, err := filepath.EvalSymlinks(path)
		switch {
		case !filepath.IsAbs(path) || filepath.Clean(path) == "/":
			return fmt.Errorf("--process-path %q: use the absolute path of a directory or a file, other than /", path)
		case err != nil:
			return fmt.Errorf("--process-path %q: %w", path, errors.Unwrap(err))
		case d.isHidden(real):
			return fmt.Errorf("--process-path %q: it is inside a directory of Mariposa, which instances cannot see", path)
		}
		d.options.Paths[n] = filepath.Clean(path)
	}
	return nil
}

var _ driver.Conditional = (*Driver)(nil)

// Unavailable explains why this machine cannot run process instances; empty if it can.
func (d *Driver) Unavailable() string {
	if d.support.missing == "" || d.options.Isolation != IsolationRequired {
		return ""
	}
	return "its agent cannot isolate instances and runs without --allow-unisolated"
}

// Details describe how instances are isolated.
func (d *Driver) Details() map[string]string {
	m := map[string]string{"isolation": d.support.describe()}
	if missing := d.support.missingProtections(d.hierarchy); missing != "" {
		m["isolation_lacks"] = missing
	}
	if d.support.mode == modeRoot {
		m["uids"] = d.options.UIDs.String()
	}
	return m
}

func (w isolationSupport) describe() string {
	switch w.mode {
	case modeRoot:
		return "each instance has its own uid, file system view, and PID and IPC namespaces"
	case modeUser:
		return "each instance has its own user namespace, file system view, and PID and IPC namespaces"
	case modeNone:
	}
	return "none: " + w.missing
}

// missingProtections names the protections that an isolated instance does not have on
// this machine.
func (w isolationSupport) missingProtections(h hierarchy) string {
	if w.mode == modeNone {
		return ""
	}
	var list []string
	switch {
	case w.landlock == 0:
		list = append(list, "Landlock and port isolation (not supported by this kernel)")
	case w.landlock < landlockPorts:
		list = append(list, "isolation of ports and abstract sockets (the Landlock version of this kernel is too old)")
	case w.landlock < landlockScopes:
		list = append(list, "isolation of abstract sockets (the Landlock version of this kernel is too old)")
	}
	if w.mode == modeUser {
		list = append(list, "separate uids, memory limits and cpu limits (the agent is not root)")
	} else if h.Pids == "" && h.Unified == "" {
		list = append(list, "a process limit by cgroup (this machine has no such cgroup controller; the limit of its uid applies)")
	}
	return strings.Join(list, "; ")
}

// UIDs is a range of user ids for instances. Group ids are the same. The first one owns
// volumes and networks and is not given to an instance.
type UIDs struct{ First, Last int }

// DefaultUIDs are above the ids that distributions use for users, subordinate ids and
// systemd containers.
var DefaultUIDs = UIDs{First: 0x7000_0000, Last: 0x7000_ffff}

// ParseUIDs parses FIRST-LAST.
func ParseUIDs(s string) (UIDs, error) {
	first, last, ok := strings.Cut(s, "-")
	f, err1 := strconv.Atoi(first)
	l, err2 := strconv.Atoi(last)
	if !ok || err1 != nil || err2 != nil || f < 1000 || l < f+1 || int64(l) >= 1<<32-1 {
		return UIDs{}, fmt.Errorf("invalid range of uids %q: use FIRST-LAST with uids of at least 1000, such as %s", s, DefaultUIDs)
	}
	return UIDs{First: f, Last: l}, nil
}

func (u UIDs) String() string { return strconv.Itoa(u.First) + "-" + strconv.Itoa(u.Last) }

// accountFiles list a machine's users and groups, and their subordinate ids.
var accountFiles = []string{"/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid"}

// check rejects a range that contains ids of other users.
func (u UIDs) check(files []string) error {
	for _, file := range files {
		b, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot check whether the uids for instances are free: %w", err)
		}
		for line := range strings.Lines(string(b)) {
			name, first, last, ok := parseAccount(file, strings.TrimSpace(line))
			if ok && first <= u.Last && last >= u.First {
				return fmt.Errorf("the uids %s for instances are not free: %s assigns %d to %s; choose others with --process-uids FIRST-LAST", u, file, max(first, u.First), name)
			}
		}
	}
	return nil
}

// parseAccount parses a line of NAME:X:ID or NAME:FIRST:COUNT.
func parseAccount(file, line string) (name string, first, last int, ok bool) {
	f := strings.Split(line, ":")
	if len(f) < 3 || strings.HasPrefix(line, "#") {
		return "", 0, 0, false
	}
	if strings.HasPrefix(filepath.Base(file), "sub") {
		first, err1 := strconv.Atoi(f[1])
		count, err2 := strconv.Atoi(f[2])
		return f[0], first, first + count - 1, err1 == nil && err2 == nil && count > 0
	}
	id, err := strconv.Atoi(f[2])
	return f[0], id, id, err == nil
}

// assignUID gives an instance a uid that no other existing instance has: its former one,
// or a new one. The search starts at a position that depends on the instance, so that two
// agents on one machine seldom pick the same.
func (d *Driver) assignUID(e *entry) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.options.UIDs
	free := func(uid int) bool { return d.uids[uid] == "" || d.uids[uid] == e.id }
	if had := e.spec.UID; had > u.First && had <= u.Last && free(had) {
		d.uids[had] = e.id
		return had, nil
	}
	span := u.Last - u.First
	for n := range span {
		if uid := u.First + 1 + (int(hashOf(d.root, e.id))+n)%span; free(uid) {
			d.freeUID(e.id)
			d.uids[uid] = e.id
			return uid, nil
		}
	}
	return 0, fmt.Errorf("all %d uids for instances are in use; give this node more with --process-uids", span)
}

// freeUID releases the uid of an instance. The caller holds the mutex.
func (d *Driver) freeUID(id string) {
	for uid, owner := range d.uids {
		if owner == id {
			delete(d.uids, uid)
		}
	}
}

// isHidden reports whether a path is inside a directory that no instance can see.
func (d *Driver) isHidden(path string) bool {
	return slices.ContainsFunc(d.hidden, func(h string) bool { return contains(h, path) })
}

// contains reports whether a path is a directory or is below it.
func contains(dir, path string) bool {
	return dir == "/" || path == dir || strings.HasPrefix(path, dir+"/")
}
