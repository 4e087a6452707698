package wire

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/hashicorp/yamux"
)

// Pipe carries frames over one WebSocket, and streams in addition. Sending a frame never
// blocks: the queue is bounded, and the connection ends when it is full, because a peer
// that does not read is as good as gone.
type Pipe struct {
	conn         *websocket.Conn
	ctx          context.Context //nolint:containedctx // the life of the connection, which outlasts any call
	abort        context.CancelFunc
	stopWatching func() bool

	streamsCtx context.Context //nolint:containedctx // the life of the streams, which ends when the pipe is closed
	endStreams context.CancelFunc
	serve      func(*Stream)
	filter     streamFilter // used by the reader

	mu       sync.Mutex
	queue    []outgoing
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
	maxQueued    = 20_000
	writeTimeout = 30 * time.Second
	closeTimeout = 5 * time.Second // for the frames queued when the pipe is closed, and for a node to close its end of a stream
	serveTimeout = 5 * time.Minute // for the end of a stream to be read
)

// NewPipe takes over a connection. One goroutine writes until Close, or until the context
// ends. Frames queued before Close are written even if the context ends right after: a
// peer often sends a last frame just before it disconnects.
func NewPipe(ctx context.Context, conn *websocket.Conn) *Pipe {
	conn.SetReadLimit(MaxFrame)
	p := &Pipe{conn: conn, notEmpty: make(chan struct{}, 1), streams: map[*Stream]struct{}{}}
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
func (p *Pipe) Send(f Frame) { p.enqueue(outgoing{frame: f}) }

func (p *Pipe) enqueue(o outgoing) {
	p.mu.Lock()
	full := len(p.queue) >= maxQueued
	if !p.closed && !full {
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
	if !already {
		late := time.AfterFunc(closeTimeout, p.abort)
		context.AfterFunc(p.ctx, func() { late.Stop() })
	}
	select {
	case p.notEmpty <- struct{}{}:
	default:
	}
}

func (p *Pipe) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Read waits for the next frame. It also passes bytes to the streams, so streams work
// only while the pipe is being read.
func (p *Pipe) Read(ctx context.Context) (Frame, error) {
	for {
		kind, b, err := p.conn.Read(ctx)
		if err != nil {
			return Frame{}, fmt.Errorf("the connection ended: %w", err)
		}
		if kind == websocket.MessageText {
			return Decode(b)
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

func (p *Pipe) write() {
	defer p.abort()
	defer p.stopWatching()
	for {
		p.mu.Lock()
		line, closed := p.queue, p.closed
		p.queue = nil
		p.mu.Unlock()
		for _, o := range line {
			if err := p.writeOne(o); err != nil {
				_ = p.conn.CloseNow() // the connection is broken already
				return
			}
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

func (p *Pipe) writeOne(o outgoing) error {
	ctx, cancel := context.WithTimeout(p.ctx, writeTimeout)
	defer cancel()
	if o.written != nil {
		err := p.conn.Write(ctx, websocket.MessageBinary, o.bytes)
		if err == nil {
			close(o.written)
		}
		return err
	}
	b, err := Encode(o.frame)
	if err != nil {
		return err
	}
	return p.conn.Write(ctx, websocket.MessageText, b)
}
