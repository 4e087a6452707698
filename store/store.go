// Package store defines the store: every object lives in it, every change of an object
// gets its own revision, and the feed of changes is the log that those revisions number.
// An object and its change commit together or not at all.
//
// The package owns the contract and the types at the boundary; memory, sqlite and
// postgres implement it and storetest tests each of them. It does not know what the
// objects mean.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mariposa"
)

// Store keeps all objects, durably and in order. All methods are safe for concurrent
// use.
type Store interface {
	// Commit applies units, each atomically and in the given order, grouped with those of
	// other callers into as few durable writes as possible. A unit whose requirement
	// fails is dropped alone; its Result says why. When Commit returns, the units that it
	// reports as done are durable and in the feed.
	Commit(ctx context.Context, units ...Unit) []Result

	// Get returns one object, archived or not; ErrNotFound when there is none.
	Get(ctx context.Context, kind mariposa.Kind, id string) (Record, error)

	// List returns the objects that match a query, including archived ones, by id in
	// descending order.
	List(ctx context.Context, q Query) ([]Record, error)

	// Sizes returns how many bytes the objects of a project take up as they are kept, by
	// kind, for the kinds of which there may be many and large ones: versions, metadata
	// and its parts.
	Sizes(ctx context.Context, project string) (map[mariposa.Kind]int64, error)

	// Snapshot calls visit with every object that is not archived, kind by kind, and
	// returns the revision of that state: reading Changes after it misses nothing and
	// repeats nothing. Kinds that are loaded on demand, such as versions, are left out.
	Snapshot(ctx context.Context, visit func(Record) error) (int64, error)

	// Changes returns up to limit changes (0: all) after a revision, in order. It returns
	// ErrTooOld if the feed no longer reaches back that far, and nothing for a revision
	// in the future. Of kinds that are Unlogged it returns what changed without the halves.
	Changes(ctx context.Context, after int64, limit int) ([]Change, error)

	// History returns changes that match, newest first, as far as they are kept.
	History(ctx context.Context, q HistoryQuery) ([]Change, error)

	// Wait returns once there is a change after the given revision, or with the
	// context's error.
	Wait(ctx context.Context, after int64) error

	// Hold takes every named lease that is free, expired or already the holder's, until
	// ttl from now by the store's clock, and returns those it holds. The epoch of a lease
	// grows whenever its holder changes or it had expired.
	Hold(ctx context.Context, holder string, ttl time.Duration, names ...string) ([]Lease, error)

	// Seize takes a lease from its holder before it expires, and raises its epoch. Node
	// sessions use it: the newest connection wins.
	Seize(ctx context.Context, holder, name string) (Lease, error)

	// Release releases those of the named leases that the holder has.
	Release(ctx context.Context, holder string, names ...string) error

	// Announce sets the note of a lease, which others read with Leases. It returns
	// ErrFenced unless the holder has the lease. The note is kept while the holder renews
	// the lease, and lost when the holder releases it or another one takes it.
	Announce(ctx context.Context, holder, name, note string) error

	// Leases returns the leases with a name prefix that are held now by the store's
	// clock, by name.
	Leases(ctx context.Context, prefix string) ([]Lease, error)

	// Time returns the time by the store's clock.
	Time(ctx context.Context) (time.Time, error)

	// Ledger returns what is claimed on each node that has claims.
	Ledger(ctx context.Context) (map[string]mariposa.Resources, error)

	// Shared reports whether several replicas can use the store at the same time.
	Shared() bool

	// Identity returns the ids that label what this store's nodes run.
	Identity(ctx context.Context) (Identity, error)

	// Reincarnate gives the store a new incarnation, unless it has another one than old
	// already. If replicas share the store, all of them must reopen it (see Rewound).
	Reincarnate(ctx context.Context, old string) error

	// Rewound is closed once the store was found to have gone back to an earlier state, or
	// to have a new incarnation. From then on all calls but Close return ErrRewound, and the
	// store must be reopened. It is nil for a store that only one process can use: that one
	// cannot change under it.
	Rewound() <-chan struct{}

	// Revision returns the newest revision.
	Revision(ctx context.Context) (int64, error)

	// Trim deletes changes older than maxAge and all but the newest maxChanges (in whole
	// commits; zero means no such limit) and returns the oldest revision after which
	// Changes is still complete. It also deletes the leases of replicas (ReplicaPrefix)
	// that were released, or expired more than ReplicaMemory ago.
	Trim(ctx context.Context, maxAge time.Duration, maxChanges int64) (int64, error)

	// LogSizes returns how much of the log each of the given projects has, or every
	// project if none is given. What belongs to no project counts for the empty one.
	LogSizes(ctx context.Context, projects ...string) (map[string]LogSize, error)

	// Thin deletes the oldest changes of one project until it has no more than keep (zero
	// fields: no such limit), commit by commit, and none of a commit that ends above the
	// revision upTo. The rest of those commits stays in histories, but not in Changes. It
	// returns the oldest revision after which Changes is still complete.
	Thin(ctx context.Context, project string, keep LogSize, upTo int64) (int64, error)

	// Audit returns the entries of the audit log that match, newest first.
	Audit(ctx context.Context, q AuditQuery) ([]mariposa.Audit, error)

	// TrimAudit deletes entries of the audit log older than maxAge (zero: none) and
	// returns how many.
	TrimAudit(ctx context.Context, maxAge time.Duration) (removed int64, err error)

	// Dump passes everything that the store contains to d, in one consistent state, without
	// holding up writers. It must not take long: until it ends, what is deleted meanwhile
	// takes up room.
	Dump(ctx context.Context, d Dump) error

	// Ping reports whether the store accepts writes now.
	Ping(ctx context.Context) error

	// Close waits for commits in progress and releases all resources. It is idempotent;
	// calls after it return ErrClosed.
	Close() error
}

