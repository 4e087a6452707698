package process

import "golang.org/x/sys/unix"

const (
	filterArch = unix.AUDIT_ARCH_X86_64
	otherCalls = 0x4000_0000 // the calls of x32
)

var forbiddenHere = []uintptr{
	unix.SYS_CREATE_MODULE, unix.SYS_IOPERM, unix.SYS_IOPL, unix.SYS_MODIFY_LDT, unix.SYS_SYSFS, unix.SYS__SYSCTL, unix.SYS_USELIB, unix.SYS_USTAT,
}
