package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"

	"mariposa/driver"
	"mariposa/wire"
)

// stream is an instance's log, or what it takes, on its way to the control plane,
// piece by piece, as fast as the other side takes it.
type stream struct {
	credit chan int
	cancel context.CancelFunc
}

func (n *Node) takeAsk(a *wire.Ask) {
	s := n.streams[a.Stream]
	switch {
	case a.Crash:
		n.crash(a.Instance)
	case a.Cancel && s != nil:
		s.cancel()
		delete(n.streams, a.Stream)
	case a.Instance != "" && s == nil:
		n.openStream(a)
	case s != nil && a.Credit > 0:
		select {
		case s.credit <- a.Credit:
		default: // more credit than pieces ever asked for: a peer out of its mind
		}
	}
}

// crash makes an instance end as if by itself, where its kind can.
func (n *Node) crash(id string) {
	i := n.instances[id]
	if i == nil {
		return
	}
	if d, ok := n.lane(i.compute).driver.(driver.Crasher); ok {
		if err := d.Crash(id); err != nil {
			slog.Warn("cannot crash an instance", "instance", id, "err", err)
		}
	}
}

func (n *Node) openStream(a *wire.Ask) {
	i, d := n.instances[a.Instance], driver.Driver(nil)
	if i != nil {
		d = n.lane(i.compute).driver
	}
	if d == nil {
		n.send(wire.Frame{Data: &wire.Data{Stream: a.Stream, Last: true, Error: "the node does not have this instance"}})
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.stepCtx))
	s := &stream{credit: make(chan int, 64), cancel: cancel}
	n.streams[a.Stream] = s
	out, ask := n.out, *a
	go func() { // ends with what is read, with its cancelling, or with the connection
		defer cancel()
		err := pump(ctx, d, &ask, s, func(b []byte) {
			n.post(func() { n.sendOver(out, wire.Frame{Data: &wire.Data{Stream: ask.Stream, Bytes: b}}) })
		})
		n.post(func() {
			last := &wire.Data{Stream: ask.Stream, Last: true}
			if err != nil && !errors.Is(err, io.EOF) {
				last.Error = err.Error()
			}
			if n.streams[ask.Stream] == s { // numbers begin anew with every connection
				delete(n.streams, ask.Stream)
			}
			n.sendOver(out, wire.Frame{Data: last})
		})
	}()
}

// sendOver sends only while the connection is still the one it is meant for.
func (n *Node) sendOver(out Outlet, f wire.Frame) {
	if n.out == out {
		n.send(f)
	}
}

func pump(ctx context.Context, d driver.Driver, a *wire.Ask, s *stream, piece func([]byte)) error {
	r, err := source(ctx, d, a)
	if err != nil {
		return err
	}
	defer r.Close()
	credit := a.Credit
	buf := make([]byte, wire.Piece)
	for {
		for credit <= 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case more := <-s.credit:
				credit += more
			}
		}
		got, err := r.Read(buf)
		if got > 0 {
			credit--
			piece(append([]byte(nil), buf[:got]...))
		}
		if err != nil {
			return err
		}
	}
}

// source is what an ask wants to read.
func source(ctx context.Context, d driver.Driver, a *wire.Ask) (io.ReadCloser, error) {
	if !a.Usage {
		return d.Logs(ctx, a.Instance, driver.LogOptions{Tail: a.Tail, Follow: a.Follow})
	}
	u, err := d.Usage(ctx, a.Instance)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(u)
	return io.NopCloser(bytes.NewReader(b)), err
}
