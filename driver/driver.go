// Package driver says what a kind of compute must be able to do for an agent:
// make instances exist, end them, find them again, and report every change that
// nobody asked for. Each driver wraps one kind; drivertest holds all of them to
// the same promises. The room refuses to know goals, versions, tasks and servers.
package driver

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"mariposa"
)

// Driver runs instances of one compute type on this node. Its methods block
// until the work is done or ctx ends; ctx bounds the operation, not the instance.
// An operation that was given up leaves an instance that List shows as it is and
// that can be stopped, removed or started again. Start, Update, Stop and Remove are
// never called side by side for one instance; for different ones they are. The agent
// calls each on a goroutine of its own, so a driver needs neither workers nor callbacks.
//
// What a kind can do beyond this, its driver says by implementing the interfaces
// below, and by its capabilities.
type Driver interface {
	// Compute is the kind of compute it makes.
	Compute() mariposa.ComputeType

	// Capabilities are what this kind can do. They never change.
	Capabilities() mariposa.Capabilities

	// Start makes the instance exist and run. It is idempotent by id: what
	// already runs is reported as it is. After an instance has ended, Start
	// runs the same instance again.
	Start(ctx context.Context, i Instance) (Observed, error)

	// Update changes a running instance in place (what its kind can change
	// live); the physical id stays.
	Update(ctx context.Context, i Instance) (Observed, error)

	// Stop ends the instance gently, then by force after timeout (negative:
	// never by force). What is left can be inspected. Stopping what has ended
	// or never was is no error.
	Stop(ctx context.Context, id string, timeout time.Duration) (Observed, error)

	// Remove ends the instance by force if it still runs and takes every trace
	// of it away, logs included. Removing what is not there is no error.
	Remove(ctx context.Context, id string) error

	// List finds every instance that carries our label, running or ended,
	// whoever made it: this is how instances are found again after a restart.
	List(ctx context.Context) ([]Observed, error)

	// Watch sets who is told of every change that no operation made. It is called
	// once, before any other method. An event may be told from any goroutine, and
	// no event of an instance is told while tell still runs for an earlier one.
	Watch(tell func(Event))

	// Logs opens what an instance has written. ErrNotFound when it is unknown,
	// ErrNotSupported when its kind has no logs.
	Logs(ctx context.Context, id string, o LogOptions) (io.ReadCloser, error)

	// Usage measures what an instance takes now. ErrNotFound when it does not run.
	Usage(ctx context.Context, id string) (mariposa.Usage, error)

	// Close gives up what is under way and lets go of the driver's own resources;
	// instances run on.
	Close() error
}

// Instance is what a driver needs to know to make one.
type Instance struct {
	ID             string
	Name           string
	Project        string // its name, for labels that people read
	Service        string // likewise
	Labels         Labels
	ManualRestarts int // how many restarts in place a person has asked for before this start
	Workload       *mariposa.Workload
	Mdata          Mdata
	Volumes        []Volume
	Networks       []Network
}

// Network is a network that an instance uses.
type Network struct {
	Name   string
	Source string // where the driver has its part of it, as Provide told
}

// Volume is a volume that an instance uses.
type Volume struct {
	mariposa.Mount
	Source string // where the driver has it, as Provide told
}

// Mdata is what an instance can read of its values, and where.
type Mdata struct {
	Values []mariposa.Variable
	URL    string // where the agent answers; empty: nowhere
	Token  string // what the instance has to show there
}

// Labels mark whose an instance is.
type Labels struct {
	Cluster     string `json:"cluster"`
	Incarnation string `json:"incarnation"`
}

// Observed is what a driver sees of an instance.
type Observed struct {
	ID             string
	Labels         Labels
	Shared         bool   // found where other clusters keep theirs too, so its labels say whose it is; else it is this node's
	Name           string // what people call it and its project, where that can be told
	Project        string
	Running        bool
	PhysicalID     string
	Addresses      []string
	Started        time.Time
	ManualRestarts int // of the start that it last came up from
	Finished       time.Time
	ExitCode       *int   // known once it has ended, where the kind has such a thing
	Reason         string // how it ended, as a sentence part: "exited with code 1", "killed by signal 9"
	Details        map[string]string
}

