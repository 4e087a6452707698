package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"mariposa"
	"mariposa/wire"
)

// stream is a stream to a node about one of its instances.
type stream struct {
	channel
	node      string                                     // its name
	endReason func() error                               // why it ended although nobody closed it
	openInput func(ctx context.Context) (channel, error) // opens the stream of a command's input
}

// channel is a stream over the connection of the node, or over a link to the replica that
// has the connection.
type channel interface {
	io.WriteCloser
	Number() uint32
	Send(m wire.Message) error
	Receive() (wire.Message, error)
}

// Logs opens an instance's log on its node. Closing the reader, or the end of the
// context, ends the stream.
func (f *Fleet) Logs(ctx context.Context, node, instance string, o mariposa.LogOptions) (io.ReadCloser, error) {
	r, err := f.read(ctx, node, wire.Open{Instance: instance, LogOptions: o})
	if err != nil {
		return nil, err
	}
	if o.Follow {
		return r, nil
	}
	return timedReader{r}, nil
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
	err = json.NewDecoder(io.LimitReader(timedReader{r}, maxUsage)).Decode(&u)
	return u.Bounded(), err
}

func (f *Fleet) read(ctx context.Context, node string, o wire.Open) (*reader, error) {
	st, err := f.openStream(ctx, node, o)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = st.Close() })
	return &reader{stream: st}, nil
}

// openStream opens a stream to a node, wherever it is connected.
func (f *Fleet) openStream(ctx context.Context, node string, o wire.Open) (st *stream, err error) {
	what := ""
	if o.Foreign != nil {
		what = cmp.Or(o.Foreign.Container, "the list of foreign containers")
	}
	err = f.reach(ctx, errand{
		node: node, instance: o.Instance, what: what, once: o.IsOnce(),
		here: func(s *Session) (err error) {
			st, err = s.newStream(ctx, o)
			return err
		},
		there: func(waits context.Context, replica string) (err error) {
			st, err = f.openElsewhere(waits, replica, node, o)
			return err
		},
	})
	return st, err
}

// answerTimeout is how long a node may take to acknowledge a stream. What it sends then may
// take longer.
const answerTimeout = 8 * time.Second

// newStream opens a stream over the session's own connection, and waits until the node has
// acknowledged it. It fails with a disconnectedError if the session ends meanwhile.
func (s *Session) newStream(ctx context.Context, o wire.Open) (*stream, error) {
	within, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	o.Ack = s.hello.Acks && o.Input == 0
	st, err := s.openStream(within, o)
	sent := err == nil || errors.Is(err, wire.ErrMayBeSent)
	if err == nil && o.Ack {
		err = awaitAck(within, st)
	}
	switch {
	case err != nil && within.Err() != nil:
		return nil, s.silenceError(within)
	case err != nil:
		return nil, &disconnectedError{node: s.hello.Name, sent: sent}
	}
	return &stream{channel: st, node: s.hello.Name, endReason: s.endReason, openInput: func(ctx context.Context) (channel, error) {
		input, err := s.openStream(ctx, wire.Open{Input: st.Number()})
		if err != nil {
			return nil, err
		}
		return input, nil
	}}, nil
}

// awaitAck waits until the node has acknowledged a stream. If it does not, the stream is
// closed.
func awaitAck(ctx context.Context, st *wire.Stream) error {
	inTime := context.AfterFunc(ctx, func() { _ = st.Close() })
	m, err := st.Receive()
	if inTime() && err == nil && m.Ack {
		return nil
	}
	_ = st.Close() // never fails
	return cmp.Or(ctx.Err(), err, errNoAck)
}

var errNoAck = errors.New("the node did not acknowledge the stream")

// silenceError reports that a node with a session here does not answer.
func (s *Session) silenceError(ctx context.Context) error {
	heard, _ := s.f.LastHeard(s.node)
	return &mariposa.Error{Code: mariposa.Unavailable, Cause: context.Cause(ctx), Message: fmt.Sprintf(
		"node %s is connected but does not answer; it was last heard from at %s: check its agent on that machine (`mariposa node show %s`), then try again",
		s.hello.Name, heard.UTC().Format("15:04:05 UTC"), s.hello.Name)}
}

// disconnectedError says that the session of a node ended before the node acknowledged a
// stream.
type disconnectedError struct {
	node string // its name
	sent bool   // the node may have received the request
}

func (e *disconnectedError) Error() string { return "node " + e.node + " has just disconnected" }

// explain returns the error for a request that is not repeated.
func (e *disconnectedError) explain() *mariposa.Error {
	return mariposa.Errorf(mariposa.Unavailable, "node %s disconnected before it answered: check whether the request was carried out before you try again", e.node)
}

// openStream opens a stream unless the context ends first: a node that does not read
// blocks it.
func (s *Session) openStream(ctx context.Context, o wire.Open) (*wire.Stream, error) {
	return wire.OpenInTime(ctx, func() (*wire.Stream, error) { return s.dial(o) })
}

// Crash makes a dummy instance fail on its node, or its health checks. The result comes
// through the feed.
func (f *Fleet) Crash(ctx context.Context, node string, c wire.Crash) error {
	return f.reach(ctx, errand{
		node: node, instance: c.Instance, once: true,
		here: func(s *Session) error {
			s.send(wire.Frame{Crash: &c})
			return nil
		},
		there: func(waits context.Context, replica string) error {
			st, err := f.Links.Open(waits, replica, wire.Forward{Node: node, Crash: &c})
			if err != nil {
				return err
			}
			return st.Close()
		},
	})
}

// next waits for the node's next message; io.EOF comes with the last one.
func (st *stream) next() (m wire.Message, err error) {
	m, err = st.Receive()
	switch {
	case err == nil && m.Lost != "":
		err = errors.New(m.Lost)
	case err == nil && m.Last:
		err = io.EOF
	case err != nil && !errors.Is(err, io.ErrClosedPipe):
		err = st.endReason()
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
			err = nodeError(m)
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

// nodeError returns an error that a node reports. The node chooses neither what terminals do
// with its words nor what requests fail with.
func nodeError(m wire.Message) *mariposa.Error {
	code := m.Code
	switch code {
	case mariposa.InvalidArgument, mariposa.ResourceNotFound, mariposa.Conflict:
	default:
		code = mariposa.Unavailable
	}
	return &mariposa.Error{Code: code, Message: clean(shorten(m.Error, maxReason))}
}

// silenceLimit is how long a node may send nothing of an answer that it has begun. Only what is
// followed may be quiet.
const silenceLimit = 30 * time.Second

// timedReader fails if the node stops sending.
type timedReader struct{ *reader }

func (r timedReader) Read(p []byte) (int, error) {
	timer := time.AfterFunc(silenceLimit, func() { _ = r.Close() })
	n, err := r.reader.Read(p)
	if !timer.Stop() && err != nil {
		err = mariposa.Errorf(mariposa.Unavailable, "node %s stopped sending: check its agent on that machine (`mariposa node show %s`), then try again", r.node, r.node)
	}
	return n, err
}
