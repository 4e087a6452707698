package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"mariposa"
	"mariposa/contract"
)

// A log as an event stream can be continued at any replica: the id of each event says how
// much of the log a client has.

// logID is the id of an event: the position of a line, and how many bytes of it were
// sent, including its line feed.
type logID struct {
	position string
	sent     int64
}

func (i logID) String() string { return i.position + ":" + strconv.FormatInt(i.sent, 10) }

func parseLogID(text string) (id logID, err error) {
	if text == "" {
		return id, nil
	}
	colon := strings.LastIndexByte(text, ':')
	if colon > 0 {
		id.position = text[:colon]
		id.sent, err = strconv.ParseInt(text[colon+1:], 10, 64)
	}
	if colon <= 0 || err != nil || id.sent < 0 || strings.ContainsAny(id.position, " \t\r\n@") {
		return logID{}, invalid("invalid Last-Event-ID %q: use an id that this stream has sent", text)
	}
	return id, nil
}

// logEvents turns a log with positions and times into events.
type logEvents struct {
	after     logID // what the client has
	isResumed bool
	hasStart  bool        // the position where the log starts selects the same lines again
	started   chan string // receives that position; agents of earlier releases send none

	prefix []byte // of the line, as far as it was read
	inText bool   // the prefix is complete
	at     time.Time
	id     logID
	skip   int64 // bytes of the line that the client has
	out    bytes.Buffer
}

func newLogEvents(after logID, hasStart bool) *logEvents {
	return &logEvents{after: after, isResumed: after.position != "", hasStart: hasStart, started: make(chan string, 1)}
}

// startReader removes the line that says where a log starts.
type startReader struct {
	e    *logEvents
	log  *bufio.Reader
	done bool
}

func (e *logEvents) readStart(log io.Reader) io.Reader {
	return &startReader{e: e, log: bufio.NewReaderSize(log, 32<<10)}
}

func (r *startReader) Read(p []byte) (int, error) {
	if r.done {
		return r.log.Read(p)
	}
	first, err := r.log.Peek(1)
	if err != nil {
		return 0, err
	}
	r.done = true
	if mariposa.HasLogPosition(first) {
		line, err := r.log.ReadSlice('\n')
		if err != nil || len(line) > maxLogPrefix {
			return 0, errors.Join(errInvalidLog, err)
		}
		start, _ := mariposa.CutLogPosition(line)
		r.e.started <- start
	} else if r.e.isResumed {
		return 0, mariposa.Errorf(mariposa.InvalidArgument, "the agent of this node is of an earlier release and cannot continue a log: upgrade it")
	}
	return r.log.Read(p)
}

// begin writes where the log starts.
func (e *logEvents) begin(start string) {
	switch {
	case e.isResumed && start != e.after.position:
		e.after = logID{}
		doc, _ := json.Marshal(contract.LogGap{Message: "the node has deleted the lines in between"}) // strings always marshal
		fmt.Fprintf(&e.out, "event: gap\ndata: %s\n\n", doc)
	case e.isResumed:
		e.out.WriteString(": the log continues\n\n")
	case e.hasStart && start != "":
		fmt.Fprintf(&e.out, "id: %s\n\n", logID{position: start})
	}
}

// add converts the next bytes of the log.
func (e *logEvents) add(p []byte) error {
	for len(p) > 0 {
		end := len(p)
		if !e.inText {
			if i := bytes.IndexByte(p, ' '); i >= 0 {
				end = i + 1
			}
			if e.prefix = append(e.prefix, p[:end]...); len(e.prefix) > maxLogPrefix {
				return errInvalidLog
			}
			if e.inText = isLogPrefix(e.prefix); e.inText {
				e.beginLine()
			}
			p = p[end:]
			continue
		}
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			end = i + 1
		}
		e.addText(p[:end])
		p = p[end:]
	}
	return nil
}

func (e *logEvents) beginLine() {
	position, stamp := mariposa.CutLogPosition(e.prefix)
	e.at, _ = mariposa.CutLogTime(stamp)
	e.id, e.skip, e.prefix = logID{position: position}, 0, e.prefix[:0]
	if position == e.after.position { // the line that the client has a part of
		e.skip = e.after.sent
	}
	e.after = logID{}
}

// addText adds a part of a line, without what the client has.
func (e *logEvents) addText(part []byte) {
	skipped := min(e.skip, int64(len(part)))
	e.skip -= skipped
	e.id.sent += int64(len(part))
	line := contract.LogLine{Partial: true}
	if n := len(part); part[n-1] == '\n' {
		e.inText, line.Partial = false, false
	}
	if skipped == int64(len(part)) {
		return
	}
	part = bytes.TrimSuffix(part[skipped:], []byte("\n"))
	if !e.at.IsZero() {
		line.Time = &e.at
	}
	if line.Text = string(part); !utf8.Valid(part) {
		line.Text, line.Bytes = "", part
	}
	doc, _ := json.Marshal(line) // it always marshals
	if e.id.position != "" {
		fmt.Fprintf(&e.out, "id: %s\n", e.id)
	}
	fmt.Fprintf(&e.out, "data: %s\n\n", doc)
}

// streamLogEvents sends a log as events, and something at least every heartbeat, so that
// clients notice a dead connection.
func (s *server) streamLogEvents(ctx context.Context, w http.ResponseWriter, log io.Reader, spec *mariposa.InstanceSpec, e *logEvents, mayRead, isOver func() bool) {
	pieces := make(chan piece)
	go read(ctx, log, pieces) // ends with the log, which ends with the context
	var out *sender
	begin := func() {
		if out == nil {
			h := w.Header()
			h.Set("Content-Type", "text/event-stream")
			h.Set("X-Accel-Buffering", "no")
			w.WriteHeader(http.StatusOK)
			out = &sender{w: w, control: http.NewResponseController(w)}
			out.send([]byte("retry: 1000\n\n"))
			_ = out.control.SetReadDeadline(time.Time{}) // the request was received completely; a silent client is still there
		}
	}
	beat := time.NewTicker(s.Heartbeat)
	defer beat.Stop()
	wait := time.After(firstPieceTimeout)
	for out == nil || out.err == nil {
		e.out.Reset()
		ended := false
		select {
		case <-ctx.Done():
			return
		case <-wait:
		case <-beat.C:
			e.out.WriteString(": heartbeat\n\n")
		case start := <-e.started:
			e.begin(start)
		case p := <-pieces:
			select { // it came first
			case start := <-e.started:
				e.begin(start)
			default:
			}
			if err := e.add(p.bytes); err != nil {
				p.err = err
			}
			if p.err != nil && !errors.Is(p.err, io.EOF) {
				failure := s.explain(ctx, logFailure(spec, p.err))
				if out == nil {
					failure.write(w)
					return
				}
				doc, _ := json.Marshal(failure) // strings always marshal
				out.send(fmt.Appendf(nil, "event: error\ndata: %s\n\n", doc))
				return
			}
			switch {
			case p.err == nil:
			case isOver():
				ended = true
				e.out.WriteString("event: end\ndata: {}\n\n")
			default:
				return // the agent is restarting: the client continues when it is back
			}
		}
		begin()
		if !mayRead() {
			doc, _ := json.Marshal(s.explain(ctx, mariposa.Errorf(mariposa.Unauthorized, "the token or the role for this log was removed"))) // strings always marshal
			out.send(fmt.Appendf(nil, "event: error\ndata: %s\n\n", doc))
			return
		}
		out.send(e.out.Bytes())
		if ended {
			return
		}
	}
}
