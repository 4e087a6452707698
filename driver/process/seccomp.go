package process

import (
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forbiddenCalls are system calls that no instance needs: those that require privileges
// it does not have anyway, and those that have been used to escape isolation before.
// Calls that an architecture does not have are missing from its list.
var forbiddenCalls = append([]uintptr{
	unix.SYS_ACCT, unix.SYS_ADD_KEY, unix.SYS_ADJTIMEX, unix.SYS_BPF, unix.SYS_CHROOT, unix.SYS_CLOCK_ADJTIME, unix.SYS_CLOCK_SETTIME,
	unix.SYS_DELETE_MODULE, unix.SYS_FANOTIFY_INIT, unix.SYS_FINIT_MODULE, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSOPEN, unix.SYS_FSPICK,
	unix.SYS_INIT_MODULE, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_IO_URING_SETUP, unix.SYS_KCMP, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEYCTL, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_MOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT,
	unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_NFSSERVCTL, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR,
	unix.SYS_PERF_EVENT_OPEN, unix.SYS_PIVOT_ROOT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_REBOOT, unix.SYS_REQUEST_KEY,
	unix.SYS_SETDOMAINNAME, unix.SYS_SETHOSTNAME, unix.SYS_SETNS, unix.SYS_SETTIMEOFDAY, unix.SYS_SWAPOFF, unix.SYS_SWAPON, unix.SYS_SYSLOG,
	unix.SYS_UMOUNT2, unix.SYS_UNSHARE, unix.SYS_USERFAULTFD, unix.SYS_VHANGUP,
}, forbiddenHere...)

// namespaceFlags are the flags with which clone creates namespaces.
const namespaceFlags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// forbiddenFamilies are socket families that bypass the machine's network, reach rarely
// used parts of the kernel, or open TCP ports that Landlock does not see.
var forbiddenFamilies = []uint32{unix.AF_VSOCK, unix.AF_ALG, unix.AF_KCM, unix.AF_RDS, unix.AF_TIPC, unix.AF_CAN, unix.AF_SMC}

// These are the offsets of a system call in the data of a filter.
const (
	callNumber = 0
	callArch   = 4
	callArg0   = 16 // the low half of the first argument
	callArg2   = 32 // of the third
)

// filterProgram allows a system call or answers it with an error. A program for another
// architecture is killed, because its call numbers mean other calls.
func filterProgram() []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	// unless skips a number of instructions if the loaded word differs.
	unless := func(is uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: is, Jf: skip}
	}
	refuse := func(errno unix.Errno) unix.SockFilter { return answer(unix.SECCOMP_RET_ERRNO | uint32(errno)) }
	p := []unix.SockFilter{
		load(callArch), unless(filterArch, 1),
		{Code: unix.BPF_JMP | unix.BPF_JA, K: 1},
		answer(unix.SECCOMP_RET_KILL_PROCESS),
		load(callNumber),
		// Numbers from here on belong to a second set of calls of the same architecture.
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: otherCalls, Jf: 1},
		answer(unix.SECCOMP_RET_KILL_PROCESS),
		// Its flags are in memory, which a filter cannot read. Programs fall back to
		// clone.
		unless(unix.SYS_CLONE3, 1), refuse(unix.ENOSYS),
		unless(unix.SYS_CLONE, 4),
		load(callArg0),
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: namespaceFlags, Jf: 1},
		refuse(unix.EPERM), answer(unix.SECCOMP_RET_ALLOW),
		unless(unix.SYS_SOCKET, uint8(5+2*len(forbiddenFamilies))),
		// Landlock does not see the ports of multipath TCP. Programs fall back to TCP.
		load(callArg2), unless(unix.IPPROTO_MPTCP, 1), refuse(unix.EPROTONOSUPPORT),
		load(callArg0),
	}
	for _, family := range forbiddenFamilies {
		p = append(p, unless(family, 1), refuse(unix.EAFNOSUPPORT))
	}
	p = append(p, answer(unix.SECCOMP_RET_ALLOW))
	for _, call := range slices.Sorted(slices.Values(forbiddenCalls)) {
		p = append(p, unless(uint32(call), 1), refuse(unix.EPERM))
	}
	return append(p, answer(unix.SECCOMP_RET_ALLOW))
}

// installFilter sets the filter for the calling thread and the processes that it starts.
func installFilter() error {
	program := filterProgram()
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&f)))
	if errno != 0 {
		return fmt.Errorf("cannot set up the seccomp filter: %w", errno)
	}
	return nil
}
