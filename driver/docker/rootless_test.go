package docker_test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mariposa/driver"
	"mariposa/driver/cgroup"
	"mariposa/driver/drivertest"
)

// listenAs listens on a socket as another user.
func listenAs(t *testing.T, path string, uid int) net.Listener {
	t.Helper()
	if err := os.Chmod(filepath.Dir(path), 0o777); err != nil { //nolint:gosec // another user listens there
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	keep := ^uintptr(0)
	if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); err != 0 { // of this thread only
		t.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); err != 0 {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// An engine without root enforces no limits on a machine with cgroups of version 1. The node and its
// instances say so, and a change of limits does not fail.
func TestAnEngineWithoutRootSaysThatItEnforcesNoLimits(t *testing.T) {
	t.Parallel()
	host := changed(t, func(*http.Request) bool { return false }, nil, func(path string) net.Listener { return listenAs(t, path, 65534) })
	d := openOn(t, host, t.TempDir(), drivertest.NewID())
	want := "not enforced: the engine runs without root, which needs cgroups of version 2 for limits"
	if cgroup.Find().IsV2() {
		want = ""
	}
	if got := d.Driver.(driver.Conditional).Details()["limits"]; got != want {
		t.Errorf("the node says %q, want %q", got, want)
	}
	limited, free := instance(drivertest.NewID()), instance(drivertest.NewID())
	limited.Workload.Memory = 64 << 20
	if o := d.start(limited); o.Details["limits"] != want {
		t.Errorf("it has %v", o.Details)
	}
	if o := d.start(free); strings.Contains(o.Details["limits"], "enforced") {
		t.Errorf("without limits, it has %v", o.Details)
	}
	limited.Workload.Memory = 32 << 20
	if o, err := d.Update(t.Context(), limited); err != nil || o.Details["limits"] != want {
		t.Errorf("after an update, it has %v, %v", o.Details, err)
	}
}
