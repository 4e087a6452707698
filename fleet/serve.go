package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/wire"
)

// Serve runs one agent's connection until it ends. The caller decides who may connect,
// and passes what admitted the agent.
func (f *Fleet) Serve(ctx context.Context, conn *websocket.Conn, by Admission) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pipe := wire.NewPipe(ctx, conn)
	defer pipe.Close()
	var opened atomic.Pointer[Session]
	pipe.LimitAgent(f.unfinished, func(ctx context.Context, frames, weight int) error {
		if s := opened.Load(); s != nil {
			return s.payReading(ctx, frames, weight)
		}
		return nil // the hello, and a frame after it
	})
	hello, cancelHello := context.WithTimeout(ctx, helloTimeout)
	first, err := pipe.Read(hello)
	cancelHello()
	if err != nil || first.Hello == nil || first.Seq != 1 {
		bye := &wire.Bye{Reason: "the first frame of an agent must be a hello", Final: true}
		if err != nil && mariposa.CodeOf(err) == mariposa.TooLarge {
			bye.Reason = fmt.Sprintf("the hello of an agent must have at most %d KiB", wire.MaxHello>>10)
		}
		pipe.Send(wire.Frame{Seq: 1, Bye: bye})
		return
	}
	second := readAhead(ctx, pipe, cancel)
	wake := make(chan struct{}, 1)
	s, bye := f.openInTurn(ctx, first.Hello, by, pipe, func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	if bye != nil {
		pipe.Send(wire.Frame{Seq: 1, Bye: bye})
		return
	}
	if by.leave != nil {
		by.leave()
	}
	opened.Store(s)
	s.dial, s.countStreams = pipe.Dial, pipe.CountStreams
	slog.Info("node connected", "node", first.Hello.Name, "epoch", s.epoch)
	go s.run(ctx, wake, cancel)
	for in := <-second; ; in.frame, in.err = pipe.Read(ctx) {
		if in.err != nil {
			s.endRead(in.err)
			return
		}
		s.Receive(in.frame)
	}
}

// endRead ends the session because nothing more can be read from its agent. If the agent
// broke a rule, it is told which.
func (s *Session) endRead(err error) {
	why := "the connection ended"
	if rule := brokenRule(err); rule != nil {
		why = rule.Message
		slog.Warn("ending a node's session", "node", s.hello.Name, "err", err)
	}
	s.end(why)
	slog.Info("node disconnected", "node", s.hello.Name)
}

// brokenRule returns which rule an agent broke; nil if the connection ended.
func brokenRule(err error) (rule *mariposa.Error) {
	errors.As(err, &rule)
	return rule
}

type incoming struct {
	frame wire.Frame
	err   error
}

// readAhead reads the next frame. If the connection ends instead, it calls cancel: an agent
// that has left because the store took too long must not get a session here, which would
// supersede the one that it has elsewhere.
func readAhead(ctx context.Context, pipe *wire.Pipe, cancel context.CancelFunc) <-chan incoming {
	read := make(chan incoming, 1)
	go func() {
		frame, err := pipe.Read(context.WithoutCancel(ctx)) // ends with the pipe; a refusal may still have to be sent
		if err != nil && brokenRule(err) == nil {           // else the agent is there, and told
			cancel()
		}
		read <- incoming{frame, err}
	}()
	return read
}

// run calls Step whenever the session is woken, until its connection ends.
func (s *Session) run(ctx context.Context, wake <-chan struct{}, cancel context.CancelFunc) {
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		}
		if err := s.Step(ctx); err != nil {
			if !errors.Is(err, context.Canceled) {
				slog.Warn("ending a node's session", "node", s.hello.Name, "err", err)
			}
			s.end(err.Error())
			return
		}
	}
}

// tickInterval is how often the nodes are checked.
func (f *Fleet) tickInterval() time.Duration { return min(time.Second, f.Beat/5) }

// Run checks the nodes periodically until the context ends.
func (f *Fleet) Run(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	if f.Links != nil {
		asking.Go(func() { f.followHeartbeats(ctx) })
	}
	every := time.NewTicker(f.tickInterval())
	defer every.Stop()
	const pause = 200 * time.Millisecond // between two looks at the drains
	var rest <-chan time.Time
	drains := f.drains
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			f.Tick(ctx)
		case <-drains:
			f.watchDrains(ctx)
			drains, rest = nil, time.After(pause)
		case <-rest:
			drains, rest = f.drains, nil
		}
	}
}
