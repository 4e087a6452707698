package wire

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"github.com/hashicorp/yamux"

	"mariposa"
)

// Pipe carries frames over one WebSocket, and streams in addition. Sending a frame never
// blocks: the queue is bounded, and the connection ends when it is full, because a peer
// that does not read is as good as gone. Heartbeats overtake everything that is queued, and
// wait for one piece of a frame or of a stream at most.
type Pipe struct {
	conn         *websocket.Conn
	ctx          context.Context //nolint:containedctx // the life of the connection, which outlasts any call
	abort        context.CancelFunc
	stopWatching func() bool

	streamsCtx context.Context //nolint:containedctx // the life of the streams, which ends when the pipe is closed
	endStreams context.CancelFunc
	serve      func(*Stream)
	filter     streamFilter // used by the reader, as is the next
	pieces     assembly     // of a frame that has not arrived completely
	pay        payFunc      // for what is read from an agent; nil if the other side is none
	readLimit  atomic.Int64 // bytes of a frame
	sent       int64        // the last frame that was written; used by the writer

	mu       sync.Mutex
	queue    []outgoing
	beats    []outgoing // heartbeats, which come first
	closed   bool
	notEmpty chan struct{}
	mux      *yamux.Session
	toMux    *io.PipeWriter
	streams  map[*Stream]struct{} // those not closed on this side
}

// outgoing is a queued frame, or bytes of the streams.
type outgoing struct {
	frame   Frame
	bytes   []byte
	written chan<- struct{} // closed once the bytes are written
}

const (
	maxQueued = 20_000
	// pieceSize is the most that is written at a time. A larger frame is sent in pieces,
	// with a mark in front: pieceMore, or pieceLast.
	pieceSize    = 64 << 10
	pieceMore    = '+'
	pieceLast    = '.'
	closeTimeout = 5 * time.Second // for the frames queued when the pipe is closed, and for a node to close its end of a stream
	serveTimeout = 5 * time.Minute // for the end of a stream to be read
)

// writeTimeout bounds a single write. Only tests change it.
var writeTimeout = 30 * time.Second

// NewPipe takes over a connection. One goroutine writes until Close, or until the context
// ends. Frames queued before Close are written even if the context ends right after: a
// peer often sends a last frame just before it disconnects.
func NewPipe(ctx context.Context, conn *websocket.Conn) *Pipe {
	conn.SetReadLimit(2 * pieceSize)
	p := &Pipe{conn: conn, notEmpty: make(chan struct{}, 1), streams: map[*Stream]struct{}{}}
	p.readLimit.Store(MaxFrame)
	p.ctx, p.abort = context.WithCancel(context.WithoutCancel(ctx))
	p.streamsCtx, p.endStreams = context.WithCancel(p.ctx)
	p.stopWatching = context.AfterFunc(ctx, func() {
		if !p.isClosed() {
			p.abort()
		}
	})
	go p.write()
	return p
}

// Send queues a frame.
func (p *Pipe) Send(f Frame) {
	if f.Welcome != nil && p.pay != nil {
		p.readLimit.Store(MaxReport)
	}
	p.enqueue(outgoing{frame: f})
}

func (p *Pipe) enqueue(o outgoing) {
	p.mu.Lock()
	full := len(p.queue)+len(p.beats) >= maxQueued
	switch {
	case p.closed || full:
	case o.frame.Heartbeat != nil:
		p.beats = append(p.beats, o)
	default:
		p.queue = append(p.queue, o)
	}
	p.mu.Unlock()
	if full {
		p.abort()
		return
	}
	select {
	case p.notEmpty <- struct{}{}:
	default:
	}
}

// Close ends the streams, and the connection once all queued frames are written.
func (p *Pipe) Close() {
	p.mu.Lock()
	already := p.closed
	p.closed = true
	p.mu.Unlock()
	p.endStreams()
	p.pieces.take()
	if !already {
		late := time.AfterFunc(closeTimeout, p.abort)
		context.AfterFunc(p.ctx, func() { late.Stop() })
	}
	select {
	case p.notEmpty <- struct{}{}:
	default:
	}
}

// Abort ends the connection at once, for a peer that does not answer. Close would wait for
// its answer.
func (p *Pipe) Abort() { p.abort() }

// IsEnded reports whether its streams have ended. A write that fails ends them before Read fails.
func (p *Pipe) IsEnded() bool { return p.streamsCtx.Err() != nil }

func (p *Pipe) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Read waits for the next frame. It also passes bytes to the streams, so streams work
// only while the pipe is being read.
func (p *Pipe) Read(ctx context.Context) (Frame, error) {
	f, err := p.read(ctx)
	if err != nil {
		p.pieces.take() // no more will come
	}
	return f, err
}

