// Package driver defines what a driver of a compute type must do for an agent: start,
// stop, remove and list instances, and report every change that no operation made.
// Package drivertest checks all drivers against the same contract. The package does not
// know goals, versions, tasks or servers.
package driver

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"mariposa"
)

// Driver runs instances of one compute type on this node. Its methods block until the
// work is done or ctx ends; ctx limits the operation, not the instance. A canceled
// operation leaves an instance that List shows as it is and that can be stopped, removed
// or started again. Start, Update, Stop and Remove are never called concurrently for one
// instance; for different ones they are. The agent calls each on its own goroutine, so a
// driver needs neither workers nor callbacks.
//
// A driver declares what else its compute type can do by its capabilities, and by
// implementing the interfaces below.
type Driver interface {
	// Compute returns the compute type that the driver runs.
	Compute() mariposa.ComputeType

	// Capabilities returns what this compute type can do. It never changes.
	Capabilities() mariposa.Capabilities

	// Start makes the instance exist and run. It is idempotent by id: an instance that
	// already runs is reported as it is. After an instance has ended, Start runs the same
	// instance again.
	Start(ctx context.Context, i Instance) (Observed, error)

	// Update changes a running instance in place, as far as its compute type can; the
	// physical id stays.
	Update(ctx context.Context, i Instance) (Observed, error)

	// Stop stops the instance gracefully, then by force after timeout (negative: never by
	// force). The stopped instance can be inspected. It is not an error if the instance
	// has ended or does not exist.
	Stop(ctx context.Context, id string, timeout time.Duration) (Observed, error)

	// Remove stops the instance by force if it still runs and removes every trace of it,
	// including logs. It is not an error if the instance does not exist.
	Remove(ctx context.Context, id string) error

	// List returns every instance that carries our label, running or ended, whoever
	// created it: this is how instances are found after a restart.
	List(ctx context.Context) ([]Observed, error)

	// Watch sets the function that receives every change that no operation made. It is
	// called once, before any other method. Events may be sent from any goroutine, but
	// those of one instance are sent one after the other.
	Watch(report func(Event))

	// Logs opens the output of an instance. It returns ErrNotFound if the instance is
	// unknown, and ErrNotSupported if its compute type has no logs.
	Logs(ctx context.Context, id string, o LogOptions) (io.ReadCloser, error)

	// Usage measures the current resource usage of an instance. It returns ErrNotFound if
	// the instance is not running.
	Usage(ctx context.Context, id string) (mariposa.Usage, error)

	// Close cancels operations in progress and releases the driver's own resources;
	// instances keep running.
	Close() error
}

// Instance describes an instance to its driver.
type Instance struct {
	ID             string
	Name           string
	Project        string // its name, for labels that people read
	Service        string // the same for its service
	Labels         Labels
	Adopts         string               // the id of the foreign container that it is; empty if the driver creates it
	Origin         *mariposa.Provenance // kept with the instance; nil if unknown
	ManualRestarts int                  // the manual restarts requested before this start
	Workload       *mariposa.Workload
	Login          *mariposa.Login // to the registry of its image; nil if it has none. It is not stored
	Mdata          Mdata
	Volumes        []Volume
	Networks       []Network
	// Search are the domains of its project, in which it looks for short names; nil if the node
	// cannot answer them.
	Search  []string
	Members []mariposa.Member // of a balancer; nil: unknown, so it keeps those that it has
}

// Network is a network that an instance uses.
type Network struct {
	ID     string // as given to Provide
	Name   string
	Source string // where the driver has its attachment, as returned by Provide
}

// Volume is a volume that an instance uses.
type Volume struct {
	mariposa.Mount
	Source string // where the driver has it, as returned by Provide
}

// Mdata is the values that an instance can read, and where.
type Mdata struct {
	Values []mariposa.Variable
	URL    string // where the agent serves them; empty if it does not
	Token  string // authenticates the instance there
}

// Labels mark which store an instance belongs to.
type Labels struct {
	Cluster     string `json:"cluster"`
	Incarnation string `json:"incarnation"`
}

// Observed is an instance as its driver sees it.
type Observed struct {
	ID             string
	Labels         Labels
	Shared         bool   // found in a place shared with other clusters, so its labels decide whose it is; else it is this node's
	Name           string // its name and its project's, if known
	Project        string
	Origin         *mariposa.Provenance // as given to its last start; nil if it was given none
	Running        bool
	PhysicalID     string
	Addresses      []string
	Started        time.Time
	ManualRestarts int // those of its last successful start
	Finished       time.Time
	ExitCode       *int   // known once it has ended, if its kind has exit codes
	Reason         string // how it ended, as a sentence part: "exited with code 1", "killed by signal 9"
	Details        map[string]string
	Members        []mariposa.MemberStatus // of a balancer, without counters
}

