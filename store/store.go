// Package store says what the one store promises: every object lives in it,
// every change of an object gets a revision of its own, and the feed of changes
// is the log those revisions number. An object and its change commit together
// or not at all.
//
// The room owns the promises and the shapes that cross the seam; memory, sqlite
// and postgres keep them and storetest holds each to them. It refuses to know
// what the objects mean.
package store

import (
	"context"
	"errors"
	"time"

	"mariposa"
)

// Store is one durable, ordered home of objects. All methods are safe for
// concurrent use.
type Store interface {
	// Commit applies units, each atomically and in the order given, grouped with
	// those of other callers into as few durable writes as possible. A unit whose
	// requirement fails is dropped alone; its Result says why. When Commit
	// returns, what it reports as done is durable and in the feed.
	Commit(ctx context.Context, units ...Unit) []Result

	// Get returns one object, archived or not; ErrNotFound when there is none.
	Get(ctx context.Context, kind mariposa.Kind, id string) (Record, error)

	// List returns the objects of a query, archived ones too, by id in descending
	// order.
	List(ctx context.Context, q Query) ([]Record, error)

	// Snapshot hands every object that is not archived, kind by kind, to visit
	// and returns the revision at which that was the whole truth: reading
	// Changes after it misses nothing and doubles nothing. Versions are left
	// out; readers get those one by one.
	Snapshot(ctx context.Context, visit func(Record) error) (int64, error)

	// Changes returns up to limit changes (0: all) after a revision, in order. A point
	// that the feed no longer reaches back to answers ErrTooOld; a point in the
	// future answers nothing.
	Changes(ctx context.Context, after int64, limit int) ([]Change, error)

	// History returns changes that match, newest first, as far as they are kept.
	History(ctx context.Context, q HistoryQuery) ([]Change, error)

	// Wait returns once there is a change after the given revision, or with the
	// context's error.
	Wait(ctx context.Context, after int64) error

	// Hold takes every named lease that is free, lapsed or already the holder's,
	// until ttl from now by the store's clock, and returns those it holds. The
	// epoch of a lease grows whenever its holder changes or it had lapsed.
	Hold(ctx context.Context, holder string, ttl time.Duration, names ...string) ([]Lease, error)

	// Seize takes a lease from whoever holds it, without a lapse, and raises its
	// epoch. Node sessions are made this way: the newest connection wins.
	Seize(ctx context.Context, holder, name string) (Lease, error)

	// Release lets go of the named leases as far as the holder has them.
	Release(ctx context.Context, holder string, names ...string) error

	// Leases returns the leases whose names begin with a prefix and that somebody
	// holds right now by the store's clock, by name.
	Leases(ctx context.Context, prefix string) ([]Lease, error)

	// Ledger returns what is claimed of each node, as far as anything is.
	Ledger(ctx context.Context) (map[string]mariposa.Resources, error)

	// Identity returns the ids that label what this store's nodes run.
	Identity(ctx context.Context) (Identity, error)

	// Trim forgets changes older than maxAge and all but the newest maxChanges
	// (in whole commits; zero means no limit of that kind) and returns the oldest revision after which
	// Changes still answers.
	Trim(ctx context.Context, maxAge time.Duration, maxChanges int64) (int64, error)

	// Audit returns the entries of the audit log that match, newest first.
	Audit(ctx context.Context, q AuditQuery) ([]mariposa.Audit, error)

	// TrimAudit forgets entries of the audit log older than maxAge (zero: none)
	// and returns how many those were.
	TrimAudit(ctx context.Context, maxAge time.Duration) (removed int64, err error)

	// Ping reports whether the store can take a write right now.
	Ping(ctx context.Context) error

	// Close waits for commits under way and lets go of everything. It is idempotent;
	// what is called after it answers ErrClosed.
	Close() error
}

