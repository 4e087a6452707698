package fleet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/wire"
	"mariposa/wire/wiretest"
)

// player is an agent that a test simulates, over a real connection.
type player struct {
	p      *testServer
	conn   *websocket.Conn
	opened chan played // in the order of arrival
	gone   chan error  // why the connection to the control plane ended
}

// played is the node's end of a stream.
type played struct {
	*wire.Stream
	open wire.Open
}

// play connects a node that only sends heartbeats and what the test decides.
func play(t *testing.T) (*testServer, *player) {
	t.Helper()
	return playAs(t, hello("n1"))
}

func playAs(t *testing.T, h *wire.Hello) (*testServer, *player) {
	t.Helper()
	p := newTestServer(t, time.Hour)
	pipe, conn := p.dial()
	a := &player{p: p, conn: conn, opened: make(chan played, 200), gone: make(chan error, 1)}
	pipe.Accept(func(s *wire.Stream) {
		if m, err := s.Receive(); err == nil && m.Open != nil {
			a.opened <- played{s, *m.Open}
		}
	})
	pipe.Send(wire.Frame{Seq: 1, Hello: h})
	go func() {
		defer pipe.Close()
		a.gone <- wiretest.Drain(p.ctx, pipe, nil)
	}()
	p.until("the node joins", func() bool { return p.epoch("n1") == 1 })
	return p, a
}

// next returns the next stream that the control plane opens.
func (a *player) next() played {
	a.p.t.Helper()
	return come(a.p, "a stream", a.opened)
}

func come[T any](p *testServer, what string, from <-chan T) T {
	p.t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(time.Minute):
		p.t.Fatalf("%s never came", what)
		panic("unreachable")
	}
}

// wantEnd waits until the control plane has closed a stream.
func (s played) wantEnd(p *testServer) {
	p.t.Helper()
	if err := s.awaitEnd(p); !errors.Is(err, io.EOF) {
		p.t.Errorf("it ended with %v", err)
	}
}

// wantCut waits until the control plane has closed a stream while it was sending: the last
// message may be incomplete.
func (s played) wantCut(p *testServer) {
	p.t.Helper()
	if err := s.awaitEnd(p); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		p.t.Errorf("it ended with %v", err)
	}
}

// awaitEnd reads a stream to its end and returns the error that ended it.
func (s played) awaitEnd(p *testServer) error {
	p.t.Helper()
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := s.Receive(); err != nil {
				ended <- err
				return
			}
		}
	}()
	err := come(p, "the end of a stream", ended)
	_ = s.Close()
	return err
}

func (p *testServer) logs(instance string) io.ReadCloser {
	p.t.Helper()
	log, err := p.fleet.Logs(p.ctx, "n1", instance, mariposa.LogOptions{Tail: 10, Follow: true})
	if err != nil {
		p.t.Fatal(err)
	}
	return log
}