// LogOptions selects which part of a log is read. Following ends when ctx ends or the
// instance is removed. With timestamps, each line begins with the time of its first byte,
// in the format of AppendLogTime.
type LogOptions = mariposa.LogOptions

// Event is a change that no operation made.
type Event struct {
	Kind     EventKind
	Instance Observed // of InstanceChanged: as it is now
	Reason   string   // of EngineLost: what is wrong
}

// EventKind is the kind of an event.
type EventKind int

const (
	// InstanceChanged: an instance has ended (it is not running; reported once for each
	// run), was restarted by its engine (it is running, and started later than before),
	// or has other addresses, details or members.
	InstanceChanged EventKind = iota
	// EngineLost: the engine that runs the instances (a daemon) cannot be reached.
	// Instances are assumed to be unchanged.
	EngineLost
	// EngineBack: the engine can be reached again. Changes meanwhile may not have been
	// reported; List shows them.
	EngineBack
)

// Conditional is implemented by drivers that cannot run instances everywhere.
type Conditional interface {
	// Unavailable explains why no instance can be started on this node, as the rest of a
	// sentence; empty if instances can be started. Running ones can still be stopped and
	// removed.
	Unavailable() string

	// Details describe for people how instances run here.
	Details() map[string]string
}

// ValuePublisher is implemented by drivers whose instances can read live values.
type ValuePublisher interface {
	// PublishValues replaces the values that a running instance can read. Unlike
	// operations, it may be called while another operation except a start is in progress
	// on the same instance. It returns ErrNotFound if there is no such instance.
	PublishValues(ctx context.Context, id string, values []mariposa.Variable) error

	// PublishedValues returns the values that an instance can read now, sorted by name.
	// It returns ErrNotFound if there is no such instance.
	PublishedValues(ctx context.Context, id string) ([]mariposa.Variable, error)
}

// Provider is implemented by drivers that have resources, such as volumes, which
// instances use and which outlive them. There are no concurrent calls for one resource,
// and none is withdrawn while the agent knows an instance that uses it.
type Provider interface {
	// Provide creates a resource unless it exists, and returns its path. Existing content
	// stays. A volume that is smaller than its size is made larger, also while instances use
	// it. If that is not possible, the error is a *GrowError, and the path is valid.
	Provide(ctx context.Context, r Resource) (path string, err error)

	// Withdraw removes a resource with its content. It is not an error if it does not
	// exist, but it is one if it is in use.
	Withdraw(ctx context.Context, r Resource) error

	// Provided returns the resources that exist, whoever requested them.
	Provided(ctx context.Context) ([]Resource, error)
}

// Resource describes a resource to its driver.
type Resource struct {
	Kind mariposa.Kind
	ID   string
	Name string // the name that people use
	Size int64  // bytes; no limit if zero
}

// GrowError is the error of a volume that exists and can be used, but could not be made as large
// as it should be.
type GrowError struct{ Err error }

func (e *GrowError) Error() string { return e.Err.Error() }

func (e *GrowError) Unwrap() error { return e.Err }

// Imager is implemented by drivers whose instances are created from images.
type Imager interface {
	// EnsureImage makes an image present on this node, and reports its progress. The login to
	// its registry may be nil. Start may be called without it; then it fetches a missing image
	// itself.
	EnsureImage(ctx context.Context, image string, login *mariposa.Login, report func(Progress)) error
}

// Resolver is implemented by drivers whose images have names that can mean another image
// later.
type Resolver interface {
	// ResolveImage returns the image that a name means now, with its labels if they are known:
	// according to its registry, or if that cannot be reached, on this node. The login to the
	// registry may be nil.
	ResolveImage(ctx context.Context, image string, login *mariposa.Login) (mariposa.ImagePin, error)
}

// Progress is the progress of an image fetch.
type Progress struct {
	Done, Total int64 // bytes; Total is 0 until it is known
}

// Crasher is implemented by drivers whose instances can be made to fail, for tests
// and demonstrations.
type Crasher interface {
	// Crash makes a running instance fail as if by itself.
	Crash(id string) error

	// SetHealthy makes the health checks of a running instance pass or fail.
	SetHealthy(id string, healthy bool) error
}

// Consoler is implemented by drivers whose instances have a console.
type Consoler interface {
	// Console attaches to the console of a running instance: what is read is its output from now
	// on, what is written its input. It ends with the instance. It returns ErrNotFound if the
	// instance is not running here.
	Console(ctx context.Context, id string) (io.ReadWriteCloser, error)
}