// Record is an object as the store has it, of whatever kind.
type Record struct {
	Kind           mariposa.Kind
	ID             string
	Project        string // the project it belongs to; for listing
	Archived       bool   // it has ended and is kept for people to look at
	Revision       int64  // the newest change of either half
	SpecRevision   int64
	StatusRevision int64 // 0 until a Status is first written
	Halves
}

// Halves are pointers to the nouns of a record's kind. Whoever holds a record treats
// them as unchangeable.
type Halves struct {
	Spec   any
	Status any // nil until first written
}

// Unit is a change that happens whole or not at all. Its entries of the audit
// log are part of that; they take no revision and are not in the feed.
type Unit struct {
	Fences  []Fence
	Require []Require
	Writes  []Write
	Claims  []Claim
	Audit   []mariposa.Audit
	Urgent  bool // people and repairs go before bulk work in the group commit
}

// Fence demands that a lease still has this epoch and has not lapsed.
type Fence struct {
	Lease string
	Epoch int64
}

// Require demands that an object is at a known point. A revision below zero is
// not looked at.
type Require struct {
	Kind           mariposa.Kind
	ID             string
	Absent         bool // there must be no such object
	SpecRevision   int64
	StatusRevision int64
}

// Write replaces one or both halves of an object, or removes the object. A nil
// half is left as it is. Writing no Spec to an object that is not there does
// nothing (its writer lost a race with the object's removal); so does removing
// what is not there.
type Write struct {
	Kind    mariposa.Kind
	ID      string
	Project string
	Spec    any
	Status  any
	Archive bool // from now on it is out of snapshots
	Delete  bool
	Event   mariposa.Event
}

// Claim takes (or, negative, gives back) a share of a node's capacity. A taking
// that would pass the limit fails the unit with ErrNoCapacity. Claims never go
// below zero.
type Claim struct {
	Node  string
	Take  mariposa.Resources
	Limit mariposa.Resources // zero fields: no limit
}

// Result is what became of a unit. Writes that did nothing take no revision;
// First and Last are zero when none did anything.
type Result struct {
	First, Last int64
	Err         error
}

// Change is one change of one object.
type Change struct {
	Revision int64
	Time     time.Time
	Record   Record // after the change; before it, when Deleted
	Deleted  bool
	Spec     bool // this change wrote the Spec
	Status   bool // this change wrote the Status
	Event    mariposa.Event
}

// Query selects objects of one kind.
type Query struct {
	Kind     mariposa.Kind
	Project  string             // empty: of any project
	Projects []string           // of any of these; nil: of any project
	State    mariposa.TaskState // tasks that are archived in this state; empty: whatever they are
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

// Lease is a hold on a name. Epoch fences the writes made under it.
type Lease struct {
	Name   string
	Holder string
	Epoch  int64
	Until  time.Time // by the store's clock; zero: no lapse
}

// ReplicaPrefix begins the name of the lease by which a replica says that it
// lives; the rest is the replica's name.
const ReplicaPrefix = "replica/"

// Identity labels what belongs to a store. The cluster outlives restored
// backups; the incarnation does not.
type Identity struct {
	Cluster     string
	Incarnation string
}

var (
	// ErrNotFound: no such object.
	ErrNotFound = errors.New("no such object")
	// ErrConflict: a Require did not hold.
	ErrConflict = errors.New("the object has changed")
	// ErrFenced: a lease moved on; its former holder must stop.
	ErrFenced = errors.New("the lease has moved on")
	// ErrNoCapacity: a claim does not fit its node.
	ErrNoCapacity = errors.New("the node is full")
	// ErrTooOld: the feed no longer reaches back that far.
	ErrTooOld = errors.New("that revision is no longer in the feed")
	// ErrUnavailable: the store cannot take the write now (full or read-only
	// disk, server away); nothing was changed. Wrapped with the cause.
	ErrUnavailable = errors.New("the store cannot be written")
	// ErrClosed: the store was closed. Of a commit whose server was away when Close
	// came, nobody may know whether it has happened.
	ErrClosed = errors.New("the store is closed")
)
