package wire_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mariposa/leaktest"
	"mariposa/wire"
	"mariposa/wire/wiretest"
)

// A machine that stops for half a minute, as virtual ones do, must not end connections.
func TestMain(m *testing.M) {
	wire.WriteWithin(patience)
	leaktest.Main(m)
}

// patience is longer than any test takes: only one that hangs gets there.
const patience = 4 * time.Minute

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// await waits for a value, or for the channel to be closed.
func await[T any](t *testing.T, c <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-c:
	case <-soon(t).Done():
		t.Fatal("nothing came")
	}
	return value
}

// awaitAll waits for a group.
func awaitAll(t *testing.T, group *sync.WaitGroup) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	await(t, done)
}

func crash(seq int64) wire.Frame { return wire.Frame{Seq: seq, Crash: &wire.Crash{Instance: "a"}} }

func TestFramesArriveInTheOrderTheyWereSent(t *testing.T) {
	ctx := soon(t)
	near, far := wiretest.Pair(t)
	a, b := wire.NewPipe(ctx, near), wire.NewPipe(ctx, far)
	defer b.Close()
	defer a.Close()
	const n = 5000
	for i := range int64(n) {
		a.Send(crash(i + 1))
	}
	for i := range int64(n) {
		f, err := b.Read(ctx)
		if err != nil || f.Seq != i+1 || f.Crash == nil {
			t.Fatalf("frame %d: %+v, %v", i+1, f, err)
		}
	}
	b.Send(crash(1))
	if f, err := a.Read(ctx); err != nil || f.Crash == nil {
		t.Fatalf("the way back: %+v, %v", f, err)
	}
}

func TestCloseWritesWhatIsInLineFirst(t *testing.T) {
	ctx := soon(t)
	near, far := wiretest.Pair(t)
	a, b := wire.NewPipe(ctx, near), wire.NewPipe(ctx, far)
	defer b.Close()
	for i := range int64(300) {
		a.Send(crash(i + 1))
	}
	a.Close()
	a.Close() // a second call is harmless
	a.Send(crash(301))
	for i := range int64(300) {
		if f, err := b.Read(ctx); err != nil || f.Seq != i+1 {
			t.Fatalf("frame %d: %+v, %v", i+1, f, err)
		}
	}
	_, err := b.Read(ctx)
	if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Fatalf("after the last frame: %v", err)
	}
}

func TestTheLastWordIsWrittenThoughTheContextEndsWithIt(t *testing.T) {
	for range 20 { // it was a race
		near, far := wiretest.Pair(t)
		ctx, cancel := context.WithCancel(soon(t))
		a, b := wire.NewPipe(ctx, near), wire.NewPipe(soon(t), far)
		a.Send(wire.Frame{Seq: 1, Bye: &wire.Bye{Reason: "no", Final: true}})
		a.Close()
		cancel()
		f, err := b.Read(soon(t))
		if err != nil || f.Bye == nil || !f.Bye.Final {
			t.Fatalf("got %+v, %v", f, err)
		}
		b.Close()
	}
}

func TestTheEndOfTheContextEndsTheConnection(t *testing.T) {
	near, far := wiretest.Pair(t)
	ctx, cancel := context.WithCancel(soon(t))
	wire.NewPipe(ctx, near)
	b := wire.NewPipe(soon(t), far)
	defer b.Close()
	cancel()
	if _, err := b.Read(soon(t)); err == nil {
		t.Fatal("the other side is still there")
	}
}

func TestAPeerThatDoesNotReadIsCutOff(t *testing.T) {
	ctx := soon(t)
	near, _ := wiretest.Pair(t) // the far end never reads
	a := wire.NewPipe(ctx, near)
	defer a.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := a.Read(ctx)
		ended <- err
	}()
	big := strings.Repeat("x", 32<<10)
	for sent := 0; ; sent++ {
		select {
		case err := <-ended:
			if err == nil {
				t.Fatal("the peer said something")
			}
			if ctx.Err() != nil {
				t.Fatalf("not cut off after %d frames", sent)
			}
			return
		default:
			a.Send(wire.Frame{Seq: 1, Bye: &wire.Bye{Reason: big}})
		}
	}
}

func TestAFrameBeyondTheBoundEndsTheConnection(t *testing.T) {
	ctx := soon(t)
	near, far := wiretest.Pair(t)
	a := wire.NewPipe(ctx, near)
	defer a.Close()
	go func() { // the refusal may come before everything is written
		_ = far.Write(ctx, websocket.MessageText, []byte(`{"seq":1,"bye":{"reason":"`+strings.Repeat("x", wire.MaxFrame)+`"}}`))
		_, _, _ = far.Read(ctx)
	}()
	_, err := a.Read(ctx)
	if websocket.CloseStatus(err) != websocket.StatusMessageTooBig && !errors.Is(err, websocket.ErrMessageTooBig) {
		t.Fatalf("got %v", err)
	}
}

func TestWhatIsNoFrameIsAnError(t *testing.T) {
	ctx := soon(t)
	near, far := wiretest.Pair(t)
	a := wire.NewPipe(ctx, near)
	defer a.Close()
	if err := far.Write(ctx, websocket.MessageBinary, []byte("\x00\x01")); err != nil {
		t.Fatal(err)
	}
	if f, err := a.Read(ctx); err == nil {
		t.Fatalf("got %+v", f)
	}
}

func TestReadingFromABrokenConnectionIsAnError(t *testing.T) {
	ctx := soon(t)
	near, far := wiretest.Pair(t)
	a := wire.NewPipe(ctx, near)
	defer a.Close()
	_ = far.CloseNow()
	if _, err := a.Read(ctx); err == nil || errors.Is(err, net.ErrClosed) && ctx.Err() != nil {
		t.Fatalf("got %v", err)
	}
}
