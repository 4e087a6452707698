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
	const test = "TestLimitsHoldFromTheStartAndGoWithTheInstance"
	out, err := guesttest.Run(ctx, t.TempDir(), `/process.test -test.v -test.run "^`+test+`$"`, nil, map[string]string{"process.test": unraced(t)})
	if err != nil || !strings.Contains(out, "--- PASS: "+test) {
		t.Errorf("%v\n%s", err, out)
	}
}