// Record is an object of any kind as the store has it.
type Record struct {
	Kind           mariposa.Kind
	ID             string
	Project        string // the project it belongs to; for listing
	Archived       bool   // it has ended and is kept for reference
	Revision       int64  // the newest change of either half
	SpecRevision   int64
	StatusRevision int64 // 0 until a Status is first written
	Halves
}

// Halves are pointers to the Spec and Status types of a record's kind. They must not be
// modified.
type Halves struct {
	Spec   any
	Status any // nil until first written
}

// Unit is an atomic change. Its audit entries are part of it; they take no revision and
// are not in the feed.
type Unit struct {
	Fences  []Fence
	Require []Require
	Writes  []Write
	Claims  []Claim
	Audit   []mariposa.Audit
	Urgent  bool // user requests and repairs are committed before bulk work
}

// Fence requires that a lease still has this epoch and has not expired.
type Fence struct {
	Lease string
	Epoch int64
}

// Require requires that an object is at known revisions. A negative revision is not
// checked.
type Require struct {
	Kind           mariposa.Kind
	ID             string
	Absent         bool // there must be no such object
	SpecRevision   int64
	StatusRevision int64
}

// Write replaces one or both halves of an object, or removes the object. A nil half is
// left as it is. Writing no Spec to an object that does not exist does nothing (its
// writer lost a race with the object's removal); so does removing one that does not
// exist.
type Write struct {
	Kind    mariposa.Kind
	ID      string
	Project string
	Spec    any
	Status  any
	Archive bool // from now on it is not in snapshots
	Delete  bool
	Event   mariposa.Event
}

// Claim takes a share of a node's capacity or, if negative, gives it back. A claim that
// would exceed the limit fails the unit with ErrNoCapacity. Claims never go below zero.
type Claim struct {
	Node  string
	Take  mariposa.Resources
	Limit mariposa.Resources // zero fields: no limit
}

// Result is the result of a unit. Writes that did nothing take no revision; First and
// Last are zero if none did anything.
type Result struct {
	First, Last int64
	Err         error
}

// Change is one change of one object.
type Change struct {
	Revision int64
	Time     time.Time
	Record   Record // after the change; if Deleted, before it; without its halves if its kind is Unlogged
	Deleted  bool
	Spec     bool // this change wrote the Spec
	Status   bool // this change wrote the Status
	Event    mariposa.Event
}

// LogSize is a part of the log. Commits of several projects are compressed together, so
// the bytes of one are its share of them.
type LogSize struct {
	Changes int64
	Bytes   int64
}

// SizedKinds are the kinds that Sizes counts.
var SizedKinds = []mariposa.Kind{mariposa.KindVersion, mariposa.KindMetadata, mariposa.KindPart}

// Query selects objects of one kind.
type Query struct {
	Kind     mariposa.Kind
	Project  string             // empty: of any project
	Projects []string           // of any of these; nil: of any project
	State    mariposa.TaskState // tasks archived in this state; empty: any
	Before   string             // ids below this one; empty: from the top
	Limit    int                // 0: no limit
}

// HistoryQuery selects changes of the log; zero fields select everything.
type HistoryQuery struct {
	Project string
	Task    string
	Before  int64 // revisions below this one; 0: from the newest
	Limit   int
}

// Lease is a named lease. Epoch fences the writes made under it.
type Lease struct {
	Name   string
	Holder string
	Epoch  int64
	Until  time.Time // by the store's clock; zero: never expires
	Note   string    // what its holder announced
}

// ReplicaPrefix begins the name of the lease that shows that a replica is alive; the
// rest is the replica's name.
const ReplicaPrefix = "replica/"

// ShardPrefix begins the name of the lease of a shard; the rest is its number.
const ShardPrefix = "shard/"

// ReplicaMemory is how long the lease of a dead replica is kept.
const ReplicaMemory = 10 * time.Minute

// Identity labels everything that belongs to a store. The cluster survives a restored
// backup; the incarnation does not.
type Identity struct {
	Cluster     string
	Incarnation string
}

var (
	// ErrNotFound: no such object.
	ErrNotFound = errors.New("object not found")
	// ErrConflict: a Require was not met.
	ErrConflict = errors.New("the object has changed")
	// ErrFenced: a lease has another holder; the former one must stop.
	ErrFenced = errors.New("the lease has a new holder")
	// ErrNoCapacity: a claim does not fit its node.
	ErrNoCapacity = errors.New("the node is full")
	// ErrTooOld: the feed no longer reaches back that far.
	ErrTooOld = errors.New("the revision is no longer in the event feed")
	// ErrUnavailable: the store cannot be written now (full or read-only disk, server
	// unreachable); nothing was changed. Wrapped with the cause.
	ErrUnavailable = errors.New("the store is not writable")
	// ErrUncertain: the store does not answer, so the result of a commit is not known.
	ErrUncertain = errors.New("the store does not answer, so it is not known whether the change was stored")
	// ErrRewound: the store has lost changes that were read from it.
	ErrRewound = fmt.Errorf("%w: the database has gone back to an earlier state", ErrUnavailable)
	// ErrNotEmpty: a restore would replace what the store contains.
	ErrNotEmpty = errors.New("the store is not empty")
	// ErrInUse: a restore would replace the store of running servers.
	ErrInUse = errors.New("servers are running on the store")
	// ErrClosed: the store was closed. If its server was unreachable when Close was
	// called, it may be unknown whether a commit has happened.
	ErrClosed = errors.New("the store is closed")
)
