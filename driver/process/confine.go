package process

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// limitSelf sets the limits that a command inherits from the process that starts it.
func (c *sandbox) limitSelf() error {
	limits := map[int]uint64{
		unix.RLIMIT_NOFILE: maxOpenFiles, unix.RLIMIT_CORE: 0,
		unix.RLIMIT_NPROC: uint64(c.Processes), // per uid and user namespace; one of the two belongs to the instance alone
	}
	for what, most := range limits {
		var now syscall.Rlimit
		if err := syscall.Getrlimit(what, &now); err != nil {
			return err
		}
		most = min(most, now.Max)
		if err := syscall.Setrlimit(what, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("cannot set its resource limits: %w", err)
		}
	}
	return nil
}

// fork starts a command with only the rights that the sandbox gives it. The thread that
// starts it drops its own rights first, and ends afterwards.
func (c *sandbox) fork(path string, argv []string, attr syscall.ProcAttr) (pid int, err error) {
	sys := *attr.Sys
	attr.Sys = &sys
	if c.Mode == modeRoot {
		sys.Credential = &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(c.GID)}
	}
	defer preferForOOM()()
	onOwnThread(func() {
		if err = c.confineThread(); err == nil {
			pid, err = syscall.ForkExec(path, argv, &attr)
		}
	})
	return pid, err
}

// preferForOOM makes the OOM killer prefer the processes that are started now over the
// agent and over the supervisor inside the same memory limit, which has to record how
// they ended. It returns a function that ends this.
func preferForOOM() (end func()) {
	before, err := os.ReadFile(oomScore)
	if err != nil || os.WriteFile(oomScore, []byte("300"), 0) != nil {
		return func() {}
	}
	return func() { _ = os.WriteFile(oomScore, before, 0) } // lowering it to the former value is allowed
}

// oomScore is the file that ranks this process for the OOM killer.
const oomScore = "/proc/self/oom_score_adj"

// confineThread drops the rights of the calling thread that a command must not have. It
// keeps the right to switch to the instance's user, which is lost by that switch.
func (c *sandbox) confineThread() error {
	for n := uintptr(0); ; n++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, n, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && n > 0 { // there are no more
			break
		}
		if err != nil {
			return fmt.Errorf("cannot drop capabilities: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot drop capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, secureBits, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot drop capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot forbid new privileges: %w", err)
	}
	if err := c.landlock(); err != nil {
		return fmt.Errorf("cannot set up Landlock: %w", err)
	}
	return installFilter()
}

// secureBits: uid 0 has no special rights (1), capabilities do not survive a change of
// user (4), and ambient capabilities cannot be raised (6). The bits above lock each of
// them.
const secureBits = 1<<0 | 1<<1 | 1<<5 | 1<<6 | 1<<7

// These are the rights in a Landlock domain: read and execute below its root, and change
// files in the instance's own directories.
const (
	landlockRead  = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	landlockWrite = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	landlockDevices = unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK
	// landlockPorts is the first version that restricts ports, landlockScopes the first
	// that isolates abstract sockets.
	landlockPorts  = 4
	landlockScopes = 6
)

// landlockVersion returns the Landlock version of the kernel; 0 if Landlock is missing or
// disabled.
func landlockVersion() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// landlock puts the calling thread into a Landlock domain. It is a second layer of
// isolation: paths outside the instance's view stay inaccessible even if a file of the
// machine is left open by mistake. On a kernel without Landlock, the other layers have to
// suffice.
//
// Only this thread enters the domain, so that the supervisor of the command stays
// outside. Landlock libraries restrict whole programs.
func (c *sandbox) landlock() error {
	version := landlockVersion()
	if version == 0 {
		return nil
	}
	write := uint64(landlockWrite)
	if version >= 2 {
		write |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if version >= 3 {
		write |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	attr := unix.LandlockRulesetAttr{Handled_access_fs: landlockRead | landlockDevices | write}
	size := unsafe.Sizeof(attr.Handled_access_fs)
	if version >= landlockPorts {
		attr.Handled_access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP
		size = unsafe.Offsetof(attr.Handled_access_net) + unsafe.Sizeof(attr.Handled_access_net)
	}
	if version >= landlockScopes {
		attr.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
		size = unsafe.Offsetof(attr.Scoped) + unsafe.Sizeof(attr.Scoped)
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return errno
	}
	defer unix.Close(int(fd))
	if err := allowBeneath(int(fd), "/", landlockRead); err != nil {
		return err
	}
	for _, path := range c.Writable {
		if err := allowBeneath(int(fd), path, landlockRead|write); err != nil {
			return err
		}
	}
	if version >= landlockPorts {
		for _, port := range append([]int{anyPort}, c.Ports...) {
			if err := allowPort(int(fd), port); err != nil {
				return err
			}
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func allowBeneath(ruleset int, path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	attr := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// anyPort lets the kernel pick a port from those for outgoing connections.
const anyPort = 0

// allowPort lets a ruleset listen on a TCP port. Without port rules, an instance could
// take the port of the agent or of a server while that restarts, and impersonate it.
func allowPort(ruleset, port int) error {
	const ruleNetPort = 2 // unix has no name for it
	attr := struct{ access, port uint64 }{unix.LANDLOCK_ACCESS_NET_BIND_TCP, uint64(port)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), ruleNetPort, uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
