// Command mdata reads and sets the metadata of the instance that it runs in, like the tools that
// guests of Triton have: mdata-get, mdata-put, mdata-list and mdata-delete. It can be called by
// those names. It is small, static, and meant for images.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/mdata"
)

// timeout is how long the node may take to answer.
const timeout = 30 * time.Second

// places are where the node listens: the socket of system containers, and the second serial port
// of virtual machines. MDATA_DEVICE overrides them.
var places = []string{"/native/.zonecontrol/metadata.sock", "/.zonecontrol/metadata.sock", "/dev/ttyS1"}

func main() { os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	verb, rest := strings.TrimPrefix(filepath.Base(args[0]), "mdata-"), args[1:]
	if filepath.Base(args[0]) == verb { // not called by one of the names
		verb = ""
		if len(rest) > 0 {
			verb, rest = rest[0], rest[1:]
		}
	}
	counts := map[string][2]int{"get": {1, 1}, "put": {1, 2}, "delete": {1, 1}, "list": {0, 0}}
	count, known := counts[verb]
	if !known || len(rest) < count[0] || len(rest) > count[1] {
		fmt.Fprintln(stderr, "usage: mdata get KEY | mdata put KEY [VALUE] | mdata delete KEY | mdata list\n\nWithout VALUE, put reads it from standard input.")
		return 3
	}
	conn, err := open()
	if err == nil {
		defer conn.Close()
		err = do(conn, verb, rest, stdin, stdout)
	}
	switch {
	case errors.Is(err, mdata.ErrNotFound):
		fmt.Fprintf(stderr, "No metadata for '%s'\n", rest[0])
		return 1
	case err != nil:
		fmt.Fprintln(stderr, "mdata:", err)
		return 2
	}
	return 0
}

func do(conn io.ReadWriter, verb string, args []string, stdin io.Reader, stdout io.Writer) error {
	c, err := mdata.Connect(conn)
	if err != nil {
		return fmt.Errorf("the node does not answer: %w", err)
	}
	switch verb {
	case "get":
		value, err := c.Get(args[0])
		if err == nil {
			_, err = fmt.Fprintln(stdout, value)
		}
		return err
	case "put":
		if len(args) == 2 {
			return c.Put(args[0], args[1])
		}
		value, err := io.ReadAll(io.LimitReader(stdin, mdata.MaxLine))
		if err != nil {
			return err
		}
		return c.Put(args[0], string(value))
	case "delete":
		return c.Delete(args[0])
	}
	keys, err := c.Keys()
	for _, key := range keys {
		if err == nil {
			_, err = fmt.Fprintln(stdout, key)
		}
	}
	return err
}

// open connects to the node.
func open() (io.ReadWriteCloser, error) {
	all := places
	if device := os.Getenv("MDATA_DEVICE"); device != "" {
		all = []string{device}
	}
	for _, path := range all {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		if info.Mode()&os.ModeSocket != 0 {
			conn, err := (&net.Dialer{Timeout: timeout}).DialContext(context.Background(), "unix", path)
			if err != nil {
				return nil, fmt.Errorf("cannot connect to the node: %w", err)
			}
			return conn, conn.SetDeadline(time.Now().Add(timeout))
		}
		return openSerial(path)
	}
	return nil, fmt.Errorf("this machine has no metadata: there is none of %s", strings.Join(all, ", "))
}

// openSerial opens a serial port for itself alone, and discards what is left in it.
func openSerial(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path) //nolint:gosec // a file descriptor is positive
	err = lock(fd)
	if err == nil {
		err = makeRaw(fd)
	}
	if err == nil {
		err = f.SetDeadline(time.Now().Add(timeout))
	}
	if err != nil {
		_ = f.Close() // the error is returned
		return nil, fmt.Errorf("cannot use %s: %w", path, err)
	}
	return f, nil
}

// lock waits until no other tool uses the port.
func lock(fd int) error {
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &whole) //nolint:gosec // a file descriptor is positive
		if err == nil || time.Now().After(deadline) || !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return err
		}
	}
}

func makeRaw(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8 | unix.CLOCAL
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
		return err
	}
	return unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIOFLUSH)
}
