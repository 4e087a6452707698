package lxc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/bridge"
	"mariposa/driver/drivertest"
	"mariposa/driver/drivertest/island"
	"mariposa/driver/imagestore"
	"mariposa/driver/lxc"
)

// images is the image store of all tests: "system" boots an init, "plain" has none.
var images = sync.OnceValues(func() (*imagestore.Store, error) {
	store, err := imagestore.Open(island.Dir())
	if err != nil {
		return nil, err
	}
	for name, init := range map[string]bool{"system": true, "plain": false} {
		content, err := busybox(init)
		if err != nil {
			return nil, err
		}
		_, err = store.Import(context.Background(), imagestore.Request{Name: name, Kind: imagestore.Rootfs, Sources: map[string]io.Reader{imagestore.RootfsFile: bytes.NewReader(content)}})
		if err != nil {
			return nil, err
		}
	}
	return store, nil
})

// world is a node of its own.
type world struct {
	dir     string
	options lxc.Options
	subnet  netip.Prefix
}

var worlds atomic.Int64

func newWorld(t *testing.T) *world {
	t.Helper()
	store, err := images()
	if err != nil {
		t.Fatal(err)
	}
	n := worlds.Add(1)
	cgroup := fmt.Sprintf("mariposa-lxc-test-%d", n)
	w := &world{dir: t.TempDir(), options: lxc.Options{
		Images: store, Scope: drivertest.NewID(), Cgroup: cgroup,
	}}
	w.options.Dir, w.subnet = w.dir, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n), 0, 0}), 16)
	t.Cleanup(func() { removeCgroups(cgroup) })
	return w
}

// newDriver opens a driver as a restarted agent does.
func newDriver(o lxc.Options, subnet netip.Prefix) (d *lxc.Driver, err error) {
	if o.Networks, err = bridge.Open(bridge.Options{Dir: o.Dir, Scope: o.Scope, Subnet: subnet}); err != nil {
		return nil, err
	}
	return lxc.New(o)
}

func (w *world) open(t *testing.T) driver.Driver {
	t.Helper()
	d, err := newDriver(w.options, w.subnet)
	if err != nil {
		t.Fatal(err)
	}
	if why := d.Unavailable(); why != "" {
		t.Fatal(why)
	}
	return d
}

func instance(id string, command ...string) driver.Instance {
	return driver.Instance{
		ID: id, Name: "web.1-" + strings.ToLower(id[2:8]), Project: "shop", Service: "web", Labels: driver.Labels{Cluster: "c1", Incarnation: "i1"},
		Workload: &mariposa.Workload{Compute: mariposa.ComputeInfrastructure, Image: "plain", Command: command},
	}
}

// graceful returns an instance that runs until it is asked to stop.
func graceful(id string) driver.Instance {
	return instance(id, "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done")
}

// pidOf returns the first process of a running instance.
func pidOf(t *testing.T, o driver.Observed) int {
	t.Helper()
	pid, err := strconv.Atoi(o.Details["pid"])
	if err != nil {
		t.Fatalf("it has no pid: %+v", o)
	}
	return pid
}

func TestConformance(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		w := newWorld(t)
		return drivertest.Harness{
			Open: w.open,
			Runs: func(_ *testing.T, id string) driver.Instance { return graceful(id) },
			Broken: func(_ *testing.T, id string) driver.Instance {
				return instance(id, "/no/such/program")
			},
			Stubborn: func(_ *testing.T, id string) driver.Instance {
				return instance(id, "sh", "-c", "trap '' TERM; touch /tmp/ready; while :; do sleep 1000; done")
			},
			Ready: func(t *testing.T, o driver.Observed) {
				await(t, "it ignores stops", func() bool {
					_, err := os.Stat(filepath.Join("/proc", o.Details["pid"], "root/tmp/ready"))
					return err == nil
				})
			},
			End: func(t *testing.T, _ driver.Driver, o driver.Observed) {
				if err := unix.Kill(pidOf(t, o), unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			},
			Reads: func(t *testing.T, d driver.Driver, id string) map[string]string {
				out := run(t, d, id, "cat", "$MARIPOSA_MDATA_FILE")
				var values map[string]string
				if err := json.Unmarshal([]byte(out), &values); err != nil {
					t.Fatalf("%q: %v", out, err)
				}
				return values
			},
			Restart: func(t *testing.T, d driver.Driver, o driver.Observed) {
				s, err := d.(driver.Execer).Exec(t.Context(), driver.Instance{ID: o.ID}, driver.ExecOptions{Command: []string{"reboot", "-f"}})
				if err != nil {
					t.Fatal(err)
				}
				_, _ = s.Wait() // it ends with the processes of the container
				_ = s.Close()
			},
			Script: func(script string) []string { return []string{"sh", "-c", script} },
			Writes: func(_ *testing.T, id string, lines ...string) driver.Instance {
				return instance(id, "sh", "-c", "printf '"+strings.Join(lines, "\\n")+"\\n'; exec sleep 1000")
			},
		}
	})
}

// run runs a shell command in an instance and returns its output.
func run(t *testing.T, d driver.Driver, id string, words ...string) string {
	t.Helper()
	s, err := d.(driver.Execer).Exec(t.Context(), driver.Instance{ID: id}, driver.ExecOptions{Command: []string{"sh", "-c", strings.Join(words, " ")}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() // never fails
	out, _ := io.ReadAll(s.Stdout())
	errs, _ := io.ReadAll(s.Stderr())
	if code, err := s.Wait(); code != 0 || err != nil {
		t.Fatalf("%v: %d, %v: %s", words, code, err, errs)
	}
	return string(out)
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatal("not so: ", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Containers run with cgroups of version 2 only, too. The limits of version 2 are those of the
// machine that the tests run on: its controllers may belong to version 1.
func TestWithVersion2OfCgroups(t *testing.T) {
	t.Parallel()
	if os.Getenv(island.Unified) != "" {
		return // this is that run
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.parallel=2", "-test.run=TestConformance/(Start_returns|a_stop|remove|a_restarted|a_command_ends)|TestAContainerIs|TestTheCommand")
	cmd.Env = append(island.Outside(), island.Unified+"=1")
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("PASS")) {
		t.Errorf("%v: %s", err, out)
	}
}
