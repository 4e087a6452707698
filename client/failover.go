package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"mariposa"
	"mariposa/contract"
)

const (
	// patience is how long a server may take for a response before it is asked whether it
	// is alive, and how often it is asked again.
	patience = 3 * time.Second
	// probeTimeout is how long a server that is alive may take to say so.
	probeTimeout = 5 * time.Second
	// defaultStagger is the delay before the next server is asked, too.
	defaultStagger = 500 * time.Millisecond
	// defaultCompareTime is how long to wait for other servers after the first has answered,
	// to find out whether they belong to the same installation.
	defaultCompareTime = 250 * time.Millisecond
	// retryTime limits how long a change is repeated whose answer was lost, and
	// retryPause is the delay between two rounds through the servers.
	retryTime  = 30 * time.Second
	retryPause = time.Second
	// startTime limits how long a request waits for a server that is starting, and startPause
	// is the delay between two attempts.
	startTime  = 5 * time.Second
	startPause = 250 * time.Millisecond
)

// lostError is a failure of the connection, as opposed to an answer.
type lostError struct{ cause error }

func (e *lostError) Error() string { return e.cause.Error() }

func (e *lostError) Unwrap() error { return e.cause }

// errSilent means that a server accepts connections, but does not answer.
var errSilent = errors.New("it does not answer")

// foreignError means that a server belongs to another installation, or does not say to
// which one.
type foreignError struct{ id, want string }

func (e *foreignError) Error() string {
	if e.id == "" {
		return "it does not say which installation it belongs to (it is starting, of an older release, or not a Mariposa server)"
	}
	return "it belongs to another installation (" + e.id + " instead of " + e.want + "): correct the list of URLs, or log in again if the installation was replaced"
}

// Installation returns the id of the installation that the client talks to, the same at
// all of its replicas.
func (c *Client) Installation(ctx context.Context) (string, error) {
	h, err := c.Health(ctx)
	if err != nil {
		return "", err
	}
	return h.Installation, nil
}

// CheckServers asks every server which installation it belongs to, and returns that. It
// is an error if they differ. silent lists those that do not answer.
func (c *Client) CheckServers(ctx context.Context) (installation string, silent []string, err error) {
	all := c.servers.list()
	found := make([]finding, len(all))
	done := make(chan struct{})
	for n, e := range all {
		go func() { // ends with the probe
			found[n] = c.find(ctx, e)
			done <- struct{}{}
		}()
	}
	for range all {
		<-done
	}
	for _, f := range found {
		if f.err != nil {
			silent = append(silent, f.at.name())
		}
	}
	return installationOf(found), silent, differ(found)
}

// exchange sends a request and reads the response. If a server does not answer, it tries
// the next. That is safe for reads, and for changes because all servers know the key of
// those that were carried out.
func (c *Client) exchange(ctx context.Context, r request, read func(at *endpoint, res *http.Response) error) error {
	return c.try(ctx, r, func(ctx context.Context, at *endpoint, r request) (bool, error) {
		res, sent, err := c.send(ctx, at, r)
		if err != nil {
			return sent, err
		}
		defer res.Body.Close()
		if err = read(at, res); isLost(err) {
			err = &lostError{causeOf(ctx, err)}
		}
		return true, err
	})
}

// open sends a request and returns a successful response, its body unread, and the server
// that it comes from.
func (c *Client) open(ctx context.Context, r request) (answer *http.Response, from *endpoint, err error) {
	err = c.try(ctx, r, func(attempt context.Context, at *endpoint, r request) (bool, error) {
		life, cancel := context.WithCancelCause(ctx) // the response outlasts the attempt
		stop := context.AfterFunc(attempt, func() { cancel(context.Cause(attempt)) })
		res, sent, err := c.send(life, at, r)
		if !stop() && err == nil {
			_ = res.Body.Close()
			err = &lostError{context.Cause(attempt)}
		}
		if err != nil {
			cancel(nil)
			return sent, err
		}
		res.Body = &canceledBody{res.Body, cancel}
		answer, from = res, at
		return true, nil
	})
	return answer, from, err
}

