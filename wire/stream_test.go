package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/wire"
	"mariposa/wire/wiretest"
)

// window is how many bytes of one stream may be in transit.
const window = 256 << 10

func dial(t *testing.T, p *wire.Pipe, o wire.Open) *wire.Stream {
	t.Helper()
	s, err := p.Dial(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAStreamGoesBothWays(t *testing.T) {
	t.Parallel()
	p, _ := wiretest.Streams(t, func(s *wire.Stream) {
		defer s.Close()
		for m, err := s.Receive(); err == nil; m, err = s.Receive() {
			_ = s.Send(m)
			if m.Last {
				return
			}
		}
	})
	open := wire.Open{Instance: "i1", LogOptions: mariposa.LogOptions{Tail: -1}, Command: []string{"a b"}, Terminal: &wire.Size{Rows: 1, Cols: 2}}
	s := dial(t, p, open)
	if m, err := s.Receive(); err != nil || !reflect.DeepEqual(m, wire.Message{Open: &open}) {
		t.Fatalf("it was opened with %+v (%v)", m, err)
	}
	text := bytes.Repeat([]byte("0123456789abcdef"), window/4)
	go func() {
		_, _ = s.Write(text)
		_ = s.Send(wire.Message{Last: true, Exit: 3, Error: "\x00", Code: mariposa.Conflict, Stderr: true, Signal: 9})
	}()
	var got []byte
	m, err := s.Receive()
	for ; err == nil && !m.Last; m, err = s.Receive() {
		if len(m.Bytes) > wire.MaxPiece {
			t.Fatalf("a message of %d bytes", len(m.Bytes))
		}
		got = append(got, m.Bytes...)
	}
	if !bytes.Equal(got, text) {
		t.Errorf("%d bytes came back of %d, or others", len(got), len(text))
	}
	if err != nil || m.Exit != 3 || m.Error != "\x00" || m.Code != mariposa.Conflict || !m.Stderr || m.Signal != 9 {
		t.Errorf("it ended with %+v (%v)", m, err)
	}
	if _, err := s.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after its end: %v", err)
	}
}

// A reader that never reads blocks only its own stream: neither frames nor other streams
// wait, and no more than its window is kept.
func TestASlowReaderHoldsUpItsOwnStreamAlone(t *testing.T) {
	t.Parallel()
	ctx := soon(t)
	a, b := wiretest.Pair(t)
	near, far := wire.NewPipe(ctx, a), wire.NewPipe(ctx, b)
	defer near.Close()
	defer far.Close()
	var flooded atomic.Int64
	var full sync.WaitGroup
	const idle = 40
	full.Add(idle)
	far.Accept(func(s *wire.Stream) {
		defer s.Close()
		if m, err := s.Receive(); err != nil || m.Open.Instance == "quick" {
			_, _ = s.Write([]byte("here"))
			return
		}
		for sent := 0; ; sent += wire.MaxPiece {
			if sent == window/2 {
				full.Done()
			}
			if _, err := s.Write(make([]byte, wire.MaxPiece)); err != nil {
				return
			}
			flooded.Add(wire.MaxPiece)
		}
	})
	frames := make(chan wire.Frame, 1000)
	go func() { _ = wiretest.Drain(ctx, near, func(f wire.Frame) { frames <- f }) }()
	go func() { _ = wiretest.Drain(ctx, far, nil) }()
	for range idle {
		dial(t, near, wire.Open{Instance: "flood"})
	}
	awaitAll(t, &full)
	for range 500 {
		far.Send(wire.Frame{Seq: 1, Heartbeat: &wire.Heartbeat{}})
	}
	for range 500 {
		await(t, frames)
	}
	if m, err := dial(t, near, wire.Open{Instance: "quick"}).Receive(); string(m.Bytes) != "here" || err != nil {
		t.Errorf("beside the others came %q (%v)", m.Bytes, err)
	}
	if n := flooded.Load(); n > idle*window {
		t.Errorf("%d bytes were taken for streams without a reader", n)
	}
}

// Waiting senders return at once when their connection ends. Without a deadline they used
// to spin until the connection was closed, which took many seconds on a busy machine:
// yamux wakes them before it closes their streams. Not parallel, because it measures the
// process.
func TestWhoWaitsToSendEndsQuicklyWithTheConnection(t *testing.T) {
	const streams = 40
	var full, ended sync.WaitGroup
	full.Add(streams)
	ended.Add(streams)
	p, _ := wiretest.Streams(t, func(s *wire.Stream) {
		defer ended.Done()
		defer s.Close()
		for sent := 0; ; sent += wire.MaxPiece {
			if sent == window/2 {
				full.Done()
			}
			if _, err := s.Write(make([]byte, wire.MaxPiece)); err != nil {
				return
			}
		}
	})
	for range streams {
		dial(t, p, wire.Open{})
	}
	awaitAll(t, &full)
	before := processorTime(t)
	p.Close()
	awaitAll(t, &ended)
	if took := processorTime(t) - before; took > 2*time.Second {
		t.Errorf("to end %d streams took %v of processor time", streams, took)
	}
}

// processorTime is the CPU time that this process has used so far.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestFramesComeBeforeTheStreamsThatAreOpenedAfterThem(t *testing.T) {
	t.Parallel()
	ctx := soon(t)
	a, b := wiretest.Pair(t)
	near, far := wire.NewPipe(ctx, a), wire.NewPipe(ctx, b)
	defer near.Close()
	defer far.Close()
	var seen atomic.Int64
	at := make(chan int64, 1)
	far.Accept(func(s *wire.Stream) {
		defer s.Close()
		at <- seen.Load()
	})
	go func() { _ = wiretest.Drain(ctx, near, nil) }()
	go func() { _ = wiretest.Drain(ctx, far, func(wire.Frame) { seen.Add(1) }) }()
	for n := int64(1); n <= 5; n++ {
		for range 1000 {
			near.Send(wire.Frame{Seq: 1, Heartbeat: &wire.Heartbeat{}})
		}
		dial(t, near, wire.Open{Instance: "i1"})
		if got := await(t, at); got < 1000*n {
			t.Fatalf("a stream came after %d frames of %d", got, 1000*n)
		}
	}
}

