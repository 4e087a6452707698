package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/relay"
	"mariposa/wire"
)

// openElsewhere opens a stream to a node through the replica that has its session.
func (f *Fleet) openElsewhere(ctx context.Context, replica, node string, o wire.Open) (*stream, error) {
	st, err := f.Links.Open(ctx, replica, wire.Forward{Node: node, Open: &o})
	if err != nil {
		return nil, err
	}
	return &stream{channel: st, node: f.nodeName(node), endReason: st.EndReason, openInput: func(ctx context.Context) (channel, error) {
		input, err := f.Links.Open(ctx, replica, wire.Forward{Node: node, Open: &wire.Open{Input: st.Number()}})
		if err != nil {
			return nil, err
		}
		return input, nil
	}}, nil
}

func (f *Fleet) nodeName(node string) string {
	if r := f.Picture.Nodes.Get(node); r != nil {
		return r.Spec().Name
	}
	return node
}

// ServeReplica answers the requests of another replica about nodes that have their session
// here, until its link ends. The caller decides who may connect.
func (f *Fleet) ServeReplica(ctx context.Context, conn *websocket.Conn) {
	relay.Serve(ctx, conn, (&forwards{f: f}).serve)
}

// forwards are the requests of one link.
type forwards struct {
	f        *Fleet
	commands sync.Map // of uint32, the number of a command's stream on the link, to *forwarded
}

// forwarded is a command that runs on a node for another replica.
type forwarded struct {
	session *Session
	number  uint32 // of its stream on the node's connection
}

// serve answers one request. It is never forwarded again: a node without a session here is
// absent.
func (w *forwards) serve(ctx context.Context, link *wire.Stream, r *wire.Forward) {
	if r.Heartbeats {
		w.sendHeartbeats(link)
		return
	}
	s, _ := w.f.sessionOf(r.Node)
	switch {
	case s == nil:
		_ = link.Send(wire.Message{Absent: true}) // here and below: fails only if the other replica is gone
	case !s.awaitReady(ctx):
		_ = link.Send(wire.Message{Error: "node " + s.hello.Name + " has just connected and is not ready yet: try again", Code: mariposa.Unavailable})
	case r.Crash != "":
		s.send(wire.Frame{Crash: &wire.Crash{Instance: r.Crash}})
		_ = link.Send(wire.Message{})
	case r.Open != nil:
		w.serveStream(ctx, link, s, *r.Open)
	}
}

// serveStream connects a stream of the link with one to the node.
func (w *forwards) serveStream(ctx context.Context, link *wire.Stream, s *Session, o wire.Open) {
	if o.Input != 0 {
		found, ok := w.commands.Load(o.Input)
		if !ok || found.(*forwarded).session != s {
			discardInput(link)
			return
		}
		o.Input = found.(*forwarded).number
	}
	opening, cancel := context.WithTimeout(ctx, reconnectTimeout)
	defer cancel()
	node, err := s.newStream(opening, o)
	if err != nil {
		var known *mariposa.Error
		errors.As(err, &known) // always: newStream returns no others
		_ = link.Send(wire.Message{Error: known.Message, Code: known.Code})
		return
	}
	defer node.Close()
	if len(o.Command) > 0 {
		w.commands.Store(link.Number(), &forwarded{s, node.Number()})
		defer w.commands.Delete(link.Number())
	}
	if link.Send(wire.Message{}) == nil {
		join(link, node)
	}
}

// discardInput accepts the input of a command that has ended already. That is no error: its
// output is on the way.
func discardInput(link *wire.Stream) {
	err := link.Send(wire.Message{})
	for err == nil {
		_, err = link.Receive()
	}
}

