package process_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/process"
)

func TestConformance(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		root := newRoot(t)
		return drivertest.Harness{
			Open: func(t *testing.T) driver.Driver {
				d, err := process.New(process.Options{Root: root})
				if err != nil {
					t.Fatal(err)
				}
				return d
			},
			Runs: func(t *testing.T, id string) driver.Instance { return instance(id, "sleep", "1000") },
			End: func(t *testing.T, _ driver.Driver, o driver.Observed) {
				kill(t, pidOf(t, o), syscall.SIGKILL)
			},
			Broken: func(t *testing.T, id string) driver.Instance { return instance(id, "helo") },
			Stubborn: func(t *testing.T, id string) driver.Instance {
				return sh(id, `trap "" TERM; while :; do sleep 1000; done`)
			},
			Ready: func(t *testing.T, o driver.Observed) {
				eventually(t, "it ignores SIGTERM", func() bool { return ignores(pidOf(t, o), syscall.SIGTERM) })
			},
			Writes: func(t *testing.T, id string, lines ...string) driver.Instance {
				return sh(id, fmt.Sprintf("printf '%%s\\n' %s; exec sleep 1000", strings.Join(lines, " ")))
			},
		}
	})
}
