package lxc_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/lxc"
)

// inNetwork runs work in the network namespace of a container, as its root could.
func inNetwork(t *testing.T, o driver.Observed, work func() error) {
	t.Helper()
	result := make(chan error)
	go func() { // ends with its thread, which is never used again
		runtime.LockOSThread()
		ns, err := os.Open(filepath.Join("/proc", o.Details["pid"], "ns/net"))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			_ = ns.Close() // it was only used
		}
		if err == nil {
			err = work()
		}
		result <- err
	}()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
}

// datagram is what a hostile container sends.
type datagram struct {
	from, to netip.AddrPort
	text     string
}

func (d datagram) send() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) // all is sent
	if d.from.IsValid() {
		if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: d.from.Addr().As4(), Port: int(d.from.Port())}); err != nil {
			return err
		}
	}
	return unix.Sendto(fd, []byte(d.text), 0, &unix.SockaddrInet4{Addr: d.to.Addr().As4(), Port: int(d.to.Port())})
}

// sendAll sends datagrams until the last of them has arrived, and returns the texts that have.
func sendAll(t *testing.T, from driver.Observed, all []datagram, receive func(deadline time.Time) []byte) (arrived []string) {
	t.Helper()
	last := all[len(all)-1].text
	await(t, last+" arrives", func() bool {
		inNetwork(t, from, func() error {
			for _, d := range all {
				if err := d.send(); err != nil {
					return err
				}
			}
			return nil
		})
		for deadline := time.Now().Add(time.Second); ; {
			packet := receive(deadline)
			if packet == nil {
				return false
			}
			for _, d := range all {
				if bytes.HasSuffix(packet, []byte(d.text)) {
					arrived = append(arrived, d.text)
				}
			}
			if bytes.HasSuffix(packet, []byte(last)) {
				return true
			}
		}
	})
	return arrived
}

func addressOf(t *testing.T, o driver.Observed) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(o.Addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// gatewayOf returns the address of the node in the network of a container.
func gatewayOf(t *testing.T, o driver.Observed) netip.Addr {
	t.Helper()
	return netip.PrefixFrom(addressOf(t, o), 24).Masked().Addr().Next()
}

// A hostile container cannot pretend to be another machine, and it does not reach the node at
// the addresses that the node has in networks of others.
func TestAHostileContainerReachesTheNodeOnlyAsItself(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	hostile, victim := graceful(drivertest.NewID()), graceful(drivertest.NewID())
	hostile.Project = "evil"
	from, other := d.start(hostile), d.start(victim)
	l, err := net.ListenUDP("udp4", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()                                   // it was only read
	port := uint16(l.LocalAddr().(*net.UDPAddr).Port) //nolint:gosec // a port
	node := netip.AddrPortFrom(gatewayOf(t, from), port)
	arrived := sendAll(t, from, []datagram{
		{netip.AddrPortFrom(addressOf(t, other), 53), node, "as another project"},
		{netip.MustParseAddrPort("203.0.113.9:53"), node, "as somebody outside"},
		{netip.AddrPort{}, netip.AddrPortFrom(gatewayOf(t, other), port), "to the gateway of another project"},
		{netip.AddrPort{}, node, "as itself"},
	}, func(deadline time.Time) []byte {
		_ = l.SetReadDeadline(deadline)
		b := make([]byte, 1<<10)
		n, err := l.Read(b)
		if err != nil {
			return nil // none in time
		}
		return b[:n]
	})
	if strings.Join(arrived, ", ") != "as itself" {
		t.Errorf("the node received %q", arrived)
	}
}

// A hostile container sends nothing to other machines in the name of others, and does not reach
// link-local addresses beyond the node, such as the credentials that a cloud gives the node. Name
// servers may have such addresses.
func TestAHostileContainerReachesOthersOnlyAsItself(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	hostile, victim := graceful(drivertest.NewID()), graceful(drivertest.NewID())
	hostile.Project = "evil"
	from, other := d.start(hostile), d.start(victim)
	outside, metadata := netip.MustParseAddr("198.51.100.2"), netip.MustParseAddr("169.254.169.254")
	for _, args := range []string{
		"link add wan0 type veth peer name wan1", "link set wan1 up", "address add 198.51.100.1/24 dev wan0", "link set wan0 up", "route add 169.254.169.254/32 dev wan0",
		"neighbor add 198.51.100.2 lladdr 02:00:00:00:00:02 dev wan0", "neighbor add 169.254.169.254 lladdr 02:00:00:00:00:03 dev wan0",
	} {
		if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	wan, err := net.InterfaceByName("wan0")
	if err != nil {
		t.Fatal(err)
	}
	protocol := int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, protocol)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(protocol), Ifindex: wan.Index}) //nolint:gosec // a protocol
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd) // it was only read
	arrived := sendAll(t, from, []datagram{
		{netip.AddrPortFrom(addressOf(t, other), 53), netip.AddrPortFrom(outside, 9), "as another project"},
		{netip.MustParseAddrPort("203.0.113.9:53"), netip.AddrPortFrom(outside, 9), "as somebody outside"},
		{netip.AddrPort{}, netip.AddrPortFrom(metadata, 80), "to the credentials of the node"},
		{netip.AddrPort{}, netip.AddrPortFrom(metadata, 53), "to a name server"},
		{netip.AddrPort{}, netip.AddrPortFrom(outside, 9), "as itself"},
	}, func(deadline time.Time) []byte {
		left := unix.NsecToTimeval(max(1000, time.Until(deadline).Nanoseconds()))
		_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &left)
		b := make([]byte, 2<<10)
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			return nil // none in time
		}
		return b[:n]
	})
	if strings.Join(arrived, ", ") != "to a name server, as itself" {
		t.Errorf("others received %q", arrived)
	}
}

// A hostile container that says it is a router of IPv6 does not become that of the node. Networks
// have no IPv6, so the node has none there.
func TestAHostileContainerDoesNotBecomeTheRouterOfTheNode(t *testing.T) {
	t.Parallel()
	d := openNode(t)
	hostile := graceful(drivertest.NewID())
	o := d.start(hostile)
	advertisement := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0}                                  // a router for half an hour
	advertisement = append(advertisement, 3, 4, 64, 0xc0, 0, 0, 7, 8, 0, 0, 7, 8, 0, 0, 0, 0, 0x20, 0x01, 0x0d, 0xb8, // the prefix 2001:db8:bad::/64
		0x0b, 0xad, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	bridge := lxc.Bridges(d.Driver)[0]
	var failed error
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) { // its own address needs a moment
		inNetwork(t, o, func() error {
			failed = advertise(advertisement)
			return nil
		})
		out, err := exec.CommandContext(t.Context(), "ip", "-6", "route", "show", "dev", bridge).CombinedOutput()
		if strings.Contains(string(out), "default") || strings.Contains(string(out), "2001:db8:bad") || err != nil {
			t.Fatalf("%v: the routes of the node are\n%s", err, out)
		}
	}
	if failed != nil {
		t.Fatal(failed)
	}
	i, err := net.InterfaceByName(bridge)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := i.Addrs(); err != nil || len(all) != 1 {
		t.Errorf("the bridge has the addresses %v, %v", all, err)
	}
}

// advertise sends a router advertisement to everybody on eth0.
func advertise(packet []byte) error {
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return err
	}
	defer unix.Close(fd) // all is sent
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
		return err
	}
	to := &unix.SockaddrInet6{ZoneId: uint32(eth0.Index)} //nolint:gosec // an index
	copy(to.Addr[:], net.ParseIP("ff02::1"))
	return unix.Sendto(fd, packet, 0, to)
}
