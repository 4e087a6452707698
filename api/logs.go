package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"mariposa"
	"mariposa/seal"
	"mariposa/store"
)

// firstPieceTimeout is how long a log is waited for before the answer begins: until
// then a failure can still be told as one.
const firstPieceTimeout = 500 * time.Millisecond

type getLogsInput struct {
	Instance string `path:"instance" doc:"its id, the beginning of its id, or its name" maxLength:"255"`
	Follow   bool   `query:"follow" doc:"go on as more is written"`
	Reveal   bool   `query:"reveal" doc:"leave secrets in, for who may read them"`
	Tail     int    `query:"tail" minimum:"-1" default:"-1" doc:"lines from the end; all of them without it"`
}

func (s *server) getLogs(ctx context.Context, in *getLogsInput) (*huma.StreamResponse, error) {
	r, err := s.findInstance(ctx, in.Instance)
	if err != nil {
		return nil, err
	}
	spec, c := r.Spec(), caller(ctx)
	if err := s.requireCapability(spec, func(c mariposa.Capabilities) bool { return c.Logs }, "write no log"); err != nil {
		return nil, err
	}
	release, err := s.acquireStream()
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
		log, err := s.Fleet.Logs(ctx, spec.Node, r.ID, in.Tail, in.Follow)
		if err != nil {
			s.explain(ctx, err).write(w)
			return
		}
		defer log.Close()
		text := io.Reader(log)
		if !in.Reveal {
			text = s.maskLog(ctx, log, r)
		}
		s.streamLog(ctx, w, text, spec, func() bool { return s.stillReads(c, r, in.Reveal) })
	}}, nil
}

// maskFor hides the secrets of an instance's project in what it wrote.
func (s *server) maskFor(ctx context.Context, r *store.Instance) (*seal.Mask, error) {
	spec := r.Spec()
	project := s.Picture.Projects.Get(spec.Project)
	if project == nil || project.Spec().Metadata == 0 {
		return nil, nil
	}
	return s.Cache.Mask(ctx, project.Spec(), spec.Project, spec.Number)
}

// maskLog is a log with secrets hidden, those too that come up while it flows. What
// may be the beginning of a secret is held back until more comes.
func (s *server) maskLog(ctx context.Context, log io.Reader, r *store.Instance) io.Reader {
	out, in := io.Pipe()
	context.AfterFunc(ctx, func() { _ = out.CloseWithError(ctx.Err()) })
	go func() { // ends with the log, which ends with the context
		_ = in.CloseWithError(s.copyLog(ctx, log, in, r))
	}()
	return out
}

func (s *server) copyLog(ctx context.Context, log io.Reader, to io.Writer, r *store.Instance) error {
	var mask *seal.Mask
	w := mask.Writer(to)
	for buf := make([]byte, 32<<10); ; {
		n, err := log.Read(buf)
		now, unknown := s.maskFor(ctx, r) // an instance reads no value before this knows it
		if unknown != nil {
			return errors.Join(unknown, w.Close())
		}
		if now != nil && now != mask { // of a project that is gone, the last one stays
			if err := w.Close(); err != nil {
				return err
			}
			mask, w = now, now.Writer(to)
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			return w.Close()
		}
		if err != nil {
			return errors.Join(err, w.Close())
		}
	}
}

// acquireStream takes a place among the open streams.
func (s *server) acquireStream() (release func(), err error) {
	if s.streams.Add(1) > maxStreams {
		s.streams.Add(-1)
		return nil, mariposa.Errorf(mariposa.Throttled, "%d streams are open, and no more are served: try again later", maxStreams)
	}
	s.metrics.streams.Inc()
	return func() { s.streams.Add(-1); s.metrics.streams.Dec() }, nil
}

// piece is a part of a log, or the end of it.
type piece struct {
	bytes []byte
	err   error
}

// streamLog sends a log on as it comes. It waits for the first piece for a moment, so
// that what fails at once is answered as a failure; what fails later cuts the
// connection, so that nobody takes half a log for a whole one.
func (s *server) streamLog(ctx context.Context, w http.ResponseWriter, log io.Reader, spec *mariposa.InstanceSpec, stillIn func() bool) {
	pieces := make(chan piece)
	go read(ctx, log, pieces) // ends with the log, which ends with the context
	control := http.NewResponseController(w)
	wait, begun := time.After(firstPieceTimeout), false
	for {
		select {
		case <-ctx.Done():
			return
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
				panic(http.ErrAbortHandler) // the token was revoked, or the role taken away
			}
			s.beginAnswer(w, &begun)
			_ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) // where it cannot be set, a dead reader ends with its connection
			if _, err := w.Write(p.bytes); err != nil || ended {
				return
			}
		}
		s.beginAnswer(w, &begun)
		if control.Flush() != nil {
			return
		}
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

// logFailure tells what the node said. It is no fault of the caller's, and may
// pass.
func logFailure(spec *mariposa.InstanceSpec, err error) error {
	var known *mariposa.Error
	if errors.As(err, &known) {
		return err
	}
	return mariposa.Errorf(mariposa.Unavailable, "the logs of %s cannot be read from its node: %w", spec.Name, err)
}