// canceledBody releases the context of its request when it is closed.
type canceledBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *canceledBody) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// send sends a request to one server. sent is false if the server cannot have received
// it.
func (c *Client) send(ctx context.Context, at *endpoint, r request) (res *http.Response, sent bool, err error) {
	var wrote atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { wrote.Store(true) }})
	req, err := http.NewRequestWithContext(traced, r.method, c.address(at, r), bytes.NewReader(r.body))
	if err != nil {
		return nil, false, mariposa.Errorf(mariposa.InvalidArgument, "invalid request path %q: %w", r.path, err)
	}
	c.addHeaders(req, at, r)
	began := c.now()
	if res, err = at.http.Do(req); err != nil {
		return nil, wrote.Load(), &lostError{causeOf(ctx, err)}
	}
	c.clock.note(res, began, c.now())
	if revision, err := strconv.ParseInt(res.Header.Get(contract.RevisionHeader), 10, 64); err == nil {
		c.servers.noteRevision(at, revision)
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		defer res.Body.Close()
		err := failure(at, res)
		if res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") != "" {
			err = &startingError{err}
		}
		if mariposa.CodeOf(err) == mariposa.TooOld {
			err = &incarnationError{err, res.Header.Get(contract.IncarnationHeader)}
		}
		return nil, true, err
	}
	return res, true, nil
}

// causeOf returns why a context ended, if it did, instead of the error that followed.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// A try is the way of one request through the servers.
type try struct {
	c      *Client
	r      request
	failed []failedTry // of this round
	unsure bool        // the request may have been carried out
	until  time.Time

	startUntil time.Time // until when it waits for a server that is starting
}

// failedTry is why a server did not carry out a request.
type failedTry struct {
	at  *endpoint
	err error
	// wasSlow means that another server answered first, and this one was not waited for. It is
	// tried once no other server is left.
	wasSlow bool
}

// try sends a request to one server after another, until one answers.
func (c *Client) try(ctx context.Context, r request, send func(ctx context.Context, at *endpoint, r request) (sent bool, err error)) error {
	if r.changes() {
		r = r.withKey()
	}
	t := &try{c: c, r: r, until: time.Now().Add(retryTime), startUntil: time.Now().Add(startTime)}
	for {
		at, err := c.pick(ctx, t)
		if err != nil {
			return err
		}
		if at == nil {
			if !t.nextRound(ctx) {
				return t.failure(ctx)
			}
			continue
		}
		attempt, stop := c.watch(ctx, at)
		sent, err := send(attempt, at, r)
		stop()
		if ctx.Err() != nil && err != nil {
			return unreachable(ctx, at, err)
		}
		if !t.goesOn(at, sent, err) {
			if isLost(err) {
				return t.failure(ctx)
			}
			t.settle(at)
			return err
		}
		if isLost(err) {
			c.servers.note(at, false)
			c.servers.resolve(ctx, at)
		}
	}
}

// withKey adds an idempotency key to a change: whichever server gets it again knows
// whether it was carried out.
func (r request) withKey() request {
	header := map[string]string{"Idempotency-Key": rand.Text()}
	for k, v := range r.header {
		header[k] = v
	}
	r.header = header
	return r
}

func isLost(err error) bool {
	var lost *lostError
	return errors.As(err, &lost)
}

// goesOn reports whether to send the request to another server after this result.
func (t *try) goesOn(at *endpoint, sent bool, err error) bool {
	if err == nil || !isLost(err) && mariposa.CodeOf(err) != mariposa.Unavailable {
		return false
	}
	t.note(failedTry{at: at, err: err})
	lost := isLost(err) && sent
	t.unsure = t.unsure || lost && t.r.changes()
	return !lost || !t.r.once
}

// settle continues with the server that has answered.
func (t *try) settle(at *endpoint) {
	s := &t.c.servers
	if slices.ContainsFunc(t.failed, func(f failedTry) bool { return f.at == at && !f.wasSlow }) {
		return
	}
	s.note(at, true)
	before := s.inUse()
	if before == at {
		return
	}
	for _, f := range t.failed {
		if f.at != before && f.at.base != before.base {
			continue
		}
		var foreign *foreignError
		switch {
		case errors.As(f.err, &foreign):
			t.c.notify(fmt.Sprintf("%s is not used: %v; continuing with %s", f.at.short(), foreign, at.short()))
		case isLost(f.err):
			t.c.notify(fmt.Sprintf("%s does not answer; continuing with %s", f.at.short(), at.short()))
		case t.r.onNode:
			return // it is only about this request
		default:
			t.c.notify(fmt.Sprintf("%s cannot do this now (%v); continuing with %s", f.at.short(), f.err, at.short()))
		}
		s.use(at)
		return
	}
}

