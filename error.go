package mariposa

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Code is a kind of failure that a caller can act on. The API maps each code to an HTTP
// status.
type Code string

const (
	InvalidArgument Code = "InvalidArgument"
	Unauthorized    Code = "Unauthorized"
	Forbidden       Code = "Forbidden"
	// Reauthentication is required of a person at the web page before something sensitive.
	Reauthentication Code = "ReauthenticationRequired"
	ResourceNotFound Code = "ResourceNotFound"
	Conflict         Code = "Conflict"
	TooOld           Code = "TooOld"
	TooLarge         Code = "TooLarge"
	Throttled        Code = "Throttled"
	QuotaExceeded    Code = "QuotaExceeded"
	Unavailable      Code = "Unavailable"
	Internal         Code = "Internal"
)

// Error is a failure with one sentence for the user. Cause is for logs only and is never
// shown.
type Error struct {
	Code    Code    `json:"code"`
	Message string  `json:"message"`
	Faults  []Fault `json:"errors,omitempty"`
	Node    string  `json:"node,omitempty"` // the node that cannot be asked, if that is why
	Cause   error   `json:"-"`
	// Reason says why, and what to do about it, as data. Code that shows the error
	// appends the reason's sentence to the message.
	Reason *Reason `json:"-"`
}

// Fault is one error in one field of a submitted document.
type Fault struct {
	Field   string    `json:"field"`
	Code    FaultCode `json:"code"`
	Message string    `json:"message"`
	Line    int       `json:"line,omitempty"`
}

// FaultCode is the kind of a fault.
type FaultCode string

const (
	FaultSyntax       FaultCode = "Syntax"
	FaultMissing      FaultCode = "Missing"
	FaultInvalid      FaultCode = "Invalid"
	FaultUnknown      FaultCode = "Unknown"
	FaultDuplicate    FaultCode = "Duplicate"
	FaultNotSupported FaultCode = "NotSupported"
	FaultTooLarge     FaultCode = "TooLarge"
	FaultNotAllowed   FaultCode = "NotAllowed" // by the organization's policy
)

func (f Fault) String() string {
	var b strings.Builder
	if f.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", f.Line)
	}
	if f.Field != "" {
		b.WriteString(f.Field + ": ")
	}
	b.WriteString(f.Message)
	return b.String()
}

func (e *Error) Error() string { return e.Message }

func (e *Error) Unwrap() error { return e.Cause }

// Errorf returns an Error with a sentence. An error wrapped with %w stays reachable for
// errors.Is and errors.As.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Cause: errors.Unwrap(err)}
}

// UnknownService says that a project has no such service, and which ones it has.
func UnknownService(project, service string, known []string) *Error {
	const few = 10
	if len(service) > 40 {
		service = service[:40] + "…"
	}
	known = slices.Sorted(slices.Values(known))
	has := "it has none"
	switch {
	case len(known) > few:
		has = fmt.Sprintf("it has %s and %d more", strings.Join(known[:few], ", "), len(known)-few)
	case len(known) > 0:
		has = "it has " + strings.Join(known, ", ")
	}
	return Errorf(ResourceNotFound, "project %s has no service %q; %s", project, service, has)
}

// SizeUp formats a number of bytes for people, rounded up to a tenth of a unit: what is
// larger than a limit never looks like the limit.
func SizeUp(bytes int64) string {
	unit, name := int64(1<<10), "KiB"
	switch {
	case bytes < 1<<10:
		return fmt.Sprintf("%d bytes", bytes)
	case bytes >= 1<<20:
		unit, name = 1<<20, "MiB"
	}
	tenths := (bytes*10 + unit - 1) / unit
	return strings.TrimSuffix(fmt.Sprintf("%d.%d", tenths/10, tenths%10), ".0") + " " + name
}

// CodeOf returns the code of an error; Internal if it has none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}
