package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"mariposa"
	"mariposa/change"
	"mariposa/manifest"
	"mariposa/picture"
	"mariposa/reason"
	"mariposa/store"
)

// statuses is the only place that maps codes to HTTP statuses.
var statuses = map[mariposa.Code]int{
	mariposa.InvalidArgument:  http.StatusBadRequest,
	mariposa.Unauthorized:     http.StatusUnauthorized,
	mariposa.Forbidden:        http.StatusForbidden,
	mariposa.ResourceNotFound: http.StatusNotFound,
	mariposa.Conflict:         http.StatusConflict,
	mariposa.TooOld:           http.StatusGone,
	mariposa.TooLarge:         http.StatusRequestEntityTooLarge,
	mariposa.Throttled:        http.StatusTooManyRequests,
	mariposa.QuotaExceeded:    http.StatusConflict,
	mariposa.Unavailable:      http.StatusServiceUnavailable,
	mariposa.Internal:         http.StatusInternalServerError,
}

// Error is an error as clients see it.
type Error struct {
	status  int
	retry   time.Duration
	Code    mariposa.Code    `json:"code" enum:"InvalidArgument,Unauthorized,Forbidden,ResourceNotFound,Conflict,TooOld,TooLarge,Throttled,QuotaExceeded,Unavailable,Internal"`
	Message string           `json:"message" doc:"one sentence to act on"`
	Errors  []mariposa.Fault `json:"errors" doc:"each single fault of what was sent, with its line in a manifest"`
}

func newError(code mariposa.Code, message string, faults []mariposa.Fault) *Error {
	if faults == nil {
		faults = []mariposa.Fault{}
	}
	return &Error{status: statuses[code], Code: code, Message: message, Errors: faults}
}

func (e *Error) Error() string { return e.Message }

// GetStatus returns the status to huma.
func (e *Error) GetStatus() int { return e.status }

// GetHeaders returns headers that tell programs what the message tells people.
func (e *Error) GetHeaders() http.Header {
	switch e.Code {
	case mariposa.Unauthorized:
		return http.Header{"Www-Authenticate": {`Bearer realm="mariposa"`}}
	case mariposa.Throttled, mariposa.Unavailable:
		return http.Header{"Retry-After": {strconv.Itoa(max(1, int(math.Ceil(e.retry.Seconds()))))}}
	}
	return nil
}

// write writes the error as the response where huma does not.
func (e *Error) write(w http.ResponseWriter) {
	for k, v := range e.GetHeaders() {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.status)
	_ = json.NewEncoder(w).Encode(e) // the client may be gone, and nobody is left to notify
}

// explain converts any error to one of the contract. An unexpected error is logged
// with the request's id, and only the id is shown.
func (s *server) explain(ctx context.Context, err error) *Error {
	var said *Error
	var known *mariposa.Error
	switch {
	case errors.As(err, &said):
		return said
	case errors.Is(err, picture.ErrUnreadable): // wraps faults that are not the caller's
	case errors.As(err, &known) && known.Code != mariposa.Internal:
		return newError(known.Code, message(known), known.Faults)
	case errors.Is(err, store.ErrTooOld):
		return newError(mariposa.TooOld, "the feed no longer reaches back to that revision: read the state anew and go on from its revision", nil)
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrClosed):
		s.Logger.WarnContext(ctx, "the store cannot be used", "request", requestID(ctx), "err", err)
		if originOf(ctx).reads {
			return newError(mariposa.Unavailable, "the store does not answer now: try again shortly", nil)
		}
		return newError(mariposa.Unavailable, explainUnwritable(err)+"; nothing was changed: try again shortly", nil)
	case errors.Is(err, store.ErrConflict):
		return newError(mariposa.Conflict, "it was changed by somebody else at the same time: look again, then try again", nil)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return newError(mariposa.Unavailable, "the answer took too long: try again", nil)
	}
	return s.unexpectedError(ctx, err)
}

// message returns the text of an error, with its reason and what to do about it.
func message(e *mariposa.Error) string {
	if e.Reason == nil {
		return e.Message
	}
	return e.Message + ": " + reason.Sentence(e.Reason)
}

// explainUnwritable says that the store cannot be written, and why if users can do
// something about the cause. The cause itself is not shown, because it may name files.
func explainUnwritable(err error) string {
	var lite interface{ Code() int }         // SQLite's result code; extended codes use the higher bytes
	var state interface{ SQLState() string } // PostgreSQL's
	code, sql := 0, ""
	if errors.As(err, &lite) {
		code = lite.Code() & 0xff
	}
	if errors.As(err, &state) {
		sql = state.SQLState()
	}
	said := "the store cannot be written now"
	switch {
	case code == 13 || sql == "53100" || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return said + " because its disk is full"
	case code == 8 || sql == "25006" || errors.Is(err, syscall.EROFS):
		return said + " because its disk is read-only"
	case code == 10 || sql == "58030" || errors.Is(err, syscall.EIO):
		return said + " because its disk answers with an I/O error"
	}
	return said
}

