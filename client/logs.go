package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"strconv"
	"strings"
	"time"

	"mariposa"
	"mariposa/contract"
)

// LogOptions select a part of an instance's output.
type LogOptions struct {
	Tail   int  // the last n lines; negative: all
	Follow bool // continue as more is written, at another server if necessary
	Reveal bool // do not mask secrets; requires permission to read them
	// Since omits lines before a time: in RFC 3339, or an age such as 90s, 1h or 7d by the
	// server's clock. Empty: all lines.
	Since      string
	Timestamps bool // each line begins with its time; see mariposa.CutLogTime

	// Lost is called if the log is interrupted for longer than a moment, Found when it
	// continues after that, and Gap with a sentence if lines are or may be missing then.
	// Each may be nil.
	Lost  func(err error)
	Found func()
	Gap   func(why string)
}

const (
	// lostTime is how long a log may be interrupted before Lost is called: a node that
	// loses its server finds another one in less.
	lostTime = 10 * time.Second
	// lastLogPause is the longest pause between two attempts to continue a log.
	lastLogPause = 2 * time.Second
	// readPatience is how long a log that is not followed may be interrupted before reading
	// it fails.
	readPatience = 30 * time.Second
)

// Logs opens an instance's output. The caller closes it; canceling the context ends
// it too. The log continues after a disconnect, at another server if necessary, without
// missing or repeated lines: a followed one until the instance is removed, another one
// unless it is interrupted for long.
func (c *Client) Logs(ctx context.Context, id string, o LogOptions) (io.ReadCloser, error) {
	q := url.Values{}
	if o.Tail >= 0 {
		q.Set("tail", strconv.Itoa(o.Tail))
	}
	setIf(q, "follow", o.Follow)
	setIf(q, "reveal", o.Reveal)
	setParameter(q, "since", o.Since)
	setIf(q, "timestamps", o.Timestamps)
	r := get(pathUnder("/v1/instances", id, "logs"), q)
	r.accept, r.onNode = "text/event-stream, text/plain;q=0.5", true
	ctx, cancel := context.WithCancel(ctx)
	l := &resumedLog{c: c, ctx: ctx, cancel: cancel, r: r, o: o, stamps: o.Timestamps, lineEnded: true, began: time.Now()}
	if err := l.connect(); err != nil {
		cancel()
		return nil, err
	}
	if !l.isResumable {
		return &plainLog{l.body, cancel}, nil
	}
	return l, nil
}

// plainLog is a log from a server of an earlier release.
type plainLog struct {
	io.ReadCloser
	cancel func()
}

func (l *plainLog) Close() error {
	l.cancel()
	return l.ReadCloser.Close()
}

// resumedLog reads a log from one server after another.
type resumedLog struct {
	c      *Client
	ctx    context.Context //nolint:containedctx // the life of the log, which outlasts any call
	cancel func()
	r      request
	o      LogOptions
	stamps bool

	at          *endpoint
	body        io.ReadCloser
	isResumable bool
	events      *eventReader
	watchdog    *time.Timer
	last        string // the id of the last event
	ready       []byte // not returned yet
	lineEnded   bool
	begun       bool // lines were read
	over        error

	began   time.Time // when the log was first asked for
	heardAt time.Time // when the server last sent something
	lostAt  time.Time // when the connection was lost; zero: it is there
	told    bool      // Lost was called
	retried time.Time // when it last reconnected without a delay
	pauses  int
}

// connect opens the log after the last event that was received.
func (l *resumedLog) connect() error {
	r := l.r
	switch age, err := time.ParseDuration(l.o.Since); {
	case l.last != "":
		r.header = map[string]string{"Last-Event-ID": l.last}
	case err == nil && !l.lostAt.IsZero(): // the age of the same time now
		r.query = maps.Clone(r.query)
		r.query.Set("since", (age + time.Since(l.began)).String())
	}
	ctx, cancel := context.WithCancelCause(l.ctx)
	watchdog := time.AfterFunc(maxSilence, func() { cancel(errQuiet) })
	res, at, err := l.c.open(ctx, r) //nolint:bodyclose // drop and Close end it
	if err != nil {
		watchdog.Stop()
		cancel(nil)
		if errors.Is(err, errQuiet) {
			return l.c.silence()
		}
		return err
	}
	l.at, l.body, l.watchdog = at, &canceledBody{res.Body, cancel}, watchdog
	l.isResumable = strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream")
	if !l.isResumable {
		watchdog.Stop()
		return nil
	}
	l.events = newEventReader(res.Body, func() { watchdog.Reset(maxSilence) })
	return nil
}

