package volume_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mariposa/driver/kvm/guesttest"
	"mariposa/driver/ostool"
)

// Root of this machine may not be allowed to resize a file system, but that of a virtual machine is.
func TestAVolumeGrowsOnAMachineThatAllowsIt(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	kernel, err := guesttest.Kernel()
	if err != nil {
		t.Fatal(err)
	}
	initrd, err := guesttest.Programs(ctx, `MAY_RESIZE=1 /volume.test -test.v -test.run "^TestAVolumeGrowsWhileItIsUsedAndNeverShrinks$"`, []string{"loop"}, map[string]string{
		"volume.test": os.Args[0], "usr/sbin/mkfs.ext4": ostool.Find("mkfs.ext4"),
	})
	file := filepath.Join(t.TempDir(), "initrd")
	if err == nil {
		err = os.WriteFile(file, initrd, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(ctx, "qemu-system-x86_64", "-nodefaults", "-display", "none", "-accel", "tcg,tb-size=64", "-cpu", "max", "-m", "512M", "-no-reboot", //nolint:gosec // our own arguments
		"-kernel", kernel, "-initrd", file, "-append", guesttest.Append, "-serial", "stdio").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestAVolumeGrowsWhileItIsUsedAndNeverShrinks") {
		t.Errorf("%v\n%s", err, out)
	}
}
