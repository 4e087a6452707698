package kvm_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os/exec"
	"path/filepath"
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

// Names that are numbers are not those that QEMU gives to snapshots.
func TestSnapshotsWithNumbersAsNames(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := instance(drivertest.NewID(), blank(t))
	d.start(i)
	if _, err := d.Stop(t.Context(), i.ID, 0); err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(d.w.dir, "instances", i.ID, "disk.qcow2")
	access := func(command string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "qemu-io", "-c", command, disk).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %s", command, out)
		}
		return string(out)
	}
	for _, name := range []string{"2", "1", "20260102"} { // QEMU numbers them 1, 2 and 3
		access("write -q -P 0x" + name[:1] + name[:1] + " 0 512")
		if err := d.Snapshot(t.Context(), i.ID, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Restore(t.Context(), i.ID, "1"); err != nil {
		t.Fatal(err)
	}
	if out := access("read -v -P 0x11 0 512"); strings.Contains(out, "failed") {
		t.Errorf("another snapshot was restored: %s", out)
	}
	if err := d.DeleteSnapshot(t.Context(), i.ID, "2"); err != nil {
		t.Fatal(err)
	}
	list, err := d.Snapshots(t.Context(), i.ID)
	if err != nil || len(list) != 2 || list[0].Name != "1" || list[1].Name != "20260102" {
		t.Errorf("it has %+v, %v", list, err)
	}
}

// A machine whose memory cannot be restored does not remain paused.
func TestAMachineThatCannotBeRestoredEnds(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := instance(drivertest.NewID(), blank(t))
	d.start(i)
	if err := d.Snapshot(t.Context(), i.ID, "small"); err != nil {
		t.Fatal(err)
	}
	i.Workload.MilliCPU = 2000
	d.restart(i)
	if err := d.Restore(t.Context(), i.ID, "small"); err == nil || !strings.Contains(err.Error(), "does not fit the machine") {
		t.Errorf("the restore: %v", err)
	}
	await(t, "it has ended", func() bool { return len(d.ends(i.ID)) > 0 })
	if e := d.ends(i.ID)[0]; e.Reason != "snapshot small could not be restored" || e.ExitCode == nil || *e.ExitCode != 1 {
		t.Errorf("it ended: %+v", e)
	}
	i.Workload.MilliCPU = 0
	d.start(i)
	if err := d.Restore(t.Context(), i.ID, "small"); err != nil {
		t.Errorf("with as many processors as before: %v", err)
	}
}

// With a network of QEMU's own, ports of the node lead to a machine, also after its kernel has
// panicked.
func TestUserModeForwardsPorts(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	d.userMode()
	if why := d.Details()["names"]; !strings.Contains(why, "user mode") {
		t.Errorf("the node says about names: %q", why)
	}
	i := instance(drivertest.NewID(), linux(t))
	i.Workload.Memory = 128 << 20
	i.Workload.Ports = []mariposa.Port{{Target: 8080}}
	i.Workload.Command = []string{"sh", "-c", "ip link set lo up; ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up; (while :; do echo hello | nc -l -p 8080; done) >/dev/null 2>&1 &"}
	o := d.start(i)
	if len(o.Addresses) != 1 || !strings.HasPrefix(o.Addresses[0], "127.0.0.1:") {
		t.Fatalf("its addresses are %v", o.Addresses)
	}
	await(t, "it answers at "+o.Addresses[0], func() bool { return says(o.Addresses[0]) == "hello\n" })
	// Nothing leads out of it: neither to services of the node, not even those on its loopback
	// address, nor to its name servers.
	services, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reached := make(chan struct{}, 1)
	go func() { // ends with the listener
		for {
			c, err := services.Accept()
			if err != nil {
				return
			}
			_ = c.Close() // it was reached
			reached <- struct{}{}
		}
	}()
	defer services.Close()
	_, port, _ := net.SplitHostPort(services.Addr().String())
	s := d.shell(i.ID)
	for _, ip := range []string{"10.0.2.2", "10.0.2.3", "127.0.0.1"} {
		if got := s.run("nc -w 5 " + ip + " " + port + " </dev/null >/dev/null 2>&1 && echo reached || echo refused"); got != "refused" {
			t.Errorf("%s: %s", ip, got)
		}
	}
	if len(reached) > 0 {
		t.Error("it has reached a service of the node")
	}
	if _, err := io.WriteString(s.conn, "echo c > /proc/sysrq-trigger\n"); err != nil {
		t.Fatal(err)
	}
	d.wantEnd(i.ID, "its kernel panicked", 1)
	again := d.start(i)
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
