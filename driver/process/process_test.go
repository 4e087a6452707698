package process_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
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
				d, err := process.New(process.Options{Root: root, Isolation: isolation})
				must(t, err)
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
			Reads: func(t *testing.T, d driver.Driver, id string) map[string]string {
				return readValues(t, root, id)
			},
			Script: func(script string) []string { return []string{"sh", "-c", script} },
			Writes: func(t *testing.T, id string, lines ...string) driver.Instance {
				return sh(id, fmt.Sprintf("printf '%%s\\n' %s; exec sleep 1000", strings.Join(lines, " ")))
			},
		}
	})
}

// readValues reads the file that an instance's environment names, as the
// instance would.
func readValues(t *testing.T, root, id string) (values map[string]string) {
	t.Helper()
	var path string
	eventually(t, "it has its environment", func() bool { // which takes a moment after exec
		pids, _, _ := process.Labelled(root)
		for _, pid := range pids {
			b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
			env := strings.Split(string(b), "\x00")
			at := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, "MARIPOSA_MDATA_FILE=") })
			if at >= 0 && slices.Contains(env, "MARIPOSA_INSTANCE="+id) {
				_, path, _ = strings.Cut(env[at], "=")
				return true
			}
		}
		return false
	})
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &values)
	}
	if err != nil {
		t.Errorf("its values: %v", err)
	}
	return values
}
