// Package streams opens the input and output of commands that run in instances: terminals and
// pipes whose ends can be given to a program.
package streams

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver"
)

// OpenTerminal creates a terminal: our end, and the end of the command.
func OpenTerminal(multiplexer string, size driver.Size) (ours, theirs *os.File, err error) {
	fd, err := unix.Open(multiplexer, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	ours = os.NewFile(uintptr(fd), "terminal")
	defer func() {
		if err != nil {
			_ = ours.Close()
		}
	}()
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	if err := Resize(ours, size); err != nil {
		return nil, nil, err
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, nil, errno
	}
	return ours, os.NewFile(peer, "terminal"), nil
}

// Resize changes the size of a terminal.
func Resize(terminal *os.File, size driver.Size) error {
	raw, err := terminal.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	})
	return errors.Join(err, failed)
}

// Pipe creates a pipe of which one end is ours: the reading or the writing one. Only that
// end may be non-blocking: programs do not expect it of theirs.
func Pipe(weRead bool) (reads, writes *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	ours := fds[1]
	if weRead {
		ours = fds[0]
	}
	if err := unix.SetNonblock(ours, true); err != nil {
		_, _ = unix.Close(fds[0]), unix.Close(fds[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "reads"), os.NewFile(uintptr(fds[1]), "writes"), nil
}

// Output is the output of a command.
type Output struct{ File *os.File }

// Finish ends the output. A waiting reader gets the data that is there, then the end,
// even if another process still has the other end open.
func (o *Output) Finish() { _ = o.File.SetReadDeadline(time.Now()) }

// Read reads the output; its end is that of the command.
func (o *Output) Read(p []byte) (n int, err error) {
	n, err = o.File.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		n, err = o.rest(p)
	}
	if errors.Is(err, unix.EIO) || errors.Is(err, os.ErrClosed) { // the end of a terminal
		err = io.EOF
	}
	return n, err
}

// rest reads what has been written, without waiting for more.
func (o *Output) rest(p []byte) (n int, err error) {
	raw, err := o.File.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := errors.New("not read")
	err = raw.Control(func(fd uintptr) {
		for n, failed = unix.Read(int(fd), p); errors.Is(failed, unix.EINTR); {
			n, failed = unix.Read(int(fd), p)
		}
	})
	switch {
	case err != nil:
		return 0, err
	case failed != nil && !errors.Is(failed, unix.EAGAIN):
		return 0, failed
	case failed != nil || n <= 0:
		return 0, io.EOF
	}
	return n, nil
}
