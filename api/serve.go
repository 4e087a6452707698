package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"mariposa"
	"mariposa/change"
	"mariposa/contract"
	"mariposa/listener"
	"mariposa/reason"
	"mariposa/store"
	"mariposa/wire"
)

// ServeHTTP handles one request: it assigns an id, updates metrics, sets deadlines and
// recovers from panics.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	id, from := newRequestID(), s.Proxies.Client(r)
	r = r.WithContext(context.WithValue(r.Context(), requestKey{}, &origin{id, from, r.Method == http.MethodGet || r.Method == http.MethodHead, s.Proxies.Secure(r), isCrossSite(r)}))
	rec := &statusRecorder{ResponseWriter: w}
	h := rec.Header()
	h.Set("X-Request-Id", id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set(contract.TimeHeader, s.Clock.Now().UTC().Format(time.RFC3339Nano))
	control := http.NewResponseController(rec)
	_ = control.SetWriteDeadline(began.Add(writeTimeout))                         // if it cannot be set, the listener's own limits apply
	defer func() { _ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) }() // the rest of the response is sent after this returns

	pattern := ""
	defer func() {
		if cause := recover(); cause != nil {
			s.answerPanic(rec, r, cause)
		}
		s.metrics.observe(pattern, rec.status, time.Since(began))
		s.Logger.DebugContext(r.Context(), "answered", "request", id, "method", r.Method, "path", r.URL.Path, "from", from, "status", rec.status, "took", time.Since(began))
	}()
	unread := r.ContentLength != 0
	if unread {
		// Do not wait for the body of a request without a valid token: the response is sent
		// at once and the connection is closed.
		_ = control.SetReadDeadline(began.Add(s.RequestTimeout))
		h.Set("Connection", "close")
		defer func() {
			if unread {
				_ = control.SetReadDeadline(began) // net/http reads the rest before it closes
			}
		}()
	}
	if !isLegible(r.URL) {
		newError(mariposa.InvalidArgument, "the URL contains characters that are not valid text", nil).write(rec)
		return
	}
	if s.isLostBrowser(r) {
		writeLostPage(rec)
		return
	}
	r, leave, err := s.admit(r)
	if err != nil {
		h.Set("Connection", "close") // further requests on it would have to be read and rejected too
		err.write(rec)
		return
	}
	defer leave()
	if _, ok := r.Context().Value(sessionKey{}).(*session); ok {
		rec.shows = func() (int64, string) {
			id, _ := s.Store.Identity(r.Context()) // kept in memory; a store that was closed has none
			return s.Picture.Revision(), id.Incarnation
		}
		s.awaitSeen(r)
	}
	if s.admitted[r.URL.Path] != anybody {
		unread = false
		h.Del("Connection")
		defer discardIfRefused(rec, r, began.Add(s.RequestTimeout))()
	}
	var handler http.Handler
	if handler, pattern = s.mux.Handler(r); pattern == "" {
		answerUnrouted(handler, rec, r)
		return
	}
	s.mux.ServeHTTP(rec, r)
}

// awaitSeen waits for a limited time until this server shows what the client has seen at
// another replica.
func (s *server) awaitSeen(r *http.Request) {
	if seen, err := strconv.ParseInt(r.Header.Get(contract.RevisionHeader), 10, 64); err == nil && seen > s.Picture.Revision() {
		s.await(r.Context(), seen)
	}
}

// discardIfRefused returns a function that reads what the handler of a refused request
// left of its body, for example of one that is too large. If the connection were closed
// instead, clients might fail to send the rest and never read why.
func discardIfRefused(rec *statusRecorder, r *http.Request, deadline time.Time) func() {
	if r.ContentLength == 0 {
		return func() {}
	}
	const most = 32 << 20
	body := &countedReader{from: r.Body}
	r.Body = io.NopCloser(body) // net/http closes it after the response
	waits := strings.EqualFold(r.Header.Get("Expect"), "100-continue")
	return func() {
		if waits && body.n == 0 {
			return // the client sends nothing without permission
		}
		if rec.status >= http.StatusBadRequest {
			_ = http.NewResponseController(rec).SetReadDeadline(deadline)
			_, _ = io.CopyN(io.Discard, body, most)
		}
	}
}

type countedReader struct {
	from io.Reader
	n    int64
}

func (c *countedReader) Read(b []byte) (int, error) {
	n, err := c.from.Read(b)
	c.n += int64(n)
	return n, err
}

