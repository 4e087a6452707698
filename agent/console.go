package agent

import (
	"context"
	"io"
	"sync"
	"syscall"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

func openConsole(ctx context.Context, in streamTarget, _ *wire.Open) (driver.Session, error) {
	d, ok := in.driver.(driver.Consoler)
	if !ok {
		return nil, mariposa.Errorf(mariposa.Conflict, "instances of compute type %s have no console", in.compute)
	}
	conn, err := d.Console(ctx, in.instance.ID)
	if err != nil {
		return nil, err
	}
	c := &consoleSession{ReadWriteCloser: conn, ended: make(chan struct{})}
	c.detach = context.AfterFunc(ctx, func() { _ = conn.Close() }) // pending reads and writes fail
	return c, nil
}

// consoleSession is a console that is used like a command. It has no exit code, and no size.
type consoleSession struct {
	io.ReadWriteCloser
	detach func() bool
	end    sync.Once
	ended  chan struct{}
}

// Stdout is the output of the console.
func (c *consoleSession) Stdout() io.Reader { return endingReader{c} }

// endingReader notices the end of the output, with which the console ends.
type endingReader struct{ c *consoleSession }

func (r endingReader) Read(p []byte) (int, error) {
	n, err := r.c.Read(p)
	if err != nil {
		r.c.end.Do(func() { close(r.c.ended) })
	}
	return n, err
}

// Stderr returns nil: the output is one.
func (*consoleSession) Stderr() io.Reader { return nil }

// CloseWrite does nothing: whoever has no more input may still want to see the output.
func (*consoleSession) CloseWrite() error { return nil }

// Resize does nothing.
func (*consoleSession) Resize(driver.Size) error { return nil }

// Signal does nothing: a guest has no signals.
func (*consoleSession) Signal(syscall.Signal) error { return nil }

// Wait waits for the end of the output.
func (c *consoleSession) Wait() (int, error) {
	<-c.ended
	return 0, nil
}

// Close detaches.
func (c *consoleSession) Close() error {
	c.detach()
	c.end.Do(func() { close(c.ended) })
	return c.ReadWriteCloser.Close()
}
