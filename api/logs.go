package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"mariposa"
	"mariposa/seal"
	"mariposa/store"
)

// firstPieceTimeout is how long to wait for the first output before the response begins:
// until then a failure can still be sent as an error.
const firstPieceTimeout = 500 * time.Millisecond

type getLogsInput struct {
	Instance   string `path:"instance" doc:"id of the instance, a prefix of the id, or its name" maxLength:"255"`
	Follow     bool   `query:"follow" doc:"continue as more is written"`
	Reveal     bool   `query:"reveal" doc:"do not mask secrets; requires permission to read them"`
	Tail       int    `query:"tail" minimum:"-1" default:"-1" doc:"number of lines from the end; default: all lines"`
	Since      string `query:"since" doc:"only lines written since then: a time such as 2026-01-31T12:00:00Z, or an age such as 90s, 1h or 7d" maxLength:"64"`
	Timestamps bool   `query:"timestamps" doc:"begin each line with the time in UTC when it was written, and a space; - for lines written before times were recorded"`

	LastEventID string `header:"Last-Event-ID" doc:"for an event stream: the last id received, to continue after it; tail and since are ignored then" maxLength:"255"`
	Accept      string `header:"Accept" hidden:"true"`
}

func (s *server) getLogs(ctx context.Context, in *getLogsInput) (*huma.StreamResponse, error) {
	r, err := s.findInstance(ctx, in.Instance)
	if err != nil {
		return nil, err
	}
	o := mariposa.LogOptions{Tail: in.Tail, Follow: in.Follow, Timestamps: in.Timestamps}
	if o.Since, err = parseSince(in.Since, time.Now()); err != nil {
		return nil, err
	}
	var after logID
	live := accepts([]string{in.Accept}, "text/event-stream")
	if live {
		if after, err = parseLogID(in.LastEventID); err != nil {
			return nil, err
		}
		o.Positions, o.Timestamps, o.From = true, true, after.position
	}
	spec, c := r.Spec(), caller(ctx)
	if err := s.requireCapability(spec, func(c mariposa.Capabilities) bool { return c.Logs }, "logs"); err != nil {
		return nil, err
	}
	release, err := s.acquireStream(ctx)
	if err != nil {
		return nil, err
	}
	if project := s.Picture.Projects.Get(spec.Project); project != nil {
		s.recordReveal(ctx, project, in.Reveal, "the log of "+spec.Name)
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer release()
		req, w := humago.Unwrap(hc)
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		log, err := s.Fleet.Logs(ctx, spec.Node, r.ID, o)
		if err != nil {
			s.explain(ctx, logFailure(spec, err)).write(w)
			return
		}
		defer log.Close()
		text, mayRead := io.Reader(log), func() bool { return s.mayStillRead(c, r, in.Reveal) }
		e := newLogEvents(after, in.Since == "")
		if live {
			text = e.readStart(log)
		}
		if !in.Reveal {
			text = s.maskLog(ctx, text, r, o)
		}
		if live {
			s.streamLogEvents(ctx, w, text, spec, e, mayRead, func() bool { return !o.Follow || s.hasEnded(r.ID) })
			return
		}
		s.streamLog(ctx, w, text, spec, mayRead)
	}}, nil
}

// parseSince parses a time or an age.
func parseSince(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at, nil
	}
	ago, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 15)
		ago = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || ago < 0 {
		return time.Time{}, mariposa.Errorf(mariposa.InvalidArgument, "invalid since %q: use a time such as 2026-01-31T12:00:00Z or an age such as 90s, 1h or 7d", text)
	}
	return now.Add(-ago), nil
}

// maskFor returns the mask for the secrets of an instance's project in its output.
func (s *server) maskFor(ctx context.Context, r *store.Instance) (*seal.Mask, error) {
	spec := r.Spec()
	project := s.Picture.Projects.Get(spec.Project)
	if project == nil || project.Spec().Metadata == 0 {
		return nil, nil
	}
	return s.Cache.Mask(ctx, project, spec)
}

// maskLog returns a log with secrets masked, including secrets that are added while it is
// read. Text that may be the beginning of a secret is held back until more arrives.
func (s *server) maskLog(ctx context.Context, log io.Reader, r *store.Instance, o mariposa.LogOptions) io.Reader {
	out, in := io.Pipe()
	context.AfterFunc(ctx, func() { _ = out.CloseWithError(ctx.Err()) })
	go func() { // ends with the log, which ends with the context
		_ = in.CloseWithError(s.copyLog(ctx, log, in, r, o))
	}()
	return out
}

func (s *server) copyLog(ctx context.Context, log io.Reader, to io.Writer, r *store.Instance, o mariposa.LogOptions) error {
	stamps := stampSplitter{isOff: !o.Timestamps}
	w := (*seal.Mask)(nil).Writer(to)
	for buf := make([]byte, 32<<10); ; {
		n, err := log.Read(buf)
		mask, unknown := s.maskFor(ctx, r) // instances get a value only after it is known here
		if unknown != nil {
			return errors.Join(unknown, w.Discard())
		}
		w.Switch(mask) // after a project is deleted, the last mask stays
		if err := stamps.write(w, buf[:n]); err != nil {
			return err
		}
		switch {
		case errors.Is(err, io.EOF) && (o.Follow || s.hasEnded(r.ID)):
			return w.CloseMasked()
		case errors.Is(err, io.EOF):
			return w.Discard() // the instance may be in the middle of writing a secret
		case err != nil:
			return errors.Join(err, w.Discard())
		}
	}
}

