package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"mariposa"
	"mariposa/change"
	"mariposa/fleet"
	"mariposa/listener"
	"mariposa/reason"
	"mariposa/store"
	"mariposa/wire"
)

// ServeHTTP handles one request: it assigns an id, counts it, limits its time, and
// contains its panics.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	id, from := newRequestID(), s.Proxies.Client(r)
	r = r.WithContext(context.WithValue(r.Context(), requestKey{}, &origin{id, from, r.Method == http.MethodGet || r.Method == http.MethodHead}))
	rec := &statusRecorder{ResponseWriter: w}
	h := rec.Header()
	h.Set("X-Request-Id", id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	control := http.NewResponseController(rec)
	_ = control.SetWriteDeadline(began.Add(writeTimeout))                         // if it cannot be set, the listener's own limits apply
	defer func() { _ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) }() // the end of the answer is sent once this has returned

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
		// The body of a request without a valid token is not waited for: the response is
		// sent at once, and the connection closed.
		_ = control.SetReadDeadline(began.Add(s.RequestTimeout))
		h.Set("Connection", "close")
		defer func() {
			if unread {
				_ = control.SetReadDeadline(began) // net/http reads the rest before it closes
			}
		}()
	}
	if !isLegible(r.URL) {
		newError(mariposa.InvalidArgument, "the address of the request holds characters that are no text", nil).write(rec)
		return
	}
	if s.isLostBrowser(r) {
		writeLostPage(rec)
		return
	}
	r, leave, err := s.admit(r)
	if err != nil {
		h.Set("Connection", "close") // whatever else was sent on it would have to be read and refused too
		err.write(rec)
		return
	}
	defer leave()
	if s.admitted[r.URL.Path] != anybody {
		unread = false
		h.Del("Connection")
	}
	var handler http.Handler
	if handler, pattern = s.mux.Handler(r); pattern == "" {
		answerUnrouted(handler, rec, r)
		return
	}
	s.mux.ServeHTTP(rec, r)
}

// checkOperation runs before every operation: it checks the permission that the route
// needs, and replays the first answer to a repeated change.
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
		r.Header.Set("Content-Type", "application/json") // people write curl -d '{…}'; a body that is not JSON is refused
	}
	reading := r.Method == http.MethodGet || r.Method == http.MethodHead
	if !reading {
		// The body may be read here already. A stream must have no read deadline: the
		// server meanwhile reads to detect a disconnect, and would take the timeout
		// for one.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.RequestTimeout)) // if it cannot be set, the listener's own limits apply
	}
	refused := s.authorize(r, rt)
	key := r.Header.Get("Idempotency-Key")
	changing := !reading && rt.audit != ""
	if key != "" && changing && (refused == nil || mariposa.CodeOf(refused) == mariposa.ResourceNotFound) {
		if len(key) > maxKey {
			newError(mariposa.InvalidArgument, "the Idempotency-Key is too long", nil).write(w)
			return
		}
		ses.Idempotency = newIdempotency(ses.Caller, key, r, peek(r), cmp.Or(op.DefaultStatus, http.StatusOK))
		if s.replayAnswer(r.Context(), w, ses.Idempotency) { // the first request may have deleted the object
			return
		}
	}
	if refused == nil {
		next(hc)
		return
	}
	if code := mariposa.CodeOf(refused); code == mariposa.Forbidden || code == mariposa.ResourceNotFound {
		s.deny(r.Context(), refused)
	}
	s.explain(r.Context(), refused).write(w)
}

// replayAnswer repeats the first answer to a change; it returns false if there is
// none.
func (s *server) replayAnswer(ctx context.Context, w http.ResponseWriter, p *change.Idempotency) bool {
	body, _, err := s.change.FindAnswer(ctx, p)
	switch {
	case err != nil:
		s.explain(ctx, err).write(w)
	case body != nil:
		w.Header().Set(replayedHeader, "true")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(p.Status)
		_, _ = w.Write(body) // the client may be gone
	}
	return err != nil || body != nil
}

// answerPanic ends a request whose handler panicked. If the response has begun, it
// cuts the connection, so that nobody takes a partial response for a whole one.
func (s *server) answerPanic(rec *statusRecorder, r *http.Request, cause any) {
	if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler)
	}
	e := s.unexpectedError(r.Context(), cause)
	s.Logger.ErrorContext(r.Context(), "a handler panicked", "request", requestID(r.Context()), "stack", string(debug.Stack()))
	if rec.status != 0 {
		panic(http.ErrAbortHandler)
	}
	e.write(rec)
}

// admit lets a request in. As long as it lasts, its connection does not go for others, and
// it counts against its user's limits.
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
	release, ok := listener.Hold(r.Context())
	if !ok {
		done()
		return r, nil, newError(mariposa.Unavailable, "this server has as many connections as it can serve: try again later, or ask another replica", nil)
	}
	return r, func() { release(); done() }, nil
}

// authenticate identifies the caller. A source with too many failures has to wait; a
// valid token is never refused for that.
func (s *server) authenticate(r *http.Request) (*http.Request, *Error) {
	admitted := s.admitted[r.URL.Path]
	now, from := s.Clock.Now(), originOf(r.Context()).from
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		token = ""
	}
	if admitted == agents {
		return s.admitAgent(r, token, from, now)
	}
	c := s.directory.Identify(token, now)
	if c == nil {
		return r, s.rejectToken(r, from, func() string { return s.whyRejected(r.Context(), token, now) })
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
		if s.admitted[own.URL.Path] == agents { // agents use a token of their own, never for a user
			return own, newError(mariposa.ResourceNotFound, "there is nothing at "+own.URL.Path+"; /docs lists what there is", nil)
		}
	}
	return own, nil
}

