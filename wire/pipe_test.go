package wire_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"mariposa/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair opens a WebSocket over loopback and hands out both ends.
func pair(t *testing.T) (near, far *websocket.Conn) {
	t.Helper()
	got := make(chan *websocket.Conn, 1)
	end := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		got <- c
		<-end
	}))
	client := &http.Client{Transport: &http.Transport{}}
	far, _, err := websocket.Dial(t.Context(), strings.Replace(srv.URL, "http", "ws", 1), &websocket.DialOptions{HTTPClient: client})
	if err != nil {
		t.Fatal(err)
	}
	near = <-got
	t.Cleanup(func() {
		_ = far.CloseNow()
		_ = near.CloseNow()
		close(end)
		srv.Close()
		client.CloseIdleConnections()
	})
	return near, far
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestFramesArriveInTheOrderTheyWereSent(t *testing.T) {
	ctx := soon(t)
	near, far := pair(t)
	a, b := wire.NewPipe(ctx, near), wire.NewPipe(ctx, far)
	defer b.Close()
	defer a.Close()
	const n = 5000
	for i := range int64(n) {
		a.Send(wire.Frame{Seq: i + 1, Beat: &wire.Beat{Seen: i}})
	}
	for i := range int64(n) {
		f, err := b.Read(ctx)
		if err != nil || f.Seq != i+1 || f.Beat == nil || f.Beat.Seen != i {
			t.Fatalf("frame %d: %+v, %v", i+1, f, err)
		}
	}
	b.Send(wire.Frame{Seq: 1, Beat: &wire.Beat{Seen: n}})
	if f, err := a.Read(ctx); err != nil || f.Beat.Seen != n {
		t.Fatalf("the way back: %+v, %v", f, err)
	}
}

func TestCloseWritesWhatIsInLineFirst(t *testing.T) {
	ctx := soon(t)
	near, far := pair(t)
	a, b := wire.NewPipe(ctx, near), wire.NewPipe(ctx, far)
	defer b.Close()
	for i := range int64(300) {
		a.Send(wire.Frame{Seq: i + 1, Beat: &wire.Beat{}})
	}
	a.Close()
	a.Close() // twice is as good as once
	a.Send(wire.Frame{Seq: 301, Beat: &wire.Beat{}})
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
		near, far := pair(t)
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
	near, far := pair(t)
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
	near, _ := pair(t) // the far end never reads
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
	near, far := pair(t)
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
	near, far := pair(t)
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
	near, far := pair(t)
	a := wire.NewPipe(ctx, near)
	defer a.Close()
	_ = far.CloseNow()
	if _, err := a.Read(ctx); err == nil || errors.Is(err, net.ErrClosed) && ctx.Err() != nil {
		t.Fatalf("got %v", err)
	}
}
