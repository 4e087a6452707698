// Package change carries out requests, whichever front end they came through: it turns
// a manifest, an action, a revert, a termination, new metadata, a quota or a single
// instance into one unit of the store, with the task that carries it out, its audit
// record and the answer that is kept for a repeated request.
//
// The package owns admission: whether a change is allowed in the current state,
// whether its caller may still make it at the time of the commit, and what else must
// be written with it. A front end resolves the object, as far as the caller may see
// it, and passes its id. The package does not know HTTP, does not plan, and keeps no
// state outside the store.
package change

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"

	"mariposa"
	"mariposa/auth"
	"mariposa/clock"
	"mariposa/contract"
	"mariposa/picture"
	"mariposa/seal"
	"mariposa/store"
)

// Options are what a Changer is made from. All but Quarantine, IsOriginProven, Foreign, Resolve and KeepVersions are required.
type Options struct {
	Store     store.Store
	Picture   *picture.Picture
	Cache     *picture.VersionCache
	Directory *auth.Directory
	Clock     clock.Clock
	NewID     func() string // makes increasing ids
	Vault     *seal.Vault   // opens and seals metadata and kept answers
	Place     PlaceFunc     // finds nodes for unmanaged instances
	Trial     TrialFunc     // finds out whether nodes would take instances, without claims
	// Await waits until the picture shows a revision, for a limited time.
	Await func(ctx context.Context, revision int64)
	// Quarantine returns all quarantined instances of a node, if its status has only some; nil
	// if none has that many.
	Quarantine func(ctx context.Context, node string) ([]mariposa.Quarantined, error)
	// IsOriginProven reports whether a server assigned a quarantined instance to its node, with
	// the provenance that the node reports; nil if that is never known.
	IsOriginProven func(node string, q mariposa.Quarantined) bool
	// Foreign returns a foreign container of a node, by id, the beginning of its id, or name; nil
	// if no node has any.
	Foreign func(ctx context.Context, node, container string) (mariposa.ForeignContainer, error)
	// Resolve finds out what images mean; nil if nobody can.
	Resolve ResolveFunc
	// KeepVersions is how many versions of a project are kept; DefaultKeep if zero.
	KeepVersions int
}

// Changer makes changes. Its methods are safe for concurrent use.
type Changer struct {
	Options
	locks locks
}

// New makes a Changer.
func New(o Options) *Changer { return &Changer{Options: o, locks: newLocks()} }

// Request is the caller of a change, and its terms.
type Request struct {
	Caller *auth.Caller // renewed before every attempt: they may lose rights in between

	// Permission is checked again before every attempt, on the project or organization
	// that the change is about; if Global, on none.
	Permission auth.Permission
	Global     bool

	Action string // its name in the audit
	From   string // where the request came from
	ID     string // of the request

	Idempotency *Idempotency // where to keep the answer; nil: the request is not repeated
	Replayed    bool         // set if the answer is that of an earlier request
}

// actor is the name of the caller.
func (req *Request) actor() string { return req.Caller.Actor() }

// event is an event caused by the request.
func (req *Request) event(kind, project string, why *mariposa.Reason) mariposa.Event {
	return mariposa.Event{Kind: kind, Project: project, Actor: req.actor(), Reason: why}
}

// Audit begins the audit record of a request.
func (req *Request) Audit() mariposa.Audit {
	c := req.Caller
	a := mariposa.Audit{
		Actor: c.User, ActorName: c.Name, From: req.From, Request: req.ID, Token: c.Token, Action: req.Action, Outcome: mariposa.AuditDone,
	}
	if c.By != "" {
		a.Actor, a.ActorName, a.For, a.ForName = c.By, c.ByName, c.User, c.Name
	}
	return a
}

// attempt is one attempt at a change: its writes, and the answer once they are
// committed. Without writes there is nothing to do.
type attempt struct {
	unit   store.Unit
	answer contract.Changed
}

const maxAttempts = 10

// commit builds a change and commits it.
func (c *Changer) commit(ctx context.Context, req *Request, key string, build func() (*attempt, error)) (*contract.Changed, error) {
	return commit(ctx, c, req, key, func() (*store.Unit, contract.Changed, error) {
		a, err := build()
		if err != nil {
			return nil, contract.Changed{}, err
		}
		return &a.unit, a.answer, nil
	})
}

// CatchUp waits until the picture shows everything that was committed before the call, and
// reports whether there was something after a revision: what was decided from that one may
// be wrong. Another replica may have acknowledged a change that is not in this replica's
// picture yet. It returns an error if the picture cannot catch up now: then nobody can tell
// whether the decision is right. It returns false if only this process writes to the store.
func (c *Changer) CatchUp(ctx context.Context, from int64) (moved bool, err error) {
	if !c.Store.Shared() {
		return false, nil
	}
	newest, err := c.Store.Revision(ctx)
	if err != nil || newest <= from {
		return false, err
	}
	if c.Await(ctx, newest); c.Picture.Revision() < newest {
		return false, mariposa.Errorf(mariposa.Unavailable, "this server does not know the newest state yet, so it cannot decide about the request; nothing was changed: try again shortly")
	}
	return true, nil
}