func TestALogIsReadPieceByPiece(t *testing.T) {
	t.Parallel()
	p, a := play(t)
	log := p.logs("i1")
	s := a.next()
	if o := s.open; o.Instance != "i1" || o.Tail != 10 || !o.Follow || o.Usage || o.Command != nil {
		t.Fatalf("asked %+v", o)
	}
	_, _ = s.Write([]byte("hello "))
	_, _ = s.Write([]byte("world"))
	_ = s.Send(wire.Message{Last: true})
	_ = s.Close()
	b := make([]byte, 4)
	if n, err := log.Read(b); n != 4 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	rest, err := io.ReadAll(log)
	if string(b)+string(rest) != "hello world" || err != nil {
		t.Errorf("read %q, %v", string(b)+string(rest), err)
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
}

func TestClosingALogEndsItOnTheNode(t *testing.T) {
	t.Parallel()
	p, a := play(t)
	log := p.logs("i1")
	_ = log.Close()
	_ = log.Close()
	a.next().wantEnd(p)
	if _, err := log.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("it can still be read: %v", err)
	}
	ctx, cancel := context.WithCancel(p.ctx)
	log, err := p.fleet.Logs(ctx, "n1", "i1", mariposa.LogOptions{Tail: -1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	a.next().wantEnd(p)
	if _, err := log.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("after the end of the context: %v", err)
	}
}

func TestALogEndsWithItsSessionAndWithAnError(t *testing.T) {
	t.Parallel()
	p, a := play(t)
	one := p.logs("i1")
	a.next()
	two := p.logs("i2")
	s := a.next()
	_ = s.Send(wire.Message{Last: true, Error: "the instance is not on this node"})
	if _, err := two.Read(make([]byte, 1)); err == nil || err.Error() != "the instance is not on this node" {
		t.Errorf("read: %v", err)
	}
	three := p.logs("i3")
	_ = a.next().Close() // without a last message
	if _, err := three.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("half a log looks whole: %v", err)
	}
	_, session := p.fleet.LastHeard("n1")
	session.End("it was lost on request")
	if _, err := one.Read(make([]byte, 1)); err == nil || err.Error() != "it was lost on request" {
		t.Errorf("read: %v", err)
	}
	come(p, "the end of the connection", a.gone)
	if _, err := p.fleet.Logs(p.ctx, "n1", "i1", mariposa.LogOptions{Tail: 1, Follow: true}); err == nil {
		t.Error("a session that has ended opens logs")
	}
}

func TestANodeThatBreaksTheRulesOfStreamsLosesItsSession(t *testing.T) {
	t.Parallel()
	p, a := play(t)
	log := p.logs("i1")
	a.next()
	if err := a.conn.Write(p.ctx, websocket.MessageBinary, []byte("this is no message of the streams")); err != nil {
		t.Fatal(err)
	}
	if _, err := log.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "connection ended") && !strings.Contains(err.Error(), "unexpected stream message") {
		t.Errorf("read: %v", err)
	}
	come(p, "the end of the connection", a.gone)
}

func TestANodeCannotTellOfUsageWithoutEnd(t *testing.T) {
	t.Parallel()
	p, a := play(t)
	measured := make(chan error, 1)
	go func() {
		_, err := p.fleet.Usage(p.ctx, "n1", "i1")
		measured <- err
	}()
	s := a.next()
	endless := make(chan struct{})
	go func() {
		defer close(endless)
		_, err := s.Write([]byte(`{"x":"`))
		for sent := 0; err == nil && sent < 64<<20; sent += wire.MaxPiece {
			_, err = s.Write(bytes.Repeat([]byte("x"), wire.MaxPiece))
		}
	}()
	if err := come(p, "an answer", measured); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("measured: %v", err)
	}
	s.wantEnd(p)
	come(p, "the end of its output", endless)
}

// A node that does not read blocks callers no longer than they want to wait.
func TestOpeningAStreamEndsWithItsContext(t *testing.T) {
	t.Parallel()
	p := newTestServer(t, time.Hour)
	pipe, _ := p.dial()
	defer pipe.Close()
	pipe.Send(wire.Frame{Seq: 1, Hello: hello("n1")})
	p.until("the node joins", func() bool { return p.epoch("n1") == 1 })
	for range 256 { // the number of streams that may wait for the node
		p.logs("i1")
	}
	for name, open := range map[string]func(context.Context) error{
		"usage": func(ctx context.Context) error { _, err := p.fleet.Usage(ctx, "n1", "i1"); return err },
		"log": func(ctx context.Context) error {
			_, err := p.fleet.Logs(ctx, "n1", "i1", mariposa.LogOptions{Tail: 1, Follow: true})
			return err
		},
		"exec": func(ctx context.Context) error {
			_, err := p.fleet.Exec(ctx, "n1", "i1", []string{"a"}, nil)
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(p.ctx, 50*time.Millisecond)
		began := time.Now()
		if err := open(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "node n1 is connected but does not answer") || strings.Contains(err.Error(), "deadline") {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s took %v", name, took)
		}
		cancel()
	}
}
