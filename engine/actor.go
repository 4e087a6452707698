package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"mariposa"
	"mariposa/converge"
	"mariposa/mailbox"
	"mariposa/picture"
	"mariposa/queue"
	"mariposa/store"
)

// actor plans one project. Only the feed changes its view: after a commit it waits until
// its own changes come back, so there is only one source of changes.
type actor struct {
	e       *Engine
	project string
	shard   int
	epoch   int64
	since   time.Time // when this actor began to plan the project
	inbox   *mailbox.Box[store.Change]

	loaded            bool
	volumes           volumes
	sizedFor          map[string]int // versions whose sizes the volumes of services have, by id of the service
	seenRevision      int64          // the newest revision received
	ownRevision       int64          // the newest revision of its own commits
	record            *store.Project
	tasks             map[string]*store.Task
	view              *converge.View
	recountedVersions map[int]bool // versions whose counters changed since they were read
	networksDirty     bool         // a network may have lost its last user since the last check

	inline bool                           // its services are not separate records yet
	scopes map[string]map[string]struct{} // by task, the services of open tasks that have many
	guard  guard
	storm  *converge.Storm // that the view knows

	mu      sync.Mutex // guards the timer, which is also stopped from outside
	cancel  func()
	stopped bool
}

// maxSteps limits the size of one commit, so that others do not wait long behind it.
const maxSteps = 500

func newActor(e *Engine, project string, epoch int64) *actor {
	a := &actor{e: e, project: project, shard: ShardOf(project), epoch: epoch, since: e.Clock.Now(), cancel: func() {}}
	a.inbox = mailbox.New[store.Change](func() { e.Wake(project) })
	return a
}

// stop cancels the actor's timer for good.
func (a *actor) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
	a.cancel()
}

// sleep cancels the next wake-up.
func (a *actor) sleep() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancel()
}

func (a *actor) wakeIn(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancel()
	if !a.stopped {
		a.cancel = a.e.Clock.After(max(d, 0), func() { a.e.Wake(a.project) })
	}
}

// reload makes the next step start from the picture.
func (a *actor) reload() { a.loaded = false }

// step drains the inbox, plans once and commits.
func (a *actor) step(ctx context.Context) error {
	changes := a.inbox.Take()
	for i := range changes {
		a.guard.observe(&changes[i])
	}
	if !a.loaded {
		a.load()
		for i := range changes { // the picture shows them: it is updated before anybody is notified
			a.seenRevision = max(a.seenRevision, changes[i].Revision)
		}
		changes = nil
	}
	goal := false // whether the goal or the status of a service changed
	for i := range changes {
		a.apply(&changes[i])
		kind := changes[i].Record.Kind
		goal = goal || kind == mariposa.KindProject || kind == mariposa.KindService
	}
	if goal && a.record != nil {
		a.readGoal()
	}
	if a.record == nil {
		a.e.removeActor(a)
		return nil
	}
	if a.seenRevision < a.ownRevision {
		return nil // its own commit has not come back through the feed yet
	}
	if wait := a.heldBackFor(); wait > 0 {
		a.wakeIn(wait)
		return nil
	}
	a.readStorm()
	if err := a.loadVersions(ctx); err != nil {
		return err
	}
	t, err := a.newTurn(ctx)
	if err != nil {
		return err
	}
	return t.run(ctx)
}

func (a *actor) load() {
	p := a.e.Picture.Project(a.project)
	a.loaded, a.seenRevision, a.networksDirty, a.storm = true, p.Revision, true, nil
	a.record, a.inline = p.Record, p.Inline
	a.tasks, a.volumes, a.sizedFor, a.scopes = map[string]*store.Task{}, newVolumes(), map[string]int{}, nil
	for _, t := range p.Tasks {
		a.tasks[t.ID] = t
	}
	if p.Record == nil {
		a.view = converge.NewView()
		return
	}
	a.view = a.e.Picture.View(p, p.Record.Status())
	a.view.PlannedSince(a.since)
	for _, v := range p.Volumes {
		a.volumes.set(v)
	}
}

// readGoal reads the project's status from the picture, which has merged the services
// into it. No other writer changes either.
func (a *actor) readGoal() {
	current := a.e.Picture.Projects.Get(a.project)
	if current == nil {
		a.record = nil // the change that deletes it will follow
		return
	}
	r := *a.record
	r.Halves.Status = current.Halves.Status
	a.record = &r
	if st := r.Status(); st != nil {
		a.view.SetGoal(st)
	}
}

func (a *actor) apply(c *store.Change) {
	a.seenRevision = max(a.seenRevision, c.Revision)
	r := c.Record
	switch r.Kind {
	case mariposa.KindProject:
		if c.Deleted {
			a.record = nil
			return
		}
		a.record = (*store.Project)(&r)
	case mariposa.KindVersion:
		if c.Spec && !c.Deleted {
			if a.recountedVersions == nil {
				a.recountedVersions = map[int]bool{}
			}
			a.recountedVersions[(*store.Version)(&r).Spec().Number] = true
		}
	case mariposa.KindTask:
		if c.Deleted || r.Archived {
			delete(a.tasks, r.ID)
			delete(a.scopes, r.ID)
		} else {
			a.tasks[r.ID] = (*store.Task)(&r)
		}
	case mariposa.KindVolume:
		a.applyVolume((*store.Volume)(&r), c.Deleted)
	case mariposa.KindNetwork:
		a.networksDirty = true
	case mariposa.KindInstance:
		i := (*store.Instance)(&r)
		a.networksDirty = a.networksDirty || c.Deleted || i.Spec().Kept
		if c.Deleted {
			a.view.RemoveInstance(r.ID)
		} else {
			a.e.Picture.AddToView(a.view, i)
		}
	case mariposa.KindNode:
		if c.Deleted {
			a.view.RemoveNode(r.ID)
		} else {
			a.view.SetNode(r.ID, picture.NodeOf((*store.Node)(&r)))
		}
	}
}

// loadVersions reads the definitions that the view refers to. One that no longer exists
// counts as empty; the services that need it report that.
func (a *actor) loadVersions(ctx context.Context) error {
	for n := range a.recountedVersions {
		if a.view.HasVersion(n) {
			d, _, err := a.definitions(ctx, n)
			if err != nil {
				return err
			}
			a.view.SetVersion(n, d)
		}
	}
	a.recountedVersions = nil
	return picture.LoadDefinitions(a.view, func(n int) (converge.Definitions, error) {
		d, _, err := a.definitions(ctx, n)
		return d, err
	})
}

func (a *actor) definitions(ctx context.Context, number int) (converge.Definitions, string, error) {
	v, err := a.e.Cache.Version(ctx, a.project, number)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, picture.ErrUnreadable):
		return converge.Definitions{}, "", nil // a lost definition: the plan reports it
	case err != nil:
		return nil, "", fmt.Errorf("read version %d of project %s: %w", number, a.project, err)
	}
	return v.Services, v.Spec.Version, nil
}

func (a *actor) openTasks() []queue.Task {
	out := make([]queue.Task, 0, len(a.tasks))
	for _, r := range a.tasks {
		st := r.Status()
		if !mariposa.StateOfTask(st).Ended() {
			out = append(out, queue.Task{ID: r.ID, Spec: r.Spec(), Status: st})
		}
	}
	slices.SortFunc(out, func(x, y queue.Task) int {
		if c := x.Spec.Created.Compare(y.Spec.Created); c != 0 {
			return c
		}
		return compare(x.ID, y.ID)
	})
	return out
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func same(a, b any) bool { return reflect.DeepEqual(a, b) }
