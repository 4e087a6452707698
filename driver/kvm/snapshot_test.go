package kvm_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/imagestore"
)

// blank returns the image of an empty disk. A machine that has it runs, and waits for a disk that
// can be booted.
func blank(t *testing.T) string {
	t.Helper()
	images.Lock()
	defer images.Unlock()
	s := store(t)
	if _, err := s.Find("blank"); err == nil {
		return "blank"
	}
	_, err := s.Import(context.WithoutCancel(t.Context()), imagestore.Request{
		Name: "blank", Kind: imagestore.Disk, Sources: map[string]io.Reader{imagestore.DiskFile: bytes.NewReader(make([]byte, 1<<20))},
	})
	if err != nil {
		t.Fatal(err)
	}
	return "blank"
}

func TestSnapshotsOfAMachine(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := instance(drivertest.NewID(), blank(t))
	d.start(i)
	refused := func(err error, why string) {
		t.Helper()
		var refusal *driver.CommandError
		if !errors.As(err, &refusal) || !strings.Contains(err.Error(), why) {
			t.Errorf("got %v, want %q", err, why)
		}
	}
	names := func() (all []string) {
		t.Helper()
		list, err := d.Snapshots(t.Context(), i.ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			if (s.Memory > 0) != strings.HasPrefix(s.Name, "run") || s.Created.IsZero() {
				t.Errorf("snapshot %+v", s)
			}
			all = append(all, s.Name)
		}
		return all
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	refused(d.Restore(t.Context(), i.ID, "run1"), "it has no snapshots")
	ok(d.Snapshot(t.Context(), i.ID, "run1"))
	refused(d.Snapshot(t.Context(), i.ID, "run1"), "already has a snapshot run1")
	refused(d.Snapshot(t.Context(), i.ID, "a/b"), "is not a valid snapshot name")
	refused(d.Restore(t.Context(), i.ID, "other"), "it has run1")
	ok(d.Snapshot(t.Context(), i.ID, "run2"))
	ok(d.Restore(t.Context(), i.ID, "run1"))
	if _, err := d.Stop(t.Context(), i.ID, 0); err != nil {
		t.Fatal(err)
	}
	ok(d.Snapshot(t.Context(), i.ID, "off1"))
	if got := strings.Join(names(), " "); got != "run1 run2 off1" {
		t.Errorf("it has %s", got)
	}
	refused(d.Restore(t.Context(), i.ID, "run1"), "start the instance first")
	ok(d.Restore(t.Context(), i.ID, "off1"))
	ok(d.DeleteSnapshot(t.Context(), i.ID, "run2"))
	d.start(i)
	refused(d.Restore(t.Context(), i.ID, "off1"), "stop the instance first")
	ok(d.Restore(t.Context(), i.ID, "run1"))
	ok(d.DeleteSnapshot(t.Context(), i.ID, "run1"))
	if got := strings.Join(names(), " "); got != "off1" {
		t.Errorf("it has %s", got)
	}
	if err := d.Snapshot(t.Context(), "unknown", "a"); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("of an unknown instance: %v", err)
	}
	small := instance(drivertest.NewID(), guest(t, ""))
	d.start(small)
	refused(d.Snapshot(t.Context(), small.ID, "a"), "it has no disk")
}

// With a network of QEMU's own, ports of the node lead to a machine.
func TestUserModeForwardsPorts(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	d.userMode()
	i := instance(drivertest.NewID(), linux(t))
	i.Workload.Memory = 128 << 20
	i.Workload.Ports = []mariposa.Port{{Target: 8080}}
	i.Workload.Command = []string{"sh", "-c", "ip link set lo up; ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up; (while :; do echo hello | nc -l -p 8080; done) >/dev/null 2>&1 &"}
	o := d.start(i)
	if len(o.Addresses) != 1 || !strings.HasPrefix(o.Addresses[0], "127.0.0.1:") {
		t.Fatalf("its addresses are %v", o.Addresses)
	}
	await(t, "it answers at "+o.Addresses[0], func() bool { return says(o.Addresses[0]) == "hello\n" })
	again := d.restart(i)
	if again.Addresses[0] != o.Addresses[0] {
		t.Errorf("its address was %v, and is %v", o.Addresses, again.Addresses)
	}
	i.Networks = []driver.Network{{ID: "n", Name: "front"}}
	if _, err := d.Stop(t.Context(), i.ID, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Start(t.Context(), i); err == nil || !strings.Contains(err.Error(), "--kvm-network user") {
		t.Errorf("with a network: %v", err)
	}
}
