package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/hashicorp/yamux"

	"mariposa"
)

// Dial opens a stream. The control plane calls it, after the frames that the stream
// depends on.
func (p *Pipe) Dial(o Open) (*Stream, error) { return p.dial(Message{Open: &o}) }

// DialReplica opens a stream to another replica.
func (p *Pipe) DialReplica(f Forward) (*Stream, error) { return p.dial(Message{Forward: &f}) }

func (p *Pipe) dial(first Message) (*Stream, error) {
	mux, err := p.multiplexer(true)
	if err != nil {
		return nil, err
	}
	conn, err := mux.OpenStream()
	if err != nil {
		return nil, err
	}
	s := p.newStream(conn)
	if err := s.Send(first); err != nil { // fails only with the connection, which ends the stream too
		return nil, fmt.Errorf("%w: %w", ErrMayBeSent, err)
	}
	return s, nil
}

// ErrMayBeSent says that the connection ended while a stream was opened: the other side may
// have received what it is for.
var ErrMayBeSent = errors.New("the connection ended while a stream was opened")

// OpenInTime calls dial, which opens a stream, unless the context ends first: a peer that
// does not read blocks it. The call itself ends with the connection at the latest.
func OpenInTime(ctx context.Context, dial func() (*Stream, error)) (*Stream, error) {
	opened, failed := make(chan *Stream), make(chan error, 1)
	go func() {
		st, err := dial()
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

// Accept sets the function that serves the streams that the other side opens, each on its
// own goroutine. It is called before the first Read. Without it, the other side may not
// open streams.
func (p *Pipe) Accept(serve func(*Stream)) { p.serve = serve }

// multiplexer returns the multiplexer of the connection's streams. It is created for the
// first stream: most connections have none.
func (p *Pipe) multiplexer(create bool) (*yamux.Session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, io.ErrClosedPipe
	case p.mux != nil:
		return p.mux, nil
	case !create:
		return nil, mariposa.Errorf(mariposa.InvalidArgument, "message for a stream that was not opened")
	}
	side, config := yamux.Client, yamux.DefaultConfig()
	config.StreamCloseTimeout = closeTimeout // a node that never closes its end does not keep ours open
	if p.serve != nil {
		side = yamux.Server
		config.StreamCloseTimeout = serveTimeout
	}
	config.ConnectionWriteTimeout, config.StreamOpenTimeout = writeTimeout, writeTimeout
	config.EnableKeepAlive = false // heartbeats are frames
	config.LogOutput = io.Discard  // an error ends the connection, which is logged
	from, to := io.Pipe()
	mux, err := side(&muxConn{from, p}, config)
	if err != nil {
		return nil, err
	}
	p.mux, p.toMux = mux, to
	context.AfterFunc(p.streamsCtx, func() { _ = mux.Close() })
	go p.accept(mux) // ends with it
	return mux, nil
}

func (p *Pipe) accept(mux *yamux.Session) {
	for {
		conn, err := mux.AcceptStream()
		if err != nil || p.serve == nil {
			_ = mux.Close() // it has ended, or the other side may not open streams
			return
		}
		go p.serve(p.newStream(conn)) // ends with the stream
	}
}

// streamFilter admits only messages that carry streams: data and window updates. The
// multiplexer starts a goroutine for each ping, and one frame has room for millions.
type streamFilter struct {
	header [12]byte // version, type, two bytes of flags, stream, length
	filled int
	body   int // bytes of data that follow
}

func (f *streamFilter) check(b []byte) error {
	for len(b) > 0 {
		if f.body > 0 {
			n := min(f.body, len(b))
			f.body, b = f.body-n, b[n:]
			continue
		}
		n := copy(f.header[f.filled:], b)
		b = b[n:]
		if f.filled += n; f.filled < len(f.header) {
			return nil
		}
		f.filled = 0
		switch f.header[1] {
		case 0: // data
			f.body = int(binary.BigEndian.Uint32(f.header[8:]))
		case 1: // a window update
		default:
			return mariposa.Errorf(mariposa.InvalidArgument, "unexpected stream message")
		}
	}
	return nil
}

// muxConn is the connection as the multiplexer sees it.
type muxConn struct {
	*io.PipeReader
	p *Pipe
}

// Write sends bytes in order with the frames, and waits until they are written: a frame
// is never queued behind more than one piece of the streams.
func (c *muxConn) Write(b []byte) (n int, err error) {
	for piece := range slices.Chunk(b, pieceSize) {
		written := make(chan struct{})
		c.p.enqueue(outgoing{bytes: bytes.Clone(piece), written: written})
		select {
		case <-written:
			n += len(piece)
		case <-c.p.streamsCtx.Done():
			return n, io.ErrClosedPipe
		}
	}
	return n, nil
}

// Close ends the connection, unless the pipe is closed already: if the multiplexer fails
// by itself, the peer has broken the protocol. It is called once the multiplexer has shut
// down, before its streams are closed; until then, yamux lets blocked senders spin, unless
// their deadline has passed.
func (c *muxConn) Close() error {
	c.p.endSends()
	if !c.p.isClosed() {
		c.p.abort()
	}
	return c.PipeReader.Close()
}
