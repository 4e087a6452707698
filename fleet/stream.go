package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"mariposa"
	"mariposa/wire"
)

// stream is something of an instance being read from its node.
type stream struct {
	id   int64
	s    *Session
	mu   sync.Mutex
	cond *sync.Cond
	data [][]byte
	err  error // io.EOF at the end
}

var _ io.ReadCloser = (*stream)(nil)

// Logs opens an instance's log on its node. Closing the reader ends the stream.
func (f *Fleet) Logs(ctx context.Context, node, instance string, tail int, follow bool) (io.ReadCloser, error) {
	return f.open(ctx, node, wire.Ask{Instance: instance, Tail: tail, Follow: follow})
}

// Usage has an instance's node measure what the instance takes.
func (f *Fleet) Usage(ctx context.Context, node, instance string) (u mariposa.Usage, err error) {
	r, err := f.open(ctx, node, wire.Ask{Instance: instance, Usage: true})
	if err != nil {
		return u, err
	}
	defer r.Close()
	err = json.NewDecoder(r).Decode(&u)
	return u, err
}

func (f *Fleet) open(ctx context.Context, node string, ask wire.Ask) (io.ReadCloser, error) {
	s, err := f.reach(ctx, node, ask.Instance)
	if err != nil {
		return nil, err
	}
	st := &stream{s: s}
	st.cond = sync.NewCond(&st.mu)
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil, mariposa.Errorf(mariposa.Unavailable, "node %s has just disconnected: try again", node)
	}
	s.lastStream++
	st.id = s.lastStream
	s.streams[st.id] = st
	s.mu.Unlock()
	context.AfterFunc(ctx, func() { st.fail(ctx.Err()) })
	ask.Stream, ask.Credit = st.id, wire.Window
	s.send(wire.Frame{Ask: &ask})
	return st, nil
}

// whereabouts says of a node without a session here where it is, as the end of a
// sentence.
func (f *Fleet) whereabouts(node string) string {
	r := f.Picture.Get(mariposa.KindNode, node)
	if r == nil {
		return node + ", which is not connected and not known any more"
	}
	name := r.Spec.(*mariposa.NodeSpec).Name
	if st, _ := r.Status.(*mariposa.NodeStatus); st != nil && st.State == mariposa.NodeRunning && st.Replica != "" && st.Replica != f.Replica {
		return name + ", which is connected to another replica (" + st.Replica + "): ask that one"
	}
	return name + ", which is not connected: try again when it is back"
}

// Crash has a dummy instance fail on its node. What became of it is told by the
// feed.
func (f *Fleet) Crash(ctx context.Context, node, instance string) error {
	s, err := f.reach(ctx, node, instance)
	if err != nil {
		return err
	}
	s.send(wire.Frame{Ask: &wire.Ask{Instance: instance, Crash: true}})
	return nil
}

// Read takes what has come, and lets the node send more.
func (st *stream) Read(p []byte) (int, error) {
	st.mu.Lock()
	for len(st.data) == 0 && st.err == nil {
		st.cond.Wait()
	}
	if len(st.data) == 0 {
		defer st.mu.Unlock()
		return 0, st.err
	}
	n := copy(p, st.data[0])
	done := n == len(st.data[0])
	if done {
		st.data = st.data[1:]
	} else {
		st.data[0] = st.data[0][n:]
	}
	st.mu.Unlock()
	if done {
		st.s.send(wire.Frame{Ask: &wire.Ask{Stream: st.id, Credit: 1}})
	}
	return n, nil
}

// Close ends the stream on both sides.
func (st *stream) Close() error {
	st.s.mu.Lock()
	_, open := st.s.streams[st.id]
	delete(st.s.streams, st.id)
	st.s.mu.Unlock()
	if open {
		st.s.send(wire.Frame{Ask: &wire.Ask{Stream: st.id, Cancel: true}})
	}
	st.fail(io.ErrClosedPipe)
	return nil
}

func (st *stream) fail(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err == nil {
		st.err = err
	}
	st.cond.Broadcast()
}

func (s *Session) takeData(d *wire.Data) {
	s.mu.Lock()
	st, x := s.streams[d.Stream], s.shells[d.Stream]
	if d.Last {
		delete(s.streams, d.Stream)
		delete(s.shells, d.Stream)
	}
	s.mu.Unlock()
	if x != nil {
		x.take(d)
		return
	}
	if st == nil {
		return
	}
	st.mu.Lock()
	if len(d.Bytes) > 0 && len(st.data) <= 2*wire.Window {
		st.data = append(st.data, d.Bytes)
	}
	st.mu.Unlock()
	switch {
	case d.Error != "":
		st.fail(errors.New(d.Error))
	case d.Last:
		st.fail(io.EOF)
	default:
		st.cond.Broadcast()
	}
}
