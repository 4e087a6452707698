package kvm_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/bridge"
	"mariposa/driver/drivertest"
	"mariposa/driver/drivertest/island"
	"mariposa/driver/imagestore"
	"mariposa/driver/kvm"
	"mariposa/leaktest"
)

// The test binary replaces mariposa: it is its own supervisor.
func TestMain(m *testing.M) {
	kvm.SetDiskTimeout(2 * time.Second)
	if len(os.Args) > 1 && os.Args[1] == kvm.SupervisorCommand {
		syscall.Exit(kvm.SupervisorMain(os.Args[2:])) // not os.Exit: under -race that sleeps for a second
	}
	island.Enter()
	if len(os.Args) == 4 && os.Args[1] == "agent" {
		os.Exit(agentMain(os.Args[2], os.Args[3]))
	}
	leaktest.Main(m)
}

//go:embed testdata/tiny.bin
var tiny []byte

// world is a node.
type world struct {
	dir     string
	options kvm.Options
	subnet  netip.Prefix
	user    bool // it has no networks of its own
}

var worlds atomic.Int64

func newWorld(t *testing.T) *world {
	t.Helper()
	n := worlds.Add(1)
	cgroup := fmt.Sprintf("mariposa-kvm-test-%d", n)
	w := &world{dir: t.TempDir(), options: kvm.Options{Images: store(t), Scope: drivertest.NewID(), Cgroup: cgroup, Emulate: true}}
	w.options.Dir, w.subnet = w.dir, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n), 0, 0}), 16)
	t.Cleanup(func() {
		for _, dir := range []string{"/sys/fs/cgroup/*/" + cgroup, "/sys/fs/cgroup/*/*/" + cgroup, "/sys/fs/cgroup/*/*/*/" + cgroup, "/sys/fs/cgroup/" + cgroup} {
			paths, _ := filepath.Glob(dir)
			for _, path := range paths {
				_ = unix.Rmdir(path)
			}
		}
	})
	return w
}

// open opens a driver as a restarted agent does.
func (w *world) open(t *testing.T) *kvm.Driver {
	t.Helper()
	o := w.options
	var err error
	if o.Networks, err = bridge.Open(bridge.Options{Dir: filepath.Join(w.dir, "networks"), Scope: o.Scope, Subnet: w.subnet}); err != nil {
		t.Fatal(err)
	}
	if w.user {
		o.Networks = nil
	}
	d, err := kvm.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if why := d.Unavailable(); why != "" {
		t.Fatal(why)
	}
	return d
}

var images sync.Mutex

func store(t *testing.T) *imagestore.Store {
	t.Helper()
	s, err := imagestore.Open(filepath.Join(island.Dir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// guest returns the image of a tiny guest that writes lines; with an s in how it ignores its power
// button.
func guest(t *testing.T, how string, lines ...string) string {
	t.Helper()
	text := strings.Join(append(lines, ""), "|") + "^" + how
	name := fmt.Sprintf("tiny-%x", sha256.Sum256([]byte(text)))[:40]
	images.Lock()
	defer images.Unlock()
	s := store(t)
	if _, err := s.Find(name); err == nil {
		return name
	}
	_, err := s.Import(context.WithoutCancel(t.Context()), imagestore.Request{Name: name, Kind: imagestore.Kernel, Options: map[string]string{imagestore.AppendOption: text}, Sources: map[string]io.Reader{imagestore.KernelFile: bytes.NewReader(tiny)}})
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func instance(id, image string) driver.Instance {
	return driver.Instance{
		ID: id, Name: "web.1-" + id[:4], Project: "shop", Service: "web", Labels: driver.Labels{Cluster: "c", Incarnation: "i"},
		Workload: &mariposa.Workload{Compute: mariposa.ComputeKVM, Image: image, Memory: 32 << 20},
	}
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatal("not so: ", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