// Calls that wait on a stream return at its end, whichever side closes it, and when the
// connection is lost or closed.
func TestNobodyWaitsForAStreamThatHasEnded(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *wire.Stream, p *wire.Pipe, cut func()){
		"closed":                   func(s *wire.Stream, _ *wire.Pipe, _ func()) { _ = s.Close() },
		"the connection is lost":   func(_ *wire.Stream, _ *wire.Pipe, cut func()) { cut() },
		"the connection is closed": func(_ *wire.Stream, p *wire.Pipe, _ func()) { p.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all sync.WaitGroup
			busy := make(chan struct{}, 2)
			wait := func(s *wire.Stream) {
				all.Go(func() {
					for {
						if _, err := s.Receive(); err != nil {
							_ = s.Close() // as both sides do
							return
						}
					}
				})
				all.Go(func() {
					for sent := 0; s.Send(wire.Message{Bytes: make([]byte, wire.MaxPiece)}) == nil; sent++ {
						if sent == 2*window/wire.MaxPiece {
							busy <- struct{}{}
						}
					}
				})
			}
			p, cut := wiretest.Streams(t, wait)
			s := dial(t, p, wire.Open{})
			wait(s)
			await(t, busy)
			await(t, busy)
			end(s, p, cut)
			awaitAll(t, &all)
			if _, err := s.Receive(); err == nil {
				t.Error("it can still be read")
			}
			if err := s.Send(wire.Message{}); err == nil {
				t.Error("it still sends")
			}
		})
	}
}

