// Package machine reads the facts of the machine that an agent runs on, from /proc, /sys
// and /etc/os-release, and whether the machine is shutting down. What cannot be read is
// left out: no fact is needed to run instances.
package machine

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
)

// Read reads the facts of this machine. root is "/", except in tests; network interfaces
// are those of this process.
func Read(root, release string) *mariposa.Machine {
	m := &mariposa.Machine{Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Release: release}
	m.Hostname, _ = os.Hostname() // empty on an error
	m.Kernel = readLine(root, "proc/sys/kernel/osrelease")
	m.OS = strings.Trim(readField(root, "etc/os-release", "PRETTY_NAME", "="), `"'`)
	m.CPUModel = readField(root, "proc/cpuinfo", "model name", ":")
	if kib, _, _ := strings.Cut(readField(root, "proc/meminfo", "MemTotal", ":"), " "); kib != "" {
		n, _ := strconv.ParseInt(kib, 10, 64) // 0 on an error
		m.Memory = n << 10
	}
	if at, err := strconv.ParseInt(readField(root, "proc/stat", "btime", " "), 10, 64); err == nil {
		m.Booted = time.Unix(at, 0).UTC()
	}
	m.Disks, m.NICs, m.Network = disks(root), interfaces(root), network(root)
	return m.Bounded()
}

// network identifies the network stack of this process: a boot of a machine, and a network namespace
// there. It is empty if that cannot be found out.
func network(root string) string {
	boot := readLine(root, "proc/sys/kernel/random/boot_id")
	namespace, err := os.Readlink(filepath.Join(root, "proc/self/ns/net"))
	if boot == "" || err != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(boot + " " + namespace))
	return hex.EncodeToString(sum[:16])
}

// virtual are the prefixes of block devices that are no disks of their own.
var virtual = []string{"loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd"}

// disks lists the disks of the machine, in the order of their names.
func disks(root string) (all []mariposa.Disk) {
	entries, _ := os.ReadDir(filepath.Join(root, "sys/block")) // nothing on an error
	for _, e := range entries {
		if slices.ContainsFunc(virtual, func(prefix string) bool { return strings.HasPrefix(e.Name(), prefix) }) {
			continue
		}
		dir := filepath.Join("sys/block", e.Name())
		sectors, _ := strconv.ParseInt(readLine(root, dir+"/size"), 10, 64) // of 512 bytes, whatever the disk has
		if sectors == 0 {
			continue
		}
		all = append(all, mariposa.Disk{
			Name: e.Name(), Size: sectors * 512, Model: readLine(root, dir+"/device/model"),
			Rotational: readLine(root, dir+"/queue/rotational") == "1",
		})
	}
	return all
}

// interfaces lists the network interfaces that are hardware or have an address by which
// others reach the machine. Those of instances come and go, and have none.
func interfaces(root string) (all []mariposa.NIC) {
	list, _ := net.Interfaces() // nothing on an error
	for i := range list {
		it := &list[i]
		if it.Flags&net.FlagLoopback != 0 {
			continue
		}
		nic := mariposa.NIC{Name: it.Name, MAC: it.HardwareAddr.String()}
		addresses, _ := it.Addrs() // nothing on an error
		for _, a := range addresses {
			if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
				nic.Addresses = append(nic.Addresses, a.String())
			}
		}
		slices.Sort(nic.Addresses)
		_, err := os.Stat(filepath.Join(root, "sys/class/net", it.Name, "device"))
		if err != nil && nic.Addresses == nil {
			continue
		}
		if speed, err := strconv.Atoi(readLine(root, filepath.Join("sys/class/net", it.Name, "speed"))); err == nil && speed > 0 {
			nic.Speed = speed
		}
		all = append(all, nic)
	}
	slices.SortFunc(all, func(a, b mariposa.NIC) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// maxFile is how much of a file is read.
const maxFile = 64 << 10

func readHead(root, path string) []byte {
	f, err := os.Open(filepath.Join(root, path))
	if err != nil {
		return nil
	}
	defer f.Close()
	b := make([]byte, maxFile)
	n := 0
	for n < len(b) {
		more, err := f.Read(b[n:])
		n += more
		if err != nil || more == 0 {
			break
		}
	}
	return b[:n]
}

// readLine returns the first line of a file; empty if there is none.
func readLine(root, path string) string {
	line, _, _ := bytes.Cut(readHead(root, path), []byte("\n"))
	return strings.TrimSpace(string(line))
}

// readField returns the value after the first line of a file that begins with a name and a
// separator; empty if there is none.
func readField(root, path, name, separator string) string {
	lines := bufio.NewScanner(bytes.NewReader(readHead(root, path)))
	for lines.Scan() {
		key, value, ok := strings.Cut(lines.Text(), separator)
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