// Read implements io.Reader.
func (l *resumedLog) Read(p []byte) (int, error) {
	for len(l.ready) == 0 {
		if l.over != nil {
			return 0, l.over
		}
		if l.events == nil {
			l.over = l.reconnect()
			continue
		}
		m, err := l.events.next()
		if err == nil {
			err = l.take(m)
		}
		if err != nil {
			l.drop(err)
		}
	}
	n := copy(p, l.ready)
	l.ready = l.ready[n:]
	return n, nil
}

// take handles an event.
func (l *resumedLog) take(m message) error {
	if m.id != "" {
		l.last = m.id
	}
	if m.event != "error" && m.retry == 0 { // the server is sending the log
		if m.event == "gap" {
			l.noteGap("lines between %s and %s are missing: the node has deleted them")
		} else if !l.lostAt.IsZero() && l.last == "" && l.begun { // the agent is of an earlier release
			l.noteGap("some lines between %s and %s may be missing or repeated: the agent of the node is of an earlier release")
		}
		l.noteFound()
	}
	switch m.event {
	case "error":
		e := &mariposa.Error{}
		if json.Unmarshal([]byte(m.data), e) != nil || e.Message == "" {
			e = mariposa.Errorf(mariposa.Unavailable, "%s cannot send the log any more", l.at.name())
		}
		return e
	case "end":
		return io.EOF
	}
	if m.event == "gap" || m.data == "" {
		return nil
	}
	var line contract.LogLine
	if err := json.Unmarshal([]byte(m.data), &line); err != nil {
		return mariposa.Errorf(mariposa.InvalidArgument, "invalid log line from %s: check that the URL is that of a Mariposa server: %w", l.at.name(), err)
	}
	l.add(line)
	return nil
}

// noteFound notes that the log continues.
func (l *resumedLog) noteFound() {
	if l.told && l.o.Found != nil {
		l.o.Found()
	}
	l.lostAt, l.told, l.pauses, l.heardAt = time.Time{}, false, 0, time.Now()
}

// noteGap says that lines are missing since the log was last read.
func (l *resumedLog) noteGap(sentence string) {
	if l.o.Gap != nil {
		const clock = "15:04:05 UTC"
		l.o.Gap(fmt.Sprintf(sentence, l.heardAt.UTC().Format(clock), time.Now().UTC().Format(clock)))
	}
}

// add adds a line, or a part of one, to what is read next.
func (l *resumedLog) add(line contract.LogLine) {
	l.begun = true
	if l.lineEnded && l.stamps {
		var at time.Time
		if line.Time != nil {
			at = *line.Time
		}
		l.ready = mariposa.AppendLogTime(l.ready, at)
	}
	l.ready = append(l.ready, line.Text...)
	l.ready = append(l.ready, line.Bytes...)
	if l.lineEnded = !line.Partial; l.lineEnded {
		l.ready = append(l.ready, '\n')
	}
}

// drop ends a connection.
func (l *resumedLog) drop(err error) {
	quiet := !l.watchdog.Stop()
	_ = l.body.Close()
	l.events = nil
	if quiet {
		l.c.servers.note(l.at, false) // check it before it is used again
	}
	switch {
	case l.ctx.Err() != nil:
		l.over = context.Cause(l.ctx)
	case errors.Is(err, io.EOF), final(err):
		l.over = err
	case !l.o.Follow && l.begun && l.last == "": // it would begin again; the agent is of an earlier release
		l.over = err
	}
	if l.lostAt.IsZero() {
		l.lostAt = time.Now()
	}
}

// reconnect continues the log. It returns an error if that is impossible.
func (l *resumedLog) reconnect() error {
	isFirst := time.Since(l.retried) >= lastLogPause && !l.c.servers.isAlone()
	if isFirst {
		l.retried = time.Now()
	} else if err := l.c.pause(l.ctx, min(firstPause<<min(l.pauses, 10), lastLogPause)); err != nil {
		return err
	}
	l.pauses++
	err := l.connect()
	switch {
	case err == nil && !l.isResumable:
		_ = l.body.Close()
		return mariposa.Errorf(mariposa.Unavailable, "%s is of an earlier release and cannot continue the log", l.at.name())
	case err == nil:
		return nil
	case l.ctx.Err() != nil:
		return context.Cause(l.ctx)
	case mariposa.CodeOf(err) == mariposa.ResourceNotFound && l.o.Follow:
		return io.EOF // the instance was removed
	case final(err), !l.o.Follow && time.Since(l.lostAt) > readPatience:
		return err
	}
	if !l.told && time.Since(l.lostAt) > lostTime {
		l.told = true
		if l.o.Lost != nil {
			l.o.Lost(err)
		}
	}
	return nil
}

// Close ends the log.
func (l *resumedLog) Close() error {
	l.cancel()
	return nil
}
