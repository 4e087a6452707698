package kvm_test

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver"
	"mariposa/driver/drivertest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		w := newWorld(t)
		plain := guest(t, "")
		return drivertest.Harness{
			Open:   func(t *testing.T) driver.Driver { return w.open(t) },
			Runs:   func(_ *testing.T, id string) driver.Instance { return instance(id, plain) },
			Broken: func(_ *testing.T, id string) driver.Instance { return instance(id, "no-such-image") },
			Stubborn: func(t *testing.T, id string) driver.Instance {
				return instance(id, guest(t, "s", "ready"))
			},
			Ready: func(t *testing.T, o driver.Observed) {
				await(t, "it ignores its power button", func() bool {
					b, _ := os.ReadFile(filepath.Join(w.dir, "instances", o.ID, "log"))
					return strings.Contains(string(b), "ready")
				})
			},
			End: func(t *testing.T, _ driver.Driver, o driver.Observed) {
				pid, err := strconv.Atoi(o.Details["pid"])
				if err == nil {
					err = unix.Kill(pid, unix.SIGKILL)
				}
				if err != nil {
					t.Fatal(err)
				}
			},
			Restart: func(t *testing.T, d driver.Driver, o driver.Observed) {
				c, err := d.(driver.Consoler).Console(t.Context(), o.ID)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				before, _ := d.List(t.Context())
				await(t, "it has reset itself", func() bool {
					if _, err := io.WriteString(c, "r"); err != nil {
						t.Fatal(err)
					}
					now, _ := d.List(t.Context())
					return len(now) == 1 && !now[0].Started.Equal(before[0].Started)
				})
			},
			Writes: func(t *testing.T, id string, lines ...string) driver.Instance {
				return instance(id, guest(t, "", lines...))
			},
		}
	})
}

// A node says whether machines are accelerated, also if the device for that hangs.
func TestANodeSaysHowMachinesRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.options.Emulate = false
	begun := time.Now()
	d := w.open(t)
	defer d.Close()
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("it took %s to find out", took)
	}
	m := d.Details()
	if m["qemu"] == "" || m["acceleration"] != "KVM" && !strings.HasPrefix(m["acceleration"], "none: the processor is emulated, which is slow (") {
		t.Errorf("it says %v", m)
	}
	i := instance(drivertest.NewID(), guest(t, "", "ready"))
	if _, err := d.Start(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	await(t, "it runs", func() bool {
		b, _ := os.ReadFile(filepath.Join(w.dir, "instances", i.ID, "log"))
		return strings.Contains(string(b), "ready")
	})
	if err := d.Remove(t.Context(), i.ID); err != nil {
		t.Error(err)
	}
}
