package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coder/websocket"

	"mariposa/wire"
)

const (
	dialTimeout = 10 * time.Second
	// headStart is how long an attempt runs alone before the next one begins.
	headStart = 300 * time.Millisecond
	// retryPause is how long to wait before a target is tried again while another one hangs.
	retryPause = time.Second
)

// attempt is the result of dialing one target.
type attempt struct {
	target
	conn *websocket.Conn
	err  error
}

// dialAny connects to the first of the targets that answers. Each one that takes longer
// than a moment gets company of the next. The others are dropped before a session begins:
// that takes a hello. A refusal counts only if no other target answers. While one hangs,
// those that failed are tried again: a server that had lost its database may be back.
func dialAny(ctx context.Context, targets []target, l Link, node string, keys Keys) (attempt, []attempt) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	results := make(chan attempt)
	begun, pending := 0, 0 // of all targets; attempts
	defer func() {
		cancel()
		go func(left int) { // ends soon after the context
			for range left {
				if a := <-results; a.conn != nil {
					_ = a.conn.CloseNow() // it has no session
				}
			}
		}(pending)
	}()
	next := time.NewTimer(0)
	defer next.Stop()
	var failed []attempt // the last of each target
	var again []target
	for begun < len(targets) || pending > 0 {
		select {
		case <-next.C:
			var t target
			switch {
			case begun < len(targets):
				t = targets[begun]
				begun++
			case len(again) > 0:
				t, again = again[0], again[1:]
			default:
				continue
			}
			pending++
			go func() {
				conn, err := t.dial(ctx, l, node, keys)
				results <- attempt{t, conn, err}
			}()
			if next.Reset(headStart); begun == len(targets) {
				next.Reset(retryPause)
			}
		case a := <-results:
			pending--
			if a.err == nil {
				return a, failed
			}
			failed = append(slices.DeleteFunc(failed, func(f attempt) bool { return f.target == a.target }), a)
			if mayChange(a.err) {
				again = append(again, a.target)
			}
			if begun < len(targets) {
				next.Reset(0)
			} else {
				next.Reset(retryPause)
			}
		}
	}
	return attempt{err: joinFailures(failed)}, failed
}

// mayChange reports whether a server may soon answer otherwise.
func mayChange(err error) bool {
	var no *refusal
	return !errors.As(err, &no) && !isPostponed(err)
}

// joinFailures returns why no target answered. A refusal is more telling than the rest.
func joinFailures(failed []attempt) error {
	var all []error
	for _, a := range failed {
		var no *refusal
		if errors.As(a.err, &no) {
			return no
		}
		all = append(all, a.err)
	}
	if len(all) == 1 {
		return all[0]
	}
	var texts []string
	for _, err := range all {
		texts = append(texts, err.Error())
	}
	return fmt.Errorf("no server answers: %s", strings.Join(texts, "; "))
}

// dial opens a connection to one target. It returns a refusal if the server does not admit
// the node.
func (t target) dial(ctx context.Context, l Link, node string, keys Keys) (*websocket.Conn, error) {
	at := strings.Replace(strings.TrimSuffix(t.server, "/"), "http", "ws", 1) + Path
	header := http.Header{wire.NodeHeader: {node + ":" + keys.Current}} // sufficient if the node has joined before
	if keys.Former != "" {
		header.Add(wire.NodeHeader, node+":"+keys.Former)
	}
	if l.Token != "" {
		header.Set("Authorization", "Bearer "+l.Token)
	}
	client := l.client()
	client.Transport = t.transport(client.Transport)
	conn, resp, err := websocket.Dial(ctx, at, &websocket.DialOptions{HTTPClient: client, HTTPHeader: header})
	why := ""
	if resp != nil && resp.Body != nil { // of a refusal; an accepted connection has none
		why = readRefusal(resp.Body)
		_ = resp.Body.Close()
	}
	if err != nil {
		switch {
		case resp != nil && resp.StatusCode == http.StatusUnauthorized:
			return nil, &refusal{cmp.Or(why, "the join token is invalid")}
		case resp != nil && resp.StatusCode == http.StatusTooManyRequests:
			return nil, &postponement{cmp.Or(why, "the server gets too many requests")}
		case why != "":
			return nil, errors.New(why)
		}
		if why != "" {
			err = fmt.Errorf("%s answered: %s", t, why)
		}
		return nil, err
	}
	return conn, nil
}
