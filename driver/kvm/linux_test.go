package kvm_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/cgroup"
	"mariposa/driver/drivertest"
	"mariposa/driver/imagestore"
	"mariposa/driver/kvm"
	"mariposa/driver/kvm/guesttest"
)

// linux returns the image of a Linux guest.
func linux(t *testing.T) string {
	t.Helper()
	images.Lock()
	defer images.Unlock()
	s := store(t)
	if _, err := s.Find("linux"); err == nil {
		return "linux"
	}
	ctx := context.WithoutCancel(t.Context())
	path, err := guesttest.Kernel()
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	initrd, err := guesttest.Initrd(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Import(ctx, imagestore.Request{
		Name: "linux", Kind: imagestore.Kernel, Options: map[string]string{imagestore.AppendOption: guesttest.Append},
		Sources: map[string]io.Reader{imagestore.KernelFile: kernel, imagestore.InitrdFile: bytes.NewReader(initrd)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return "linux"
}

// node is a driver with what it has reported.
type node struct {
	*kvm.Driver
	t  *testing.T
	w  *world
	mu sync.Mutex
	is []driver.Event
}

func openNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, w: newWorld(t)}
	n.open()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		list, _ := n.List(ctx)
		for _, i := range list {
			if err := n.Remove(ctx, i.ID); err != nil {
				t.Error(err)
			}
		}
		_ = n.Close()
	})
	return n
}

func (n *node) open() {
	n.t.Helper()
	n.Driver = n.w.open(n.t)
	n.Watch(func(e driver.Event) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.is = append(n.is, e)
	})
}

func (n *node) start(i driver.Instance) driver.Observed {
	n.t.Helper()
	o, err := n.Start(n.t.Context(), i)
	if err != nil {
		n.t.Fatalf("Start: %v", err)
	}
	return o
}

func (n *node) log(id string) string {
	n.t.Helper()
	r, err := n.Logs(context.WithoutCancel(n.t.Context()), id, driver.LogOptions{Tail: -1})
	if err != nil {
		n.t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(b)
}

// shell is the shell on the console of a guest.
type shell struct {
	t    *testing.T
	conn io.ReadWriteCloser
	out  *bufio.Reader
	n    int
}

func (n *node) shell(id string) *shell {
	n.t.Helper()
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("its log: %s", n.log(id))
		}
	})
	await(n.t, "it has booted", func() bool { return strings.Contains(n.log(id), "booted\n") })
	c, err := n.Console(n.t.Context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	return &shell{t: n.t, conn: c, out: bufio.NewReader(c)}
}

// run runs a command and returns its output.
func (s *shell) run(command string) string {
	s.t.Helper()
	s.n++
	begin, end := fmt.Sprintf("begin%d", s.n), fmt.Sprintf("end%d", s.n)
	if _, err := fmt.Fprintf(s.conn, "echo be''gin%d; %s; echo en''d%d\n", s.n, command, s.n); err != nil {
		s.t.Fatal(err)
	}
	var lines []string
	seen := false
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			s.t.Fatalf("%s: %v after %q", command, err, lines)
		}
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasSuffix(line, end):
			return strings.TrimSuffix(strings.Join(append(lines, strings.TrimSuffix(line, end)), "\n"), "\n")
		case strings.HasSuffix(line, begin):
			seen = true
		case seen:
			lines = append(lines, line)
		}
	}
}

