package agent_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// inhabited is a driver whose instances run commands that tests play.
type inhabited struct {
	*hands
	fail     error
	sessions chan *played
}

func (h *inhabited) Exec(ctx context.Context, i driver.Instance, o driver.ExecOptions) (driver.Session, error) {
	if h.fail != nil {
		return nil, h.fail
	}
	s := &played{ctx: ctx, instance: i, options: o, ended: make(chan error, 1), read: make(chan []byte), sizes: make(chan driver.Size, 9), signals: make(chan syscall.Signal, 9)}
	s.out, s.outW = io.Pipe()
	s.errs, s.errsW = io.Pipe()
	context.AfterFunc(ctx, func() { s.end(ctx.Err()) })
	h.sessions <- s
	return s, nil
}

// played is a command, played by a test.
type played struct {
	ctx         context.Context //nolint:containedctx // what a test looks at
	instance    driver.Instance
	options     driver.ExecOptions
	out, errs   *io.PipeReader
	outW, errsW *io.PipeWriter
	read        chan []byte // what it is given to read, an empty one at the end
	sizes       chan driver.Size
	signals     chan syscall.Signal
	ended       chan error
	once        sync.Once
}

func (s *played) end(err error) {
	s.once.Do(func() {
		_, _ = s.outW.Close(), s.errsW.Close()
		s.ended <- err
	})
}
func (s *played) Stdout() io.Reader             { return s.out }
func (s *played) Stderr() io.Reader             { return s.errs }
func (s *played) Resize(z driver.Size) error    { s.sizes <- z; return nil }
func (s *played) Signal(n syscall.Signal) error { s.signals <- n; return nil }
func (s *played) Close() error                  { s.end(nil); return nil }
func (s *played) CloseWrite() error             { _, err := s.Write(nil); return err }
func (s *played) Wait() (int, error)            { return 7, <-s.ended }
func (s *played) Write(p []byte) (n int, e error) {
	select {
	case s.read <- bytes.Clone(p):
		return len(p), nil
	case <-s.ctx.Done():
		return 0, io.ErrClosedPipe
	}
}

// inhabit is a rig with one instance that lets commands run inside.
func inhabit(t *testing.T) (*rig, *inhabited) {
	h := &inhabited{hands: &hands{}, sessions: make(chan *played, 9)}
	r := newRig(t, h)
	r.connect(wanted("i1", 1, processWork()))
	r.end(h.hands, "start", "i1", driver.Observed{Running: true, PhysicalID: "p"}, nil)
	return r, h
}

// data waits until the node has said something of a stream that will do.
func (r *rig) data(what string, ok func(*wire.Data) bool) *wire.Data {
	r.t.Helper()
	for {
		for _, f := range r.conn.sent() {
			if f.Data != nil && ok(f.Data) {
				return f.Data
			}
		}
		r.awaitWake(what)
	}
}

func last(d *wire.Data) bool { return d.Last }

func TestACommandInsideGoesBothWays(t *testing.T) {
	t.Parallel()
	r, h := inhabit(t)
	r.say(wire.Frame{Exec: &wire.Exec{Stream: 1, Instance: "i1", Command: []string{"a", "b"}, Terminal: &wire.Size{Rows: 24, Cols: 80}, Credit: wire.Window}})
	s := <-h.sessions
	if s.instance.ID != "i1" || s.instance.Workload == nil || len(s.options.Command) != 2 || *s.options.Terminal != (driver.Size{Rows: 24, Cols: 80}) || s.options.Environment[0].Name != "TERM" {
		t.Errorf("it was told to run %+v in %+v", s.options, s.instance)
	}
	r.data("that it runs", func(d *wire.Data) bool { return d.Credit == wire.Window })
	r.say(wire.Frame{Exec: &wire.Exec{Stream: 1, Input: []byte("hello")}})
	r.say(wire.Frame{Exec: &wire.Exec{Stream: 1, Terminal: &wire.Size{Rows: 1, Cols: 2}}})
	r.say(wire.Frame{Exec: &wire.Exec{Stream: 1, Signal: 15, End: true}})
	if got := <-s.read; string(got) != "hello" {
		t.Errorf("it read %q", got)
	}
	if got := <-s.read; len(got) != 0 {
		t.Errorf("after the end it read %q", got)
	}
	if z, n := <-s.sizes, <-s.signals; z != (driver.Size{Rows: 1, Cols: 2}) || n != syscall.SIGTERM {
		t.Errorf("it got %v and %v", z, n)
	}
	r.data("credit for what was read", func(d *wire.Data) bool { return d.Credit == 1 })
	go func() {
		_, _ = io.WriteString(s.outW, "out")
		_, _ = io.WriteString(s.errsW, "err")
		s.end(nil)
	}()
	if d := r.data("its end", last); d.Exit == nil || *d.Exit != 7 || d.Error != "" {
		t.Errorf("it ended with %+v", d)
	}
	for _, stderr := range []bool{false, true} {
		r.data("what it wrote", func(d *wire.Data) bool { return d.Stderr == stderr && len(d.Bytes) == 3 })
	}
}

