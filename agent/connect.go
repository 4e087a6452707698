package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/wire"
)

// Path is the path on which the control plane accepts agents.
const Path = "/v1/agent"

// Link describes how to reach the control plane.
type Link struct {
	Servers []string // URLs of equivalent servers
	Token   string   // a join token; a node that has joined before needs none
	Client  *http.Client
	// Insecure allows sending tokens and keys unencrypted to other machines.
	Insecure bool
}

// Check validates the server addresses.
func (l Link) Check() error {
	for _, s := range l.Servers {
		u, err := url.Parse(s)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return mariposa.Errorf(mariposa.InvalidArgument, "invalid server address %q: use a URL such as https://10.0.0.1:8080", s)
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
// returns early only when the control plane says that reconnecting will not help.
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
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var both sync.WaitGroup
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

func keepConnected(ctx context.Context, l Link, n *Node) error {
	pause := 100 * time.Millisecond
	var log reasonLog
	for i := 0; ctx.Err() == nil; i++ {
		began := time.Now()
		err := connect(ctx, l.Servers[i%len(l.Servers)], l, n)
		var no *refusal
		if errors.As(err, &no) {
			return fmt.Errorf("the control plane rejected this node: %w", no)
		}
		if time.Since(began) > 10*time.Second {
			pause, log = 100*time.Millisecond, reasonLog{}
		}
		if ctx.Err() == nil && err != nil && log.isNew(err, time.Now()) {
			slog.Warn("not connected to the control plane; retrying; instances keep running", "node", n.Hello.Name, "err", err)
		}
		wait := pause/2 + rand.N(pause) // so that a fleet does not reconnect all at once
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		pause = min(2*pause, 5*time.Second)
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

func connect(ctx context.Context, server string, l Link, n *Node) error {
	dial, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	at := strings.Replace(strings.TrimSuffix(server, "/"), "http", "ws", 1) + Path
	header := http.Header{wire.NodeHeader: {n.Hello.Node + ":" + n.Hello.Key}} // sufficient if the node has joined before
	if l.Token != "" {
		header.Set("Authorization", "Bearer "+l.Token)
	}
	conn, resp, err := websocket.Dial(dial, at, &websocket.DialOptions{HTTPClient: l.client(), HTTPHeader: header})
	why := ""
	if resp != nil && resp.Body != nil { // of a refusal; an accepted connection has none
		why = readRefusal(resp.Body)
		_ = resp.Body.Close()
	}
	if err != nil {
		if resp != nil && resp.StatusCode == http.StatusUnauthorized {
			return &refusal{cmp.Or(why, "the join token is invalid")}
		}
		return err
	}
	pipe := wire.NewPipe(ctx, conn)
	defer pipe.Close()
	pipe.Accept(n.Streams(ctx))
	n.Connected(pipe)
	defer n.Disconnected(pipe)
	for isFirst := true; ; isFirst = false {
		f, err := pipe.Read(ctx)
		if err != nil {
			return err
		}
		if isFirst && f.Bye == nil {
			slog.Info("connected to the control plane", "node", n.Hello.Name, "server", server)
		}
		if f.Bye != nil && f.Bye.Final {
			return &refusal{f.Bye.Reason}
		}
		if f.Bye != nil {
			return fmt.Errorf("the control plane ended the session: %s", f.Bye.Reason)
		}
		n.Receive(pipe, f)
	}
}