// checkOperation runs before every operation: it checks the permission of the route, and
// replays the first response to a repeated change.
func (s *server) checkOperation(hc huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(hc)
	op := hc.Operation()
	rt := routeOf(op)
	if rt.admitted == anybody {
		next(hc)
		return
	}
	ses := sessionOf(r.Context())
	ses.Action, ses.Global, ses.header = rt.audit, rt.object == nil, w.Header()
	if mediaType(r.Header.Get("Content-Type")) == curlType && !rt.body.text {
		r.Header.Set("Content-Type", "application/json") // for curl -d '{…}'; a body that is not JSON is rejected
	}
	reading := r.Method == http.MethodGet || r.Method == http.MethodHead
	if !reading {
		// The body may be read here already. A stream must have no read deadline: the
		// server meanwhile reads to detect a disconnect, and would take the timeout
		// for one.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.RequestTimeout)) // if it cannot be set, the listener's own limits apply
	}
	from := s.Picture.Revision()
	refused := s.authorize(r, rt)
	if code := mariposa.CodeOf(refused); code == mariposa.ResourceNotFound || code == mariposa.Forbidden || code == mariposa.Reauthentication {
		moved, behind := s.change.CatchUp(r.Context(), from)
		switch {
		case moved:
			refused = s.authorize(r, rt)
		case behind != nil && !reading: // a reader gets what this server knows
			refused = behind
		}
	}
	if refused == nil && r.ContentLength > bodyLimit(op) {
		tooLarge(op, r).write(w) // without waiting for it
		return
	}
	key := r.Header.Get("Idempotency-Key")
	changing := !reading && rt.audit != ""
	if key != "" && changing && (refused == nil || mariposa.CodeOf(refused) == mariposa.ResourceNotFound) {
		if len(key) > maxKey {
			newError(mariposa.InvalidArgument, "the Idempotency-Key is too long: at most 255 characters are allowed", nil).write(w)
			return
		}
		ses.Idempotency = newIdempotency(ses.Caller, key, r, peek(r), cmp.Or(op.DefaultStatus, http.StatusOK))
		if s.replayAnswer(r.Context(), w, ses.Idempotency) { // the first request may have deleted the object
			return
		}
	}
	if refused == nil {
		if repeated := checkRepeated(op, r.URL.Query()); repeated != nil {
			repeated.write(w)
			return
		}
		next(hc)
		return
	}
	if code := mariposa.CodeOf(refused); code == mariposa.Forbidden || code == mariposa.ResourceNotFound {
		s.deny(r.Context(), refused)
	}
	s.explain(r.Context(), refused).write(w)
}

// replayAnswer repeats the first response to a change; it returns false if there is none.
func (s *server) replayAnswer(ctx context.Context, w http.ResponseWriter, p *change.Idempotency) bool {
	body, _, err := s.change.FindAnswer(ctx, p)
	switch {
	case err != nil:
		s.explain(ctx, err).write(w)
	case body != nil:
		if now, err := s.Store.Revision(ctx); err == nil {
			s.await(ctx, now) // another replica may have made the change: reads must show it
		}
		w.Header().Set(replayedHeader, "true")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(p.Status)
		_, _ = w.Write(body) // the client may be gone
	}
	return err != nil || body != nil
}

// answerPanic ends a request whose handler panicked. If the response has begun, it cuts the
// connection, so that clients do not take a partial response for a complete one.
func (s *server) answerPanic(rec *statusRecorder, r *http.Request, cause any) {
	if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler)
	}
	e := s.unexpectedError(r.Context(), cause)
	s.Logger.ErrorContext(r.Context(), "request handler panicked", "request", requestID(r.Context()), "stack", string(debug.Stack()))
	if rec.status != 0 {
		panic(http.ErrAbortHandler)
	}
	e.write(rec)
}

// admit authenticates a request and counts it against its user's limits. While the request
// lasts, the listener does not close its connection to make room for others.
func (s *server) admit(r *http.Request) (_ *http.Request, leave func(), refused *Error) {
	if s.admitted[r.URL.Path] == anybody {
		return r, func() {}, nil
	}
	r, refused = s.authenticate(r)
	done := func() {}
	if ses, ok := r.Context().Value(sessionKey{}).(*session); ok {
		done = ses.done
	}
	if refused != nil {
		done()
		return r, nil, refused
	}
	if admissionOf(r.Context()).Tokenless { // its connection can be closed in favor of others
		return r, done, nil
	}
	release, ok := listener.Hold(r.Context())
	if !ok {
		done()
		return r, nil, newError(mariposa.Unavailable, "this server has reached its limit of connections: try again later or use another replica", nil)
	}
	return r, func() { release(); done() }, nil
}

