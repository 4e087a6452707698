package wire_test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mariposa/wire"
	"mariposa/wire/wiretest"
)

// slowConn is a connection over which data arrives at a limited rate.
type slowConn struct{ net.Conn }

const slowRate = 1 << 20 // bytes per second

func (c slowConn) Read(b []byte) (int, error) {
	const atOnce = 8 << 10
	n, err := c.Conn.Read(b[:min(len(b), atOnce)])
	time.Sleep(time.Duration(n) * time.Second / slowRate)
	return n, err
}

// slowPair returns both ends of a connection. What is written to the first arrives slowly.
func slowPair(t *testing.T) (near, far *wire.Pipe) {
	t.Helper()
	got, end := make(chan *websocket.Conn, 1), make(chan struct{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		got <- c
		<-end
	}))
	srv.Listener = wire.Listener{Listener: srv.Listener}
	srv.Start()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return slowConn{conn}, conn.(*net.TCPConn).SetReadBuffer(16 << 10)
	}}}
	ws, _, err := websocket.Dial(t.Context(), strings.Replace(srv.URL, "http", "ws", 1), &websocket.DialOptions{HTTPClient: client})
	if err != nil {
		t.Fatal(err)
	}
	ctx := soon(t)
	near, far = wire.NewPipe(ctx, <-got), wire.NewPipe(ctx, ws)
	t.Cleanup(func() {
		_ = ws.CloseNow()
		near.Close()
		far.Close()
		close(end)
		srv.Close()
		client.CloseIdleConnections()
	})
	return near, far
}

// Megabytes are ahead of a heartbeat, which would take 20 s in line.
func TestAHeartbeatOvertakesFramesAndStreams(t *testing.T) {
	t.Parallel()
	near, far := slowPair(t)
	far.Accept(func(s *wire.Stream) { // logs that nobody asked to be short
		for {
			if _, err := s.Receive(); err != nil {
				return
			}
		}
	})
	near.Send(crash(1))
	if f, err := far.Read(soon(t)); err != nil || f.Seq != 1 {
		t.Fatalf("got %+v, %v", f, err)
	}
	s, err := near.Dial(wire.Open{Instance: "i1"})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = s.Write(make([]byte, 10<<20)) }() // fails when the connection ends
	for i := range int64(10) {
		near.Send(wire.Frame{Seq: i + 2, Bye: &wire.Bye{Reason: strings.Repeat("x", 1<<20)}})
	}
	for range 2 {
		time.Sleep(200 * time.Millisecond) // the buffers of the link fill up; the test is easier if not
		near.Send(wire.Frame{Heartbeat: &wire.Heartbeat{Sent: 11}})
	}
	for got := 0; got < 2; {
		f, err := far.Read(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		if got++; f.Heartbeat == nil || f.Heartbeat.Sent != 1 {
			t.Errorf("a large frame came first: %d %+v", f.Seq, f.Heartbeat)
		}
	}
}

func TestALargeFrameArrivesWhole(t *testing.T) {
	t.Parallel()
	long(t)
	ctx := soon(t)
	a, b := wiretest.Pair(t)
	near, far := wire.NewPipe(ctx, a), wire.NewPipe(ctx, b)
	defer near.Close()
	defer far.Close()
	for i, size := range []int{64<<10 - 100, 64 << 10, 3 * 64 << 10, wire.MaxFrame - 100} {
		text := strings.Repeat("ü+.", size/4)
		near.Send(wire.Frame{Seq: int64(i + 1), Bye: &wire.Bye{Reason: text}})
		near.Send(wire.Frame{Heartbeat: &wire.Heartbeat{}})
		for {
			f, err := far.Read(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if f.Heartbeat != nil {
				continue
			}
			if f.Seq != int64(i+1) || f.Bye.Reason != text {
				t.Errorf("a frame of %d bytes is damaged", size)
			}
			break
		}
	}
}

func TestPiecesBeyondTheBoundAreRefused(t *testing.T) {
	t.Parallel()
	long(t)
	ctx := soon(t)
	near, far := wiretest.Pair(t)
	a := wire.NewPipe(ctx, near)
	defer a.Close()
	piece := append([]byte("+"), bytes.Repeat([]byte("x"), 64<<10)...)
	go func() { // ends with the connection
		for far.Write(ctx, websocket.MessageText, piece) == nil {
		}
	}()
	if _, err := a.Read(ctx); err == nil || !strings.Contains(err.Error(), "exceeds the limit") {
		t.Errorf("got %v", err)
	}
}
