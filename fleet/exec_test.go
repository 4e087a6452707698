package fleet_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/fleet"
	"mariposa/wire"
)

type opened struct {
	shell *fleet.Shell
	err   error
}

// exec asks for a command in the background: it waits for the node's word.
func (r *rig) exec(ctx context.Context) <-chan opened {
	done := make(chan opened, 1)
	go func() {
		x, err := r.fleet.Exec(ctx, "n1", "i1", []string{"a"}, nil)
		done <- opened{x, err}
	}()
	return done
}

// execs waits for a frame about a command that will do.
func (p *peer) execs(what string, ok func(*wire.Exec) bool) *wire.Exec {
	p.r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) { // nothing wakes a test that plays an agent
		for _, f := range p.heard() {
			if f.Exec != nil && ok(f.Exec) {
				return f.Exec
			}
		}
	}
	p.r.t.Fatalf("the agent was never told: %s", what)
	return nil
}

// begun is a session with a command that runs.
func begun(t *testing.T) (*rig, *peer, *fleet.Shell, int64) {
	t.Helper()
	r := newRig(t)
	p := r.connect("n1")
	asked := r.exec(t.Context())
	x := p.execs("to run a command", func(x *wire.Exec) bool { return x.Instance == "i1" && x.Credit == wire.Window })
	p.say(wire.Frame{Data: &wire.Data{Stream: x.Stream, Credit: wire.Window}})
	r.run()
	o := <-asked
	if o.err != nil {
		t.Fatal(o.err)
	}
	return r, p, o.shell, x.Stream
}

func (p *peer) tell(d wire.Data) {
	p.say(wire.Frame{Data: &d})
	p.r.run()
}

func TestACommandOnANodeIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	_, p, x, stream := begun(t)
	code := 7
	p.tell(wire.Data{Stream: stream, Bytes: []byte("out")})
	p.tell(wire.Data{Stream: stream, Bytes: []byte("err"), Stderr: true})
	p.tell(wire.Data{Stream: stream, Last: true, Exit: &code})
	for _, want := range []string{"out", "err"} {
		if b, stderr, err := x.Read(); string(b) != want || stderr != (want == "err") || err != nil {
			t.Errorf("read %q (%v, %v), want %q", b, stderr, err, want)
		}
	}
	if _, _, err := x.Read(); !errors.Is(err, io.EOF) || x.Exit() != 7 {
		t.Errorf("it ended with %v, %d", err, x.Exit())
	}
	if _, err := x.Write([]byte("late")); err == nil {
		t.Error("what is over still reads")
	}
}

func TestInputWaitsForCredit(t *testing.T) {
	t.Parallel()
	_, p, x, stream := begun(t)
	done := make(chan error, 1)
	go func() {
		_, err := x.Write(make([]byte, (wire.Window+1)*wire.Piece))
		done <- err
	}()
	inputs := func() (n int) {
		for _, f := range p.heard() {
			if f.Exec != nil && len(f.Exec.Input) > 0 {
				n++
			}
		}
		return n
	}
	p.execs("all it takes", func(*wire.Exec) bool { return inputs() == wire.Window })
	select {
	case err := <-done:
		t.Fatalf("more was written than the node takes: %v", err)
	default:
	}
	p.tell(wire.Data{Stream: stream, Credit: 1})
	if err := <-done; err != nil || inputs() != wire.Window+1 {
		t.Errorf("%d pieces were sent, %v", inputs(), err)
	}
	go func() {
		_, err := x.Write([]byte("x"))
		done <- err
	}()
	x.Close()
	if err := <-done; err == nil {
		t.Error("what is closed takes input")
	}
	p.execs("to end it", func(x *wire.Exec) bool { return x.Cancel })
}

func TestANodeThatSendsMoreThanAskedForIsNotKept(t *testing.T) {
	t.Parallel()
	_, p, x, stream := begun(t)
	for range 4 * wire.Window {
		p.tell(wire.Data{Stream: stream, Bytes: make([]byte, 10)})
	}
	n := 0
	for {
		if _, _, err := x.Read(); err != nil {
			if errors.Is(err, io.EOF) {
				t.Error("a torn output looks whole")
			}
			break
		}
		n++
	}
	if n > 2*wire.Window+1 {
		t.Errorf("%d pieces were kept", n)
	}
	p.execs("to end it", func(x *wire.Exec) bool { return x.Cancel })
}

func TestACommandThatIsNotRunSaysWhy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.fleet.Exec(t.Context(), "n1", "i1", nil, nil); mariposa.CodeOf(err) != mariposa.Unavailable {
		t.Errorf("without a node: %v", err)
	}
	p := r.connect("n1")
	for _, c := range []struct{ code, want mariposa.Code }{{mariposa.Conflict, mariposa.Conflict}, {"", mariposa.Unavailable}} {
		asked := r.exec(t.Context())
		seen := int64(0)
		x := p.execs("to run a command", func(x *wire.Exec) bool { seen = max(seen, x.Stream); return x.Stream == r.lastStream+1 })
		r.lastStream = seen
		p.tell(wire.Data{Stream: x.Stream, Last: true, Error: "no", Code: c.code})
		if o := <-asked; mariposa.CodeOf(o.err) != c.want || !strings.Contains(o.err.Error(), "no") {
			t.Errorf("it said %v", o.err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked := r.exec(ctx)
	x := p.execs("to run a command", func(x *wire.Exec) bool { return x.Stream == r.lastStream+1 })
	cancel()
	if o := <-asked; mariposa.CodeOf(o.err) != mariposa.Unavailable {
		t.Errorf("given up, it said %v", o.err)
	}
	p.execs("to end it", func(e *wire.Exec) bool { return e.Cancel && e.Stream == x.Stream })
}

func TestACommandEndsWithTheNodesConnection(t *testing.T) {
	t.Parallel()
	_, p, x, _ := begun(t)
	p.session.End("its connection ended")
	if _, _, err := x.Read(); mariposa.CodeOf(err) != mariposa.Unavailable || !strings.Contains(err.Error(), "n1") {
		t.Errorf("it ended with %v", err)
	}
}
