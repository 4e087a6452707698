package docker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/drivertest"
)

// A volume starts with what the image has at its path, and outlives its containers.
func TestAVolumeOutlivesItsContainer(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int64{"without a size": 0, "with a size": 16 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testVolumeOutlives(t, size)
		})
	}
}

func testVolumeOutlives(t *testing.T, size int64) {
	t.Helper()
	d := open(t)
	data := driver.Resource{Kind: mariposa.KindVolume, ID: drivertest.NewID(), Name: "data", Size: size}
	path, err := d.Driver.(driver.Provider).Provide(t.Context(), data)
	if err != nil || path == "" {
		t.Fatalf("%q, %v", path, err)
	}
	first, second := instance(drivertest.NewID()), instance(drivertest.NewID())
	first.Volumes = []driver.Volume{{Mount: mariposa.Mount{Volume: data.ID, Name: "data", Path: "/var/lib/data"}, Source: path}}
	second.Volumes = []driver.Volume{{Mount: mariposa.Mount{Volume: data.ID, Name: "data", Path: "/mnt", ReadOnly: true}, Source: path}}
	d.start(first)
	run(t, d.Driver, first.ID, "echo kept > /var/lib/data/x")
	fromImage := driver.Resource{Kind: mariposa.KindVolume, ID: drivertest.NewID(), Name: "etc", Size: size}
	etc, err := d.Driver.(driver.Provider).Provide(t.Context(), fromImage)
	if err != nil {
		t.Fatal(err)
	}
	third := instance(drivertest.NewID())
	third.Volumes = []driver.Volume{{Mount: mariposa.Mount{Volume: fromImage.ID, Name: "etc", Path: "/etc"}, Source: etc}}
	d.start(third)
	if _, err := os.Stat(filepath.Join(etc, "passwd")); err != nil {
		t.Errorf("the volume does not have what the image has: %v", err)
	}
	if err := d.Remove(t.Context(), third.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.Driver.(driver.Provider).Withdraw(t.Context(), fromImage); err != nil {
		t.Error(err)
	}
	if err := d.Driver.(driver.Provider).Withdraw(t.Context(), data); err == nil {
		t.Error("a volume in use was removed")
	}
	if err := d.Remove(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	d.start(second)
	if out := run(t, d.Driver, second.ID, "cat /mnt/x; echo no > /mnt/y || echo refused"); out != "kept\nrefused\n" {
		t.Errorf("it has %q", out)
	}
	if err := d.Remove(t.Context(), second.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.Driver.(driver.Provider).Withdraw(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("its content is still there")
	}
}

// A container that has filled its volume gets the error that it would get on a full disk.
func TestAFullVolumeIsFullForItsContainerOnly(t *testing.T) {
	t.Parallel()
	d := open(t)
	p := d.Driver.(driver.Provider)
	data := driver.Resource{Kind: mariposa.KindVolume, ID: drivertest.NewID(), Name: "data", Size: 8 << 20}
	path, err := p.Provide(t.Context(), data)
	if err != nil {
		t.Fatal(err)
	}
	i := instance(drivertest.NewID())
	i.Volumes = []driver.Volume{{Mount: mariposa.Mount{Volume: data.ID, Name: "data", Path: "/data"}, Source: path}}
	d.start(i)
	out := run(t, d.Driver, i.ID, "dd if=/dev/zero of=/data/big bs=64k count=1000 2>&1 || true; echo x > /tmp/y && echo fine")
	if !strings.Contains(out, "No space left on device") || !strings.Contains(out, "fine") {
		t.Errorf("it says %q", out)
	}
	run(t, d.Driver, i.ID, "rm /data/big; echo kept > /data/x")
	if _, err := d.Stop(t.Context(), i.ID, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(filepath.Dir(path), 0); err != nil { // as after a reboot
		t.Fatal(err)
	}
	if _, err := d.Start(t.Context(), i); err == nil {
		t.Error("it runs without its volume")
	}
	if again, err := p.Provide(t.Context(), data); err != nil || again != path {
		t.Fatalf("%q, %v", again, err)
	}
	d.start(i)
	if out := run(t, d.Driver, i.ID, "cat /data/x"); out != "kept\n" {
		t.Errorf("it has %q", out)
	}
	if err := d.Remove(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	if err := p.Withdraw(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(filepath.Dir(path))); !os.IsNotExist(err) {
		t.Errorf("its file is still there: %v", err)
	}
}