func TestALinuxGuestHasWhatItsManifestSays(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := instance(drivertest.NewID(), linux(t))
	i.Workload.Memory = 128 << 20
	i.Workload.Command = []string{"sh", "-c", `echo "first boot: $GREETING"`}
	i.Workload.Environment = []mariposa.Variable{{Name: "GREETING", Value: `it's "me"`}}
	i.Workload.Files = []mariposa.Variable{{Name: "/run/secrets/db", Value: "s3cret"}}
	i.Workload.Ports = []mariposa.Port{{Target: 8080}}
	i.Mdata.Values = []mariposa.Variable{{Name: "color", Value: "blue"}, {Name: "root_authorized_keys", Value: "ssh-ed25519 AAAA ann\n"}}
	volume := driver.Resource{Kind: mariposa.KindVolume, ID: drivertest.NewID(), Name: "data", Size: 16 << 20}
	source := d.addVolume(&i, volume)
	for _, name := range longNames {
		d.addVolume(&i, driver.Resource{Kind: mariposa.KindVolume, ID: drivertest.NewID(), Name: name, Size: 1 << 20})
	}
	o := d.start(i)
	s := d.shell(i.ID)
	if !strings.Contains(d.log(i.ID), "first boot: it's \"me\"\n") {
		t.Errorf("its log is %q", d.log(i.ID))
	}
	for _, c := range [][2]string{
		{"mdata-get color", "blue"},
		{"mdata-get sdc:uuid", i.ID},
		{"mdata-list", "color\nroot_authorized_keys\nuser-script"},
		{"mdata-get nothing; echo $?", "No metadata for 'nothing'\n1"},
		{"cat /sys/block/vda/serial", "data"},
		{"cat /sys/block/vda/size", "32768"},
		{"cat /sys/block/vde/ro", "1"},
		{"hostname", o.Name[:3] + "-" + strings.ToLower(o.Name[4:])},
		{"nproc", "1"},
		{"mdata-put mine 'a b' && mdata-get mine", "a b"},
		{"mdata-delete mine; mdata-get mine 2>/dev/null || echo gone", "gone"},
		{"mdata-put color red 2>&1", "mdata: the project sets the key color"},
		{"mount -t iso9660 -o ro /dev/vde /mnt && ls -1 /mnt && umount /mnt", "meta-data\nnetwork-config\nuser-data\nvendor-data"},
	} {
		if got := s.run(c[0]); got != c[1] {
			t.Errorf("%s: %q, want %q", c[0], got, c[1])
		}
	}
	volume.Size = 32 << 20 // while it runs
	if again, err := d.Provide(t.Context(), volume); err != nil || again != source {
		t.Errorf("its volume is at %q, %v", again, err)
	}
	await(t, "its disk is larger", func() bool { return s.run("cat /sys/block/vda/size") == "65536" })
	config := s.run("mount -t iso9660 -o ro /dev/vde /mnt && cat /mnt/* && umount /mnt")
	s.wantSerials(config)
	ip := strings.Split(o.Addresses[0], ":")[0]
	for _, want := range []string{`"ssh-ed25519 AAAA ann"`, `"path": "/run/secrets/db"`, `"content": "s3cret"`, `"` + ip + `/24"`, `/dev/disk/by-id/virtio-data`, `"instance-id": "` + i.ID + `"`} {
		if !strings.Contains(config, want) {
			t.Errorf("its configuration does not have %s: %s", want, config)
		}
	}
	// It is reached at its address, and reaches its gateway.
	s.run("{ (while :; do echo hello | nc -l -p 8080; done) >/dev/null 2>&1 & }")
	await(t, "it answers at "+o.Addresses[0], func() bool { return says(o.Addresses[0]) == "hello\n" })
	if err := d.PublishValues(t.Context(), i.ID, []mariposa.Variable{{Name: "color", Value: "green"}}); err != nil {
		t.Error(err)
	}
	if got := s.run("mdata-get color"); got != "green" {
		t.Errorf("color is %q", got)
	}
	u, err := d.Usage(t.Context(), i.ID)
	if err != nil || u.NetworkIn == nil || *u.NetworkIn == 0 || u.DiskRead == nil || *u.DiskRead == 0 || u.CPU == nil || *u.CPU == 0 || u.Memory == nil || *u.Memory < 16<<20 {
		t.Errorf("its usage is %+v, %v", u, err)
	}
	stopped, err := d.Stop(t.Context(), i.ID, time.Minute)
	if err != nil || stopped.Reason != "was shut down" || !strings.Contains(d.log(i.ID), "going down") {
		t.Errorf("it ended: %+v, %v", stopped, err)
	}
}

// longNames are names of volumes that are longer than a serial number, and one of a disk that every
// machine has.
var longNames = []string{"production-database-data", "production-database-logs", "seed"}

// addVolume creates a volume for an instance, and returns where it is.
func (n *node) addVolume(i *driver.Instance, r driver.Resource) string {
	n.t.Helper()
	source, err := n.Provide(n.t.Context(), r)
	if err != nil {
		n.t.Fatal(err)
	}
	i.Volumes = append(i.Volumes, driver.Volume{Mount: mariposa.Mount{Volume: r.ID, Name: r.Name, Path: "/" + r.Name}, Source: source})
	return source
}

