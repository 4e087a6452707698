package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"mariposa/store"
)

// unavailable says that the server did not do what it was asked to, and why.
func unavailable(cause error) error {
	return fmt.Errorf("%w: %w", store.ErrUnavailable, oneLine{cause})
}

// connectError: there is no server to be had.
type connectError struct{ error }

func (e *connectError) Unwrap() error { return e.error }

// isRefusal tells answers of a server that cannot do now what it was asked to:
// out of resources, ended by an operator or a time limit, a lock that was not to
// be had, read-only, or in trouble.
func isRefusal(code string) bool {
	for _, class := range []string{"08", "53", "55P03", "57", "58", "25006", "25P03", "40", "XX"} {
		if strings.HasPrefix(code, class) {
			return true
		}
	}
	return false
}

// openError says what kept a store from being opened: a server that is away is
// worth another try, a wrong password is not.
func openError(ctx context.Context, err error) error {
	var unreached *pgconn.ConnectError
	e := serverError(err)
	if ctx.Err() == nil && (e != nil && isRefusal(e.Code) || e == nil && errors.As(err, &unreached)) {
		return unavailable(err)
	}
	return oneLine{err}
}

// serverError finds what the server itself had to say in an error.
func serverError(err error) *pgconn.PgError {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// isBroken reports whether an error means that the connection is of no more use:
// everything that is not an answer of a server that stays.
func isBroken(err error) bool {
	e := serverError(err)
	return e == nil || e.Severity == "FATAL" || e.Severity == "PANIC"
}

// isContended reports whether the server broke a transaction off for the sake of
// another one; trying again is what it asks for.
func isContended(err error) bool {
	e := serverError(err)
	return e != nil && (e.Code == "40001" || e.Code == "40P01")
}

// isBlocked reports whether a lock was not to be had in time.
func isBlocked(err error) bool {
	e := serverError(err)
	return e != nil && e.Code == "55P03"
}

// readOnly reports whether the server can only be read.
func readOnly(err error) bool {
	e := serverError(err)
	return e != nil && e.Code == "25006"
}

// oneLine makes an error fit for a log: pgx tells each address it tried on a
// line of its own.
type oneLine struct{ error }

func (e oneLine) Error() string {
	return strings.Join(strings.FieldsFunc(e.error.Error(), func(r rune) bool { return r == '\n' || r == '\t' }), " ")
}

func (e oneLine) Unwrap() error { return e.error }
