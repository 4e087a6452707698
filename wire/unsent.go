package wire

import (
	"net"

	"golang.org/x/sys/unix"
)

// maxUnsent is how many bytes the kernel keeps that it has not sent yet. By default it
// takes megabytes, in which a heartbeat would wait for a minute on a slow link.
const maxUnsent = 2 * pieceSize

// LimitUnsent bounds what the kernel keeps of the data written to a TCP connection. Where
// that fails, heartbeats can be late on slow links.
func LimitUnsent(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
	})
}

// Listener calls LimitUnsent for each connection that it accepts: they do not inherit it.
type Listener struct{ net.Listener }

// Accept waits for the next connection.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		LimitUnsent(c)
	}
	return c, err
}
