package volume_test

import (
	"context"
	"os"
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
	out, err := guesttest.Run(ctx, t.TempDir(), `MAY_RESIZE=1 /volume.test -test.v -test.run "^TestAVolumeGrowsWhileItIsUsedAndNeverShrinks$"`, []string{"loop"}, map[string]string{
		"volume.test": os.Args[0], "usr/sbin/mkfs.ext4": ostool.Find("mkfs.ext4"),
	})
	if err != nil || !strings.Contains(out, "--- PASS: TestAVolumeGrowsWhileItIsUsedAndNeverShrinks") {
		t.Errorf("%v\n%s", err, out)
	}
}
