package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"mariposa"
	"mariposa/wire"
)

// Path is the path on which the control plane accepts agents.
const Path = "/v1/agent"

// Link describes how to reach the control plane.
type Link struct {
	Servers []string // URLs of equivalent servers
	// Known are the servers that this agent has learned of; nil if it learns of none.
	Known  *Known
	Token  string // a join token; a node that has joined before needs none
	Client *http.Client
	// Insecure allows sending tokens and keys unencrypted to other machines.
	Insecure bool
	// Lookup finds the addresses of a host; by the system's resolver if nil.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
}

// Check validates the server addresses.
func (l Link) Check() error {
	for _, s := range l.Servers {
		u, err := parseServer(s)
		if err != nil {
			return err
		}
		if err := mariposa.CheckEncrypted(u, l.Insecure); err != nil {
			return err
		}
	}
	return nil
}

// client returns an HTTP client that follows redirects only within the same server, and
// never from an encrypted to an unencrypted address: every request contains the node's
// key.
func (l Link) client() *http.Client {
	var c http.Client
	if l.Client != nil {
		c = *l.Client
	}
	c.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		first := via[0].URL
		switch {
		case len(via) >= maxRedirects:
			return errors.New("the server redirects too many times")
		case next.URL.Hostname() != first.Hostname():
			return fmt.Errorf("the server redirects to %s: name that address with --server if it may receive the key of this node", next.URL.Redacted())
		case first.Scheme == "https" && next.URL.Scheme != "https":
			return fmt.Errorf("the server redirects to %s, where the key of this node would be sent unencrypted: use an https address", next.URL.Redacted())
		}
		return nil
	}
	return &c
}

const maxRedirects = 5

// Run keeps a node connected and working until the context ends: it dials, and redials
// with growing pauses when the connection is lost. Instances keep running throughout. It
// returns early only if the control plane rejects a node that has never joined and has no
// instances. Any other node keeps trying: the control plane may have lost its database, and
// gets it back. One that an operator removed while it was connected keeps its instances, and
// does not connect again.
func Run(ctx context.Context, l Link, o Options) error {
	if err := l.Check(); err != nil {
		return err
	}
	wake := make(chan struct{}, 1)
	o.Wake = func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	n := NewNode(o)
	if err := n.List(ctx); err != nil {
		return err
	}
	n.hasJoined.Store(o.Seen.Incarnation != "" || len(n.found) > 0)
	asked := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(asked))
	defer cancel(nil)
	var both sync.WaitGroup
	both.Go(func() { n.endWith(asked, ctx.Done(), cancel) })
	both.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-wake:
				n.Step(ctx)
			}
		}
	})
	if o.Machine != nil {
		n.SetMachine(o.Machine())
		both.Go(func() { n.watchMachine(ctx) })
	}
	if n.Names != nil {
		both.Go(func() { n.Names.maintain(ctx) })
	}
	both.Go(func() { cancel(keepConnected(ctx, l, n)) })
	if n.valuesServer != nil {
		both.Go(func() { n.valuesServer.serve(ctx, o.Mdata) })
	}
	both.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// The pauses after the control plane has rejected a node: somebody has to do something
// about it.
const (
	firstRefusedPause = 2 * time.Second
	lastRefusedPause  = time.Minute
	lastPendingPause  = 15 * time.Second // while it waits until an operator accepts it
)

// The pauses after a lost connection. The control plane considers a node unknown that it
// has not heard for 11 s, so there must be time for several attempts.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 3 * time.Second
	// steadySession is how long a session lasts after which the pauses start over.
	steadySession = 2 * time.Second
)

// pacer decides how long to wait before the next attempt to connect: longer each time, and
// from the start again after a session that lasted a while.
type pacer struct{ pause time.Duration }

func (p *pacer) next(lasted, shortest, longest time.Duration) time.Duration {
	if lasted >= steadySession {
		p.pause = 0
	}
	pause := min(max(p.pause, shortest), longest)
	p.pause = 2 * pause
	return pause
}