func TestWhatIsClosedStaysClosed(t *testing.T) {
	t.Parallel()
	p, _ := wiretest.Streams(t, func(s *wire.Stream) {
		_, _ = s.Receive()
		_, _ = s.Receive()
		_ = s.Close()
	})
	s := dial(t, p, wire.Open{})
	_ = s.Close()
	_ = s.Close()
	if _, err := s.Receive(); !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, io.EOF) {
		t.Errorf("closed here: %v", err)
	}
	p.Close()
	if _, err := p.Dial(wire.Open{}); err == nil {
		t.Error("a closed pipe opens streams")
	}
}

// A peer that keeps sending does not keep its reader beyond the end.
func TestAClosedStreamIsNotReadOn(t *testing.T) {
	t.Parallel()
	full := make(chan struct{})
	p, _ := wiretest.Streams(t, func(s *wire.Stream) {
		for sent := 0; ; sent += wire.MaxPiece {
			if sent == window/2 {
				close(full)
			}
			if _, err := s.Write(make([]byte, wire.MaxPiece)); err != nil {
				return
			}
		}
	})
	s := dial(t, p, wire.Open{})
	await(t, full)
	if _, err := s.Receive(); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	if m, err := s.Receive(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("closed, it brings %d bytes (%v)", len(m.Bytes), err)
	}
}

// Streams that a node never closes are not kept open for it.
func TestAClosedStreamIsForgottenSoon(t *testing.T) {
	t.Parallel()
	cut := make(chan error, 1)
	p, _ := wiretest.Streams(t, func(s *wire.Stream) {
		for {
			if _, err := s.Write(make([]byte, wire.MaxPiece)); err != nil {
				cut <- err
				return
			}
		}
	})
	_ = dial(t, p, wire.Open{}).Close()
	select {
	case <-cut:
	case <-soon(t).Done():
		t.Error("it is kept")
	}
}

func TestAMessageBeyondTheBoundIsRefused(t *testing.T) {
	t.Parallel()
	p, _ := wiretest.Streams(t, func(s *wire.Stream) {
		defer s.Close()
		_ = s.Send(wire.Message{Error: strings.Repeat("x", 2<<20)})
	})
	if m, err := dial(t, p, wire.Open{}).Receive(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %d bytes, %v", len(m.Error), err)
	}
}

// A peer that breaks the rules of the streams loses its connection.
func TestAPeerThatBreaksTheRulesIsCutOff(t *testing.T) {
	t.Parallel()
	data := func(stream, length uint32) []byte { // yamux: version, type, flags, stream, length
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{0, 0, 0, 0}, stream), length)
	}
	for name, c := range map[string]struct {
		open bool // there is a stream already
		say  []byte
	}{
		"a stream that was not opened":       {false, data(1, 0)},
		"nonsense":                           {true, []byte("this is no message of the streams")},
		"more than the window":               {true, append(data(1, window+1), make([]byte, window+1)...)},
		"a ping, which takes a goroutine":    {true, []byte{0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}},
		"a ping after data":                  {true, append(append(data(7, 5), "12345"...), 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)},
		"that it wants no more streams":      {true, []byte{0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		"a stream that is not its to open":   {true, []byte{0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0}},
		"a stream that there is, once again": {true, []byte{0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := soon(t)
			a, far := wiretest.Pair(t)
			near := wire.NewPipe(ctx, a)
			defer near.Close()
			ended := make(chan error, 1)
			go func() { ended <- wiretest.Drain(ctx, near, nil) }()
			go func() { // it reads and ignores everything
				for {
					if _, _, err := far.Read(ctx); err != nil {
						return
					}
				}
			}()
			var s *wire.Stream
			if c.open {
				s = dial(t, near, wire.Open{})
			}
			_ = far.Write(ctx, websocket.MessageBinary, c.say) // the connection may be cut meanwhile
			if err := <-ended; err == nil || ctx.Err() != nil {
				t.Errorf("it goes on: %v", err)
			}
			near.Close()
			if c.open {
				if _, err := s.Receive(); err == nil {
					t.Error("its stream goes on")
				}
			}
		})
	}
}
