package driver

import (
	"context"
	"errors"
	"io"
	"syscall"

	"mariposa"
)

// Execer is implemented by drivers whose instances let people run commands inside
// them.
type Execer interface {
	// Exec runs a command inside a running instance as the instance itself runs:
	// where it does, with its environment, within its limits. The command, with
	// everything it has started, ends by force when ctx ends, when the session is
	// closed, and when the instance ends. Exec may be called while an operation is
	// under way on the same instance. ErrNotFound when the instance does not run
	// here; a *CommandError when the command itself is at fault.
	Exec(ctx context.Context, i Instance, o ExecOptions) (Session, error)
}

// ExecOptions say what is run inside an instance, and how.
type ExecOptions struct {
	Command     []string
	Environment []mariposa.Variable // where the instance's own has none of that name
	Terminal    *Size               // nil: no terminal, but a pipe for each stream
}

// Size is how large a terminal is.
type Size struct{ Rows, Cols uint16 }

// Session is a command that runs inside an instance. Reading, writing and the
// rest may go on side by side; whoever has one closes it.
type Session interface {
	// Stdout is what the command writes, with a terminal all of it. It ends once
	// the command is over and everything was read.
	Stdout() io.Reader
	// Stderr is likewise; nil with a terminal.
	Stderr() io.Reader
	// Write gives the command something to read. It waits while the command takes
	// nothing, and fails once it never will.
	Write(p []byte) (int, error)
	// CloseWrite says that nothing more will be written.
	CloseWrite() error
	// Resize changes the size of the terminal; without one it does nothing.
	Resize(s Size) error
	// Signal is sent to the command and what shares its process group.
	Signal(s syscall.Signal) error
	// Wait waits for the end: the exit code, 128 plus the signal when one killed it.
	Wait() (code int, err error)
	// Close ends the command by force if it still runs, and does not wait for it.
	Close() error
}

// CommandError says why a command cannot be run that is itself at fault.
type CommandError struct{ Err error }

func (e *CommandError) Error() string { return e.Err.Error() }

func (e *CommandError) Unwrap() error { return e.Err }

// ErrInstanceEnded: the instance ended, and with it what ran inside.
var ErrInstanceEnded = errors.New("the instance has ended")
