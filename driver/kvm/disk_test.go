package kvm_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/drivertest"
)

// Two machines never have the same disk at the same time.
func TestAVolumeHasOneMachine(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	volume := driver.Resource{Kind: mariposa.KindVolume, ID: drivertest.NewID(), Name: "data", Size: 1 << 20}
	source, err := d.Provide(t.Context(), volume)
	if err != nil {
		t.Fatal(err)
	}
	mount := driver.Volume{Mount: mariposa.Mount{Volume: volume.ID, Name: "data", Path: "/data"}, Source: source}
	first, second := instance(drivertest.NewID(), guest(t, "")), instance(drivertest.NewID(), guest(t, ""))
	first.Volumes, second.Volumes = []driver.Volume{mount}, []driver.Volume{mount}
	d.start(first)
	if _, err := d.Start(t.Context(), second); err == nil || !strings.Contains(err.Error(), "volume data is in use") {
		t.Errorf("the second machine: %v", err)
	}
	if _, err := d.Stop(t.Context(), first.ID, 0); err != nil {
		t.Fatal(err)
	}
	d.start(second)
}

// A machine does not start while something else changes its disk: a restore goes on when its agent
// was killed.
func TestADiskThatIsChangedIsNotStarted(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := instance(drivertest.NewID(), blank(t))
	d.start(i)
	if _, err := d.Stop(t.Context(), i.ID, 0); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(d.w.dir, "instances", i.ID, "disk.qcow2"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Start(t.Context(), i); err == nil || !strings.Contains(err.Error(), "another process uses it") {
		t.Errorf("the start: %v", err)
	}
	if err := d.Snapshot(t.Context(), i.ID, "s"); err == nil || !strings.Contains(err.Error(), "another process uses it") {
		t.Errorf("a snapshot: %v", err)
	}
	_ = f.Close()
	d.start(i)
}

// What a guest that has taken over its QEMU writes into the header of its disk opens no other file
// of the node.
func TestTheHeaderOfADiskOpensNoOtherFile(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := instance(drivertest.NewID(), blank(t))
	d.start(i)
	if _, err := d.Stop(t.Context(), i.ID, 0); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(d.w.dir, "instances", i.ID, "disk.qcow2"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// Its data are in another file, which a header extension names.
	header := make([]byte, 112)
	if _, err := f.ReadAt(header, 0); err != nil {
		t.Fatal(err)
	}
	header[79] |= 4
	length := binary.BigEndian.Uint32(header[100:])
	extension := binary.BigEndian.AppendUint32(nil, 0x44415441)
	extension = binary.BigEndian.AppendUint32(extension, uint32(len(secret)))
	extension = append(extension, secret...)
	extension = append(extension, make([]byte, (8-len(secret)%8)%8+8)...)
	for at, content := range map[int64][]byte{0: header[:length], int64(length): extension} {
		if _, err := f.WriteAt(content, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Snapshot(t.Context(), i.ID, "s"); err == nil || !strings.Contains(err.Error(), "Permission denied") {
		t.Errorf("a snapshot: %v", err)
	}
}

// A machine that writes more than the node has room for waits, says so, and continues. If the kernel
// OOM-kills it, that is said too.
func TestAMachineWaitsForRoomOnTheDisk(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	volume := driver.Resource{Kind: mariposa.KindVolume, ID: drivertest.NewID(), Name: "data", Size: 16 << 20}
	source, err := d.Provide(t.Context(), volume)
	if err == nil {
		err = unix.Mount("tmpfs", source, "tmpfs", 0, "size=4m")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(source, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(source, "disk.raw"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(source, "disk.raw"), volume.Size); err != nil {
		t.Fatal(err)
	}
	i := instance(drivertest.NewID(), linux(t))
	i.Workload.Memory = 128 << 20
	i.Workload.Command = []string{"sh", "-c", "dd if=/dev/zero of=/dev/vda bs=1M count=12 && sync && echo all is written"}
	i.Volumes = []driver.Volume{{Mount: mariposa.Mount{Volume: volume.ID, Name: "data", Path: "/data"}, Source: source}}
	d.start(i)
	paused := func() string {
		list, err := d.List(t.Context())
		if err != nil || len(list) != 1 || !list[0].Running {
			t.Fatalf("the instances are %+v, %v", list, err)
		}
		return list[0].Details["paused"]
	}
	await(t, "it is paused", func() bool { return strings.Contains(paused(), "the disk of the node is full") })
	if err := d.Close(); err != nil { // the next agent knows it too
		t.Fatal(err)
	}
	d.open()
	await(t, "it is still paused", func() bool { return strings.Contains(paused(), "the disk of the node is full") })
	if err := unix.Mount("tmpfs", source, "tmpfs", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	await(t, "it continues", func() bool { return paused() == "" })
	await(t, "it has written everything", func() bool { return strings.Contains(d.log(i.ID), "all is written") })
	d.killForMemory(i.ID)
	d.wantEnd(i.ID, "the node ran out of memory, and its kernel killed the machine", 137)
}