// nextRound prepares another round through the servers for a change whose answer was
// lost: the servers may be about to return.
func (t *try) nextRound(ctx context.Context) bool {
	if t.isStarting() && time.Now().Before(t.startUntil) && t.c.pause(ctx, startPause) == nil {
		t.failed = nil
		return true
	}
	if !t.unsure || len(t.failed) < 2 || !time.Now().Add(retryPause).Before(t.until) || t.c.pause(ctx, retryPause) != nil {
		return false
	}
	t.failed = nil
	return true
}

// startingError is the refusal of a server that has not read its store yet. It has carried out
// nothing.
type startingError struct{ error }

func (e *startingError) Unwrap() error { return e.error }

// isStarting reports whether every server that answers is starting.
func (t *try) isStarting() bool {
	some := false
	for _, f := range t.failed {
		var starting *startingError
		switch {
		case errors.As(f.err, &starting):
			some = true
		case !isLost(f.err):
			return false
		}
	}
	return some
}

// failure returns the error of a request that no server has answered.
func (t *try) failure(ctx context.Context) error {
	if len(t.failed) == 1 {
		f := t.failed[0]
		if lost := (*lostError)(nil); errors.As(f.err, &lost) {
			return unreachable(ctx, f.at, lost.cause)
		}
		return f.err
	}
	message := t.explain(ctx)
	if t.unsure {
		message = "the answer to the change was lost, so it is not known whether it was made: check before you repeat it (" + message + ")"
	}
	e := mariposa.Errorf(mariposa.Unavailable, "%s", message)
	e.Node = nodeOf(t.failed[0].err)
	for _, f := range t.failed {
		e.Cause = errors.Join(e.Cause, f.err)
		if nodeOf(f.err) != e.Node {
			e.Node = ""
		}
	}
	return e
}

// nodeOf returns the node that a server could not ask; empty if the error is about something
// else.
func nodeOf(err error) string {
	var known *mariposa.Error
	if errors.As(err, &known) {
		return known.Node
	}
	return ""
}

// explain says of each server why it did not carry out the request.
func (t *try) explain(ctx context.Context) string {
	var all, names []string
	agree, answered := true, false
	for _, f := range t.failed {
		if f.at.pin == "" && slices.ContainsFunc(t.failed, func(o failedTry) bool { return o.at.pin != "" && o.at.base == f.at.base }) {
			continue // its addresses were tried one by one
		}
		names = append(names, f.at.name())
		all = append(all, f.at.name()+": "+t.why(ctx, f))
		agree = agree && !isLost(f.err) && f.err.Error() == t.failed[0].err.Error()
		answered = answered || !isLost(f.err)
	}
	switch {
	case agree:
		return fmt.Sprintf("%v (%s say so)", t.failed[0].err, listed(names))
	case answered:
		return fmt.Sprintf("none of the %d servers can do this: %s", len(all), strings.Join(all, "; "))
	}
	return fmt.Sprintf("none of the %d servers answers: %s", len(all), strings.Join(all, "; "))
}

// listed joins names as in a sentence.
func listed(names []string) string {
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// why describes the failure of one server in few words.
func (t *try) why(ctx context.Context, f failedTry) string {
	var lost *lostError
	var foreign *foreignError
	switch {
	case errors.As(f.err, &foreign):
		return foreign.Error()
	case !errors.As(f.err, &lost):
		return f.err.Error()
	case errors.Is(f.err, errSilent), errors.Is(f.err, context.DeadlineExceeded):
		return errSilent.Error()
	case errors.Is(f.err, syscall.ECONNREFUSED):
		return "no server is running there"
	}
	text, _, _ := strings.Cut(unreachable(ctx, f.at, lost.cause).Error(), ": check MARIPOSA_URL") // that is for a single server
	return strings.TrimPrefix(text, "lost the connection to "+f.at.name()+": ")
}