// commit builds a change and commits it, and retries while others change the same
// records. Changes with the same key wait for each other here, so conflicts come from
// other replicas and actors only. A refusal, and an answer that there is nothing to do, are
// checked against the newest state. The answer is kept in the same commit if the request
// has an idempotency key; so is the audit record. When commit returns, reads show the
// change.
func commit[T any](ctx context.Context, c *Changer, req *Request, key string, build func() (*store.Unit, T, error)) (*T, error) {
	unlock, err := c.locks.lock(ctx, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	confirmed := false
	for range maxAttempts {
		from := c.Picture.Revision()
		if err := c.admitCaller(req); err != nil {
			return nil, err
		}
		var expired *store.Record
		if req.Idempotency != nil { // a request with the same key may have been faster
			var body []byte
			if body, expired, err = c.FindAnswer(ctx, req.Idempotency); err != nil {
				return nil, err
			}
			if body != nil {
				req.Replayed = true
				var first T
				return &first, json.Unmarshal(body, &first)
			}
		}
		unit, answer, err := build()
		if !confirmed && (err != nil && mariposa.CodeOf(err) != mariposa.InvalidArgument || err == nil && len(unit.Writes) == 0) {
			confirmed = true
			moved, behind := c.CatchUp(ctx, from)
			if behind != nil {
				return nil, behind
			}
			if moved {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		if len(unit.Writes) > 0 {
			audit(req, unit, answer)
		} else {
			unit.Audit = nil // its answer may be written all the same
		}
		if req.Idempotency != nil {
			if err := c.keepAnswer(ctx, req.Idempotency, expired, unit, answer); err != nil {
				return nil, err
			}
		}
		if len(unit.Writes) == 0 {
			return &answer, nil
		}
		unit.Urgent = true
		res := c.Store.Commit(ctx, *unit)[0]
		if res.Err == nil {
			c.Await(ctx, res.Last)
			return &answer, nil
		}
		if errors.Is(res.Err, store.ErrNoCapacity) {
			return nil, c.overQuota(ctx, unit, res.Err)
		}
		if !errors.Is(res.Err, store.ErrConflict) {
			return nil, res.Err
		}
		if err := c.awaitConflicting(ctx, unit.Require); err != nil {
			return nil, err
		}
	}
	return nil, store.ErrConflict
}

// admitCaller authenticates the caller again, with their current rights.
func (c *Changer) admitCaller(req *Request) error {
	now := c.Directory.Renew(req.Caller, c.Clock.Now())
	if now == nil {
		return errTokenEnded()
	}
	req.Caller = now
	if req.Global {
		return c.authorize(req, nil)
	}
	return nil
}

func errTokenEnded() error {
	return mariposa.Errorf(mariposa.Unauthorized, "the token is no longer valid")
}

// authorize checks the permission of a request on the object of the change: names and
// roles may have changed while the body was read. It ignores on if the request is
// Global.
func (c *Changer) authorize(req *Request, on *store.Record) error {
	if req.Global {
		on = nil
	}
	if c.Directory.May(req.Caller, req.Permission, on) == auth.Hidden {
		return notFound("the object of this request no longer exists")
	}
	return c.Directory.Require(req.Caller, req.Permission, on)
}

// awaitConflicting waits until the picture shows the records that a change conflicted
// with.
func (c *Changer) awaitConflicting(ctx context.Context, met []store.Require) error {
	seen, newest := c.Picture.Revision(), int64(0)
	for _, q := range met {
		r, err := c.Store.Get(ctx, q.Kind, q.ID)
		switch {
		case errors.Is(err, store.ErrNotFound): // removed: the picture will show that too
			if c.Picture.Get(q.Kind, q.ID) != nil {
				newest = max(newest, seen+1)
			}
		case err != nil:
			return err
		case !q.Kind.LoadedOnDemand():
			newest = max(newest, r.Revision)
		}
	}
	c.Await(ctx, newest)
	return nil
}

// audit adds the details of the request and its answer to the audit records of a unit,
// and adds a record if there is none.
func audit(req *Request, unit *store.Unit, answer any) {
	if len(unit.Audit) == 0 {
		unit.Audit = []mariposa.Audit{{}}
	}
	base := req.Audit()
	for i := range unit.Audit {
		a := &unit.Audit[i]
		a.Actor, a.ActorName, a.For, a.ForName = base.Actor, base.ActorName, base.For, base.ForName
		a.From, a.Request, a.Token, a.Outcome = base.From, base.Request, base.Token, base.Outcome
		a.Action = cmp.Or(a.Action, base.Action)
		c, ok := answer.(contract.Changed)
		if !ok {
			continue
		}
		a.Object, a.ObjectName = cmp.Or(a.Object, c.ID), cmp.Or(a.ObjectName, c.Name, c.Key)
		a.Version, a.Number = c.Version, c.Number
		if c.Task != nil && !c.Joined {
			a.Task = *c.Task
		}
	}
}

// locks serialize changes with the same key; a few keys share each lock.
type locks [256]chan struct{}

var lockSeed = maphash.MakeSeed()

func newLocks() (l locks) {
	for i := range l {
		l[i] = make(chan struct{}, 1)
	}
	return l
}

func (l *locks) lock(ctx context.Context, key string) (unlock func(), err error) {
	one := l[maphash.String(lockSeed, key)%uint64(len(l))]
	select {
	case one <- struct{}{}:
		return func() { <-one }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
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
