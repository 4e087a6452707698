package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"

	"mariposa"
	"mariposa/wire"
)

// Shell is a command that runs in an instance on its node. Read, Write and Close may be
// called concurrently.
type Shell struct {
	control *stream
	input   channel
	exit    int
}

// Exec runs a command in an instance, in a terminal if its size is given, and returns
// once it is running. The context limits the start only: the caller must close the shell.
func (f *Fleet) Exec(ctx context.Context, node, instance string, command []string, terminal *wire.Size) (*Shell, error) {
	return f.openShell(ctx, node, wire.Open{Instance: instance, Command: command, Terminal: terminal})
}

// Console attaches to the console of an instance, which is used like a command in a terminal.
func (f *Fleet) Console(ctx context.Context, node, instance string) (*Shell, error) {
	return f.openShell(ctx, node, wire.Open{Instance: instance, Console: true})
}

func (f *Fleet) openShell(ctx context.Context, node string, o wire.Open) (*Shell, error) {
	st, err := f.openStream(ctx, node, o)
	if err != nil {
		return nil, err
	}
	x := &Shell{control: st}
	inTime := context.AfterFunc(ctx, func() { _ = st.Close() })
	_, _, err = x.Read() // confirms that it runs
	if err == nil {
		x.input, err = st.openInput(ctx)
	}
	switch {
	case !inTime():
		err = &mariposa.Error{Code: mariposa.Unavailable, Cause: context.Cause(ctx), Message: fmt.Sprintf(
			"node %s did not start the command in time: check the node (`mariposa node show %s`), then try again", st.node, st.node)}
	case err == nil:
		return x, nil
	}
	x.Close()
	return nil, err
}

// Read waits for the next output. After the last output it fails, with io.EOF if the
// command ended by itself.
func (x *Shell) Read() (piece []byte, stderr bool, err error) {
	m, err := x.control.next()
	switch {
	case err == nil:
		return m.Bytes, m.Stderr, nil
	case m.Error != "":
		err = nodeError(m)
	case errors.Is(err, io.EOF):
		x.exit = m.Exit
	case !errors.Is(err, io.ErrClosedPipe):
		err = mariposa.Errorf(mariposa.Unavailable, "the connection to node %s was lost, and the command with it: %w", x.control.node, err)
	}
	x.Close() // no more output will be read
	return nil, false, err
}

// Write writes to the command's input. It blocks while the node accepts no more.
func (x *Shell) Write(p []byte) (n int, err error) { return x.input.Write(p) }

// CloseWrite closes the command's input. It blocks like Write.
func (x *Shell) CloseWrite() { _ = x.input.Send(wire.Message{Last: true}) } // fails only if the command has ended

// Resize changes the size of the terminal.
func (x *Shell) Resize(size wire.Size) { _ = x.control.Send(wire.Message{Terminal: &size}) } // fails only if the command has ended

// Signal sends a signal to the command.
func (x *Shell) Signal(n int) { _ = x.control.Send(wire.Message{Signal: n}) } // likewise

// Exit returns the exit code, once Read has returned io.EOF.
func (x *Shell) Exit() int { return x.exit }

// Close ends the command if it still runs.
func (x *Shell) Close() {
	_ = x.control.Close() // never fails, nor does the next
	if x.input != nil {
		_ = x.input.Close()
	}
}
