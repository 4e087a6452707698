package fleet_test

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"mariposa"
	"mariposa/fleet"
	"mariposa/wire"
)

type opened struct {
	shell *fleet.Shell
	err   error
}

// exec runs a command in the background, because it waits for the node.
func (p *testServer) exec(ctx context.Context) <-chan opened {
	done := make(chan opened, 1)
	go func() {
		x, err := p.fleet.Exec(ctx, "n1", "i1", []string{"a"}, nil)
		done <- opened{x, err}
	}()
	return done
}

// begun returns a node with a running command, and its streams.
func begun(t *testing.T) (p *testServer, a *player, x *fleet.Shell, control, input played) {
	t.Helper()
	p, a = play(t)
	asked := p.exec(p.ctx)
	control = a.next()
	if o := control.open; o.Instance != "i1" || len(o.Command) != 1 {
		t.Fatalf("asked %+v", o)
	}
	_ = control.Send(wire.Message{})
	o := come(p, "the command", asked)
	if o.err != nil {
		t.Fatal(o.err)
	}
	input = a.next()
	if input.open.Input != control.Number() {
		t.Fatalf("its input is opened with %+v", input.open)
	}
	return p, a, o.shell, control, input
}

func TestACommandOnANodeIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	p, _, x, control, input := begun(t)
	x.Resize(wire.Size{Rows: 1, Cols: 2})
	x.Signal(15)
	_, _ = x.Write([]byte("in"))
	x.CloseWrite()
	for _, c := range []struct {
		to   played
		want wire.Message
	}{
		{control, wire.Message{Terminal: &wire.Size{Rows: 1, Cols: 2}}},
		{control, wire.Message{Signal: 15}},
		{input, wire.Message{Bytes: []byte("in")}},
		{input, wire.Message{Last: true}},
	} {
		if m, err := c.to.Receive(); !reflect.DeepEqual(m, c.want) || err != nil {
			t.Errorf("the node got %+v (%v), want %+v", m, err, c.want)
		}
	}
	_, _ = control.Write([]byte("out"))
	_ = control.Send(wire.Message{Bytes: []byte("err"), Stderr: true})
	_ = control.Send(wire.Message{Last: true, Exit: 7})
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
	control.wantEnd(p)
	input.wantEnd(p)
}

func TestInputWaitsForTheNode(t *testing.T) {
	t.Parallel()
	p, _, x, control, input := begun(t)
	const size = 20 * wire.MaxPiece
	done := make(chan error, 1)
	write := func() {
		_, err := x.Write(make([]byte, size))
		done <- err
	}
	go write()
	got := 0
	for got < size {
		select {
		case err := <-done:
			if got < size/2 {
				t.Fatalf("everything was written when the node had taken %d bytes: %v", got, err)
			}
			done <- err
		default:
		}
		m, err := input.Receive()
		if err != nil {
			t.Fatal(err)
		}
		got += len(m.Bytes)
	}
	if err := come(p, "the end of the input", done); err != nil {
		t.Error(err)
	}
	go write() // the node reads none of it
	x.Close()
	if err := come(p, "the end of the input", done); err == nil {
		t.Error("what is closed takes input")
	}
	control.wantEnd(p)
	input.wantCut(p)
}

func TestACommandThatIsNotRunSaysWhy(t *testing.T) {
	t.Parallel()
	if _, err := newRig(t).fleet.Exec(t.Context(), "n1", "i1", nil, nil); mariposa.CodeOf(err) != mariposa.Unavailable {
		t.Errorf("without a node: %v", err)
	}
	p, a := play(t)
	for _, c := range []struct{ code, want mariposa.Code }{{mariposa.Conflict, mariposa.Conflict}, {"", mariposa.Unavailable}} {
		asked := p.exec(p.ctx)
		s := a.next()
		_ = s.Send(wire.Message{Last: true, Error: "no", Code: c.code})
		if o := come(p, "an answer", asked); mariposa.CodeOf(o.err) != c.want || !strings.Contains(o.err.Error(), "no") {
			t.Errorf("it said %v", o.err)
		}
		s.wantEnd(p)
	}
	ctx, cancel := context.WithCancel(p.ctx)
	asked := p.exec(ctx)
	s := a.next()
	cancel()
	if o := come(p, "an answer", asked); mariposa.CodeOf(o.err) != mariposa.Unavailable || !strings.Contains(o.err.Error(), "node n1") || strings.Contains(o.err.Error(), "context") {
		t.Errorf("given up, it said %v", o.err)
	}
	s.wantEnd(p)
}

func TestACommandEndsWithTheNodesConnection(t *testing.T) {
	t.Parallel()
	_, a, x, _, _ := begun(t)
	_ = a.conn.CloseNow()
	if _, _, err := x.Read(); mariposa.CodeOf(err) != mariposa.Unavailable || !strings.Contains(err.Error(), "n1") || !strings.Contains(err.Error(), "lost") {
		t.Errorf("it ended with %v", err)
	}
}
