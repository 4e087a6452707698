package fleet

import (
	"cmp"
	"context"
	"errors"
	"io"

	"mariposa"
	"mariposa/wire"
)

// Shell is a command that runs inside an instance on its node. Reading, writing
// and closing may go on side by side.
type Shell struct {
	control *stream
	input   *wire.Stream
	exit    int
}

// Exec runs a command inside an instance, in a terminal if its size is given, and
// returns once it runs. The context bounds that and nothing else: whoever has a
// shell closes it.
func (f *Fleet) Exec(ctx context.Context, node, instance string, command []string, terminal *wire.Size) (*Shell, error) {
	st, err := f.openStream(ctx, node, wire.Open{Instance: instance, Command: command, Terminal: terminal})
	if err != nil {
		return nil, err
	}
	x := &Shell{control: st}
	inTime := context.AfterFunc(ctx, func() { _ = st.Close() })
	_, _, err = x.Read() // that it runs
	if err == nil {
		x.input, err = st.s.dial(wire.Open{Input: st.Number()})
	}
	switch {
	case !inTime():
		err = mariposa.Errorf(mariposa.Unavailable, "node %s did not start the command in time: %w", st.s.hello.Name, context.Cause(ctx))
	case err == nil:
		return x, nil
	}
	x.Close()
	return nil, err
}

// Read waits for the next piece of output. After the last one it fails: with io.EOF
// if the command has ended by itself.
func (x *Shell) Read() (piece []byte, stderr bool, err error) {
	m, err := x.control.next()
	switch {
	case err == nil:
		return m.Bytes, m.Stderr, nil
	case m.Error != "":
		err = mariposa.Errorf(cmp.Or(m.Code, mariposa.Unavailable), "%s", m.Error)
	case errors.Is(err, io.EOF):
		x.exit = m.Exit
	case !errors.Is(err, io.ErrClosedPipe):
		err = mariposa.Errorf(mariposa.Unavailable, "the connection to node %s is lost, and the command with it: %w", x.control.s.hello.Name, err)
	}
	x.Close() // nobody reads any more what is written
	return nil, false, err
}

// Write gives the command something to read. It waits while the node takes no
// more.
func (x *Shell) Write(p []byte) (n int, err error) { return x.input.Write(p) }

// CloseWrite says that there is nothing more to read. It waits likewise.
func (x *Shell) CloseWrite() { _ = x.input.Send(wire.Message{Last: true}) } // what is over reads nothing

// Resize tells the size of the terminal.
func (x *Shell) Resize(size wire.Size) { _ = x.control.Send(wire.Message{Terminal: &size}) } // of what is over, nobody minds

// Signal sends a signal to the command.
func (x *Shell) Signal(n int) { _ = x.control.Send(wire.Message{Signal: n}) } // likewise

// Exit is the exit code, once Read has told of the end.
func (x *Shell) Exit() int { return x.exit }

// Close ends the command if it still runs.
func (x *Shell) Close() {
	_ = x.control.Close() // it never fails, nor does the other
	if x.input != nil {
		_ = x.input.Close()
	}
}
