package discover

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A client on this machine is recognized by the user that owns its socket. Its address says
// nothing: all users of the machine share the loopback. The socket that is found is the one that
// would get the answer, so a client that lies about its address learns nothing.

// ErrNoOwner means that the socket of a client was not found. It may have been closed.
var ErrNoOwner = errors.New("nobody has this socket")

// OwnerOf returns the uid that owns the socket of a client on this machine.
func OwnerOf(c Client) (int, error) {
	uid, err := ownerByDiag(c)
	if err == nil || errors.Is(err, ErrNoOwner) {
		return uid, err
	}
	return ownerByProc(c) // a kernel without socket diagnostics
}

// These are of linux/inet_diag.h and linux/sock_diag.h.
const (
	sockDiagByFamily = 20
	diagRequestSize  = 56
	diagMessageSize  = 72
	diagUIDOffset    = 64
	anyCookie        = 0xffffffff
)

// ownerByDiag asks the kernel which socket a packet to the client would reach.
func ownerByDiag(c Client) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return 0, err
	}
	if err := unix.Sendto(fd, diagRequest(c), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	b := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err != nil {
		return 0, err
	}
	return readDiag(b[:n])
}

// diagRequest returns the request for one socket.
func diagRequest(c Client) []byte {
	b := make([]byte, unix.SizeofNlMsghdr+diagRequestSize)
	order := binary.NativeEndian
	order.PutUint32(b[0:], uint32(len(b))) //nolint:gosec // it is small
	order.PutUint16(b[4:], sockDiagByFamily)
	order.PutUint16(b[6:], unix.NLM_F_REQUEST)
	r := b[unix.SizeofNlMsghdr:]
	r[0], r[1] = unix.AF_INET, unix.IPPROTO_UDP
	if c.Address.Addr().Is6() {
		r[0] = unix.AF_INET6
	}
	// For UDP, the kernel takes the source as that of a packet which is looked up; for TCP, as that
	// of the socket.
	source, destination := c.Server, c.Address
	if c.TCP {
		r[1] = unix.IPPROTO_TCP
		source, destination = c.Address, c.Server
	}
	order.PutUint32(r[4:], anyCookie) // all states
	id := r[8:]
	binary.BigEndian.PutUint16(id[0:], source.Port())
	binary.BigEndian.PutUint16(id[2:], destination.Port())
	copy(id[4:20], source.Addr().AsSlice())
	copy(id[20:36], destination.Addr().AsSlice())
	order.PutUint32(id[40:], anyCookie)
	order.PutUint32(id[44:], anyCookie)
	return b
}

// readDiag reads the owner from the kernel's response.
func readDiag(b []byte) (int, error) {
	order := binary.NativeEndian
	if len(b) < unix.SizeofNlMsghdr+4 {
		return 0, errors.New("a short response of the kernel")
	}
	body := b[unix.SizeofNlMsghdr:]
	switch order.Uint16(b[4:]) {
	case unix.NLMSG_ERROR:
		code := unix.Errno(-int32(order.Uint32(body))) //nolint:gosec // a negative error number
		if code == unix.ENOENT {
			return 0, ErrNoOwner
		}
		return 0, code
	case sockDiagByFamily:
		if len(body) >= diagMessageSize {
			return int(order.Uint32(body[diagUIDOffset:])), nil
		}
	}
	return 0, errors.New("an unexpected response of the kernel")
}

// ownerByProc finds the socket in the lists of the kernel. If several could be meant that have
// different owners, none is.
func ownerByProc(c Client) (int, error) {
	name := "udp"
	if c.TCP {
		name = "tcp"
	}
	found := -1
	for _, file := range []string{name, name + "6"} { // a socket for IPv6 can use IPv4
		b, err := os.ReadFile("/proc/self/net/" + file) // also where a service sees no more of /proc
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) < 8 || !isSocketOf(c, f[1], f[2]) {
				continue
			}
			uid, err := strconv.Atoi(f[7])
			if err != nil || found >= 0 && found != uid {
				return 0, ErrNoOwner
			}
			found = uid
		}
	}
	if found < 0 {
		return 0, ErrNoOwner
	}
	return found, nil
}

// isSocketOf reports whether a socket with these addresses is the one that a client asks from. One
// of UDP may be connected to nobody.
func isSocketOf(c Client, local, remote string) bool {
	at, to := procAddress(local), procAddress(remote)
	if at.Port() != c.Address.Port() {
		return false
	}
	if c.TCP {
		return at == c.Address && to == c.Server
	}
	return (at.Addr() == c.Address.Addr() || at.Addr().IsUnspecified()) && (to == c.Server || to.Port() == 0)
}

// procAddress reads an address as the kernel writes it: words in the order of the machine, and a
// port.
func procAddress(text string) netip.AddrPort {
	host, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	if err != nil || len(b)%4 != 0 {
		return netip.AddrPort{}
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, _ := netip.AddrFromSlice(b) // the zero address if it has another length
	n, _ := strconv.ParseUint(port, 16, 16)
	return netip.AddrPortFrom(a.Unmap(), uint16(n))
}
