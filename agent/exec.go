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

// shell is a command inside an instance on its way between driver and control
// plane, in both directions as fast as the other side takes it.
type shell struct {
	input  chan []byte        // pieces that the other side had credit for; an empty one is the end
	steps  chan wire.Exec     // sizes and signals
	credit chan struct{}      // one for each piece of output that may be sent
	cancel context.CancelFunc // ends the command
}

func (n *Node) takeExec(x *wire.Exec) {
	s := n.shells[x.Stream]
	switch {
	case s == nil && x.Instance != "":
		n.openShell(x)
	case s == nil: // over on this side, and the other does not know yet
	case x.Cancel || !s.take(x):
		s.cancel()
		delete(n.shells, x.Stream)
	}
}

// take hands on what came for a command; false: it is more than can be.
func (s *shell) take(x *wire.Exec) bool {
	for range min(x.Credit, cap(s.credit)) {
		select {
		case s.credit <- struct{}{}:
		default: // more credit than pieces ever asked for
		}
	}
	if x.Terminal != nil || x.Signal != 0 {
		select {
		case s.steps <- *x:
		default: // it is behind; the next size is as good
		}
	}
	var pieces [][]byte
	if len(x.Input) > 0 {
		pieces = append(pieces, x.Input)
	}
	if x.End {
		pieces = append(pieces, nil)
	}
	for _, p := range pieces {
		select {
		case s.input <- p:
		default:
			return false
		}
	}
	return len(x.Input) <= wire.Piece
}

// openShell runs a command beside the loop and says what becomes of it.
func (n *Node) openShell(x *wire.Exec) {
	refuse := func(why string, code mariposa.Code) {
		n.send(wire.Frame{Data: &wire.Data{Stream: x.Stream, Last: true, Error: why, Code: code}})
	}
	i, ok := n.instances[x.Instance]
	if !ok || i.alien || i.aside {
		refuse("the node does not have this instance", mariposa.Unavailable)
		return
	}
	d, ok := n.lane(i.compute).driver.(driver.Execer)
	if !ok {
		refuse("in instances of the kind "+string(i.compute)+" no commands can be run", mariposa.Conflict)
		return
	}
	ctx, cancel := context.WithCancel(n.stepCtx) // nobody can reach it once the agent is gone
	s := &shell{
		input: make(chan []byte, wire.Window+1), steps: make(chan wire.Exec, 16),
		credit: make(chan struct{}, 2*wire.Window), cancel: cancel,
	}
	n.shells[x.Stream] = s
	out, stream := n.out, x.Stream
	say := func(d *wire.Data) {
		d.Stream = stream
		n.post(func() { n.sendOver(out, wire.Frame{Data: d}) })
	}
	s.take(&wire.Exec{Credit: x.Credit})
	in := n.describe(i)
	o := driver.ExecOptions{Command: x.Command}
	if x.Terminal != nil {
		o.Terminal = &driver.Size{Rows: x.Terminal.Rows, Cols: x.Terminal.Cols}
		o.Environment = []mariposa.Variable{{Name: "TERM", Value: "xterm-256color"}}
	}
	go func() { // ends with the command, with its cancelling, or with the connection
		defer cancel()
		last := ending(s.run(ctx, func() (driver.Session, error) { return d.Exec(ctx, in, o) }, say))
		n.post(func() {
			if n.shells[stream] == s { // numbers begin anew with every connection
				delete(n.shells, stream)
			}
		})
		say(last)
	}()
}

// ending is the last that is said of a command.
func ending(code int, err error) *wire.Data {
	last := &wire.Data{Last: true}
	var fault *driver.CommandError
	switch {
	case err == nil:
		last.Exit = &code
		return last
	case errors.As(err, &fault):
		last.Code = mariposa.InvalidArgument
	case errors.Is(err, driver.ErrNotFound):
		err, last.Code = errors.New("the instance does not run"), mariposa.Conflict
	case errors.Is(err, driver.ErrNotSupported), errors.Is(err, driver.ErrInstanceEnded):
		last.Code = mariposa.Conflict
	}
	last.Error = err.Error()
	return last
}

// run opens a session and carries what goes in and comes out, until it is over.
func (s *shell) run(ctx context.Context, open func() (driver.Session, error), say func(*wire.Data)) (int, error) {
	session, err := open()
	if err != nil {
		return 0, err
	}
	say(&wire.Data{Credit: wire.Window})
	life, stop := context.WithCancel(ctx)
	var outputs, others sync.WaitGroup
	others.Go(func() { s.feed(life, session, say) })
	others.Go(func() { s.steer(life, session) })
	outputs.Go(func() { s.pump(ctx, session.Stdout(), false, say) })
	if r := session.Stderr(); r != nil {
		outputs.Go(func() { s.pump(ctx, r, true, say) })
	}
	outputs.Wait()
	if ctx.Err() != nil {
		_ = session.Close() // it ends with the context; this hastens it
	}
	code, err := session.Wait()
	stop()
	_ = session.Close() // whoever still writes to it learns of the end
	others.Wait()
	return code, err
}

// feed writes what the command is given to read. What it does not want any more
// is taken nevertheless, so that nobody waits for it.
func (s *shell) feed(ctx context.Context, session driver.Session, say func(*wire.Data)) {
	deaf := false
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-s.input:
			if len(p) == 0 {
				_ = session.CloseWrite() // of what is over, it is closed
				continue
			}
			if !deaf {
				_, err := session.Write(p)
				deaf = err != nil
			}
			say(&wire.Data{Credit: 1})
		}
	}
}

func (s *shell) steer(ctx context.Context, session driver.Session) {
	for {
		select {
		case <-ctx.Done():
			return
		case x := <-s.steps:
			if x.Terminal != nil {
				_ = session.Resize(driver.Size{Rows: x.Terminal.Rows, Cols: x.Terminal.Cols}) // of what is over, nobody minds
			}
			if x.Signal != 0 {
				_ = session.Signal(syscall.Signal(x.Signal)) // likewise
			}
		}
	}
}

// pump sends one stream of output, a piece for each credit.
func (s *shell) pump(ctx context.Context, r io.Reader, stderr bool, say func(*wire.Data)) {
	buf := make([]byte, wire.Piece)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.credit:
		}
		got, err := r.Read(buf)
		if got > 0 {
			say(&wire.Data{Bytes: append([]byte(nil), buf[:got]...), Stderr: stderr})
		}
		if err != nil {
			if got == 0 { // the other stream may still need it
				s.take(&wire.Exec{Credit: 1})
			}
			return
		}
	}
}