// authenticate identifies the caller. A source with too many failures is throttled, but
// valid tokens from it are still accepted.
func (s *server) authenticate(r *http.Request) (*http.Request, *Error) {
	admitted := s.admitted[r.URL.Path]
	now, from := s.Clock.Now(), originOf(r.Context()).from
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		token = ""
	}
	isSession := false
	if admitted == users && r.Header.Get("Authorization") == "" {
		token, isSession = s.sessionCookie(r)
	}
	switch admitted {
	case agents:
		return s.admitAgent(r, token, from, now)
	case replicas:
		return s.admitReplica(r, from)
	}
	c := s.identify(r.Context(), token, isSession, now)
	if c == nil {
		return r, s.rejectToken(r, from, func() string { return s.whyRejected(r.Context(), token, now) })
	}
	if isSession && originOf(r.Context()).foreign {
		return r, newError(mariposa.Forbidden, "this request came from a page of another site: use the page of this server, or a token", nil)
	}
	s.recordTokenUse(c, from, now)
	done, refused := s.usage.beginRequest(c, now)
	if refused != nil {
		return r, refused
	}
	ses := &session{Request: change.Request{Caller: c, From: from, ID: requestID(r.Context())}, methodAndPath: r.Method + " " + r.URL.Path, done: done}
	own, user := asUser(r)
	own = own.WithContext(context.WithValue(r.Context(), sessionKey{}, ses))
	if user != "" {
		if ses.Caller = s.directory.ActAs(c, user); ses.Caller == nil {
			ses.Caller, ses.Action = c, "user.act-for"
			refused := newError(mariposa.ResourceNotFound, "there is no such user", nil)
			s.deny(own.Context(), refused)
			return own, refused
		}
		if by := s.admitted[own.URL.Path]; by == agents || by == replicas { // they have their own credentials and never act for users
			return own, newError(mariposa.ResourceNotFound, "there is nothing at "+own.URL.Path+": see /docs for all paths", nil)
		}
	}
	return own, nil
}

// whyRejected explains why a token was rejected. Details of a formerly valid token are
// shown only to callers who have it.
func (s *server) whyRejected(ctx context.Context, token string, now time.Time) string {
	if token == "" {
		return "a valid token is required in the header Authorization: Bearer TOKEN"
	}
	if r, own := s.directory.JoinToken(token, now); r != nil || own {
		return "this is a join token, which is only for nodes: use the token of a user"
	}
	hash := mariposa.HashToken(token)
	r, err := s.Store.Get(ctx, mariposa.KindToken, mariposa.TokenID(hash))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return "this token is unknown: check that it is complete and belongs to this server"
	case err != nil:
		return "this token cannot be verified: try again shortly"
	}
	spec := (*store.Token)(&r).Spec()
	switch on := func(t time.Time) string { return t.UTC().Format("2006-01-02 at 15:04 UTC") }; {
	case spec.Use == mariposa.TokenSession:
		return "the session has ended: sign in again"
	case spec.Use == mariposa.TokenLink:
		return "this is a sign-in link, not a token: open it in a browser"
	case !spec.Revoked.IsZero():
		return "this token was revoked on " + on(spec.Revoked) + ": use another one"
	case spec.Expired(now):
		return "this token expired on " + on(spec.Expires) + ": create a new one"
	case spec.Spent():
		return "this token has let " + reason.Many(spec.Joined, "node") + " join, which is its limit: create a new one"
	case s.directory.HasEndedAncestor(spec, now):
		return "this token is no longer valid because the token that created it has ended: use another one"
	}
	return "the user of this token is disabled: ask an admin of the installation"
}

// rejectToken rejects a request without a valid token. It calls why only within the rate
// limit.
func (s *server) rejectToken(r *http.Request, from string, why func() string) *Error {
	if _, hasCookie := s.sessionCookie(r); !hasCookie && r.Header.Get("Authorization") == "" && r.Header.Get(wire.NodeHeader) == "" { // a request without any token is not an attempt to guess one
		return newError(mariposa.Unauthorized, why(), nil)
	}
	return s.countFailure(r.Context(), r.Method+" "+r.URL.Path, from, why)
}

