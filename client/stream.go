package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"mariposa"
	"mariposa/contract"
)

const (
	firstPause = 250 * time.Millisecond
	lastPause  = 10 * time.Second
	maxLine    = 8 << 20
	// A stream that is silent for this long is considered dead and reopened. This loses
	// nothing, because it continues at the same revision. Servers send something at least
	// every 5 seconds; those of earlier releases every 15 seconds.
	maxSilence = 20 * time.Second
)

// StreamOptions configure a stream.
type StreamOptions struct {
	Since   int64  // only events after this revision
	Project string // only of this project
	Service string // only of this service

	// Lost is called on each disconnect, with the time until the next attempt, Found
	// when the stream is connected again. Either may be nil.
	Lost  func(err error, again time.Duration)
	Found func()
	// Restored is called if the stream cannot be continued because a backup was restored
	// meanwhile. The stream then goes on with what happens from now on. If it is nil, the
	// stream ends with TooOld.
	Restored func()
}

// Stream yields the events after a revision until the context is canceled. After a
// disconnect it reconnects, to another server if necessary, and continues without gaps or
// duplicates. The first attempt to connect must succeed; later attempts are repeated forever, unless the server
// rejects the request. TooOld means that the feed no longer contains the next events,
// so the caller must read the state again.
func (c *Client) Stream(ctx context.Context, o StreamOptions) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		s := &stream{c: c, o: o, last: o.Since, yield: yield}
		for {
			err := s.run(ctx)
			if s.isRestored(err) && ctx.Err() == nil {
				s.beginAnew()
				continue
			}
			switch {
			case s.done:
				return
			case ctx.Err() != nil:
				yield(Event{}, context.Cause(ctx))
				return
			case !s.connected || final(err):
				yield(Event{}, err)
				return
			}
			if s.retriesAtOnce() {
				continue
			}
			d := s.backoff()
			if o.Lost != nil {
				o.Lost(err, d)
			}
			if err := c.pause(ctx, d); err != nil {
				yield(Event{}, err)
				return
			}
		}
	}
}

// A stream is the state of a Stream between two connections.
type stream struct {
	c     *Client
	at    *endpoint // of the last connection
	o     StreamOptions
	yield func(Event, error) bool
	last  int64 // the newest revision yielded; fromNow: none, and none before is wanted
	// incarnation is that of the store when the stream was last connected; empty: not known.
	incarnation string
	connected   bool // at least once
	done        bool // the reader has stopped
	lost        bool // Lost was called, and Found not yet
	failures    int  // since the last message
	retry       time.Duration
	retried     time.Time // when it last reconnected without a delay
}

// fromNow is the position of a stream that begins with what happens next.
const fromNow = -1

// isRestored reports whether a stream ended because the store was restored, and is to be
// continued.
func (s *stream) isRestored(err error) bool {
	var other *incarnationError
	return errors.As(err, &other) && s.o.Restored != nil && s.isOther(other.incarnation)
}

// isOther reports whether an incarnation is another one than that of the stream.
func (s *stream) isOther(incarnation string) bool {
	return s.incarnation != "" && incarnation != "" && s.incarnation != incarnation
}

// beginAnew continues with what happens from now on.
func (s *stream) beginAnew() {
	s.last, s.incarnation, s.lost, s.failures = fromNow, "", false, 0
	s.o.Restored()
}

// final reports whether another attempt would get the same answer.
func final(err error) bool {
	switch mariposa.CodeOf(err) {
	case mariposa.Unavailable, mariposa.Throttled, mariposa.Internal:
		return false
	}
	return true
}

// run reads one connection to its end.
func (s *stream) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(maxSilence, func() {
		cancel(errQuiet)
	})
	defer watchdog.Stop()

	r := get("/v1/events", EventFilter{Project: s.o.Project, Service: s.o.Service}.query(s.c))
	r.accept = "text/event-stream"
	if s.last != fromNow {
		r.query.Set("since", strconv.FormatInt(s.last, 10))
		r.header = map[string]string{"Last-Event-ID": strconv.FormatInt(s.last, 10)}
	}
	res, at, err := s.c.open(ctx, r)
	if errors.Is(err, errQuiet) {
		return s.c.silence()
	}
	if err != nil {
		return err
	}
	defer res.Body.Close()
	s.at = at
	if kind := res.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		return mariposa.Errorf(mariposa.InvalidArgument, "%s responded with %q instead of an event stream: check whether a proxy blocks event streams", s.at.name(), kind)
	}
	incarnation := res.Header.Get(contract.IncarnationHeader)
	if s.isOther(incarnation) { // the revision exists there too, but is that of another event
		return &incarnationError{mariposa.Errorf(mariposa.TooOld, "a backup was restored, so the feed cannot be continued at revision %d: read the state again and continue from its revision", s.last), incarnation}
	}
	if revision, err := strconv.ParseInt(res.Header.Get(contract.RevisionHeader), 10, 64); err == nil && s.last == fromNow {
		s.last = revision
	}
	s.connected, s.incarnation = true, incarnation
	if s.lost && s.o.Found != nil {
		s.o.Found()
	}
	s.lost = false
	err = readEvents(res.Body, func() { watchdog.Reset(maxSilence) }, s.take)
	if errors.Is(err, errStop) {
		s.done = true
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, errQuiet) {
		s.c.servers.note(at, false) // check it before it is used again
		err = mariposa.Errorf(mariposa.Unavailable, "no data from %s for %v", at.name(), maxSilence)
	}
	return err
}