// hasEnded reports whether an instance writes no more output.
func (s *server) hasEnded(instance string) bool {
	r := s.Picture.Instances.Get(instance)
	if r == nil || r.Status() == nil {
		return r == nil
	}
	state := r.Status().State
	return state == mariposa.StateStopped || state == mariposa.StateFailed || state == mariposa.StateDestroyed
}

// stampSplitter removes the positions and timestamps of a log before it is masked:
// otherwise secrets of several lines would not be found.
type stampSplitter struct {
	isOff  bool   // the log has no timestamps
	inText bool   // the timestamp of the line is complete
	stamp  []byte // of the line, as far as it was read
}

func (t *stampSplitter) write(w *seal.MaskWriter, p []byte) error {
	for len(p) > 0 {
		end := len(p)
		if !t.isOff && !t.inText {
			if i := bytes.IndexByte(p, ' '); i >= 0 {
				end = i + 1
			}
			if t.stamp = append(t.stamp, p[:end]...); len(t.stamp) > maxLogPrefix {
				return errInvalidLog
			}
			if t.inText = isLogPrefix(t.stamp); t.inText {
				w.BeginLine(string(t.stamp))
				t.stamp = t.stamp[:0]
			}
			p = p[end:]
			continue
		}
		if i := bytes.IndexByte(p, '\n'); i >= 0 && !t.isOff {
			t.inText, end = false, i+1
		}
		if _, err := w.Write(p[:end]); err != nil {
			return err
		}
		p = p[end:]
	}
	return nil
}

// maxLogPrefix limits what precedes a line: a time, and a position.
const maxLogPrefix = 300

var errInvalidLog = mariposa.Errorf(mariposa.Unavailable, "the agent of the node sent an invalid log: check its release with `mariposa node show`, and upgrade it")

// isLogPrefix reports whether what precedes a line is complete: its time, and its
// position before that if it has one. Both end with a space.
func isLogPrefix(b []byte) bool {
	words := 1
	if mariposa.HasLogPosition(b) {
		words = 2
	}
	return bytes.Count(b, []byte(" ")) == words
}

// acquireStream counts the request against the limit of streams, and no longer against the
// limit of requests.
func (s *server) acquireStream(ctx context.Context) (release func(), err error) {
	leave, err := s.usage.takeStream(caller(ctx))
	if err != nil {
		return nil, err
	}
	sessionOf(ctx).done()
	s.metrics.streams.Inc()
	return func() { leave(); s.metrics.streams.Dec() }, nil
}

// piece is a part of a log, or the end of it.
type piece struct {
	bytes []byte
	err   error
}

// streamLog sends a log as it arrives. It waits briefly for the first piece, so that an
// immediate failure is sent as an error. A later failure cuts the connection, so that
// clients do not take a partial log for a complete one.
func (s *server) streamLog(ctx context.Context, w http.ResponseWriter, log io.Reader, spec *mariposa.InstanceSpec, stillIn func() bool) {
	pieces := make(chan piece)
	go read(ctx, log, pieces) // ends with the log, which ends with the context
	control := http.NewResponseController(w)
	wait, begun := time.After(firstPieceTimeout), false
	check := time.NewTicker(s.Heartbeat)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-check.C: // the log may be silent
			if !stillIn() {
				panic(http.ErrAbortHandler)
			}
			continue
		case <-wait:
		case p := <-pieces:
			ended := errors.Is(p.err, io.EOF)
			if p.err != nil && !ended {
				if !begun {
					s.explain(ctx, logFailure(spec, p.err)).write(w)
					return
				}
				panic(http.ErrAbortHandler)
			}
			if !stillIn() {
				panic(http.ErrAbortHandler) // the token was revoked, or the role removed
			}
			s.beginAnswer(w, &begun)
			_ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) // if it cannot be set, TCP detects a dead client
			if _, err := w.Write(p.bytes); err != nil || ended {
				return
			}
		}
		s.beginAnswer(w, &begun)
		if control.Flush() != nil {
			return
		}
		_ = control.SetReadDeadline(time.Time{}) // the request was received completely; a silent client is still there
	}
}

func (s *server) beginAnswer(w http.ResponseWriter, begun *bool) {
	if !*begun {
		*begun = true
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusOK)
	}
}

func read(ctx context.Context, log io.Reader, pieces chan<- piece) {
	buf := make([]byte, 32<<10)
	for {
		n, err := log.Read(buf)
		for _, p := range []piece{{bytes: append([]byte(nil), buf[:n]...)}, {err: err}} {
			if len(p.bytes) == 0 && p.err == nil {
				continue
			}
			select {
			case pieces <- p:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// logFailure converts an error of the node, which may be temporary.
func logFailure(spec *mariposa.InstanceSpec, err error) error {
	var known *mariposa.Error
	if errors.As(err, &known) {
		if known.Node == "" {
			return err
		}
		e := mariposa.Errorf(known.Code, "cannot read the log of %s: %s", spec.Name, known.Message)
		e.Node = known.Node
		return e
	}
	return mariposa.Errorf(mariposa.Unavailable, "cannot read the log of %s from its node: %w", spec.Name, err)
}
