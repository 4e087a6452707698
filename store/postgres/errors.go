package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"mariposa/store"
)

// unavailable wraps the cause of a request that the server did not carry out.
func unavailable(cause error) error {
	return fmt.Errorf("%w: %w", store.ErrUnavailable, oneLine{cause})
}

// connectError: no server can be reached.
type connectError struct{ error }

func (e *connectError) Unwrap() error { return e.error }

// isRefusal reports whether the server cannot carry out a request now: it is out of
// resources, was ended by an operator or a timeout, could not get a lock, is read-only,
// or has an internal error.
func isRefusal(code string) bool {
	for _, class := range []string{"08", "53", "55P03", "57", "58", "25006", "25P03", "40", "XX"} {
		if strings.HasPrefix(code, class) {
			return true
		}
	}
	return false
}

// openError classifies an error of opening a store: an unreachable server is worth a
// retry, a wrong password is not.
func openError(ctx context.Context, err error) error {
	var unreached *pgconn.ConnectError
	e := serverError(err)
	if ctx.Err() == nil && (e != nil && isRefusal(e.Code) || e == nil && errors.As(err, &unreached)) {
		return unavailable(err)
	}
	return oneLine{err}
}

// serverError returns the server's own error within an error, or nil.
func serverError(err error) *pgconn.PgError {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// isBroken reports whether an error means that the connection is unusable: every error
// except one from a server that keeps the connection.
func isBroken(err error) bool {
	e := serverError(err)
	return e == nil || e.Severity == "FATAL" || e.Severity == "PANIC"
}

// isContended reports whether the server aborted a transaction in favor of another one;
// it should be retried.
func isContended(err error) bool {
	e := serverError(err)
	return e != nil && (e.Code == "40001" || e.Code == "40P01")
}

// isBlocked reports whether a lock could not be obtained in time.
func isBlocked(err error) bool {
	e := serverError(err)
	return e != nil && e.Code == "55P03"
}

// readOnly reports whether the server can only be read.
func readOnly(err error) bool {
	e := serverError(err)
	return e != nil && e.Code == "25006"
}

// oneLine makes an error fit for a log: pgx lists each address it tried on its own line.
type oneLine struct{ error }

func (e oneLine) Error() string {
	return strings.Join(strings.FieldsFunc(e.error.Error(), func(r rune) bool { return r == '\n' || r == '\t' }), " ")
}

func (e oneLine) Unwrap() error { return e.error }
