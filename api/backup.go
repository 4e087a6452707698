package api

import (
	"bufio"
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"mariposa"
	"mariposa/auth"
	"mariposa/store/backup"
)

// backupTimeout limits a backup: while it is read, the store keeps what is deleted.
const backupTimeout = time.Hour

// actionBackup is the action of a backup in the audit log.
const actionBackup = "backup.read"

// backup sends a copy of the whole store. One runs at a time: it costs as much as reading
// everything.
func (s *server) backup(ctx context.Context, _ *struct{}) (*huma.StreamResponse, error) {
	if !s.backingUp.CompareAndSwap(false, true) {
		return nil, conflict("a backup is already being made by this server: try again when it is complete")
	}
	release, err := s.acquireStream(ctx)
	if err != nil {
		s.backingUp.Store(false)
		return nil, err
	}
	a := sessionOf(ctx).Audit()
	a.Action, a.Reason = actionBackup, "a copy of the whole store"
	if err := s.change.RecordAudit(ctx, a); err != nil { // nobody gets a copy without a record of it
		s.backingUp.Store(false)
		release()
		return nil, err
	}
	c := caller(ctx)
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer s.backingUp.Store(false)
		defer release()
		req, w := humago.Unwrap(hc)
		ctx, cancel := context.WithTimeout(req.Context(), backupTimeout)
		defer cancel()
		out := &pacedWriter{w: w, control: http.NewResponseController(w), allowed: func() error { return s.mayStillBackUp(c) }}
		s.streamBackup(ctx, out)
	}}, nil
}

// mayStillBackUp returns an error once a caller has lost the token or the role.
func (s *server) mayStillBackUp(c *auth.Caller) error {
	now := s.renew(c)
	if now == nil {
		return mariposa.Errorf(mariposa.Unauthorized, "the token was revoked")
	}
	return s.directory.Require(now, auth.RunInstallation, nil)
}

// streamBackup sends a backup. A failure before it begins is sent as an error; a later one
// is written into the backup.
func (s *server) streamBackup(ctx context.Context, out *pacedWriter) {
	buffer := bufio.NewWriterSize(out, 64<<10)
	file, err := backup.NewWriter(buffer, s.Version)
	if err == nil {
		err = s.Store.Dump(ctx, file.Dump())
	}
	switch {
	case err == nil:
		_, err = file.End()
	case file == nil || !file.Began():
		s.explain(ctx, err).write(out.w)
		return
	case out.err == nil:
		s.Logger.WarnContext(ctx, "a backup failed", "err", err)
		_ = file.Fail(s.explain(ctx, err).Message) // the client may be gone
	}
	if buffer.Flush() != nil || err != nil {
		panic(http.ErrAbortHandler) // the client must not take it for complete
	}
}

// pacedWriter sends a long response to a client that must keep reading, and that must
// still be allowed to.
type pacedWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	allowed func() error
	begun   bool
	err     error // of sending
}

func (p *pacedWriter) Write(b []byte) (n int, err error) {
	if err := p.allowed(); err != nil {
		p.err = err
		return 0, err
	}
	if !p.begun {
		p.begun = true
		p.w.Header().Set("Content-Type", "application/octet-stream")
		p.w.Header().Set("Content-Disposition", `attachment; filename="mariposa.backup"`)
		p.w.WriteHeader(http.StatusOK)
		_ = p.control.SetReadDeadline(time.Time{}) // the request was received completely; a silent client is still there
	}
	_ = p.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // if it cannot be set, TCP detects a dead client
	n, p.err = p.w.Write(b)
	return n, p.err
}