type admissionKey struct{}

// admissionOf is what let an agent in.
func admissionOf(ctx context.Context) fleet.Admission {
	return ctx.Value(admissionKey{}).(fleet.Admission)
}

// admitAgent lets an agent in that has a join token, or the key of a node that has joined
// before.
func (s *server) admitAgent(r *http.Request, token, from string, now time.Time) (*http.Request, *Error) {
	by := fleet.Admission{From: from}
	by.Token, by.Own = s.directory.JoinToken(token, now)
	if node, key, ok := strings.Cut(r.Header.Get(wire.NodeHeader), ":"); ok && s.directory.KnowsNode(node, key) {
		by.Node = node
	}
	if by.Token == nil && !by.Own && by.Node == "" {
		return r, s.rejectToken(r, from, func() string { return s.whyNotJoined(r.Context(), token, now) })
	}
	return r.WithContext(context.WithValue(r.Context(), admissionKey{}, by)), nil
}

// whyNotJoined says what is wrong with the token that an agent came with.
func (s *server) whyNotJoined(ctx context.Context, token string, now time.Time) string {
	const remedy = " (mariposa node join-token)"
	switch {
	case token == "":
		return "this node is not known here: give its agent a join token" + remedy
	case s.directory.Identify(token, now) != nil:
		return "the join token is not right: this one is for people; make one for nodes" + remedy
	}
	return "the join token is not right: " + s.whyRejected(ctx, token, now) + remedy
}

// whyRejected says why a token is rejected. Details of a formerly valid token are
// shown only to those who have that token.
func (s *server) whyRejected(ctx context.Context, token string, now time.Time) string {
	if token == "" {
		return "this needs a valid token in the header Authorization: Bearer TOKEN"
	}
	if r, own := s.directory.JoinToken(token, now); r != nil || own {
		return "this token lets nodes join, and nobody in: use a token of a user"
	}
	hash := mariposa.HashToken(token)
	r, err := s.Store.Get(ctx, mariposa.KindToken, mariposa.TokenID(hash))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return "this token is unknown: check that it is whole and meant for this server"
	case err != nil:
		return "this token is not known to be good"
	}
	spec := (*store.Token)(&r).Spec()
	switch on := func(t time.Time) string { return t.UTC().Format("2006-01-02 at 15:04 UTC") }; {
	case !spec.Revoked.IsZero():
		return "this token was revoked on " + on(spec.Revoked) + ": use another one"
	case spec.Expired(now):
		return "this token expired on " + on(spec.Expires) + ": make another one"
	case spec.Spent():
		return "this token has let " + reason.Many(spec.Joined, "node") + " join, which is its limit: create another one"
	case s.directory.MakerEnded(spec, now):
		return "this token ended with the one that made it: use another one"
	}
	return "the user of this token is disabled: ask whoever runs the installation"
}

// rejectToken refuses a request without a valid token. It calls why only within the
// rate limit.
func (s *server) rejectToken(r *http.Request, from string, why func() string) *Error {
	if r.Header.Get("Authorization") == "" && r.Header.Get(wire.NodeHeader) == "" { // a request without any token is not an attempt to guess one
		return newError(mariposa.Unauthorized, why(), nil)
	}
	ok, suppressed, retry := s.tokenFailures.Fail(listener.Group(from), s.Clock.Now())
	if !ok {
		e := newError(mariposa.Throttled, "too many requests without a valid token came from "+from+": wait, and check the token", nil)
		e.retry = retry
		return e
	}
	message := why()
	ok, more, _ := s.failureRows.Fail("", s.Clock.Now())
	if !ok { // it is counted, and told with the next one
		return newError(mariposa.Unauthorized, message, nil)
	}
	s.recordAudit(r.Context(), mariposa.Audit{
		From: from, Request: requestID(r.Context()), Action: "login", Outcome: mariposa.AuditDenied,
		Object: r.Method + " " + r.URL.Path, Reason: message + describeSuppressed(suppressed+more),
	})
	return newError(mariposa.Unauthorized, message, nil)
}

const userPrefix = "/v1/users/"

// asUser strips the prefix of a request made for a user, and returns that user. A path
// that ends with the name is about the user itself.
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

// isLegible reports whether a URL is valid text. Anything else cannot be stored or
// looked up everywhere.
func isLegible(u *url.URL) bool {
	query, err := url.QueryUnescape(u.RawQuery)
	return err == nil && isText(u.Path) && isText(query)
}

func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// answerUnrouted answers a request that matches no route with an error of the
// contract.
func answerUnrouted(handler http.Handler, w http.ResponseWriter, r *http.Request) {
	said := &discardWriter{header: http.Header{}}
	handler.ServeHTTP(said, r)
	if allow := said.header.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
		e := newError(mariposa.InvalidArgument, r.URL.Path+" does not take "+r.Method+", only "+allow, nil)
		e.status = http.StatusMethodNotAllowed // HTTP has a status for this, the contract has no code
		e.write(w)
		return
	}
	newError(mariposa.ResourceNotFound, "there is nothing at "+r.URL.Path+"; /docs lists what there is", nil).write(w)
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
}

// Unwrap gives access to deadlines, flushing and hijacking.
func (r *statusRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *statusRecorder) WriteHeader(status int) {
	if r.status == 0 || r.status < http.StatusOK {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *statusRecorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

type requestKey struct{}

// origin is what a request is known by, and the address it comes from.
type origin struct {
	id, from string
	reads    bool // it changes nothing
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