func (p *Pipe) read(ctx context.Context) (Frame, error) {
	for {
		kind, b, err := p.conn.Read(ctx)
		if err != nil {
			return Frame{}, fmt.Errorf("the connection ended: %w", err)
		}
		if err := p.pieces.check(); err != nil {
			return Frame{}, err
		}
		if kind == websocket.MessageText {
			frame, isWhole, err := p.join(b)
			switch {
			case err != nil:
				return Frame{}, err
			case isWhole:
				return p.decode(ctx, frame, len(b))
			case p.pay != nil:
				if err := p.pay(ctx, 0, messageWeight+len(b)); err != nil {
					return Frame{}, err
				}
			}
			continue
		}
		if _, err := p.multiplexer(p.serve != nil); err != nil {
			return Frame{}, err
		}
		if err := p.filter.check(b); err != nil {
			return Frame{}, err
		}
		if _, err := p.toMux.Write(b); err != nil {
			return Frame{}, fmt.Errorf("the streams ended: %w", err)
		}
	}
}

// join adds a piece to those that have arrived, and returns the frame once it is whole.
// Heartbeats, which are never in pieces, may arrive in between.
func (p *Pipe) join(b []byte) (frame []byte, isWhole bool, err error) {
	limit := p.readLimit.Load()
	if int64(p.pieces.size()+len(b)-1) > limit {
		return nil, false, mariposa.Errorf(mariposa.TooLarge, "frame exceeds the limit of %d bytes", limit)
	}
	if len(b) == 0 || b[0] != pieceMore && b[0] != pieceLast {
		return b, true, nil
	}
	if err := p.pieces.add(b[1:]); err != nil {
		return nil, false, err
	}
	if b[0] == pieceLast {
		return p.pieces.take(), true, nil
	}
	return nil, false, nil
}

func (p *Pipe) write() {
	defer p.abort()
	defer p.stopWatching()
	for {
		o, found, closed := p.next()
		if found {
			if err := p.writeOne(o); err != nil {
				_ = p.conn.CloseNow() // the connection is broken already
				return
			}
			continue
		}
		if closed {
			_ = p.conn.Close(websocket.StatusNormalClosure, "")
			return
		}
		select {
		case <-p.ctx.Done():
			_ = p.conn.CloseNow() // no close handshake: the connection has been cut
			return
		case <-p.notEmpty:
		}
	}
}

// next takes the first in line, heartbeats before all else. If there is none, it reports
// whether the pipe is closed.
func (p *Pipe) next() (o outgoing, found, closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range []*[]outgoing{&p.beats, &p.queue} {
		if len(*line) > 0 {
			o = (*line)[0]
			(*line)[0] = outgoing{} // it must not be kept in memory
			if *line = (*line)[1:]; len(*line) == 0 {
				*line = nil
			}
			return o, true, false
		}
	}
	return o, false, p.closed
}

func (p *Pipe) writeOne(o outgoing) error {
	switch {
	case o.written != nil:
		err := p.writePiece(websocket.MessageBinary, o.bytes)
		if err == nil {
			close(o.written)
		}
		return err
	case o.frame.Heartbeat != nil:
		return p.writeHeartbeat(*o.frame.Heartbeat)
	}
	b, err := Encode(o.frame)
	if err != nil {
		return err
	}
	if len(b) <= pieceSize {
		err = p.writePiece(websocket.MessageText, b)
	} else {
		err = p.writePieces(b)
	}
	p.sent = o.frame.Seq
	return err
}

// writePieces writes a large frame, and heartbeats in between.
func (p *Pipe) writePieces(frame []byte) error {
	piece := make([]byte, 0, pieceSize+1)
	for all := range slices.Chunk(frame, pieceSize) {
		for _, o := range p.takeHeartbeats() {
			if err := p.writeHeartbeat(*o.frame.Heartbeat); err != nil {
				return err
			}
		}
		piece = append(append(piece[:0], pieceMore), all...)
		if frame = frame[len(all):]; len(frame) == 0 {
			piece[0] = pieceLast
		}
		if err := p.writePiece(websocket.MessageText, piece); err != nil {
			return err
		}
	}
	return nil
}

func (p *Pipe) takeHeartbeats() []outgoing {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.beats
	p.beats = nil
	return all
}

// writeHeartbeat writes a heartbeat, with what was written before it.
func (p *Pipe) writeHeartbeat(h Heartbeat) error {
	h.Sent = p.sent
	b, err := Encode(Frame{Heartbeat: &h})
	if err != nil {
		return err
	}
	return p.writePiece(websocket.MessageText, b)
}

func (p *Pipe) writePiece(kind websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(p.ctx, writeTimeout)
	defer cancel()
	return p.conn.Write(ctx, kind, b)
}