// wantSerials checks that disks with longNames, after the first one, are not taken for each other,
// nor for the disk with the configuration of the guest.
func (s *shell) wantSerials(config string) {
	s.t.Helper()
	serials := strings.Fields(s.run("for d in b c d; do cat /sys/block/vd$d/serial; echo; done"))
	if len(serials) != 3 || serials[0] == serials[1] || serials[2] != "seed" || s.run("cat /sys/block/vde/serial") == "seed" {
		s.t.Errorf("its disks are %q", serials)
	}
	for _, serial := range serials {
		if !strings.Contains(config, `"/dev/disk/by-id/virtio-`+serial+`"`) {
			s.t.Errorf("its configuration does not have %s: %s", serial, config)
		}
	}
}

// wantEnd waits until an instance has ended by itself, and checks how its end is explained.
func (n *node) wantEnd(id, reason string, code int) {
	n.t.Helper()
	await(n.t, "it has ended", func() bool { return len(n.ends(id)) > 0 })
	if e := n.ends(id)[0]; e.Reason != reason || e.ExitCode == nil || *e.ExitCode != code {
		n.t.Errorf("it ended: %+v", e)
	}
}

func TestAMachineThatTurnsItselfOff(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	i := instance(drivertest.NewID(), linux(t))
	i.Workload.Memory = 128 << 20
	i.Workload.Command = []string{"sh", "-c", "poweroff -f"}
	d.start(i)
	d.wantEnd(i.ID, "was shut down", 0)
}

// killForMemory makes the kernel OOM-kill a machine.
func (n *node) killForMemory(id string) {
	n.t.Helper()
	s := n.shell(id)
	parent := cgroup.Group{Hierarchy: cgroup.Find(), Name: n.w.options.Cgroup}
	groups, _ := filepath.Glob(filepath.Join(parent.Dir("memory"), id+".*"))
	if len(groups) != 1 {
		n.t.Fatalf("its cgroups are %v", groups)
	}
	if parent.IsV2() { // which kills at once
		if err := os.WriteFile(filepath.Join(groups[0], "memory.max"), []byte("1048576"), 0); err != nil {
			n.t.Fatal(err)
		}
		return
	}
	b, err := os.ReadFile(filepath.Join(groups[0], "memory.usage_in_bytes"))
	if err != nil {
		n.t.Fatal(err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		n.t.Fatal(err)
	}
	// The usage includes the pages of files that QEMU was the first to read. The kernel can give them up,
	// and they may be more than the guest can ask for. So the limit falls until the kernel refuses it.
	for ; err == nil && limit > 0; limit -= 1 << 20 {
		err = os.WriteFile(filepath.Join(groups[0], "memory.limit_in_bytes"), []byte(strconv.Itoa(limit)), 0)
	}
	if !errors.Is(err, unix.EBUSY) {
		n.t.Fatalf("no limit was refused: %v", err)
	}
	// A guest uses pages again that it has freed, so it must ask for all of its memory.
	if _, err := io.WriteString(s.conn, "mkdir /all && mount -t tmpfs -o size=128m all /all && dd if=/dev/zero of=/all/x bs=1M\n"); err != nil {
		n.t.Fatal(err)
	}
}

// ends returns the ends of an instance that were reported.
func (n *node) ends(id string) (all []driver.Observed) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.is {
		if e.Instance.ID == id && !e.Instance.Running {
			all = append(all, e.Instance)
		}
	}
	return all
}

// says returns what one hears at an address.
func says(address string) string {
	c, err := (&net.Dialer{Timeout: time.Second}).Dial("tcp", address)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	b, _ := io.ReadAll(c) // what was heard counts
	return string(b)
}

// userMode opens the driver again, without networks of the node.
func (n *node) userMode() {
	n.t.Helper()
	if err := n.Close(); err != nil {
		n.t.Fatal(err)
	}
	n.w.user = true
	n.open()
}

// restart stops an instance and starts it again.
func (n *node) restart(i driver.Instance) driver.Observed {
	n.t.Helper()
	if _, err := n.Stop(n.t.Context(), i.ID, 0); err != nil {
		n.t.Fatal(err)
	}
	return n.start(i)
}
