package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/clock"
	"mariposa/seal"
	"mariposa/wire"
)

// Options configure the links of a replica.
type Options struct {
	Replica string // its name
	Cluster string // the installation
	Store   LeaseReader
	Ring    *seal.Ring
	Clock   clock.Clock   // the one that replicas share
	Idle    time.Duration // how long an unused link is kept; a minute if zero
}

// Links are the connections of this replica to others: at most one to each, opened when it
// is first needed and closed when it has not been used for a while.
type Links struct {
	Options
	ctx    context.Context //nolint:containedctx // the life of the links
	cancel context.CancelFunc
	used   nonces

	mu  sync.Mutex
	all map[string]*link // by the name of the other replica
}

const (
	dialTimeout  = 3 * time.Second
	pingInterval = 2 * time.Second
	pingTimeout  = 5 * time.Second
)

// New returns a replica's links. Close them.
func New(o Options) *Links {
	if o.Idle == 0 {
		o.Idle = time.Minute
	}
	l := &Links{Options: o, all: map[string]*link{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Close ends all links and their streams.
func (l *Links) Close() { l.cancel() }

// UnreachableError says that another replica could not be asked.
type UnreachableError struct {
	Replica Replica
	// Sent says that the request may have been carried out nevertheless.
	Sent  bool
	Cause error
}

func (e *UnreachableError) Error() string {
	at := ""
	if e.Replica.URL != "" {
		at = " at " + e.Replica.URL
	}
	return fmt.Sprintf("replica %s%s cannot be reached: %s", e.Replica.Name, at, describe(e.Cause))
}

// describe says in plain words why a replica does not answer.
func describe(err error) string {
	var slow interface{ Timeout() bool }
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &slow) && slow.Timeout():
		return "it does not answer in time"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "no server is running there"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return "it closed the connection"
	}
	return err.Error()
}

func (e *UnreachableError) Unwrap() error { return e.Cause }

var (
	// ErrAbsent says that a replica does not have the session of a node.
	ErrAbsent = errors.New("the node is not connected to that replica")
	// ErrNoAddress says that a replica has not published an address.
	ErrNoAddress = errors.New("it publishes no address: start it with --advertise")
	errNotAlive  = errors.New("it is no longer alive")
)

// Stream is a stream to another replica.
type Stream struct {
	*wire.Stream
	link   *link
	closed sync.Once
}

// Close ends the stream.
func (s *Stream) Close() error {
	s.closed.Do(s.link.release)
	return s.Stream.Close()
}

// EndReason returns why the stream ended although nobody closed it.
func (s *Stream) EndReason() error { return s.link.endReason() }

// Open asks another replica and returns its stream, once that one has accepted the
// request. The context limits only this call. It fails with ErrAbsent, with an
// UnreachableError, or with what the other replica said.
func (l *Links) Open(ctx context.Context, replica string, f wire.Forward) (*Stream, error) {
	k, err := l.get(ctx, replica)
	if err != nil {
		return nil, err
	}
	st, err := k.open(ctx, f)
	if err != nil {
		k.release()
		return nil, err
	}
	s := &Stream{Stream: st, link: k}
	inTime := context.AfterFunc(ctx, func() { _ = st.Close() })
	m, err := st.Receive()
	switch {
	case !inTime():
		err = &UnreachableError{k.to, true, context.Cause(ctx)}
	case err != nil:
		err = &UnreachableError{k.to, true, k.endReason()}
	case m.Absent:
		err = ErrAbsent
	case m.Error != "":
		err = &mariposa.Error{Code: m.Code, Message: m.Error}
	default:
		return s, nil
	}
	_ = s.Close() // never fails
	return nil, err
}

// link is the connection to one other replica.
type link struct {
	l     *Links
	to    Replica
	ready chan struct{} // closed when it is open, or has failed

	// Set before ready is closed.
	pipe *wire.Pipe
	err  error // why it could not be opened

	mu     sync.Mutex
	uses   int
	unused *time.Timer
	end    error // why it has ended
}

// get returns the link to a replica, once it is open. The caller must release it.
func (l *Links) get(ctx context.Context, replica string) (*link, error) {
	l.mu.Lock()
	k := l.all[replica]
	if k == nil || !k.take() {
		k = &link{l: l, to: Replica{Name: replica}, ready: make(chan struct{}), uses: 1}
		l.all[replica] = k
		go k.run()
	}
	l.mu.Unlock()
	var err error
	select {
	case <-k.ready:
		if k.err == nil {
			return k, nil
		}
		err = &UnreachableError{k.to, false, k.err}
	case <-ctx.Done():
		err = &UnreachableError{Replica{Name: replica}, false, context.Cause(ctx)}
	}
	k.release()
	return nil, err
}

// take uses a link unless it has ended, which its reader may not have noticed yet.
func (k *link) take() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.end != nil || k.isBroken() {
		return false
	}
	k.uses++
	if k.unused != nil {
		k.unused.Stop()
		k.unused = nil
	}
	return true
}

