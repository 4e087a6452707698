package docker

import (
	"net"
	"strings"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver/cgroup"
)

// An engine without root cannot use cgroups of version 1. It ignores the limits of containers, and
// says nothing: the driver does.

// limitsDetail says that limits are not enforced, for people.
const limitsDetail = "limits"

// unlimitedReason returns why an engine enforces no limits; empty if it does.
func unlimitedReason(host string) string {
	if peer := peerOf(host); peer != nil && peer.Uid != 0 && !cgroup.Find().IsV2() {
		return "the engine runs without root, which needs cgroups of version 2 for limits"
	}
	return ""
}

// unlimited returns why the engine enforces no limits; empty if it does.
func (d *Driver) unlimited() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.engine.unlimited
}

// hasOwnLimits reports whether a workload has limits.
func hasOwnLimits(w *mariposa.Workload) bool { return w != nil && (w.Memory > 0 || w.MilliCPU > 0) }

// peerOf returns the process that listens for an engine; nil if it is not on this machine.
func peerOf(host string) (peer *unix.Ucred) {
	path, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return nil
	}
	conn, err := (&net.Dialer{Timeout: probeTimeout}).Dial("unix", path)
	if err != nil {
		return nil
	}
	defer conn.Close() // nothing was sent
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil
	}
	if raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return nil
	}
	return peer
}
