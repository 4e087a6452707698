package fleet

import (
	"context"
	"errors"
	"io"
	"sync"

	"mariposa"
	"mariposa/wire"
)

// Shell is a command that runs inside an instance on its node. Reading, writing
// and closing may go on side by side.
type Shell struct {
	id int64
	s  *Session

	mu     sync.Mutex
	cond   *sync.Cond
	opened bool
	output []*wire.Data
	credit int // pieces of input that the node still takes
	exit   int
	err    error // io.EOF once the command has ended by itself
}

// Exec runs a command inside an instance, in a terminal if its size is given, and
// returns once it runs. The context bounds that and nothing else: whoever has a
// shell closes it.
func (f *Fleet) Exec(ctx context.Context, node, instance string, command []string, terminal *wire.Size) (*Shell, error) {
	s, err := f.reach(ctx, node, instance)
	if err != nil {
		return nil, err
	}
	x := &Shell{s: s}
	x.cond = sync.NewCond(&x.mu)
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil, mariposa.Errorf(mariposa.Unavailable, "node %s has just disconnected: try again", node)
	}
	s.lastStream++
	x.id = s.lastStream
	s.shells[x.id] = x
	s.mu.Unlock()
	defer context.AfterFunc(ctx, func() {
		x.end(mariposa.Errorf(mariposa.Unavailable, "node %s did not start the command in time: %w", s.hello.Name, context.Cause(ctx)))
	})()
	s.send(wire.Frame{Exec: &wire.Exec{Stream: x.id, Instance: instance, Command: command, Terminal: terminal, Credit: wire.Window}})
	x.mu.Lock()
	defer x.mu.Unlock()
	for !x.opened && x.err == nil {
		x.cond.Wait()
	}
	if !x.opened {
		return nil, x.err
	}
	return x, nil
}

// Read waits for the next piece of output and lets the node send another. After
// the last one it fails: with io.EOF if the command has ended by itself.
func (x *Shell) Read() (piece []byte, stderr bool, err error) {
	x.mu.Lock()
	for len(x.output) == 0 && x.err == nil {
		x.cond.Wait()
	}
	if len(x.output) == 0 {
		defer x.mu.Unlock()
		return nil, false, x.err
	}
	d := x.output[0]
	x.output = x.output[1:]
	over := x.err != nil
	x.mu.Unlock()
	if !over {
		x.send(wire.Exec{Credit: 1})
	}
	return d.Bytes, d.Stderr, nil
}

// Write gives the command something to read. It waits while the node takes no
// more.
func (x *Shell) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), wire.Piece)]
		x.mu.Lock()
		for x.credit <= 0 && x.err == nil {
			x.cond.Wait()
		}
		if err = x.err; err == nil {
			x.credit--
		}
		x.mu.Unlock()
		if err != nil {
			return n, io.ErrClosedPipe
		}
		x.send(wire.Exec{Input: append([]byte(nil), part...)})
		n, p = n+len(part), p[len(part):]
	}
	return n, nil
}

// CloseWrite says that there is nothing more to read.
func (x *Shell) CloseWrite() { x.send(wire.Exec{End: true}) }

// Resize tells the size of the terminal.
func (x *Shell) Resize(size wire.Size) { x.send(wire.Exec{Terminal: &size}) }

// Signal sends a signal to the command.
func (x *Shell) Signal(n int) { x.send(wire.Exec{Signal: n}) }

// Exit is the exit code, once Read has told of the end.
func (x *Shell) Exit() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.exit
}

// Close ends the command if it still runs.
func (x *Shell) Close() { x.end(io.ErrClosedPipe) }

func (x *Shell) send(e wire.Exec) {
	e.Stream = x.id
	x.s.send(wire.Frame{Exec: &e})
}

// end ends the command on its node, and for whoever waits for it here.
func (x *Shell) end(why error) {
	x.s.mu.Lock()
	_, open := x.s.shells[x.id]
	delete(x.s.shells, x.id)
	x.s.mu.Unlock()
	if open {
		x.send(wire.Exec{Cancel: true})
	}
	x.fail(why)
}

func (x *Shell) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err == nil {
		x.err = err
	}
	x.cond.Broadcast()
}

// take takes what the node says of a command.
func (x *Shell) take(d *wire.Data) {
	x.mu.Lock()
	x.opened = x.opened || d.Credit > 0
	x.credit = min(x.credit+d.Credit, wire.Window)
	flood := len(x.output) > 2*wire.Window
	if len(d.Bytes) > 0 && !flood {
		x.output = append(x.output, d)
	}
	if d.Exit != nil {
		x.exit = *d.Exit
	}
	x.mu.Unlock()
	switch {
	case flood:
		x.end(errors.New("the node sent more than was asked for"))
	case d.Error != "":
		x.fail(told(d))
	case d.Last:
		x.fail(io.EOF)
	default:
		x.cond.Broadcast()
	}
}

// told is an error as the node tells it.
func told(d *wire.Data) error {
	if d.Code == "" {
		return mariposa.Errorf(mariposa.Unavailable, "%s", d.Error)
	}
	return mariposa.Errorf(d.Code, "%s", d.Error)
}
