package fleet

import (
	"context"
	"errors"
	"io"
	"sync"

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
		sendError(link, s.notReadyError())
	case r.Crash != nil:
		s.send(wire.Frame{Crash: r.Crash})
		_ = link.Send(wire.Message{})
	case r.Quarantine:
		sendQuarantine(link, s)
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
	node, err := s.newStream(ctx, o)
	var gone *disconnectedError
	var known *mariposa.Error
	switch {
	case errors.As(err, &gone) && !(gone.sent && o.IsOnce()): // the other replica may ask again
		_ = link.Send(wire.Message{Absent: true})
		return
	case errors.As(err, &gone):
		sendError(link, gone.explain())
		return
	case errors.As(err, &known): // newStream returns no others
		sendError(link, known)
		return
	}
	defer node.Close()
	if o.IsInteractive() {
		w.commands.Store(link.Number(), &forwarded{s, node.Number()})
		defer w.commands.Delete(link.Number())
	}
	if link.Send(wire.Message{}) == nil {
		join(link, node)
	}
}

func sendError(link *wire.Stream, err *mariposa.Error) {
	_ = link.Send(wire.Message{Error: err.Message, Code: err.Code}) // fails only if the other replica is gone
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
