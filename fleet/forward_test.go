package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/fleet"
	"mariposa/picture"
	"mariposa/relay"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/wire"
	"mariposa/wire/wiretest"
)

// neighbor is a second replica on the store of a test server. It asks the first.
type neighbor struct {
	p     *testServer
	pic   *picture.Picture
	fleet *fleet.Fleet
	links *relay.Links

	broken atomic.Int32 // how many of the next links break
}

// serveReplicas starts a server to which other replicas connect.
func serveReplicas(own *relay.Links, serve func(context.Context, *websocket.Conn)) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, err := own.Admit(strings.TrimPrefix(r.Header.Get("Authorization"), relay.Scheme+" "))
		if err != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set(relay.AnswerHeader, own.Answer(peer))
		if conn, err := websocket.Accept(w, r, nil); err == nil {
			serve(r.Context(), conn)
		}
	}))
}

// addNeighbor connects a second replica, r2, with the server, which is r1.
func addNeighbor(t *testing.T, p *testServer) *neighbor {
	t.Helper()
	ring := seal.NewRing()
	links := func(replica string) *relay.Links {
		l := relay.New(relay.Options{Replica: replica, Cluster: "c", Store: p.store, Ring: ring, Clock: steady})
		t.Cleanup(l.Close)
		return l
	}
	own, n := links("r1"), &neighbor{p: p}
	srv := serveReplicas(own, func(ctx context.Context, conn *websocket.Conn) {
		if n.broken.Add(-1) >= 0 { // it ends with the first request
			_, _, _ = conn.Read(ctx)
			_ = conn.CloseNow()
			return
		}
		p.fleet.ServeReplica(ctx, conn)
	})
	if _, err := p.store.Hold(p.ctx, "r1", time.Hour, store.ReplicaPrefix+"r1"); err != nil {
		t.Fatal(err)
	}
	if err := p.store.Announce(p.ctx, "r1", store.ReplicaPrefix+"r1", relay.Replica{URL: srv.URL}.Note()); err != nil {
		t.Fatal(err)
	}
	n.links = links("r2")
	var err error
	if n.pic, err = picture.Open(p.ctx, p.store); err != nil {
		t.Fatal(err)
	}
	n.fleet, err = fleet.New(p.ctx, fleet.Options{
		Store: p.store, Picture: n.pic, Cache: picture.NewVersionCache(p.store, seal.NewVault(ring, p.store)), Clock: steady, Replica: "r2", Links: n.links, NeighborTimeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(p.ctx)
	var all sync.WaitGroup
	all.Go(func() { _ = n.pic.Follow(ctx, time.Hour, func(int) {}) })
	t.Cleanup(func() {
		cancel()
		all.Wait()
		n.links.Close()
		srv.Close()
	})
	return n
}

func (n *neighbor) logs(instance string) io.ReadCloser {
	n.p.t.Helper()
	log, err := n.fleet.Logs(n.p.ctx, "n1", instance, mariposa.LogOptions{Tail: 10, Follow: true})
	if err != nil {
		n.p.t.Fatal(err)
	}
	return log
}

func TestALogIsReadThroughAnotherReplica(t *testing.T) {
	t.Parallel()
	p, a := play(t)
	n := addNeighbor(t, p)
	log := n.logs("i1")
	s := a.next()
	if o := s.open; o.Instance != "i1" || o.Tail != 10 || !o.Follow {
		t.Fatalf("asked %+v", o)
	}
	for _, piece := range []string{"one\n", "two\n"} {
		must(t, s.Send(wire.Message{Bytes: []byte(piece)}))
		buf := make([]byte, 100)
		if k, err := log.Read(buf); string(buf[:k]) != piece {
			t.Errorf("read %q, %v", buf[:k], err)
		}
	}
	must(t, s.Send(wire.Message{Last: true}))
	if rest, err := io.ReadAll(log); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	must(t, log.Close())
	s.wantEnd(p)

	failing := n.logs("i2")
	s = a.next()
	must(t, s.Send(wire.Message{Last: true, Error: "no such log"}))
	if _, err := io.ReadAll(failing); err == nil || err.Error() != "no such log" {
		t.Errorf("the node's error became %v", err)
	}
	_ = s.Close()

	left := n.logs("i3")
	s = a.next()
	must(t, left.Close())
	s.wantEnd(p)
}

// A reader that does not read blocks its own stream on the whole way, and nothing else.
func TestASlowReaderElsewhereBlocksOnlyItself(t *testing.T) {
	t.Parallel()
	p, a := play(t)
	n := addNeighbor(t, p)
	slow := n.logs("slow")
	s := a.next()
	blocked := make(chan int, 1)
	go func() {
		sent := 0
		for piece := make([]byte, wire.MaxPiece); sent < 64<<20; sent += len(piece) {
			if _, err := s.Write(piece); err != nil {
				break
			}
		}
		blocked <- sent
	}()
	quick := n.logs("quick")
	q := a.next()
	must(t, q.Send(wire.Message{Bytes: []byte("x"), Last: false}))
	must(t, q.Send(wire.Message{Last: true}))
	if text, err := io.ReadAll(quick); string(text) != "x" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	must(t, slow.Close())
	if sent := come(p, "the end of the sender", blocked); sent > 4<<20 {
		t.Errorf("the node could send %d bytes that nobody read", sent)
	}
	_ = s.Close()
}

func TestALostNodeIsLostElsewhereToo(t *testing.T) {
	t.Parallel()
	p, a := play(t)
	n := addNeighbor(t, p)
	log := n.logs("i1")
	a.next()
	_ = a.conn.CloseNow()
	if _, err := io.ReadAll(log); err == nil || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "the connection ended") {
		t.Errorf("the log ended with %v", err)
	}
}

func TestACommandRunsThroughAnotherReplica(t *testing.T) {
	t.Parallel()
	p, a := play(t)
	n := addNeighbor(t, p)
	began := make(chan *fleet.Shell, 1)
	go func() {
		x, err := n.fleet.Exec(p.ctx, "n1", "i1", []string{"cat"}, &wire.Size{Rows: 1, Cols: 2})
		if err != nil {
			t.Error(err)
		}
		began <- x
	}()
	s := a.next()
	if o := s.open; o.Instance != "i1" || len(o.Command) != 1 || o.Terminal == nil || o.Terminal.Cols != 2 {
		t.Fatalf("asked %+v", o)
	}
	must(t, s.Send(wire.Message{})) // it runs
	input := a.next()
	if input.open.Input != s.Number() {
		t.Fatalf("the input is for %d, not %d", input.open.Input, s.Number())
	}
	x := come(p, "the command", began)
	defer x.Close()
	if _, err := x.Write([]byte("in")); err != nil {
		t.Error(err)
	}
	x.CloseWrite()
	x.Resize(wire.Size{Rows: 3, Cols: 4})
	x.Signal(15)
	if m, err := input.Receive(); string(m.Bytes) != "in" || err != nil {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := input.Receive(); !m.Last || err != nil {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := s.Receive(); m.Terminal == nil || m.Terminal.Rows != 3 || err != nil {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := s.Receive(); m.Signal != 15 || err != nil {
		t.Errorf("%+v, %v", m, err)
	}
	must(t, s.Send(wire.Message{Bytes: []byte("err"), Stderr: true}))
	must(t, s.Send(wire.Message{Last: true, Exit: 7}))
	if b, stderr, err := x.Read(); string(b) != "err" || !stderr || err != nil {
		t.Errorf("%q, %v, %v", b, stderr, err)
	}
	if _, _, err := x.Read(); !errors.Is(err, io.EOF) || x.Exit() != 7 {
		t.Errorf("%v, exit %d", err, x.Exit())
	}
	s.wantEnd(p)
}

// A command that ends before its input is connected is no failure.
func TestAShortCommandRunsThroughAnotherReplica(t *testing.T) {
	t.Parallel()
	p, a := play(t)
	n := addNeighbor(t, p)
	for range 50 {
		ended := make(chan string, 1)
		go func() {
			x, err := n.fleet.Exec(p.ctx, "n1", "i1", []string{"true"}, nil)
			if err != nil {
				ended <- err.Error()
				return
			}
			defer x.Close()
			x.CloseWrite()
			b, _, err := x.Read()
			if err == nil {
				_, _, err = x.Read()
			}
			ended <- fmt.Sprint(string(b), " ", err, " ", x.Exit())
		}()
		s := a.next()
		for s.open.Input != 0 { // of the command before
			s = a.next()
		}
		must(t, s.Send(wire.Message{}))
		must(t, s.Send(wire.Message{Bytes: []byte("out")}))
		must(t, s.Send(wire.Message{Last: true, Exit: 3}))
		_ = s.Close()
		if got := come(p, "its end", ended); got != "out EOF 3" {
			t.Fatalf("it ended with %q", got)
		}
	}
}

// The session of a node has ended, and the store still says where it was. A request waits
// for the node to come back, and says so if it does not.
func TestANodeThatIsGoneElsewhereIsWaitedFor(t *testing.T) {
	t.Parallel()
	p, a := play(t)
	n := addNeighbor(t, p)
	_, session := p.fleet.LastHeard("n1")
	session.End("it was lost on request")
	come(p, "the end of the connection", a.gone)
	_, err := n.fleet.Logs(p.ctx, "n1", "i1", mariposa.LogOptions{})
	if mariposa.CodeOf(err) != mariposa.Unavailable || !strings.Contains(err.Error(), "not connected: try again when it is back (waited ") {
		t.Errorf("%v", err)
	}
	done := make(chan error, 1)
	go func() {
		err := n.fleet.Crash(p.ctx, "n1", wire.Crash{Instance: "i1"})
		for mariposa.CodeOf(err) == mariposa.Unavailable { // a busy machine may need longer than it waits
			err = n.fleet.Crash(p.ctx, "n1", wire.Crash{Instance: "i1"})
		}
		done <- err
	}()
	pipe, _ := p.dial()
	defer pipe.Close()
	pipe.Send(wire.Frame{Seq: 1, Hello: hello("n1")})
	for {
		f, err := pipe.Read(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if f.Crash != nil && f.Crash.Instance == "i1" {
			break
		}
	}
	must(t, come(p, "the answer", done))
}

func TestAReplicaThatCannotBeAskedIsNamed(t *testing.T) {
	t.Parallel()
	p, _ := play(t)
	n := addNeighbor(t, p)
	must(t, p.store.Announce(p.ctx, "r1", store.ReplicaPrefix+"r1", relay.Replica{}.Note()))
	_, err := n.fleet.Logs(p.ctx, "n1", "i1", mariposa.LogOptions{})
	if mariposa.CodeOf(err) != mariposa.Unavailable || !strings.Contains(err.Error(), "replica r1 cannot be reached: it publishes no address: start it with --advertise") {
		t.Errorf("%v", err)
	}
	must(t, p.store.Announce(p.ctx, "r1", store.ReplicaPrefix+"r1", relay.Replica{URL: "http://127.0.0.1:1"}.Note()))
	_, err = n.fleet.Exec(p.ctx, "n1", "i1", []string{"true"}, nil)
	if mariposa.CodeOf(err) != mariposa.Unavailable || !strings.Contains(err.Error(), "replica r1 at http://127.0.0.1:1 cannot be reached") {
		t.Errorf("%v", err)
	}
}

func TestHeartbeatsAreAskedOfOtherReplicas(t *testing.T) {
	t.Parallel()
	p, _ := play(t)
	n := addNeighbor(t, p)
	node, long := n.pic.Nodes.Get("n1"), time.Now().Add(-time.Hour)
	if at := n.fleet.LastHeartbeat(node, long); at != nil {
		t.Fatalf("known before it asked: %s", at)
	}
	n.fleet.AskHeartbeats(p.ctx)
	want := p.fleet.LastHeartbeat(node, long)
	if at := n.fleet.LastHeartbeat(node, long); at == nil || !at.Equal(*want) {
		t.Errorf("%v; want %s", at, want)
	}
}

// A link that is dead, because the process was stopped for a while, is replaced at once.
func TestHeartbeatsAreAskedAgainIfALinkBreaks(t *testing.T) {
	t.Parallel()
	p, _ := play(t)
	n := addNeighbor(t, p)
	n.broken.Store(1)
	n.fleet.AskHeartbeats(p.ctx)
	if at := n.fleet.LastHeartbeat(n.pic.Nodes.Get("n1"), time.Now().Add(-time.Hour)); at == nil || n.broken.Load() != -1 {
		t.Errorf("known: %v, %d links are left to break", at, n.broken.Load())
	}
}

// An agent that tries to connect is a sign of life of its node, also for other replicas.
func TestAttemptsToConnectAreKnownToOtherReplicas(t *testing.T) {
	t.Parallel()
	p, _ := play(t)
	n := addNeighbor(t, p)
	node, long := n.pic.Nodes.Get("n1"), time.Now().Add(-time.Hour)
	first := p.fleet.LastHeartbeat(node, long)
	p.fleet.NoteAttempt(fleet.Admission{Node: "n1"})
	n.fleet.AskHeartbeats(p.ctx)
	if at := n.fleet.LastHeartbeat(node, long); at == nil || !at.After(*first) {
		t.Errorf("last heard at %v, and before, at %s", at, first)
	}
}

// must fails the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A node with many quarantined instances: its status has some, and its session all of them.
func TestTheWholeQuarantineIsReadThroughAnotherReplica(t *testing.T) {
	t.Parallel()
	p := newTestServer(t, time.Hour)
	pipe, _ := p.dial()
	defer pipe.Close()
	pipe.Send(wire.Frame{Seq: 1, Hello: hello("n1")})
	go func() { _ = wiretest.Drain(p.ctx, pipe, nil) }()
	p.until("the node joins", func() bool { return p.epoch("n1") == 1 })
	all := make([]mariposa.Quarantined, 3000)
	for i := range all {
		all[i] = mariposa.Quarantined{ID: fmt.Sprintf("q-%04d", i), State: mariposa.StateRunning, Reason: strings.Repeat("x", 200)}
	}
	parts := wire.PackQuarantined(all)
	for i, part := range parts {
		pipe.Send(wire.Frame{Seq: int64(i + 2), Report: &wire.Report{Inventory: i == len(parts)-1, Quarantined: part}})
	}
	n := addNeighbor(t, p)
	p.until("the quarantine is stored", func() bool { return p.pic.Nodes.Get("n1").Status().CountQuarantined() == 3000 })
	must(t, n.pic.Await(p.ctx, p.pic.Revision()))
	if st := n.pic.Nodes.Get("n1").Status(); len(st.Quarantined) != 100 {
		t.Errorf("%d are stored", len(st.Quarantined))
	}
	for where, f := range map[string]*fleet.Fleet{"here": p.fleet, "there": n.fleet} {
		if got, err := f.Quarantine(p.ctx, "n1"); err != nil || len(got) != 3000 || got[2999].ID != "q-2999" {
			t.Errorf("%s: %d, %v", where, len(got), err)
		}
	}
	if _, err := n.fleet.Quarantine(p.ctx, "n2"); err == nil || !strings.Contains(err.Error(), "the list of quarantined instances is on node n2, which is not connected") {
		t.Errorf("of an unknown node: %v", err)
	}
}
