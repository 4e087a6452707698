package agent

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// exec runs a command in an instance, for as long as its stream lasts.
func (s *streams) exec(ctx context.Context, st *wire.Stream, in streamTarget, o *wire.Open) (exit int, err error) {
	if in.instance.ID == "" || in.isForeign {
		return 0, mariposa.Errorf(mariposa.Unavailable, "the instance is not on this node")
	}
	open := openCommand
	if o.Console {
		open = openConsole
	}
	session, err := open(ctx, in, o)
	if err == nil {
		exit, err = s.sendOutput(ctx, st, session)
	}
	var fault *driver.CommandError
	switch {
	case errors.As(err, &fault):
		err = mariposa.Errorf(mariposa.InvalidArgument, "%w", err)
	case errors.Is(err, driver.ErrNotFound):
		err = mariposa.Errorf(mariposa.Conflict, "the instance is not running")
	case errors.Is(err, driver.ErrNotSupported), errors.Is(err, driver.ErrInstanceEnded):
		err = mariposa.Errorf(mariposa.Conflict, "%w", err)
	}
	return exit, err
}

func openCommand(ctx context.Context, in streamTarget, o *wire.Open) (driver.Session, error) {
	d, ok := in.driver.(driver.Execer)
	if !ok {
		return nil, mariposa.Errorf(mariposa.Conflict, "instances of compute type %s cannot run commands", in.compute)
	}
	options := driver.ExecOptions{Command: o.Command}
	if o.Terminal != nil {
		options.Terminal = &driver.Size{Rows: o.Terminal.Rows, Cols: o.Terminal.Cols}
		options.Environment = []mariposa.Variable{{Name: "TERM", Value: "xterm-256color"}}
	}
	return d.Exec(ctx, in.instance, options)
}

// sendOutput sends the output of a command until it ends.
func (s *streams) sendOutput(ctx context.Context, st *wire.Stream, session driver.Session) (exit int, err error) {
	defer session.Close() // pending writes fail
	s.shells.Store(st.Number(), session)
	defer s.shells.Delete(st.Number())
	_ = st.Send(wire.Message{}) // the command is running; if the peer is gone, the context ends
	var outputs sync.WaitGroup
	outputs.Go(func() { _, _ = io.Copy(st, session.Stdout()) })
	if r := session.Stderr(); r != nil {
		outputs.Go(func() { _, _ = io.Copy(stderrWriter{st}, r) })
	}
	outputs.Wait()
	if ctx.Err() != nil {
		_ = session.Close() // it ends with the context anyway; this is faster
	}
	return session.Wait()
}

// stderrWriter sends what a command writes to its standard error.
type stderrWriter struct{ *wire.Stream }

func (s stderrWriter) Write(p []byte) (int, error) {
	return len(p), s.Send(wire.Message{Bytes: p, Stderr: true})
}

// readControls applies resizes and signals to a command until the peer is gone.
func (s *streams) readControls(st *wire.Stream) {
	for {
		m, err := st.Receive()
		if err != nil {
			return
		}
		shell, ok := s.shells.Load(st.Number())
		if ok && m.Terminal != nil {
			_ = shell.(driver.Session).Resize(driver.Size{Rows: m.Terminal.Rows, Cols: m.Terminal.Cols}) // fails only if the command has ended
		}
		if ok && m.Signal != 0 {
			_ = shell.(driver.Session).Signal(syscall.Signal(m.Signal)) // likewise
		}
	}
}

// writeInput writes a command's input. Input that the command no longer reads is
// discarded, so that the sender does not block.
func (s *streams) writeInput(st *wire.Stream, number uint32) {
	shell, ok := s.shells.Load(number)
	if !ok {
		return // it has ended
	}
	session, inputClosed := shell.(driver.Session), false
	for {
		m, err := st.Receive()
		switch {
		case err != nil:
			return
		case m.Last:
			_ = session.CloseWrite() // if it has ended, its input is closed already
		case !inputClosed:
			_, err = session.Write(m.Bytes)
			inputClosed = err != nil
		}
	}
}
