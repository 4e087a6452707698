package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"mariposa"
	"mariposa/wire"
)

// stream is a stream to a node about one of its instances.
type stream struct {
	*wire.Stream
	s *Session
}

// Logs opens an instance's log on its node. Closing the reader, or the end of the
// context, ends the stream.
func (f *Fleet) Logs(ctx context.Context, node, instance string, o mariposa.LogOptions) (io.ReadCloser, error) {
	return f.read(ctx, node, wire.Open{Instance: instance, LogOptions: o})
}

// maxUsage bounds the size of a node's answer about usage, in bytes.
const maxUsage = 64 << 10

// Usage has an instance's node measure the resource usage of the instance.
func (f *Fleet) Usage(ctx context.Context, node, instance string) (u mariposa.Usage, err error) {
	r, err := f.read(ctx, node, wire.Open{Instance: instance, Usage: true})
	if err != nil {
		return u, err
	}
	defer r.Close()
	err = json.NewDecoder(io.LimitReader(r, maxUsage)).Decode(&u)
	return u, err
}

func (f *Fleet) read(ctx context.Context, node string, o wire.Open) (io.ReadCloser, error) {
	st, err := f.openStream(ctx, node, o)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = st.Close() })
	return &reader{stream: st}, nil
}

func (f *Fleet) openStream(ctx context.Context, node string, o wire.Open) (*stream, error) {
	s, err := f.awaitSession(ctx, node, o.Instance)
	if err != nil {
		return nil, err
	}
	st, err := s.openStream(ctx, o)
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, mariposa.Errorf(mariposa.Unavailable, "node %s did not answer in time: %w", s.hello.Name, context.Cause(ctx))
	case err != nil:
		return nil, mariposa.Errorf(mariposa.Unavailable, "node %s has just disconnected: try again", node)
	}
	return &stream{st, s}, nil
}

// openStream opens a stream unless the context ends first: a node that does not read
// blocks it.
func (s *Session) openStream(ctx context.Context, o wire.Open) (*wire.Stream, error) {
	opened, failed := make(chan *wire.Stream), make(chan error, 1)
	go func() { // ends with the connection at the latest
		st, err := s.dial(o)
		if err != nil {
			failed <- err
			return
		}
		select {
		case opened <- st:
		case <-ctx.Done():
			_ = st.Close() // the caller no longer waits for it
		}
	}()
	select {
	case st := <-opened:
		return st, nil
	case err := <-failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// describeAbsence describes where a node without a session here is, as the end of a
// sentence.
func (f *Fleet) describeAbsence(node string) string {
	r := f.Picture.Nodes.Get(node)
	if r == nil {
		return node + ", which is not connected and no longer registered"
	}
	name := r.Spec().Name
	if st := r.Status(); st != nil && st.State == mariposa.NodeRunning && st.Replica != "" && st.Replica != f.Replica && !f.isReturning(node) {
		return name + ", which is connected to another replica (" + st.Replica + "): send the request to that replica"
	}
	return name + ", which is not connected: try again when it is back"
}

// Crash makes a dummy instance fail on its node. The result comes through the feed.
func (f *Fleet) Crash(ctx context.Context, node, instance string) error {
	s, err := f.awaitSession(ctx, node, instance)
	if err != nil {
		return err
	}
	s.send(wire.Frame{Crash: &wire.Crash{Instance: instance}})
	return nil
}

// next waits for the node's next message; io.EOF comes with the last one.
func (st *stream) next() (m wire.Message, err error) {
	m, err = st.Receive()
	switch {
	case err == nil && m.Last:
		err = io.EOF
	case err != nil && !errors.Is(err, io.ErrClosedPipe):
		err = st.s.endReason()
	}
	return m, err
}

// reader reads a log or the usage of an instance from its node.
type reader struct {
	*stream
	rest []byte
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		m, err := r.next()
		if m.Error != "" {
			err = errors.New(m.Error)
		}
		if err != nil {
			return 0, err
		}
		r.rest = m.Bytes
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