// LogOptions selects what of a log is read.
type LogOptions struct {
	Tail   int  // lines from the end; below zero: everything
	Follow bool // go on until ctx ends or the instance is removed
}

// Event is a change that no operation made.
type Event struct {
	Kind     EventKind
	Instance Observed // of InstanceChanged: as it is now
	Reason   string   // of EngineLost: what is wrong
}

// EventKind says what an event is about.
type EventKind int

const (
	// InstanceChanged: an instance has ended (it does not run; told once for each
	// run), was restarted by its engine (it runs, and started later than before),
	// or has other addresses or details.
	InstanceChanged EventKind = iota
	// EngineLost: what runs the instances (a daemon) cannot be reached. Instances
	// are as they were, as far as anybody knows.
	EngineLost
	// EngineBack: it can be reached again. Changes meanwhile may not have been
	// told; List shows them.
	EngineBack
)

// ValuePublisher is implemented by drivers whose instances can read values that change
// while they run.
type ValuePublisher interface {
	// PublishValues replaces what a running instance can read. Unlike operations it may be
	// called while one is under way on the same instance, but for a start.
	// ErrNotFound when there is no such instance.
	PublishValues(ctx context.Context, id string, values []mariposa.Variable) error

	// PublishedValues is what an instance can read now, in the order of the names.
	// ErrNotFound when there is no such instance.
	PublishedValues(ctx context.Context, id string) ([]mariposa.Variable, error)
}

// Provider is implemented by drivers that have resources: what instances use and
// what outlives them, like volumes. Of one resource nothing is asked for side by
// side, and nothing that an instance uses is taken away while the agent knows the
// instance.
type Provider interface {
	// Provide makes a resource unless it is there, and tells where. What is in it
	// is left as it is.
	Provide(ctx context.Context, r Resource) (path string, err error)

	// Withdraw takes a resource away, with all that is in it. What is not there is
	// no error; what something still uses is one.
	Withdraw(ctx context.Context, r Resource) error

	// Provided finds the resources that are there, whoever asked for them.
	Provided(ctx context.Context) ([]Resource, error)
}

// Resource is what a driver needs to know to make one.
type Resource struct {
	Kind mariposa.Kind
	ID   string
	Name string // what people call it
	Size int64  // bytes; 0: no limit
}

// Imager is implemented by drivers whose instances are made from images.
type Imager interface {
	// EnsureImage makes an image present on this node, and reports how far it is.
	// Start may be called without it; then it fetches a missing image itself.
	EnsureImage(ctx context.Context, image string, report func(Progress)) error
}

// Progress is how far the fetching of an image is.
type Progress struct {
	Done, Total int64 // bytes; a total of 0: not known yet
}

// Crasher is implemented by drivers whose instances can be made to fail, for tests
// and demonstrations.
type Crasher interface {
	// Crash makes a running instance end as if by itself.
	Crash(id string) error
}

// NonBlocker is implemented by drivers of which some operations never wait. The
// agent calls these on its own loop, which saves a goroutine and a report each.
type NonBlocker interface {
	// IsNonBlocking reports whether operations on an instance return at once, now and
	// with this workload (nil: not known).
	IsNonBlocking(id string, w *mariposa.Workload) bool
}

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

var (
	// ErrNotFound: the driver knows no such instance.
	ErrNotFound = errors.New("no such instance on this node")
	// ErrNotSupported: this kind of compute cannot do that.
	ErrNotSupported = errors.New("not supported by this kind of compute")
	// ErrInstanceEnded: the instance ended, and with it what ran inside.
	ErrInstanceEnded = errors.New("the instance has ended")
)
