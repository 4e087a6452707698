package lxc_test

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/lxc"
)

// Everything of a workload reaches the container.
func TestAContainerHasWhatItsWorkloadSays(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := instance(drivertest.NewID(), "-c", "echo $GREETING; pwd; id -u; exec sleep 1000")
	i.Workload.Entrypoint, i.Workload.WorkingDir, i.Workload.User = []string{"sh"}, "/tmp", "web"
	i.Workload.Environment = []mariposa.Variable{{Name: "GREETING", Value: "hello $HOME"}}
	i.Workload.Files = []mariposa.Variable{{Name: "/run/secrets/db", Value: "s3cret"}, {Name: "/etc/app with space.conf", Value: "a=1\n"}}
	i.Workload.DNS, i.Workload.DNSSearch = []string{"10.0.0.2"}, []string{"my.example.com"}
	i.Workload.Ports = []mariposa.Port{{Target: 8080}, {Target: 9090}}
	volume := driver.Resource{Kind: mariposa.KindVolume, ID: drivertest.NewID(), Name: "data"}
	path, err := d.Provide(t.Context(), volume)
	if err != nil {
		t.Fatal(err)
	}
	i.Volumes = []driver.Volume{{Mount: mariposa.Mount{Volume: volume.ID, Name: "data", Path: "/var/data"}, Source: path}}
	if err := os.WriteFile(filepath.Join(path, "old"), []byte("kept"), 0o644); err != nil { //nolint:gosec // anyone may read it
		t.Fatal(err)
	}
	o := d.start(i)
	if len(o.Addresses) != 2 || !strings.HasSuffix(o.Addresses[0], ":8080") || !strings.HasSuffix(o.Addresses[1], ":9090") {
		t.Errorf("its addresses are %v", o.Addresses)
	}
	await(t, "its log shows what its command sees", func() bool { return d.log(i.ID) == "hello $HOME\n/tmp\n1234\n" })
	for command, want := range map[string]string{
		"cat /run/secrets/db": "s3cret", "cat '/etc/app with space.conf'": "a=1\n", "stat -c '%a %u' /run/secrets/db": "400 1234\n", "id -u; id -g": "1234\n1235\n",
		"grep nameserver /etc/resolv.conf": "nameserver 10.0.0.2\n", "grep search /etc/resolv.conf": "search my.example.com\n", "pwd": "/tmp\n",
		"echo $GREETING $PORT $PORT_9090": "hello $HOME 8080 9090\n", "cat $MARIPOSA_MDATA_FILE": "{}\n",
		"touch $MARIPOSA_MDATA_FILE.x || echo refused": "refused\n", "echo x > /run/secrets/db || echo refused": "refused\n",
		"cat /var/data/old; stat -c %u /var/data/old": "kept0\n",
	} {
		if got := run(t, d, i.ID, command, "2>/dev/null"); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	if err := d.Withdraw(t.Context(), volume); err == nil {
		t.Error("a volume in use was removed")
	}
}

// A volume keeps the owners of its files when another container, with other ids, uses it.
func TestAVolumeOutlivesItsContainer(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	volume := driver.Resource{Kind: mariposa.KindVolume, ID: drivertest.NewID(), Name: "data", Size: 8 << 20}
	path, err := d.Provide(t.Context(), volume)
	if err != nil {
		t.Fatal(err)
	}
	mounts := []driver.Volume{{Mount: mariposa.Mount{Volume: volume.ID, Name: "data", Path: "/data"}, Source: path}}
	writer, reader := graceful(drivertest.NewID()), graceful(drivertest.NewID())
	writer.Volumes, reader.Volumes = mounts, mounts
	d.start(writer)
	run(t, d, writer.ID, "echo precious > /data/file; chown 1234:1235 /data/file")
	d.start(reader) // while the other still runs, so that it has other ids
	if got := run(t, d, reader.ID, "cat /data/file; stat -c %u:%g /data/file"); got != "precious\n1234:1235\n" {
		t.Errorf("it reads %q", got)
	}
	if got := run(t, d, reader.ID, "dd if=/dev/zero of=/data/big bs=64k count=1000 2>&1 || true; echo x > /tmp/y && echo fine"); !strings.Contains(got, "No space left on device") || !strings.Contains(got, "fine") {
		t.Errorf("a full volume says %q", got)
	}
	for _, i := range []string{writer.ID, reader.ID} {
		if err := d.Remove(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Withdraw(t.Context(), volume); err != nil {
		t.Error(err)
	}
}

// Containers of one network reach each other; others do not.
func TestNetworksAreApart(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	back := driver.Resource{Kind: mariposa.KindNetwork, ID: drivertest.NewID(), Name: "backend"}
	if _, err := d.Provide(t.Context(), back); err != nil {
		t.Fatal(err)
	}
	db := instance(drivertest.NewID(), "nc", "-ll", "-p", "5432", "-e", "echo", "hello from db")
	db.Networks = []driver.Network{{ID: back.ID, Name: "backend"}}
	db.Workload.Ports = []mariposa.Port{{Target: 5432}}
	web, stranger := graceful(drivertest.NewID()), graceful(drivertest.NewID())
	web.Networks = db.Networks
	o := d.start(db)
	d.start(web)
	d.start(stranger)
	host, _ := mariposa.SplitAddress(o.Addresses[0])
	ask := func(id string) string { return run(t, d, id, "nc -w 2", host, "5432 < /dev/null 2>&1 || true") }
	await(t, "web reaches db", func() bool { return strings.Contains(ask(web.ID), "hello from db") })
	if out := ask(stranger.ID); strings.Contains(out, "hello") {
		t.Errorf("a container of another network reaches it: %q", out)
	}
	c, err := net.DialTimeout("tcp", o.Addresses[0], 5*time.Second)
	if err != nil {
		t.Errorf("the node does not reach it: %v", err)
	} else {
		_ = c.Close()
	}
	if err := d.Withdraw(t.Context(), back); err == nil {
		t.Error("a network in use was removed")
	}
	for _, id := range []string{db.ID, web.ID} {
		if err := d.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if err := d.Withdraw(t.Context(), back); err != nil {
		t.Error(err)
	}
}

// Instances without networks reach those of their project, and no others. The network of a project
// goes with its last instance.
func TestProjectsAreApart(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	server := instance(drivertest.NewID(), "nc", "-ll", "-p", "80", "-e", "echo", "hello")
	same, other := graceful(drivertest.NewID()), graceful(drivertest.NewID())
	other.Project = "blog"
	o := d.start(server)
	d.start(same)
	d.start(other)
	ask := func(id string) string { return run(t, d, id, "nc -w 2", o.Addresses[0], "80 < /dev/null 2>&1 || true") }
	await(t, "its own project reaches it", func() bool { return strings.Contains(ask(same.ID), "hello") })
	if out := ask(other.ID); strings.Contains(out, "hello") {
		t.Errorf("another project reaches it: %q", out)
	}
	if list, err := d.Provided(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("provided are %v, %v", list, err)
	}
	for _, i := range []driver.Instance{server, same, other} {
		if err := d.Remove(t.Context(), i.ID); err != nil {
			t.Fatal(err)
		}
	}
	if left := lxc.Bridges(d.Driver); len(left) != 0 {
		t.Errorf("left are the bridges %v", left)
	}
}

// An image in use cannot be removed; afterwards it can.
func TestAnImageInUseIsKept(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := graceful(drivertest.NewID())
	d.start(i)
	users := func() int {
		image, err := d.w.options.Images.Find("plain")
		if err != nil {
			t.Fatal(err)
		}
		all, err := d.w.options.Images.Users(image)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, user := range all {
			if strings.HasSuffix(user, i.ID) {
				n++
			}
		}
		return n
	}
	if users() != 1 {
		t.Error("the image does not know its instance")
	}
	if err := d.Remove(t.Context(), i.ID); err != nil {
		t.Fatal(err)
	}
	if users() != 0 {
		t.Error("the image still knows a removed instance")
	}
}

// A container lives longer than the volumes of others. It must not keep them from being removed.
func TestAContainerDoesNotKeepTheVolumesOfOthers(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	volume := driver.Resource{Kind: mariposa.KindVolume, ID: drivertest.NewID(), Name: "data", Size: 4 << 20}
	path, err := d.Provide(t.Context(), volume)
	if err != nil {
		t.Fatal(err)
	}
	d.start(graceful(drivertest.NewID()))
	if err := d.Withdraw(t.Context(), volume); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(filepath.Dir(filepath.Dir(path)), "volume.img")
	await(t, "its loop device is free", func() bool {
		all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(all, func(path string) bool {
			b, _ := os.ReadFile(path) // gone by now
			return strings.HasPrefix(string(b), image) || strings.Contains(string(b), volume.ID)
		})
	})
}
