package kvm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"mariposa/driver"
	"mariposa/driver/bridge"
	"mariposa/driver/drivertest"
	"mariposa/driver/drivertest/island"
	"mariposa/driver/imagestore"
	"mariposa/driver/kvm"
)

type agentOptions struct {
	kvm.Options
	Subnet netip.Prefix
}

// agentMain is an agent that does everything with a machine, again and again, until it is killed:
// `agent OPTIONS ID`.
func agentMain(options, id string) int {
	var o agentOptions
	err := json.Unmarshal([]byte(options), &o)
	if err == nil {
		o.Images, err = imagestore.Open(filepath.Join(island.Dir(), "images"))
	}
	if err == nil {
		o.Networks, err = bridge.Open(bridge.Options{Dir: filepath.Join(o.Dir, "networks"), Scope: o.Scope, Subnet: o.Subnet})
	}
	var d *kvm.Driver
	if err == nil {
		d, err = kvm.New(o.Options)
	}
	if err == nil {
		d.Watch(func(driver.Event) {})
		fmt.Println("begins")
	}
	for err == nil {
		err = cycle(d, id)
	}
	fmt.Println(err)
	return 1
}

// cycle is the life of a machine with snapshots.
func cycle(d *kvm.Driver, id string) error {
	ctx := context.Background()
	for _, step := range []func() error{
		func() error { _, err := d.Start(ctx, instance(id, "blank")); return err },
		func() error { return d.Snapshot(ctx, id, "run") },
		func() error { return d.Restore(ctx, id, "run") },
		func() error { _, err := d.Stop(ctx, id, 0); return err },
		func() error { return d.Snapshot(ctx, id, "off") },
		func() error { return d.Restore(ctx, id, "off") },
		func() error { return d.DeleteSnapshot(ctx, id, "off") },
		func() error { _, err := d.Start(ctx, instance(id, "blank")); return err },
		func() error { return d.DeleteSnapshot(ctx, id, "run") },
		func() error { return d.Remove(ctx, id) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// startAgent starts an agent and waits until it begins.
func startAgent(t *testing.T, w *world, id string) *exec.Cmd {
	t.Helper()
	o := agentOptions{w.options, w.subnet}
	o.Images, o.Networks = nil, nil
	return drivertest.StartAgent(t, o, id, "begins")
}

// An agent may be killed at any moment of the life of a machine, also while a snapshot is saved,
// restored or deleted, and its supervisor or its QEMU too. The next agent finds a disk that is
// whole, snapshots that can be restored, and leaves nothing when it removes the machine.
func TestAnAgentIsKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	blank(t)
	d := openNode(t)
	for n := range drivertest.Kills() {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		id := drivertest.NewID()
		cmd := startAgent(t, d.w, id)
		when := time.Duration(rand.IntN(4000)) * time.Millisecond
		time.Sleep(when) // whatever it does then
		drivertest.KillAgent(cmd)
		if program := []string{"", kvm.SupervisorCommand, "qemu-system-x86_64", "qemu-img"}[n%4]; program != "" {
			drivertest.KillProcesses(program, id)
		}
		d.open()
		d.isWhole(id, when)
		if n%2 == 0 {
			d.start(instance(id, "blank"))
			if err := d.Snapshot(t.Context(), id, "last"); err != nil {
				t.Errorf("after %s: %v", when, err)
			}
			if err := d.Restore(t.Context(), id, "last"); err != nil {
				t.Errorf("after %s: %v", when, err)
			}
		}
		if err := d.Remove(t.Context(), id); err != nil {
			t.Fatalf("after %s: %v", when, err)
		}
		drivertest.AwaitNoTraces(t, d.w.dir, id, fmt.Sprintf("after %s and %d", when, n))
	}
}

// isWhole checks what is left of a machine.
func (n *node) isWhole(id string, when time.Duration) {
	n.t.Helper()
	list, err := n.List(n.t.Context())
	if err != nil || len(list) > 1 {
		n.t.Fatalf("after %s: %v, %v", when, list, err)
	}
	snapshots, err := n.Snapshots(n.t.Context(), id)
	if err != nil && (!errors.Is(err, driver.ErrNotFound) || len(list) > 0) {
		n.t.Fatalf("after %s: %v", when, err)
	}
	for _, s := range snapshots {
		if (s.Memory > 0) != list[0].Running {
			continue // it fits the other state
		}
		if err := n.Restore(n.t.Context(), id, s.Name); err != nil {
			n.t.Errorf("after %s, snapshot %s: %v", when, s.Name, err)
		}
	}
	if len(list) == 0 {
		return
	}
	if _, err := n.Stop(n.t.Context(), id, 0); err != nil {
		n.t.Fatalf("after %s: %v", when, err)
	}
	disk := filepath.Join(n.w.dir, "instances", id, "disk.qcow2")
	out, err := exec.CommandContext(n.t.Context(), "qemu-img", "check", disk).CombinedOutput()
	if err != nil && isDamaged(err, string(out)) {
		n.t.Errorf("after %s: %v: %s", when, err, out)
	}
}

// The exit codes of qemu-img check.
const (
	checkFoundErrors = 2
	checkFoundLeaks  = 3 // but no errors
)

// isDamaged reports whether a failed check of a disk found more than a killed QEMU may leave
// behind: leaked clusters and wrong "copied" flags. The flag of an entry says that no other entry
// refers to its cluster, so QEMU may write to the cluster in place; without the flag, QEMU writes
// to a copy. QEMU updates a reference count and its flag separately. A missing flag only costs an
// extra copy. A flag that is set is wrong only if another reference really exists.
func isDamaged(err error, out string) bool {
	var code *exec.ExitError
	if !errors.As(err, &code) {
		return true
	}
	switch code.ExitCode() {
	case checkFoundLeaks:
		return false
	case checkFoundErrors:
		return len(damages(out)) > 0 || !strings.Contains(out, "OFLAG_COPIED")
	}
	return true
}

var (
	leakLine = regexp.MustCompile(`^Leaked cluster (\d+) refcount=\d+ reference=(\d+)$`)
	flagLine = regexp.MustCompile(`^ERROR OFLAG_COPIED (?:L2|data) cluster: .*l[12]_entry=([0-9a-f]+) refcount=(\d+)$`)
)

// damages returns the lines of a check that report real damage.
func damages(out string) (lines []string) {
	const (
		copied  = 1 << 63
		offset  = 1<<56 - 1<<9 // in an entry
		cluster = 1 << 16
	)
	counted := false            // whether the errors are over and the summary has begun
	single := map[uint64]bool{} // clusters with one real reference
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if m := leakLine.FindStringSubmatch(line); m != nil {
			n, err := strconv.ParseUint(m[1], 10, 64)
			single[n] = err == nil && m[2] == "1"
		}
	}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		switch m := flagLine.FindStringSubmatch(line); {
		case line == "" || leakLine.MatchString(line):
		case strings.HasSuffix(line, "errors were found on the image."):
			counted = true
		case counted: // the summary
		case m == nil:
			lines = append(lines, line)
		default:
			entry, err := strconv.ParseUint(m[1], 16, 64)
			missing := entry&copied == 0 && m[2] == "1"
			right := entry&copied != 0 && single[entry&offset/cluster]
			if err != nil || !missing && !right {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

func TestAHarmlessTraceOfAKilledQEMUIsNoDamage(t *testing.T) {
	const summary = "\n1 errors were found on the image.\nData may be corrupted, or further writes to the image may corrupt it.\n13/16 = 81.25% allocated\n"
	for out, want := range map[string]int{
		"Leaked cluster 18 refcount=1 reference=0\nERROR OFLAG_COPIED L2 cluster: l1_index=1 l1_entry=30000 refcount=1\n":              0,
		"Leaked cluster 5 refcount=2 reference=1\nERROR OFLAG_COPIED data cluster: l2_entry=8000000000050000 refcount=2\n":             0,
		"ERROR OFLAG_COPIED data cluster: l2_entry=8000000000050000 refcount=2\n":                                                      1,
		"Leaked cluster 5 refcount=3 reference=2\nERROR OFLAG_COPIED data cluster: l2_entry=8000000000050000 refcount=3\n":             1,
		"ERROR OFLAG_COPIED L2 cluster: l1_index=1 l1_entry=30000 refcount=0\n":                                                        1,
		"ERROR cluster 5 refcount=1 reference=2\n":                                                                                     1,
		"ERROR cluster 5 refcount=1 reference=2\nERROR OFLAG_COPIED data cluster: l2_entry=8000000000050000 refcount=2\n":              2,
		"Leaked cluster 6 refcount=2 reference=1\nERROR OFLAG_COPIED data cluster: l2_entry=8000000000050000 refcount=2\nERROR: no L1": 2,
	} {
		if got := damages(out + summary); len(got) != want {
			t.Errorf("in\n%s\nfound the damage %q, want %d lines", out, got, want)
		}
	}
}
