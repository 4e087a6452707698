package process

import "golang.org/x/sys/unix"

const (
	filterArch = unix.AUDIT_ARCH_AARCH64
	otherCalls = 0xffff_ffff // there is no second set
)

var forbiddenHere []uintptr