// errQuiet ends a connection that is silent for too long.
var errQuiet = errors.New("the stream is silent")

// silence returns the error for a stream that could not be opened in maxSilence.
func (c *Client) silence() error {
	var names []string
	for _, e := range c.servers.list() {
		names = append(names, e.name())
	}
	return mariposa.Errorf(mariposa.Unavailable, "no answer from %s for %v", listed(names), maxSilence)
}

// retriesAtOnce reports whether to reconnect without a delay: another server may continue
// the stream right away.
func (s *stream) retriesAtOnce() bool {
	if s.failures > 0 || time.Since(s.retried) < lastPause || s.c.servers.isAlone() {
		return false
	}
	s.retried = time.Now()
	return true
}

// errStop ends a stream when the caller stops iterating.
var errStop = errors.New("the reader has stopped")

func (s *stream) take(m message) error {
	if m.retry > 0 {
		s.retry = m.retry
	}
	s.failures = 0
	if m.data == "" {
		return nil
	}
	if m.event == "error" {
		e := &mariposa.Error{}
		if json.Unmarshal([]byte(m.data), e) == nil && e.Message != "" {
			return e
		}
	}
	var e Event
	if err := json.Unmarshal([]byte(m.data), &e); err != nil {
		return mariposa.Errorf(mariposa.InvalidArgument, "invalid event from %s: check that the URL is that of a Mariposa server: %w", s.at.name(), err)
	}
	if e.Revision == 0 {
		e.Revision, _ = strconv.ParseInt(m.id, 10, 64)
	}
	if e.Revision <= s.last {
		return nil // received before the disconnect
	}
	s.last = e.Revision
	if !s.yield(e, nil) {
		return errStop
	}
	return nil
}

// backoff returns the delay before the next attempt. It grows exponentially, with
// jitter because many clients may have lost the same server.
func (s *stream) backoff() time.Duration {
	s.lost = true
	d := min(max(firstPause, s.retry)<<min(s.failures, 10), lastPause)
	s.failures++
	return d/2 + rand.N(d/2+1)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// A message is one block of an event stream.
type message struct {
	id, event, data string
	retry           time.Duration
}

// readEvents reads an event stream and passes each block to take; it calls alive for
// every line. It returns when the stream ends, always with an error.
func readEvents(body io.Reader, alive func(), take func(message) error) error {
	for r := newEventReader(body, alive); ; {
		m, err := r.next()
		if err != nil {
			return err
		}
		if err := take(m); err != nil {
			return err
		}
	}
}

// An eventReader reads an event stream block by block.
type eventReader struct {
	lines *bufio.Scanner
	alive func() // called for every line
	id    string
}

func newEventReader(body io.Reader, alive func()) *eventReader {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	return &eventReader{lines: lines, alive: alive}
}

// next returns the next block. It never ends without an error.
func (r *eventReader) next() (message, error) {
	m := message{id: r.id}
	var data []string
	for r.lines.Scan() {
		r.alive()
		line := r.lines.Text()
		if line == "" {
			m.data, r.id = strings.Join(data, "\n"), m.id
			return m, nil
		}
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch key {
		case "id":
			m.id = value
		case "event":
			m.event = value
		case "data":
			data = append(data, value)
		case "retry":
			if ms, err := strconv.Atoi(value); err == nil {
				m.retry = min(time.Duration(ms)*time.Millisecond, lastPause)
			}
		}
	}
	err := r.lines.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		return m, mariposa.Errorf(mariposa.TooLarge, "the server sent an event larger than %d MiB", maxLine>>20)
	}
	if err != nil {
		return m, &mariposa.Error{Code: mariposa.Unavailable, Message: "the connection to the server broke while it sent events", Cause: err}
	}
	return m, mariposa.Errorf(mariposa.Unavailable, "the server closed the event stream")
}