// Snapshotter is implemented by drivers that can save the state of an instance and return to it.
// All methods return ErrNotFound if the instance is unknown, and a *CommandError if the request
// cannot be carried out in the instance's present state.
type Snapshotter interface {
	// Snapshot saves the state of an instance under a name that is not in use.
	Snapshot(ctx context.Context, id, name string) error

	// Restore makes an instance as it was when a snapshot was taken.
	Restore(ctx context.Context, id, name string) error

	// DeleteSnapshot deletes a snapshot.
	DeleteSnapshot(ctx context.Context, id, name string) error

	// Snapshots lists the snapshots of an instance, the oldest first.
	Snapshots(ctx context.Context, id string) ([]mariposa.Snapshot, error)
}

// Adopter is implemented by drivers whose engine may have containers that Mariposa did not
// create. These are never touched unless they are adopted.
type Adopter interface {
	Driver

	// ForeignContainers lists the containers that no Mariposa has created and this driver has
	// not adopted, the newest first.
	ForeignContainers(ctx context.Context) ([]mariposa.ForeignContainer, error)

	// ForeignContainer returns one of them with its limits, by id, the beginning of its id, or
	// name. A *mariposa.Error says why there is no such foreign container.
	ForeignContainer(ctx context.Context, ref string) (mariposa.ForeignContainer, error)

	// Adopt makes the container with the id i.Adopts the instance, and leaves it as it is. It is
	// idempotent. From then on the instance is like any other, but is never created again.
	Adopt(ctx context.Context, i Instance) (Observed, error)
}

// Prober is implemented by drivers that answer health checks themselves, because their
// instances have no network.
type Prober interface {
	// Probe returns nil if a check of a running instance passes, and otherwise what it says, as
	// the rest of a sentence about the check.
	Probe(ctx context.Context, id string, c *mariposa.HealthCheck) error
}

// Balancer is implemented by drivers whose instances spread connections over others.
type Balancer interface {
	// SetMembers sets what members an instance should have. The driver makes it so, keeps it so,
	// and reports the members as they are as changes of the instance. Unlike operations, it may be
	// called while another one is in progress on the same instance. It returns ErrNotFound if there
	// is no such instance.
	SetMembers(ctx context.Context, id string, members []mariposa.Member) error
}

// NonBlocker is implemented by drivers with operations that never block. The agent calls
// these on its own loop, which saves a goroutine and a report each.
type NonBlocker interface {
	// IsNonBlocking reports whether operations on an instance return at once, now and
	// with this workload (nil: unknown).
	IsNonBlocking(id string, w *mariposa.Workload) bool
}

// Execer is implemented by drivers that can run commands in their instances.
type Execer interface {
	// Exec runs a command in a running instance, with the same environment, limits and
	// isolation as the instance itself. The command and everything it has started are
	// killed when ctx ends, when the session is closed, and when the instance ends. Exec
	// may be called while an operation is in progress on the same instance. It returns
	// ErrNotFound if the instance is not running here, and a *CommandError if the command
	// itself causes the failure.
	Exec(ctx context.Context, i Instance, o ExecOptions) (Session, error)
}

// ExecOptions describe the command to run in an instance.
type ExecOptions struct {
	Command     []string
	Environment []mariposa.Variable // defaults: the instance's own variables take precedence
	Terminal    *Size               // if nil, each stream is a pipe instead of a terminal
	User        string              // runs the command; empty: the instance's own. Drivers whose instances have one user ignore it
}

// Size is the size of a terminal.
type Size struct{ Rows, Cols uint16 }

// Session is a command that runs in an instance. Its methods may be called concurrently;
// the caller of Exec must close it.
type Session interface {
	// Stdout is the command's output; with a terminal, all of it. It ends once the
	// command has ended and everything was read.
	Stdout() io.Reader
	// Stderr is the command's standard error; nil with a terminal.
	Stderr() io.Reader
	// Write writes to the command's input. It blocks while the command does not read, and
	// fails once the command can no longer read.
	Write(p []byte) (int, error)
	// CloseWrite closes the command's input.
	CloseWrite() error
	// Resize changes the size of the terminal; without one it does nothing.
	Resize(s Size) error
	// Signal sends a signal to the command and its process group.
	Signal(s syscall.Signal) error
	// Wait waits for the end and returns the exit code: 128 plus the signal if one killed
	// it.
	Wait() (code int, err error)
	// Close kills the command if it still runs, without waiting for it.
	Close() error
}

// CommandError is the error of a command that cannot be run because of the command
// itself.
type CommandError struct{ Err error }

func (e *CommandError) Error() string { return e.Err.Error() }

func (e *CommandError) Unwrap() error { return e.Err }

var (
	// ErrNotFound means that the driver does not know the instance.
	ErrNotFound = errors.New("no such instance on this node")
	// ErrNotSupported means that this compute type does not support the operation.
	ErrNotSupported = errors.New("not supported by this compute type")
	// ErrInstanceEnded means that the instance ended, and with it the command in it.
	ErrInstanceEnded = errors.New("the instance has ended")
	// ErrEngineAway means that the engine that runs the instances does not answer now.
	ErrEngineAway = errors.New("the engine does not answer")
)
