package lxc

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"mariposa/driver/streams"
)

// terminalOutput is the output of a command with a terminal. lxc-attach gives the command a
// terminal inside the instance, and copies that to ours. Both turn the end of a line into two
// characters; what ours adds is taken away again.
type terminalOutput struct {
	*streams.Output
	buffer  []byte
	ready   []byte // not returned yet
	begun   bool
	addsEnd bool // ours adds a carriage return to each line end
}

func newTerminalOutput(o *streams.Output) *terminalOutput {
	return &terminalOutput{Output: o, buffer: make([]byte, 4<<10)}
}

// Read reads the output.
func (t *terminalOutput) Read(p []byte) (int, error) {
	for len(t.ready) == 0 {
		n, err := t.Output.Read(t.buffer[:len(t.buffer)-1])
		if n == 0 {
			return 0, err
		}
		if !t.begun { // lxc-attach has set it before there was output
			t.begun, t.addsEnd = true, t.addsLineEnds()
		}
		if t.buffer[n-1] == '\r' {
			n += t.readMore(t.buffer[n : n+1]) // the line end may be behind it
		}
		t.ready = t.buffer[:n]
		if t.addsEnd {
			t.ready = withoutAdded(t.ready)
		}
	}
	n := copy(p, t.ready)
	t.ready = t.ready[n:]
	return n, nil
}

// withoutAdded removes one carriage return from each line end, in place.
func withoutAdded(b []byte) []byte {
	out := b[:0]
	for _, c := range b {
		if c == '\n' && len(out) > 0 && out[len(out)-1] == '\r' {
			out = out[:len(out)-1]
		}
		out = append(out, c)
	}
	return out
}

// addsLineEnds reports whether our terminal adds a carriage return to each line end.
func (t *terminalOutput) addsLineEnds() (adds bool) {
	raw, err := t.File.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		is, err := unix.IoctlGetTermios(int(fd), unix.TCGETS)
		adds = err == nil && is.Oflag&unix.OPOST != 0 && is.Oflag&unix.ONLCR != 0
	})
	return adds && err == nil
}

// readMore reads what is there, without waiting.
func (t *terminalOutput) readMore(p []byte) (n int) {
	raw, err := t.File.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		for {
			k, err := unix.Read(int(fd), p)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			n = max(k, 0)
			return
		}
	})
	return n
}

var _ io.Reader = (*terminalOutput)(nil)
