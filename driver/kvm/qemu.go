package kvm

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"mariposa/driver/bridge"
)

// machine is what QEMU is to run. All files are open; their numbers are those that QEMU sees.
type machine struct {
	Name   string
	UUID   string
	Accel  string
	CPUs   int
	Memory int64

	QMP, Console, Mdata int // sockets

	Root    *disk
	Volumes []disk
	Seed    *disk
	Kernel  int // 0: it boots from its disk
	Initrd  int
	Append  string

	Taps     []int
	Links    []bridge.Link
	Forwards []forward
}

// disk is a disk of a machine.
type disk struct {
	Name     string
	Serial   string // by which the guest finds it; none if empty
	FD       int
	Format   string // raw or qcow2
	ReadOnly bool
	Backing  *disk
}

// arguments returns the arguments of QEMU.
func (m *machine) arguments() []string {
	a := []string{
		"-name", "guest=" + m.Name, "-uuid", m.UUID, "-nodefaults", "-no-user-config", "-display", "none", "-S",
		"-machine", "q35,vmport=off", "-accel", m.accel(), "-cpu", "max", "-smp", strconv.Itoa(m.CPUs), "-m", strconv.FormatInt(m.Memory>>20, 10) + "M",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-msg", "guest-name=off", "-rtc", "base=utc", "-action", "panic=shutdown", "-action", "shutdown=poweroff",
		"-device", "virtio-rng-pci", "-device", "pvpanic",
	}
	for _, c := range []struct {
		id string
		fd int
	}{{"qmp", m.QMP}, {"console", m.Console}, {"mdata", m.Mdata}} {
		a = append(a, "-chardev", fmt.Sprintf("socket,id=%s,fd=%d", c.id, c.fd))
	}
	a = append(a, "-mon", "chardev=qmp,mode=control", "-serial", "chardev:console", "-serial", "chardev:mdata")
	set := 0
	add := func(d *disk, boot bool) {
		device := "virtio-blk-pci,drive=" + d.Name
		if d.Serial != "" {
			device += ",serial=" + d.Serial
		}
		if boot {
			device += ",bootindex=1"
		}
		a = append(a, d.files(&set)...)
		a = append(a, "-blockdev", d.node(), "-device", device)
	}
	if m.Root != nil {
		add(m.Root, m.Kernel == 0)
	}
	for n := range m.Volumes {
		add(&m.Volumes[n], false)
	}
	if m.Seed != nil {
		add(m.Seed, false)
	}
	if m.Kernel != 0 {
		a = append(a, "-kernel", openFile(m.Kernel), "-append", m.Append)
		if m.Initrd != 0 {
			a = append(a, "-initrd", openFile(m.Initrd))
		}
	}
	return append(a, m.network()...)
}

func (m *machine) accel() string {
	if m.Accel == accelKVM {
		return "kvm"
	}
	return "tcg,tb-size=64" // MiB of translated code; the default grows with the machine
}

// network returns the arguments for the interfaces of the machine.
func (m *machine) network() (a []string) {
	for n, fd := range m.Taps {
		a = append(a,
			"-netdev", fmt.Sprintf("tap,id=net%d,fd=%d", n, fd),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=net%d,mac=%s,romfile=", n, m.Links[n].HardwareAddress()))
	}
	if len(m.Taps) > 0 {
		return a
	}
	user := "user,id=net0,restrict=on,ipv6=off"
	for _, f := range m.Forwards {
		user += fmt.Sprintf(",hostfwd=tcp:%s:%d-:%d", f.Address, f.Port, f.Target)
	}
	return []string{"-netdev", user, "-device", "virtio-net-pci,netdev=net0,romfile="}
}

// maxSerial is how many characters the serial number of a disk has at most.
const maxSerial = 20

// serialOf returns the serial number by which a guest finds a volume. Names that are too long get a
// checksum: two disks with one number would be mounted in the place of each other.
func serialOf(name string) string {
	if len(name) <= maxSerial {
		return name
	}
	sum := fmt.Sprintf("-%08x", hash(name))
	return name[:maxSerial-len(sum)] + sum
}

// openFile names a file that QEMU was given, for what it opens by name.
func openFile(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// files returns the arguments that give QEMU the files of a disk. Each is a set of its own, which
// takes the place of a file name.
func (d *disk) files(set *int) (a []string) {
	for at := d; at != nil; at = at.Backing {
		*set++
		a = append(a, "-add-fd", fmt.Sprintf("fd=%d,set=%d", at.FD, *set))
		at.FD = *set
	}
	return a
}

// node returns the description of a disk, after files.
func (d *disk) node() string {
	b, err := json.Marshal(d.options(d.Name))
	if err != nil {
		panic(err) // it has texts and numbers only
	}
	return string(b)
}

func (d *disk) options(name string) map[string]any {
	file := map[string]any{
		"driver": "file", "filename": "/dev/fdset/" + strconv.Itoa(d.FD), "discard": "unmap", "locking": "off",
		"node-name": name + "-file",
	}
	o := map[string]any{"driver": d.Format, "node-name": name, "file": file}
	if d.ReadOnly {
		o["read-only"], file["read-only"] = true, true
	}
	if d.Format == "qcow2" {
		o["discard"] = "unmap"
		o["backing"] = nil // never what the file itself names
	}
	if d.Backing != nil {
		o["backing"] = d.Backing.options(name + "-base")
	}
	return o
}

// close closes our copies of the files.
func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // QEMU has its own copies
	}
}
