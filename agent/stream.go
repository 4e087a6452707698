package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// streams serves what the control plane reads from this node, and runs inside its
// instances, over one connection.
type streams struct {
	n      *Node
	ctx    context.Context //nolint:containedctx // the life of the connection
	shells sync.Map        // the sessions of commands that run, by the numbers of their streams
}

// Streams returns what serves the streams of one connection, until the context ends.
func (n *Node) Streams(ctx context.Context) func(*wire.Stream) {
	return (&streams{n: n, ctx: ctx}).serve
}

// serve does what one stream is for, and says how it ended.
func (s *streams) serve(st *wire.Stream) {
	defer st.Close()
	m, err := st.Receive()
	switch {
	case err != nil || m.Open == nil:
		return // whoever asked has gone, or makes no sense
	case m.Open.Input != 0:
		s.writeInput(st, m.Open.Input)
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	go func() { // ends with the stream
		s.readControls(st)
		cancel()
		_ = st.Close() // what cannot be sent any more is not waited for
	}()
	last := wire.Message{Last: true}
	last.Exit, err = s.sendAnswer(ctx, st, m.Open)
	var known *mariposa.Error
	if errors.As(err, &known) {
		last.Error, last.Code = known.Message, known.Code
	} else if err != nil {
		last.Error = err.Error()
	}
	_ = st.Send(last) // whoever has gone need not know
}

// sendAnswer sends what a stream asks for until its end.
func (s *streams) sendAnswer(ctx context.Context, st *wire.Stream, o *wire.Open) (exit int, err error) {
	of, err := s.find(ctx, o.Instance)
	switch {
	case err != nil:
		return 0, err
	case len(o.Command) > 0:
		return s.exec(ctx, st, of, o)
	case of.driver == nil:
		return 0, errors.New("the node does not have this instance")
	}
	r, err := openSource(ctx, of.driver, o)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	_, err = io.Copy(st, r)
	return 0, err
}

// openSource is what there is to read.
func openSource(ctx context.Context, d driver.Driver, o *wire.Open) (io.ReadCloser, error) {
	if !o.Usage {
		return d.Logs(ctx, o.Instance, driver.LogOptions{Tail: o.Tail, Follow: o.Follow})
	}
	u, err := d.Usage(ctx, o.Instance)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(u)
	return io.NopCloser(bytes.NewReader(b)), err
}

// streamTarget is the instance that a stream is about.
type streamTarget struct {
	instance  driver.Instance // without an id: the node does not have it
	compute   mariposa.ComputeType
	driver    driver.Driver // nil: the node has none of its kind
	isForeign bool          // it is not this control plane's: nothing is run inside
}

// find looks an instance up, on the node's loop.
func (s *streams) find(ctx context.Context, id string) (of streamTarget, err error) {
	found := make(chan streamTarget, 1)
	s.n.post(func() {
		var of streamTarget
		if i := s.n.instances[id]; i != nil {
			of = streamTarget{s.n.driverInstance(i), i.compute, s.n.lane(i.compute).driver, i.foreign || i.toQuarantine}
		}
		found <- of
	})
	select {
	case of = <-found:
	case <-ctx.Done():
		err = ctx.Err()
	}
	return of, err
}