func TestOutputThatNobodyTakesIsNotRead(t *testing.T) {
	t.Parallel()
	r, h := inhabit(t)
	r.say(wire.Frame{Exec: &wire.Exec{Stream: 1, Instance: "i1", Command: []string{"flood"}, Credit: wire.Window}})
	s := <-h.sessions
	_ = s.errsW.Close() // so that the other has all the credit
	written := make(chan int)
	go func() {
		n := 0
		defer func() { written <- n }()
		for {
			if _, err := s.outW.Write(make([]byte, wire.Piece)); err != nil {
				return
			}
			n++
		}
	}()
	pieces := func() (n int) {
		for _, f := range r.conn.sent() {
			if f.Data != nil && len(f.Data.Bytes) > 0 {
				n++
			}
		}
		return n
	}
	r.data("as much as there is credit for", func(*wire.Data) bool { return pieces() >= wire.Window-1 })
	r.say(wire.Frame{Exec: &wire.Exec{Stream: 1, Cancel: true}})
	r.data("its end", last)
	if got, made := pieces(), <-written; got > wire.Window || made > wire.Window+1 {
		t.Errorf("%d pieces were sent and %d made with credit for %d", got, made, wire.Window)
	}
}

func TestACommandEndsWithWhoAskedForIt(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *rig){
		"cancelled":                    func(r *rig) { r.say(wire.Frame{Exec: &wire.Exec{Stream: 1, Cancel: true}}) },
		"the connection is lost":       func(r *rig) { r.node.Disconnected(r.conn); r.run() },
		"more input than asked for":    func(r *rig) { r.flood(wire.Window+2, 1) },
		"larger input than is allowed": func(r *rig) { r.flood(1, wire.Piece+1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, h := inhabit(t)
			r.say(wire.Frame{Exec: &wire.Exec{Stream: 1, Instance: "i1", Command: []string{"a"}, Credit: 1}})
			s := <-h.sessions
			end(r)
			select {
			case <-s.ctx.Done():
			case <-time.After(20 * time.Second):
				t.Fatal("it goes on")
			}
		})
	}
}

func (r *rig) flood(n, size int) {
	for range n {
		r.say(wire.Frame{Exec: &wire.Exec{Stream: 1, Input: make([]byte, size)}})
	}
	r.say(wire.Frame{Exec: &wire.Exec{Stream: 1, Input: []byte("and more, of which nobody knows any more")}})
}

func TestWhyACommandIsNotRun(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fail     error
		instance string
		code     mariposa.Code
		says     string
	}{
		"its own fault":          {&driver.CommandError{Err: errors.New("cannot run it")}, "i1", mariposa.InvalidArgument, "cannot run it"},
		"the instance has ended": {driver.ErrNotFound, "i1", mariposa.Conflict, "the instance does not run"},
		"not in this kind":       {driver.ErrNotSupported, "i1", mariposa.Conflict, driver.ErrNotSupported.Error()},
		"something else":         {errBroken, "i1", "", errBroken.Error()},
		"nobody knows it":        {nil, "i2", mariposa.Unavailable, "the node does not have this instance"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, h := inhabit(t)
			h.fail = c.fail
			r.say(wire.Frame{Exec: &wire.Exec{Stream: 1, Instance: c.instance, Command: []string{"a"}, Credit: 1}})
			if d := r.data("its end", last); d.Error != c.says || d.Code != c.code || d.Exit != nil {
				t.Errorf("it said %+v", d)
			}
		})
	}
	r := newRig(t)
	r.connect(wanted("d1", 1, dummyWork()))
	r.say(wire.Frame{Exec: &wire.Exec{Stream: 1, Instance: "d1", Command: []string{"a"}, Credit: 1}})
	if d := r.data("its end", last); d.Code != mariposa.Conflict {
		t.Errorf("of a dummy it said %+v", d)
	}
}

var _ driver.Execer = (*inhabited)(nil)
