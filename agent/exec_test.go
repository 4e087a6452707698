package agent_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// execDriver is a driver whose commands are simulated by tests.
type execDriver struct {
	*manualDriver
	fail     error
	sessions chan *fakeSession
}

func (h *execDriver) Exec(ctx context.Context, i driver.Instance, o driver.ExecOptions) (driver.Session, error) {
	if h.fail != nil {
		return nil, h.fail
	}
	s := &fakeSession{ctx: ctx, instance: i, options: o, ended: make(chan error, 1), read: make(chan []byte), sizes: make(chan driver.Size, 9), signals: make(chan syscall.Signal, 9)}
	s.out, s.outW = io.Pipe()
	s.errs, s.errsW = io.Pipe()
	context.AfterFunc(ctx, func() { s.end(ctx.Err()) })
	h.sessions <- s
	return s, nil
}

// fakeSession is a command that a test simulates.
type fakeSession struct {
	ctx         context.Context //nolint:containedctx // checked by tests
	instance    driver.Instance
	options     driver.ExecOptions
	out, errs   *io.PipeReader
	outW, errsW *io.PipeWriter
	read        chan []byte // its input, with an empty one at the end
	sizes       chan driver.Size
	signals     chan syscall.Signal
	ended       chan error
	once        sync.Once
}

func (s *fakeSession) end(err error) {
	s.once.Do(func() {
		_, _ = s.outW.Close(), s.errsW.Close()
		s.ended <- err
	})
}
func (s *fakeSession) Stdout() io.Reader             { return s.out }
func (s *fakeSession) Stderr() io.Reader             { return s.errs }
func (s *fakeSession) Resize(z driver.Size) error    { s.sizes <- z; return nil }
func (s *fakeSession) Signal(n syscall.Signal) error { s.signals <- n; return nil }
func (s *fakeSession) Close() error                  { s.end(nil); return nil }
func (s *fakeSession) CloseWrite() error             { _, err := s.Write(nil); return err }
func (s *fakeSession) Wait() (int, error)            { return 7, <-s.ended }
func (s *fakeSession) Write(p []byte) (n int, e error) {
	select {
	case s.read <- bytes.Clone(p):
		return len(p), nil
	case <-s.ctx.Done():
		return 0, io.ErrClosedPipe
	}
}

// newExecRig returns a rig with one instance that can run commands.
func newExecRig(t *testing.T) (*rig, *execDriver) {
	h := &execDriver{manualDriver: &manualDriver{}, sessions: make(chan *fakeSession, 9)}
	r := newRig(t, h)
	r.connect(wanted("i1", 1, processWork()))
	r.end(h.manualDriver, "start", "i1", driver.Observed{Running: true, PhysicalID: "p"}, nil)
	return r, h
}

// exec runs a command, with a stream for its input.
func (r *rig) exec(h *execDriver, p *wire.Pipe, o wire.Open) (control, input *wire.Stream, s *fakeSession) {
	r.t.Helper()
	o.Instance = "i1"
	control = r.ask(p, o)
	s = await(r, "the command", h.sessions)
	if m := r.next(control); !reflect.DeepEqual(m, wire.Message{}) {
		r.t.Fatalf("instead of that it runs came %+v", m)
	}
	return control, r.ask(p, wire.Open{Input: control.Number()}), s
}

func TestACommandInsideGoesBothWays(t *testing.T) {
	t.Parallel()
	r, h := newExecRig(t)
	p, _ := r.plug()
	control, input, s := r.exec(h, p, wire.Open{Command: []string{"a", "b"}, Terminal: &wire.Size{Rows: 24, Cols: 80}})
	if s.instance.ID != "i1" || s.instance.Workload == nil || len(s.options.Command) != 2 || *s.options.Terminal != (driver.Size{Rows: 24, Cols: 80}) || s.options.Environment[0].Name != "TERM" {
		t.Errorf("it got %+v in %+v", s.options, s.instance)
	}
	_, _ = input.Write([]byte("hello"))
	_ = input.Send(wire.Message{Last: true})
	_ = control.Send(wire.Message{Terminal: &wire.Size{Rows: 1, Cols: 2}, Signal: 15})
	if got := <-s.read; string(got) != "hello" {
		t.Errorf("it read %q", got)
	}
	if got := <-s.read; len(got) != 0 {
		t.Errorf("after the end it read %q", got)
	}
	if z, n := <-s.sizes, <-s.signals; z != (driver.Size{Rows: 1, Cols: 2}) || n != syscall.SIGTERM {
		t.Errorf("it got %v and %v", z, n)
	}
	go func() {
		_, _ = io.WriteString(s.outW, "out")
		_, _ = io.WriteString(s.errsW, "err")
		s.end(nil)
	}()
	end, said := r.ends(control)
	if end.Exit != 7 || end.Error != "" || len(said) != 2 {
		t.Errorf("it said %+v and ended with %+v", said, end)
	}
	for _, m := range said {
		if want := map[bool]string{false: "out", true: "err"}[m.Stderr]; string(m.Bytes) != want {
			t.Errorf("it said %q instead of %q", m.Bytes, want)
		}
	}
}