func keepConnected(ctx context.Context, l Link, n *Node) error {
	var pace pacer
	var log reasonLog
	failed := map[target]time.Time{}
	var copied time.Time // since when it is refused as a copy
	for ctx.Err() == nil {
		began := time.Now()
		lasted, err := connect(ctx, l, n, failed)
		var no *refusal
		var other *copyError
		shortest, longest := firstPause, lastPause
		if errors.As(err, &other) && copied.IsZero() {
			copied = began
		} else if time.Since(began) > movePatience { // it was connected
			copied = time.Time{}
		}
		if lasted >= steadySession {
			log = reasonLog{}
		}
		switch refused := errors.As(err, &no); {
		case other != nil && time.Since(copied) > movePatience:
			return fmt.Errorf("the control plane rejected this node: %w", other)
		case errors.Is(err, errRemoved):
			slog.Error("an operator removed this node: its instances keep running, and it does not connect again until its agent is restarted", "node", n.Hello.Name)
			<-ctx.Done()
			return ctx.Err()
		case refused && !n.hasJoined.Load():
			return fmt.Errorf("the control plane rejected this node: %w", no)
		case refused:
			err = fmt.Errorf("the control plane rejects this node: %w", no)
			shortest, longest = firstRefusedPause, lastRefusedPause
		case isPostponed(err):
			longest = lastPendingPause
		}
		if ctx.Err() == nil && err != nil && log.isNew(err, time.Now()) {
			slog.Warn("not connected to the control plane; retrying; instances keep running", "node", n.Hello.Name, "err", err)
		}
		pause := pace.next(lasted, shortest, longest)
		wait := pause/2 + rand.N(pause) // so that a fleet does not reconnect all at once
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return ctx.Err()
}

// reasonLog remembers why the node is not connected, so that the same reason is not logged
// with every attempt: a node may wait for its approval for days.
type reasonLog struct {
	last string
	at   time.Time
}

const repeatInterval = 10 * time.Minute

// isNew reports whether a reason is to be logged: it differs from the last one, or that
// was long ago.
func (l *reasonLog) isNew(err error, now time.Time) bool {
	if err.Error() == l.last && now.Sub(l.at) < repeatInterval {
		return false
	}
	l.last, l.at = err.Error(), now
	return true
}

// readRefusal reads the message for an agent that the control plane does not admit; empty
// if the response is not from Mariposa.
func readRefusal(body io.Reader) string {
	var doc struct {
		Message string `json:"message"`
	}
	_ = json.NewDecoder(io.LimitReader(body, 64<<10)).Decode(&doc) // on an error, the message is empty
	return doc.Message
}

// refusal is a final rejection by the control plane.
type refusal struct{ reason string }

func (r *refusal) Error() string { return r.reason }

// postponement means that the control plane may admit the node later: an operator has to
// accept it, or the server gets too many requests.
type postponement struct{ reason string }

func (p *postponement) Error() string { return p.reason }

func isPostponed(err error) bool {
	var later *postponement
	return errors.As(err, &later)
}

// copyError means that the node runs with another data directory.
type copyError struct{ reason string }

func (c *copyError) Error() string { return c.reason }

// movePatience is how long an agent waits whose data directory was moved: until its node
// does not count as connected any more. A copy must not wait for longer, or it would take
// the node over when the original is silent for a moment.
const movePatience = 20 * time.Second

// errRemoved means that an operator removed the node.
var errRemoved = errors.New("the node was removed")

// failureMemory is how long a target that failed is tried after the others.
const failureMemory = 30 * time.Second

// connect connects to one of the servers and serves the connection until it ends. It notes
// which targets failed, and returns how long the node had a session.
func connect(ctx context.Context, l Link, n *Node, failed map[target]time.Time) (time.Duration, error) {
	now := time.Now()
	maps.DeleteFunc(failed, func(_ target, at time.Time) bool { return now.Sub(at) > failureMemory })
	a, lost := dialAny(ctx, l.targets(ctx, failed), l, n.Hello.Node, *n.keys.Load())
	for _, a := range lost {
		failed[a.target] = now
	}
	if a.err != nil {
		return 0, a.err
	}
	delete(failed, a.target)
	lasted, err := serve(ctx, a, l, n)
	if ctx.Err() == nil {
		failed[a.target] = time.Now() // another one first, for whatever reason it ended
	}
	return lasted, err
}

// serve passes frames between a server and the node until the connection ends. It returns
// how long the node had a session.
func serve(ctx context.Context, a attempt, l Link, n *Node) (lasted time.Duration, err error) {
	pipe := wire.NewPipe(ctx, a.conn)
	defer pipe.Close()
	pipe.Accept(n.Streams(ctx))
	n.Connected(pipe)
	defer n.Disconnected(pipe)
	var began time.Time
	defer func() {
		if !began.IsZero() {
			lasted = time.Since(began)
		}
	}()
	for {
		f, err := pipe.Read(ctx)
		if err != nil {
			return 0, err
		}
		if began.IsZero() && f.Bye == nil {
			began = time.Now()
			n.hasJoined.Store(true)
			slog.Info("connected to the control plane", "node", n.Hello.Name, "server", a.target)
		}
		if f.Bye != nil {
			return 0, endedBy(f.Bye)
		}
		l.learn(&f)
		n.Receive(pipe, f)
	}
}

// endedBy returns why the control plane ended a session.
func endedBy(bye *wire.Bye) error {
	switch {
	case bye.Removed:
		return errRemoved
	case bye.Final:
		return &refusal{bye.Reason}
	case bye.Pending:
		return &postponement{bye.Reason}
	case bye.Copied:
		return &copyError{bye.Reason}
	}
	return fmt.Errorf("the control plane ended the session: %s", bye.Reason)
}

// learn notes the servers that a frame names.
func (l Link) learn(f *wire.Frame) {
	switch {
	case l.Known == nil:
	case f.Welcome != nil:
		l.Known.learn(f.Welcome.Servers)
	case f.Heartbeat != nil:
		l.Known.learn(f.Heartbeat.Servers)
	}
}
