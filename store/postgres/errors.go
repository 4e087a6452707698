package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

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

// Explain says in plain words why a database cannot be used, and what to check. It never
// contains a password.
func Explain(err error) string {
	var unknown *net.DNSError
	var op *net.OpError
	at := ""
	if errors.As(err, &op) && op.Addr != nil {
		at = " at " + op.Addr.String()
	}
	state := ""
	if e := serverError(err); e != nil {
		state = e.Code
	}
	switch {
	case state == "57P03":
		return "it is starting up or shutting down"
	case state == "53300":
		return "it has no free connection: raise max_connections, or stop other clients"
	case state == "25006":
		return "it accepts no writes, because it is a standby or in read-only mode: check that --store leads to the primary, and that default_transaction_read_only is off"
	case state != "":
		return "it refuses the connection: " + serverError(err).Message
	case errors.As(err, &unknown):
		return "the host name " + unknown.Name + " cannot be resolved: check the name in --store, and DNS"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing accepts connections" + at + ": check that PostgreSQL runs there"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return "it does not answer" + at + ": check the network and any firewall"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "the connection was closed" + at + ": check that PostgreSQL runs there"
	}
	return strings.TrimPrefix(oneLine{err}.Error(), store.ErrUnavailable.Error()+": ")
}

// oneLine makes an error fit for a log: pgx lists each address it tried on its own line.
type oneLine struct{ error }

func (e oneLine) Error() string {
	return strings.Join(strings.FieldsFunc(e.error.Error(), func(r rune) bool { return r == '\n' || r == '\t' }), " ")
}

func (e oneLine) Unwrap() error { return e.error }