// join passes the messages of two streams on to each other until one of them ends. Each
// side sends no more than the other accepts.
func join(link *wire.Stream, node *stream) {
	var toNode sync.WaitGroup
	defer toNode.Wait()
	defer link.Close()
	toNode.Go(func() {
		defer node.Close()
		for {
			m, err := link.Receive()
			if err != nil || node.Send(m) != nil {
				return
			}
		}
	})
	for {
		m, err := node.next()
		switch {
		case err == nil, errors.Is(err, io.EOF):
		case errors.Is(err, io.ErrClosedPipe): // the other replica has ended it
			return
		default:
			m = wire.Message{Lost: err.Error()}
		}
		if link.Send(m) != nil || err != nil {
			return
		}
	}
}

// heartbeats are what another replica said about its nodes.
type heartbeats struct {
	mu    sync.Mutex // held while that replica is asked
	until time.Time  // when to ask again

	nodes map[string]time.Time // guarded by the fleet's lock
}

const (
	heartbeatsTimeout = time.Second
	// heartbeatsFresh is how long the answer of a replica is used.
	heartbeatsFresh = 500 * time.Millisecond
	// heartbeatsPause is how long a replica is not asked that did not answer.
	heartbeatsPause = 3 * time.Second
	// maxHeartbeats bounds the size of an answer, in bytes: a hundred thousand nodes.
	maxHeartbeats = 16 << 20
)

func (w *forwards) sendHeartbeats(link *wire.Stream) {
	all := map[string]time.Time{}
	w.f.mu.Lock()
	for node := range w.f.sessions {
		all[node] = w.f.lastHeard[node]
	}
	w.f.mu.Unlock()
	b, err := json.Marshal(all)
	if err != nil || link.Send(wire.Message{}) != nil {
		return
	}
	if _, err := link.Write(b); err == nil {
		_ = link.Send(wire.Message{Last: true}) // fails only if the other replica is gone
	}
}

// AskHeartbeats asks the other replicas when they last heard from their nodes, unless they
// were just asked. It returns when they have answered, or a moment later.
func (f *Fleet) AskHeartbeats(ctx context.Context) {
	if f.Links == nil {
		return
	}
	others := map[string]bool{}
	for _, r := range f.Picture.Nodes.All() {
		if replica := f.holder(r.ID); replica != "" {
			others[replica] = true
		}
	}
	f.mu.Lock()
	maps.DeleteFunc(f.elsewhere, func(replica string, _ *heartbeats) bool { return !others[replica] })
	asked := map[string]*heartbeats{}
	for replica := range others {
		if f.elsewhere[replica] == nil {
			f.elsewhere[replica] = &heartbeats{}
		}
		asked[replica] = f.elsewhere[replica]
	}
	f.mu.Unlock()
	var all sync.WaitGroup
	for replica, h := range asked {
		all.Go(func() { f.askHeartbeats(ctx, replica, h) })
	}
	all.Wait()
}

func (f *Fleet) askHeartbeats(ctx context.Context, replica string, h *heartbeats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Now().Before(h.until) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, heartbeatsTimeout)
	defer cancel()
	nodes, err := f.readHeartbeats(ctx, replica)
	if err != nil { // the stored times are shown
		h.until = time.Now().Add(heartbeatsPause)
		return
	}
	h.until = time.Now().Add(heartbeatsFresh)
	f.mu.Lock()
	defer f.mu.Unlock()
	h.nodes = nodes
}

func (f *Fleet) readHeartbeats(ctx context.Context, replica string) (nodes map[string]time.Time, err error) {
	st, err := f.Links.Open(ctx, replica, wire.Forward{Heartbeats: true})
	if err != nil {
		return nil, err
	}
	defer st.Close()
	defer context.AfterFunc(ctx, func() { _ = st.Close() })()
	r := &reader{stream: &stream{channel: st, endReason: st.EndReason}}
	err = json.NewDecoder(io.LimitReader(r, maxHeartbeats)).Decode(&nodes)
	return nodes, err
}

// LastHeartbeat returns when a node was last heard from, as far as this replica knows; false
// if it does not.
func (f *Fleet) LastHeartbeat(node string) (at time.Time, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok = f.lastHeard[node]
	for _, h := range f.elsewhere {
		if there, known := h.nodes[node]; known && there.After(at) {
			at, ok = there, true
		}
	}
	return at, ok
}
