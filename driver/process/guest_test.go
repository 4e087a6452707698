package process_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"mariposa/driver/kvm/guesttest"
)

// This machine may have cgroups of version 1. A virtual machine has those of version 2 only, with
// all controllers.
func TestLimitsOnAMachineWithVersion2OfCgroups(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	out, err := guesttest.Run(ctx, t.TempDir(), `/process.test -test.v -test.run "^(TestMemoryLimit|TestLimitsHoldFromTheStartAndGoWithTheInstance)$"`, nil, map[string]string{"process.test": unraced(t)})
	for _, name := range []string{"TestMemoryLimit", "TestLimitsHoldFromTheStartAndGoWithTheInstance"} {
		if err != nil || !strings.Contains(out, "--- PASS: "+name) {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}
