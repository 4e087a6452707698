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
	mariposa.Reauthentication: http.StatusForbidden,
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
	Code    mariposa.Code    `json:"code" enum:"InvalidArgument,Unauthorized,Forbidden,ReauthenticationRequired,ResourceNotFound,Conflict,TooOld,TooLarge,Throttled,QuotaExceeded,Unavailable,Internal"`
	Message string           `json:"message" doc:"what went wrong and what to do about it"`
	Errors  []mariposa.Fault `json:"errors" doc:"every fault in the request; for a manifest with the line"`
	Node    string           `json:"node,omitempty" doc:"id of the node that cannot be asked, if that is the reason"`
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

// GetHeaders returns the headers of the error for programs.
func (e *Error) GetHeaders() http.Header {
	switch e.Code {
	case mariposa.Unauthorized:
		return http.Header{"Www-Authenticate": {`Bearer realm="mariposa"`}}
	case mariposa.Throttled, mariposa.Unavailable:
		return http.Header{"Retry-After": {strconv.Itoa(max(1, int(math.Ceil(e.retry.Seconds()))))}}
	}
	return nil
}

// write writes the error as the response, for requests that huma does not answer.
func (e *Error) write(w http.ResponseWriter) {
	for k, v := range e.GetHeaders() {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.status)
	_ = json.NewEncoder(w).Encode(e) // the client may be gone
}

// explain converts any error to one of the contract. An unexpected error is logged
// with the request's id, and only the id is shown.
func (s *server) explain(ctx context.Context, err error) *Error {
	var ours *Error
	var known *mariposa.Error
	switch {
	case errors.As(err, &ours):
		return ours
	case errors.Is(err, picture.ErrUnreadable): // wraps faults that are not the caller's
	case errors.As(err, &known) && known.Code != mariposa.Internal:
		e := newError(known.Code, message(known), known.Faults)
		e.Node = known.Node
		return e
	case errors.Is(err, store.ErrTooOld):
		return newError(mariposa.TooOld, "the feed no longer contains that revision: read the state again and continue from its revision", nil)
	case errors.Is(err, store.ErrUncertain):
		s.Logger.WarnContext(ctx, "the store does not answer", "request", requestID(ctx))
		return newError(mariposa.Unavailable, "the store does not respond, so it is not known whether the change was made: check before you try again "+
			"(a request with an Idempotency-Key can be repeated safely)", nil)
	case errors.Is(err, store.ErrUnavailable), errors.Is(err, store.ErrClosed):
		s.Logger.WarnContext(ctx, "cannot use the store", "request", requestID(ctx), "err", err)
		if originOf(ctx).reads {
			return newError(mariposa.Unavailable, "the store does not respond: try again shortly", nil)
		}
		return newError(mariposa.Unavailable, explainUnwritable(err)+"; nothing was changed: try again shortly", nil)
	case errors.Is(err, store.ErrConflict):
		return newError(mariposa.Conflict, "it was changed at the same time by another request: check the current state, then try again", nil)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return newError(mariposa.Unavailable, "the request timed out: try again", nil)
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

// explainUnwritable returns the message for a store that cannot be written, with the
// reason if an operator can fix it. The original error is not shown, because it may
// contain file names.
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
	text := "cannot write to the store"
	switch {
	case code == 13 || sql == "53100" || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return text + " because its disk is full"
	case sql == "25006":
		return text + " because its database accepts no writes: it is a standby or in read-only mode (check that --store leads to the primary, and that default_transaction_read_only is off)"
	case code == 8 || errors.Is(err, syscall.EROFS):
		return text + " because its disk is read-only"
	case code == 10 || sql == "58030" || errors.Is(err, syscall.EIO):
		return text + " because its disk reports an I/O error"
	}
	return text
}

func (s *server) unexpectedError(ctx context.Context, err any) *Error {
	s.Logger.ErrorContext(ctx, "unexpected error in a request", "request", requestID(ctx), "err", err)
	return newError(mariposa.Internal, "internal error: see the server log for request "+requestID(ctx), nil)
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

// noBody returns the error for an empty request body.
func noBody(op *huma.Operation) *Error {
	if routeOf(op).body.text {
		return newError(mariposa.InvalidArgument, change.ErrEmpty.Error(), nil)
	}
	return newError(mariposa.InvalidArgument, "the request body is empty: it must be JSON", nil)
}

// humaError converts an error of huma to ours. The operation may be nil.
func humaError(op *huma.Operation, status int, message string, errs []error) *Error {
	code := mariposa.InvalidArgument // for any client error
	switch {
	case status == http.StatusRequestEntityTooLarge:
		return tooLarge(op, nil)
	case status == http.StatusUnsupportedMediaType:
		message = "the request body must be JSON, sent with Content-Type: application/json"
	case status == http.StatusRequestTimeout:
		message = "timed out waiting for the request body"
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
			faults = append([]mariposa.Fault{f}, faults...) // before the fault about the required key that is missing because of it
			continue
		}
		faults = append(faults, f)
	}
	if len(faults) > 0 && status != http.StatusUnsupportedMediaType {
		message = invalidRequest(faults)
	}
	return newError(code, message, faults)
}

// invalidRequest returns the message for the faults of a request.
func invalidRequest(faults []mariposa.Fault) string {
	message := "invalid request: " + faults[0].String()
	if more := len(faults) - 1; more > 0 {
		message += fmt.Sprintf(" (and %s)", reason.Many(more, "more error"))
	}
	return message
}

// tooLarge returns the error for a request body that is too large. The request may be nil.
func tooLarge(op *huma.Operation, r *http.Request) *Error {
	what, limit := "the request body", bodyLimit(op)
	isJSON := r != nil && strings.Contains(r.Header.Get("Content-Type"), "json")
	if limit == manifestBody.limit || limit == newProjectBody.limit && !isJSON {
		what, limit = "the manifest", manifest.MaxBytes // the server reads a bit more than the limit
	}
	if r == nil || r.ContentLength < 1 { // the length is unknown
		return newError(mariposa.TooLarge, what+" is too large: the limit is "+mariposa.SizeUp(limit), nil)
	}
	return newError(mariposa.TooLarge, what+" has "+mariposa.SizeUp(r.ContentLength)+"; the limit is "+mariposa.SizeUp(limit), nil)
}

// bodyLimit returns the size limit of the request body.
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
