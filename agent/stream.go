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

// streams serves the streams of one connection, on which the control plane reads from
// this node's instances and runs commands in them.
type streams struct {
	n      *Node
	ctx    context.Context //nolint:containedctx // the life of the connection
	shells sync.Map        // sessions of running commands, by stream number
}

// Streams returns the function that serves the streams of one connection, until the
// context ends.
func (n *Node) Streams(ctx context.Context) func(*wire.Stream) {
	return (&streams{n: n, ctx: ctx}).serve
}

// serve answers one stream and sends how it ended.
func (s *streams) serve(st *wire.Stream) {
	defer st.Close()
	m, err := st.Receive()
	switch {
	case err != nil || m.Open == nil:
		return // the peer is gone, or sent something invalid
	case m.Open.Input != 0:
		s.writeInput(st, m.Open.Input)
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	go func() { // ends with the stream
		s.readControls(st)
		cancel()
		_ = st.Close() // unblocks a pending send
	}()
	last := wire.Message{Last: true}
	last.Exit, err = s.sendAnswer(ctx, st, m.Open)
	var known *mariposa.Error
	if errors.As(err, &known) {
		last.Error, last.Code = known.Message, known.Code
	} else if err != nil {
		last.Error = err.Error()
	}
	_ = st.Send(last) // fails only if the peer is gone
}

// sendAnswer sends what a stream requests, to the end.
func (s *streams) sendAnswer(ctx context.Context, st *wire.Stream, o *wire.Open) (exit int, err error) {
	if len(o.Images) > 0 {
		return 0, s.resolveImages(ctx, st, o)
	}
	if o.Foreign != nil {
		return 0, s.listForeign(ctx, st, o)
	}
	of, err := s.find(ctx, o.Instance)
	if err == nil && o.Ack {
		err = st.Send(wire.Message{Ack: true}) // fails only if the peer is gone
	}
	switch {
	case err != nil:
		return 0, err
	case o.IsInteractive():
		return s.exec(ctx, st, of, o)
	case o.Snapshot != nil:
		return 0, s.handleSnapshots(ctx, st, of, o.Snapshot)
	case of.driver == nil:
		return 0, errors.New("the instance is not on this node")
	}
	r, err := openSource(ctx, of.driver, o)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	_, err = io.Copy(st, r)
	return 0, err
}

// openSource opens the log or the usage that a stream requests.
func openSource(ctx context.Context, d driver.Driver, o *wire.Open) (io.ReadCloser, error) {
	if !o.Usage {
		return d.Logs(ctx, o.Instance, o.LogOptions)
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
	instance  driver.Instance // with an empty ID if it is not on this node
	compute   mariposa.ComputeType
	driver    driver.Driver // nil if the node has no driver for its compute type
	isForeign bool          // belongs to another cluster: no commands may run in it
}

// find looks up an instance on the node's loop.
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