func TestOutputThatNobodyTakesIsNotRead(t *testing.T) {
	t.Parallel()
	r, h := newExecRig(t)
	p, _ := r.plug()
	control, _, s := r.exec(h, p, wire.Open{Command: []string{"flood"}})
	full, written := make(chan bool, 1), make(chan int, 1)
	go func() {
		n := 0
		for ; ; n++ {
			if n == 5 {
				full <- true
			}
			if _, err := s.outW.Write(make([]byte, wire.MaxPiece)); err != nil {
				break
			}
		}
		written <- n
	}()
	await(r, "as much as there is room for", full)
	_ = control.Close()
	if n := await(r, "its end", written); n > 10 {
		t.Errorf("%d pieces were made for a peer that reads none", n)
	}
}

// A command that does not read blocks its input, and nothing else.
func TestACommandThatDoesNotReadCanStillBeSteeredAndEnded(t *testing.T) {
	t.Parallel()
	r, h := newExecRig(t)
	p, _ := r.plug()
	control, input, s := r.exec(h, p, wire.Open{Command: []string{"deaf"}})
	full, refused := make(chan bool, 1), make(chan int, 1)
	go func() {
		n := 0
		for ; ; n++ {
			if n == 5 {
				full <- true
			}
			if _, err := input.Write(make([]byte, wire.MaxPiece)); err != nil {
				break
			}
		}
		refused <- n
	}()
	await(r, "as much as there is room for", full)
	_ = control.Send(wire.Message{Signal: 2})
	if n := await(r, "a signal", s.signals); n != syscall.SIGINT {
		t.Errorf("it got %v", n)
	}
	_ = control.Close()
	await(r, "its end", s.ctx.Done())
	_ = input.Close()
	if n := await(r, "the end of its input", refused); n < 5 {
		t.Errorf("%d pieces were taken", n)
	}
}

func TestACommandEndsWithWhoAskedForIt(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(control *wire.Stream, cut func()){
		"closed":                       func(control *wire.Stream, _ func()) { _ = control.Close() },
		"the connection is lost":       func(_ *wire.Stream, cut func()) { cut() },
		"a larger message than may be": func(control *wire.Stream, _ func()) { go control.Send(wire.Message{Bytes: make([]byte, 2<<20)}) }, // nothing reads all of it
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, h := newExecRig(t)
			p, cut := r.plug()
			control, _, s := r.exec(h, p, wire.Open{Command: []string{"a"}})
			end(control, cut)
			await(r, "its end", s.ctx.Done())
		})
	}
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
		"the instance has ended": {driver.ErrNotFound, "i1", mariposa.Conflict, "the instance is not running"},
		"not in this kind":       {driver.ErrNotSupported, "i1", mariposa.Conflict, driver.ErrNotSupported.Error()},
		"something else":         {errBroken, "i1", "", errBroken.Error()},
		"it is unknown":          {nil, "i2", mariposa.Unavailable, "the instance is not on this node"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, h := newExecRig(t)
			h.fail = c.fail
			p, _ := r.plug()
			if end, said := r.ends(r.ask(p, wire.Open{Instance: c.instance, Command: []string{"a"}})); end.Error != c.says || end.Code != c.code || said != nil {
				t.Errorf("it said %v and %+v", said, end)
			}
		})
	}
	r := newRig(t)
	r.connect(wanted("d1", 1, dummyWork()))
	p, _ := r.plug()
	if end, _ := r.ends(r.ask(p, wire.Open{Instance: "d1", Command: []string{"a"}})); end.Code != mariposa.Conflict || !strings.Contains(end.Error, "dummy") {
		t.Errorf("of a dummy it said %+v", end)
	}
}

var _ driver.Execer = (*execDriver)(nil)
