// Package gate ends the operations of a driver when the driver is closed. It owns the count of
// operations in progress and their contexts. It does not know what they do.
package gate

import (
	"context"
	"sync"
)

// Gate admits operations until it is shut.
type Gate struct {
	ctx    context.Context //nolint:containedctx // the life of the driver
	cancel context.CancelFunc
	closed error

	mu   sync.Mutex
	shut bool
	work sync.WaitGroup
}

// New returns an open gate. Operations that come too late, or are canceled by Wait, get the
// given error.
func New(closed error) *Gate {
	g := &Gate{closed: closed}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// Context ends when Wait is called.
func (g *Gate) Context() context.Context { return g.ctx }

// Enter admits an operation. Its context ends with Wait, which then waits until leave is
// called.
func (g *Gate) Enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return nil, nil, g.closed
	}
	g.work.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(g.ctx, func() { cancel(g.closed) })
	return ctx, func() {
		stop()
		cancel(nil)
		g.work.Done()
	}, nil
}

// Go runs work that Wait waits for, unless the gate is shut.
func (g *Gate) Go(work func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shut {
		g.work.Go(work)
	}
}

// Shut admits nothing more. It reports whether the gate was open.
func (g *Gate) Shut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.shut
	g.shut = true
	return !was
}

// IsShut reports whether Shut was called.
func (g *Gate) IsShut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shut
}

// Wait cancels the operations in progress and waits for their ends. Call Shut before.
func (g *Gate) Wait() {
	g.cancel()
	g.work.Wait()
}
