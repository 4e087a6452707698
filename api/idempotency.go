package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"time"

	"mariposa"
	"mariposa/auth"
	"mariposa/change"
)

const (
	replayedHeader = "Idempotency-Replayed"

	maxKey = 255
)

// newIdempotency identifies the stored response of a change with an Idempotency-Key.
func newIdempotency(c *auth.Caller, key string, r *http.Request, body []byte, status int) *change.Idempotency {
	b := c.Bounds // a token with fewer rights must not get the response to another token
	return &change.Idempotency{ID: digest(c.User, c.By, b.Organization, b.Project, string(b.Role), key), Request: fingerprint(r, body), Status: status}
}

func fingerprint(r *http.Request, body []byte) string {
	return digest(r.Method, r.URL.RequestURI(), mediaType(r.Header.Get("Content-Type")), string(body))
}

func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		n := len(p)
		h.Write([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		io.WriteString(h, p) //nolint:errcheck // a hash never fails
	}
	return hex.EncodeToString(h.Sum(nil))
}

// recordAnswer audits an action on an object that is not in the store, and stores the
// response. The action is already done, so errors are only logged.
func (s *server) recordAnswer(ctx context.Context, a mariposa.Audit, answer any) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.change.Record(ctx, request(ctx), a, answer); err != nil {
		s.Logger.WarnContext(ctx, "cannot store a response or its audit record", "err", err, "action", a.Action)
	}
}

type rejoined struct {
	io.Reader
	io.Closer
}
