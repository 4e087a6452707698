package wire

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Pipe carries frames over one WebSocket. Sending never blocks: what cannot be
// written soon is bounded, and beyond the bound the connection ends, because a
// peer that does not read is as good as gone.
type Pipe struct {
	conn   *websocket.Conn
	ctx    context.Context //nolint:containedctx // the life of the connection, which outlasts any call
	cut    context.CancelFunc
	unhook func() bool

	mu     sync.Mutex
	queue  []Frame
	closed bool
	some   chan struct{}
}

const (
	maxQueued    = 20_000
	writeTimeout = 30 * time.Second
	closeTimeout = 5 * time.Second // for what is in line when the pipe is closed
)

// NewPipe takes a connection over. One goroutine writes until Close, or until
// the context ends. What was in line at Close is written even if the context
// ends right after: a last word is often said by who is about to go.
func NewPipe(ctx context.Context, conn *websocket.Conn) *Pipe {
	conn.SetReadLimit(MaxFrame)
	p := &Pipe{conn: conn, some: make(chan struct{}, 1)}
	p.ctx, p.cut = context.WithCancel(context.WithoutCancel(ctx))
	p.unhook = context.AfterFunc(ctx, func() {
		if !p.isClosed() {
			p.cut()
		}
	})
	go p.write()
	return p
}

// Send puts a frame in line.
func (p *Pipe) Send(f Frame) {
	p.mu.Lock()
	full := len(p.queue) >= maxQueued
	if !p.closed && !full {
		p.queue = append(p.queue, f)
	}
	p.mu.Unlock()
	if full {
		p.cut()
		return
	}
	select {
	case p.some <- struct{}{}:
	default:
	}
}

// Close ends the connection after what is in line has been written.
func (p *Pipe) Close() {
	p.mu.Lock()
	already := p.closed
	p.closed = true
	p.mu.Unlock()
	if !already {
		late := time.AfterFunc(closeTimeout, p.cut)
		context.AfterFunc(p.ctx, func() { late.Stop() })
	}
	select {
	case p.some <- struct{}{}:
	default:
	}
}

func (p *Pipe) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Read waits for the next frame.
func (p *Pipe) Read(ctx context.Context) (Frame, error) {
	_, b, err := p.conn.Read(ctx)
	if err != nil {
		return Frame{}, fmt.Errorf("the connection ended: %w", err)
	}
	return Decode(b)
}

func (p *Pipe) write() {
	defer p.cut()
	defer p.unhook()
	for {
		p.mu.Lock()
		frames, closed := p.queue, p.closed
		p.queue = nil
		p.mu.Unlock()
		for _, f := range frames {
			if err := p.writeOne(f); err != nil {
				_ = p.conn.CloseNow() // it is broken already
				return
			}
		}
		if closed {
			_ = p.conn.Close(websocket.StatusNormalClosure, "")
			return
		}
		select {
		case <-p.ctx.Done():
			_ = p.conn.CloseNow() // nobody is left to tell
			return
		case <-p.some:
		}
	}
}

func (p *Pipe) writeOne(f Frame) error {
	b, err := Encode(f)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(p.ctx, writeTimeout)
	defer cancel()
	return p.conn.Write(ctx, websocket.MessageText, b)
}
