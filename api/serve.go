package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"mariposa"
)

// tokenless are the paths that need no token.
var tokenless = map[string]bool{"/healthz": true, "/readyz": true, "/metrics": true, "/openapi.json": true, "/docs": true}

// takesManifests are the routes whose bodies may be YAML.
var takesManifests = map[string]bool{"POST /v1/projects": true, "PUT /v1/projects/{project}/manifest": true}

// agentPath is where agents connect, with the join token.
const agentPath = "/v1/agent"

// ServeHTTP answers one request: it is numbered, counted, bounded in time, and
// whatever goes wrong in it stays in it.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	id := newRequestID()
	r = r.WithContext(context.WithValue(r.Context(), requestKey{}, id))
	rec := &recorder{ResponseWriter: w}
	h := rec.Header()
	h.Set("X-Request-Id", id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	control := http.NewResponseController(rec)
	_ = control.SetWriteDeadline(began.Add(writeTimeout))        // where it cannot be set, the listener's own limits hold
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }() // the connection may serve others next

	pattern := ""
	defer func() {
		if cause := recover(); cause != nil {
			s.recovered(rec, r, cause)
		}
		s.meters.saw(pattern, rec.status, time.Since(began))
		s.Logger.DebugContext(r.Context(), "answered", "request", id, "method", r.Method, "path", r.URL.Path, "status", rec.status, "took", time.Since(began))
	}()
	if err := s.letIn(r); err != nil {
		err.write(rec)
		return
	}
	if !legible(r.URL) {
		newError(mariposa.InvalidArgument, "the address of the request holds characters that are no text", nil).write(rec)
		return
	}
	r, ok := asUser(r)
	if !ok {
		newError(mariposa.ResourceNotFound, "there is no such user", nil).write(rec)
		return
	}
	var handler http.Handler
	if handler, pattern = s.mux.Handler(r); pattern == "" {
		unrouted(handler, rec, r)
		return
	}
	if mediaType(r.Header.Get("Content-Type")) == curlType && !takesManifests[pattern] {
		r.Header.Set("Content-Type", "application/json") // people write curl -d '{…}'; whatever is none is refused
	}
	if key := r.Header.Get("Idempotency-Key"); key != "" && r.Method != http.MethodGet && r.Method != http.MethodHead {
		s.once(key, rec, r, func(r *http.Request) { s.mux.ServeHTTP(rec, r) })
		return
	}
	s.mux.ServeHTTP(rec, r)
}

// recovered ends a request whose handler panicked. If the answer has begun, the
// connection is cut, so that nobody takes a torn answer for a whole one.
func (s *server) recovered(rec *recorder, r *http.Request, cause any) {
	if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler)
	}
	e := s.unforeseen(r.Context(), cause)
	s.Logger.ErrorContext(r.Context(), "a handler panicked", "request", requestID(r.Context()), "stack", string(debug.Stack()))
	if rec.status != 0 {
		panic(http.ErrAbortHandler)
	}
	e.write(rec)
}

// letIn checks the token.
func (s *server) letIn(r *http.Request) *Error {
	switch {
	case tokenless[r.URL.Path]:
		return nil
	case r.URL.Path == agentPath:
		if !s.bears(r, mariposa.TokenJoin, s.JoinToken) {
			return newError(mariposa.Unauthorized, "the join token is not right", nil)
		}
	case !s.bears(r, mariposa.TokenAdmin, s.AdminToken):
		return newError(mariposa.Unauthorized, "this needs a valid token in the header Authorization: Bearer TOKEN", nil)
	}
	return nil
}

// bears reports whether a request carries the token this server was given for a
// use, or one that the store knows. Hashes are compared, in constant time, so that
// neither a token nor its length can be found out by measuring.
func (s *server) bears(r *http.Request, use mariposa.TokenUse, given string) bool {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return false
	}
	hash := []byte(mariposa.HashToken(token))
	ok := given != "" && subtle.ConstantTimeCompare(hash, []byte(mariposa.HashToken(given))) == 1
	for _, t := range s.Picture.All(mariposa.KindToken) {
		spec := t.Spec.(*mariposa.TokenSpec)
		ok = (spec.Use == use && subtle.ConstantTimeCompare(hash, []byte(spec.Hash)) == 1) || ok
	}
	return ok
}

const userPrefix = "/v1/users/"

// asUser takes the prefix of a request made for a user away. False: there is no
// such user, or the caller may not act for them.
func asUser(r *http.Request) (*http.Request, bool) {
	rest, prefixed := strings.CutPrefix(r.URL.EscapedPath(), userPrefix)
	if !prefixed {
		return r, true
	}
	user, rest, _ := strings.Cut(rest, "/")
	if user != actor(r.Context()) {
		return r, false
	}
	escaped := "/v1/" + rest
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return r, false
	}
	u := *r.URL
	u.Path, u.RawPath = path, escaped
	own := r.Clone(r.Context())
	own.URL = &u
	return own, true
}

// legible reports whether an address is text all through. What is not could not
// be stored or looked up everywhere.
func legible(u *url.URL) bool {
	query, err := url.QueryUnescape(u.RawQuery)
	return err == nil && isText(u.Path) && isText(query)
}

func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// unrouted answers what no route takes, in our own words.
func unrouted(handler http.Handler, w http.ResponseWriter, r *http.Request) {
	said := &silent{header: http.Header{}}
	handler.ServeHTTP(said, r)
	if allow := said.header.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
		e := newError(mariposa.InvalidArgument, r.URL.Path+" does not take "+r.Method+", only "+allow, nil)
		e.status = http.StatusMethodNotAllowed // HTTP has a word of its own for this, the contract has no code
		e.write(w)
		return
	}
	newError(mariposa.ResourceNotFound, "there is nothing at "+r.URL.Path+"; /docs lists what there is", nil).write(w)
}

// silent hears what the mux would have said.
type silent struct{ header http.Header }

func (s *silent) Header() http.Header         { return s.header }
func (s *silent) Write(b []byte) (int, error) { return len(b), nil }
func (s *silent) WriteHeader(int)             {}

// recorder remembers the status of an answer, and if wanted the answer itself.
type recorder struct {
	http.ResponseWriter
	status int
	kept   *bytes.Buffer
}

// Unwrap lets deadlines, flushing and hijacking through.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 || r.status < http.StatusOK {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	if r.kept != nil && r.kept.Len() <= maxKept {
		r.kept.Write(b)
	}
	return r.ResponseWriter.Write(b)
}

type requestKey struct{}

func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

func newRequestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}