// isBroken reports whether a request over a link would fail because its connection has ended.
func (k *link) isBroken() bool {
	select {
	case <-k.ready:
		return k.pipe != nil && k.pipe.IsEnded()
	default: // it is being opened
		return false
	}
}

var errIdle = errors.New("the link was not used any more")

func (k *link) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.uses--; k.uses == 0 && k.end == nil {
		k.unused = time.AfterFunc(k.l.Idle, func() { k.endIfUnused() })
	}
}

func (k *link) endIfUnused() {
	k.mu.Lock()
	if k.uses > 0 || k.end != nil {
		k.mu.Unlock()
		return
	}
	k.end = errIdle
	k.mu.Unlock()
	<-k.ready
	if k.pipe != nil {
		k.pipe.Close()
	}
}

// fail notes why a link has ended; the first reason counts.
func (k *link) fail(why error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.end == nil {
		k.end = why
	}
	if k.unused != nil {
		k.unused.Stop()
	}
}

func (k *link) endReason() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.end != nil {
		return k.end
	}
	return fmt.Errorf("the connection to replica %s ended", k.to.Name)
}

// run opens a link and serves it until it ends.
func (k *link) run() {
	ctx, cancel := context.WithCancel(k.l.ctx)
	defer cancel()
	conn, err := k.dial(ctx)
	if err != nil {
		k.err = err
		k.fail(err)
		k.l.forget(k)
		close(k.ready)
		return
	}
	k.pipe = wire.NewPipe(ctx, conn)
	close(k.ready)
	slog.Info("connected to another replica", "replica", k.to.Name, "url", k.to.URL)
	err = follow(ctx, conn, k.pipe)
	k.fail(fmt.Errorf("replica %s at %s does not answer any more: %s", k.to.Name, k.to.URL, describe(err))) // not wrapped: it is not the end of a stream, even if it was the end of the connection
	k.l.forget(k)
	k.pipe.Close()
	slog.Info("disconnected from another replica", "replica", k.to.Name, "reason", k.endReason())
}

func (l *Links) forget(k *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all[k.to.Name] == k {
		delete(l.all, k.to.Name)
	}
}

// open opens a stream unless the context ends first.
func (k *link) open(ctx context.Context, f wire.Forward) (*wire.Stream, error) {
	st, err := wire.OpenInTime(ctx, func() (*wire.Stream, error) { return k.pipe.DialReplica(f) })
	switch {
	case err == nil:
		return st, nil
	case ctx.Err() != nil:
		return nil, &UnreachableError{k.to, true, context.Cause(ctx)}
	}
	return nil, &UnreachableError{k.to, true, k.endReason()}
}

// dial finds a replica and connects to it.
func (k *link) dial(ctx context.Context) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	all, err := List(ctx, k.l.Store)
	if err != nil {
		return nil, err
	}
	err = errNotAlive
	for _, r := range all {
		if r.Name == k.to.Name {
			k.to, err = r, nil
		}
	}
	switch {
	case err != nil:
		return nil, err
	case k.to.URL == "":
		return nil, ErrNoAddress
	}
	conn, status, err := k.l.connect(ctx, k.to)
	if status == http.StatusUnauthorized { // the keys may have been rotated
		if err := k.l.Ring.Reload(); err != nil {
			return nil, err
		}
		conn, _, err = k.l.connect(ctx, k.to)
	}
	return conn, err
}

// Serve serves the link of another replica until it ends. Each request is handled on its own
// goroutine, with a context that ends with the link.
func Serve(ctx context.Context, conn *websocket.Conn, handle func(context.Context, *wire.Stream, *wire.Forward)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pipe := wire.NewPipe(ctx, conn)
	defer pipe.Close()
	pipe.Accept(func(s *wire.Stream) {
		defer s.Close()
		if m, err := s.Receive(); err == nil && m.Forward != nil {
			handle(ctx, s, m.Forward)
		}
	})
	_ = follow(ctx, conn, pipe) // the other replica has gone
}

// follow reads a pipe until its connection ends or the peer does not answer any more.
func follow(ctx context.Context, conn *websocket.Conn, pipe *wire.Pipe) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var pinger sync.WaitGroup
	defer pinger.Wait()
	defer cancel(nil)
	pinger.Go(func() {
		every := time.NewTicker(pingInterval)
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
			ping, done := context.WithTimeout(ctx, pingTimeout)
			err := conn.Ping(ping)
			done()
			if err != nil {
				cancel(err)
				return
			}
		}
	})
	for {
		if _, err := pipe.Read(ctx); err != nil { // replicas send no frames
			if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
				return cause
			}
			return err
		}
	}
}
