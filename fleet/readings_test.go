package fleet_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mariposa/wire"
)

// joined connects a node and reads its welcome.
func (p *testServer) joined(node string) (*wire.Pipe, *websocket.Conn) {
	p.t.Helper()
	pipe, conn := p.dial()
	p.t.Cleanup(pipe.Close)
	pipe.Send(wire.Frame{Seq: 1, Hello: hello(node)})
	p.readUntil(pipe, func(f wire.Frame) bool { return f.Assign != nil && f.Assign.Last })
	return pipe, conn
}

func (p *testServer) readUntil(pipe *wire.Pipe, ok func(wire.Frame) bool) {
	p.t.Helper()
	for {
		f, err := pipe.Read(p.ctx)
		if err != nil {
			p.t.Fatal(err)
		}
		if ok(f) {
			return
		}
		if f.Bye != nil {
			p.t.Fatalf("the session ended: %s", f.Bye.Reason)
		}
	}
}

func (p *testServer) writeRaw(conn *websocket.Conn, frame string) {
	p.t.Helper()
	if err := conn.Write(p.ctx, websocket.MessageText, []byte(frame)); err != nil {
		p.t.Fatal(err)
	}
}

func TestAnAgentIsToldWhichBoundItsFrameExceeds(t *testing.T) {
	t.Parallel()
	p := newTestServer(t, time.Hour)
	pipe, conn := p.joined("n1")
	p.writeRaw(conn, `{"seq":2,"report":{"items":[`+strings.Repeat("{},", 30_000)+`{}]}}`)
	var why string
	p.readUntil(pipe, func(f wire.Frame) bool { // nothing else is sent: what the server has not read resets the connection
		if f.Bye != nil {
			why = f.Bye.Reason
		}
		return f.Bye != nil
	})
	if why != "the frame contains more than 20000 objects or 100000 values" {
		t.Errorf("the session ended with %q", why)
	}
}

// A node that floods the server is read slowly. It loses nothing, keeps its session, and
// gets no more by connecting again. Another node is read as before.
func TestANodeThatFloodsTheServerIsReadSlowly(t *testing.T) {
	t.Parallel()
	p := newTestServer(t, time.Hour)
	const burst, more = 2000, 300 // of which 200 are read per second
	first, conn := p.joined("n1")
	began := time.Now()
	flood := func(conn *websocket.Conn, n int) {
		for i := range n {
			p.writeRaw(conn, fmt.Sprintf(`{"seq":%d,"report":{}}`, i+2))
		}
	}
	answered := func(pipe *wire.Pipe) {
		t.Helper()
		pipe.Send(wire.Frame{Heartbeat: &wire.Heartbeat{}})
		p.readUntil(pipe, func(f wire.Frame) bool { return f.Heartbeat != nil })
	}
	flood(conn, burst)
	answered(first)
	first.Close()
	pipe, conn := p.joined("n1")
	flood(conn, more)
	quiet, _ := p.joined("n2")
	answered(quiet)
	unhindered := time.Since(began)
	answered(pipe)
	if took := time.Since(began); took < more*time.Second/200 {
		t.Errorf("%d frames were read within %v; another node had its answer after %v", burst+more, took, unhindered)
	}
}