func (s *server) unexpectedError(ctx context.Context, err any) *Error {
	s.Logger.ErrorContext(ctx, "a request failed in a way nobody foresaw", "request", requestID(ctx), "err", err)
	return newError(mariposa.Internal, "something went wrong inside; the server's log tells more under request "+requestID(ctx), nil)
}

var errorsInstalled sync.Once

// installErrors makes huma's own errors look like all others. Its hooks are global, so
// they are set once and are the same for every server.
func installErrors() {
	errorsInstalled.Do(func() {
		rewordChecks()
		huma.ValidateStrictCasing = true
		huma.NewError = func(status int, message string, errs ...error) huma.StatusError {
			return humaError(nil, status, message, errs)
		}
		huma.NewErrorWithContext = func(hc huma.Context, status int, message string, errs ...error) huma.StatusError {
			if message == "request body is required" {
				return noBody(hc.Operation())
			}
			if status == http.StatusRequestEntityTooLarge {
				r, _ := humago.Unwrap(hc)
				return tooLarge(hc.Operation(), r)
			}
			return humaError(hc.Operation(), status, message, errs)
		}
	})
}

// noBody says what is missing when the body is empty.
func noBody(op *huma.Operation) *Error {
	if routeOf(op).body.text {
		return newError(mariposa.InvalidArgument, change.ErrEmpty.Error(), nil)
	}
	return newError(mariposa.InvalidArgument, "the body of the request is empty: it must be JSON", nil)
}

// humaError puts a complaint of huma's into our words. The operation may be nil.
func humaError(op *huma.Operation, status int, message string, errs []error) *Error {
	code := mariposa.InvalidArgument // for any client error
	switch {
	case status == http.StatusRequestEntityTooLarge:
		return tooLarge(op, nil)
	case status == http.StatusUnsupportedMediaType:
		message = "the body must be JSON, sent with Content-Type: application/json"
	case status == http.StatusRequestTimeout:
		message = "the body of the request did not arrive in time"
	case status >= 500:
		code = mariposa.Internal
	}
	var faults []mariposa.Fault
	for _, err := range errs {
		var ours *Error
		if errors.As(err, &ours) {
			return ours
		}
		f := faultOf(err)
		d, ok := err.(huma.ErrorDetailer)
		if ok && op != nil && strings.HasPrefix(d.ErrorDetail().Location, "body.") && suggestKey(op, &f) {
			faults = append([]mariposa.Fault{f}, faults...) // before the key that it makes missing
			continue
		}
		faults = append(faults, f)
	}
	if len(faults) > 0 && status != http.StatusUnsupportedMediaType {
		message = "the request is not valid: " + faults[0].String()
		if more := len(faults) - 1; more > 0 {
			message += fmt.Sprintf(" (and %d more)", more)
		}
	}
	return newError(code, message, faults)
}

// tooLarge refuses a body that is too large. The request may be nil.
func tooLarge(op *huma.Operation, r *http.Request) *Error {
	what, limit := "the body of the request", bodyLimit(op)
	isJSON := r != nil && strings.Contains(r.Header.Get("Content-Type"), "json")
	if limit == manifestBody.limit || limit == newProjectBody.limit && !isJSON {
		what, limit = "the manifest", manifest.MaxBytes // more is read than is allowed
	}
	if r == nil || r.ContentLength < 1 { // its length is not known
		return newError(mariposa.TooLarge, what+" is larger than "+mariposa.SizeUp(limit)+", which is the limit", nil)
	}
	return newError(mariposa.TooLarge, what+" has "+mariposa.SizeUp(r.ContentLength)+"; the limit is "+mariposa.SizeUp(limit), nil)
}

// bodyLimit returns how large the body of a request may be.
func bodyLimit(op *huma.Operation) int64 {
	if op == nil || op.MaxBodyBytes <= 0 {
		return maxBody
	}
	return op.MaxBodyBytes
}

// faultOf converts one of huma's error details. It omits the value, which may be a
// secret.
func faultOf(err error) mariposa.Fault {
	f := mariposa.Fault{Code: mariposa.FaultInvalid, Message: err.Error()}
	if d, ok := err.(huma.ErrorDetailer); ok {
		detail := d.ErrorDetail()
		f.Field, f.Message = detail.Location, detail.Message
	}
	return reword(f)
}

func invalid(format string, args ...any) error {
	return mariposa.Errorf(mariposa.InvalidArgument, format, args...)
}

func conflict(format string, args ...any) error {
	return mariposa.Errorf(mariposa.Conflict, format, args...)
}

func notFound(format string, args ...any) error {
	return mariposa.Errorf(mariposa.ResourceNotFound, format, args...)
}