// countFailure counts a failed attempt to authenticate, and records it within the rate limit.
func (s *server) countFailure(ctx context.Context, object, from string, why func() string) *Error {
	ok, suppressed, retry := s.tokenFailures.Fail(listener.Group(from), s.Clock.Now())
	if !ok {
		e := newError(mariposa.Throttled, "too many requests without a valid token from "+from+": wait, and check the token", nil)
		e.retry = retry
		return e
	}
	message := why()
	ok, more, _ := s.failureRows.Fail("", s.Clock.Now())
	if !ok { // the next record counts it
		return newError(mariposa.Unauthorized, message, nil)
	}
	s.recordAudit(ctx, mariposa.Audit{
		From: from, Request: requestID(ctx), Action: "login", Outcome: mariposa.AuditDenied,
		Object: object, Reason: message + describeSuppressed(suppressed+more),
	})
	return newError(mariposa.Unauthorized, message, nil)
}

const userPrefix = "/v1/users/"

// asUser strips the /v1/users/{user} prefix of a request and returns that user. A path that
// ends with the name is about the user itself.
func asUser(r *http.Request) (own *http.Request, user string) {
	rest, prefixed := strings.CutPrefix(r.URL.EscapedPath(), userPrefix)
	name, rest, more := strings.Cut(rest, "/")
	if !prefixed || !more {
		return r, ""
	}
	escaped := "/v1/" + rest
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return r, ""
	}
	if name, err = url.PathUnescape(name); err != nil {
		return r, ""
	}
	u := *r.URL
	u.Path, u.RawPath = path, escaped
	own = r.Clone(r.Context())
	own.URL = &u
	return own, name
}

// isLegible reports whether a URL is valid text. PostgreSQL, for example, cannot store
// or look up anything else.
func isLegible(u *url.URL) bool {
	query, err := url.QueryUnescape(u.RawQuery)
	return err == nil && isText(u.Path) && isText(query)
}

func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// answerUnrouted answers a request that matches no route with an error of the
// contract.
func answerUnrouted(handler http.Handler, w http.ResponseWriter, r *http.Request) {
	muxAnswer := &discardWriter{header: http.Header{}}
	handler.ServeHTTP(muxAnswer, r)
	if allow := muxAnswer.header.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
		e := newError(mariposa.InvalidArgument, r.URL.Path+" does not support "+r.Method+", only "+allow, nil)
		e.status = http.StatusMethodNotAllowed // the contract has no code for this status
		e.write(w)
		return
	}
	newError(mariposa.ResourceNotFound, "there is nothing at "+r.URL.Path+": see /docs for all paths", nil).write(w)
}

// discardWriter records the headers of the mux's response and discards the rest.
type discardWriter struct{ header http.Header }

func (s *discardWriter) Header() http.Header         { return s.header }
func (s *discardWriter) Write(b []byte) (int, error) { return len(b), nil }
func (s *discardWriter) WriteHeader(int)             {}

// statusRecorder records the status of a response.
type statusRecorder struct {
	http.ResponseWriter
	status int
	shows  func() (revision int64, incarnation string) // what the response is about; nil: nothing
}

// Unwrap gives access to deadlines, flushing and hijacking.
func (r *statusRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *statusRecorder) WriteHeader(status int) {
	if r.status == 0 || r.status < http.StatusOK {
		r.status = status
		r.addRevision()
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *statusRecorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
		r.addRevision()
	}
	return r.ResponseWriter.Write(b)
}

func (r *statusRecorder) addRevision() {
	if r.shows == nil {
		return
	}
	revision, incarnation := r.shows()
	r.Header().Set(contract.RevisionHeader, strconv.FormatInt(revision, 10))
	if incarnation != "" {
		r.Header().Set(contract.IncarnationHeader, incarnation)
	}
}

type requestKey struct{}

// origin identifies a request and the address of its client.
type origin struct {
	id, from string
	reads    bool // it changes nothing
	secure   bool // the client uses TLS
	foreign  bool // a page of another site sent it
}

func originOf(ctx context.Context) *origin {
	if o, ok := ctx.Value(requestKey{}).(*origin); ok {
		return o
	}
	return &origin{}
}

func requestID(ctx context.Context) string { return originOf(ctx).id }

func newRequestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
