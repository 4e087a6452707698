// Package picture keeps what is current of the whole store in memory, following
// the feed: users, projects, open tasks, nodes, volumes and instances. Engine, fleet and API
// read the same picture and hear of the same changes in the same order, so one
// decoded object serves them all.
//
// It owns the copy and its indexes; it refuses to write, and to know what any of
// it means.
package picture

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"mariposa"
	"mariposa/store"
)

// Picture is the copy. Reading it is safe from anywhere; Advance and Reread are
// called by one goroutine.
type Picture struct {
	store store.Store

	tables

	mu       sync.RWMutex
	revision int64
	moved    chan struct{} // closed and replaced when revision grows
	records  map[mariposa.Kind]map[string]*store.Record
	members  index             // project -> instances
	onNode   index             // node -> instances
	volumes  index             // project -> volumes
	stored   index             // node -> volumes
	left     index             // organization -> volumes of projects that are gone
	networks index             // project -> networks that it uses
	ways     index             // network -> its attachments
	attached index             // node -> attachments
	tasks    index             // project -> open tasks
	open     btree.Set[string] // open tasks, in order
	owned    index             // organization -> projects
	joined   index             // user -> organizations
	shared   index             // user -> projects
	tokens   index             // user -> tokens
	services index             // project -> services
	names    map[string]string // organization/name -> project
	orgs     map[string]string // name -> organization
	users    map[string]string // name -> user
	hear     []func([]store.Change)

	// statuses are the services of each project by name, as they stand in its status;
	// torn are the projects of which that has to be put together anew, with the
	// services that have changed.
	statuses map[string]map[string]*mariposa.ServiceStatus
	torn     map[string][]string
}

// index maps an owner to the ids of what it has.
type index map[string]map[string]struct{}

func (x index) add(owner, id string) {
	m := x[owner]
	if m == nil {
		m = map[string]struct{}{}
		x[owner] = m
	}
	m[id] = struct{}{}
}

func (x index) remove(owner, id string) {
	if delete(x[owner], id); len(x[owner]) == 0 {
		delete(x, owner)
	}
}

// batch is how many changes are taken from the feed at a time.
const batch = 4096

// Open takes a picture of the store as it is now.
func Open(ctx context.Context, st store.Store) (*Picture, error) {
	p := &Picture{store: st, moved: make(chan struct{})}
	p.clear()
	p.tables.open(p)
	rev, err := st.Snapshot(ctx, func(r store.Record) error {
		p.set(&r)
		return nil
	})
	p.join()
	p.revision = rev
	return p, err
}

func (p *Picture) clear() {
	p.records = map[mariposa.Kind]map[string]*store.Record{}
	for _, k := range mariposa.Kinds {
		p.records[k] = map[string]*store.Record{}
	}
	p.members, p.onNode, p.tasks = index{}, index{}, index{}
	p.open.Clear()
	p.services, p.statuses, p.torn = index{}, map[string]map[string]*mariposa.ServiceStatus{}, map[string][]string{}
	p.volumes, p.stored, p.left = index{}, index{}, index{}
	p.networks, p.ways, p.attached = index{}, index{}, index{}
	p.owned, p.joined, p.shared, p.tokens = index{}, index{}, index{}, index{}
	p.names, p.orgs, p.users = map[string]string{}, map[string]string{}, map[string]string{}
}

// Hear adds a listener, called with every batch of changes after the picture
// shows them. Listeners are added before the first Advance and must not block.
func (p *Picture) Hear(f func([]store.Change)) { p.hear = append(p.hear, f) }

// Follow advances with the feed until the context ends, and rereads everything
// once per interval as a safety net; found tells how much a reread had to mend.
func (p *Picture) Follow(ctx context.Context, interval time.Duration, found func(int)) error {
	next := time.Now().Add(interval)
	for {
		n, err := p.Advance(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, store.ErrTooOld):
			n, err := p.Reread(ctx)
			slog.Warn("the feed was trimmed before it was read; read everything anew", "mended", n, "err", err)
			if err != nil {
				pause(ctx, time.Second)
			}
			continue
		case err != nil:
			slog.Warn("cannot read the feed; trying again", "err", err)
			pause(ctx, time.Second)
			continue
		case n > 0:
			continue
		}
		if time.Now().After(next) {
			next = time.Now().Add(interval)
			if n, err := p.Reread(ctx); err == nil {
				found(n)
			}
			continue
		}
		until, cancel := context.WithDeadline(ctx, next)
		_ = p.store.Wait(until, p.Revision()) // whatever ends the wait, look again
		cancel()
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Advance takes the next changes from the feed and returns how many there were.
func (p *Picture) Advance(ctx context.Context) (int, error) { return p.advance(ctx, math.MaxInt64) }

// advance goes no further than a revision.
func (p *Picture) advance(ctx context.Context, to int64) (int, error) {
	from := p.Revision()
	changes, err := p.store.Changes(ctx, from, int(min(batch, to-from)))
	for len(changes) > 0 && changes[len(changes)-1].Revision > to {
		changes = changes[:len(changes)-1]
	}
	if err != nil || len(changes) == 0 {
		return 0, err
	}
	p.mu.Lock()
	for i := range changes {
		p.apply(&changes[i])
	}
	p.join()
	p.mu.Unlock()
	p.tell(changes, changes[len(changes)-1].Revision)
	return len(changes), nil
}

// tell lets listeners hear first and readers who wait for a revision go on
// after: who waited may count on everybody having been told.
func (p *Picture) tell(changes []store.Change, revision int64) {
	for _, f := range p.hear {
		f(changes)
	}
	p.mu.Lock()
	p.revision = revision
	close(p.moved)
	p.moved = make(chan struct{})
	p.mu.Unlock()
}

func (p *Picture) apply(c *store.Change) {
	if c.Deleted || c.Record.Archived {
		p.unset(c.Record.Kind, c.Record.ID)
		return
	}
	if c.Record.Kind.Shelved() {
		return // read one by one by who needs them
	}
	r := c.Record
	p.set(&r)
}

// Reread compares the picture with a fresh snapshot, mends what differs, tells
// the listeners, and returns how many objects it had to mend. That should
// always be none.
func (p *Picture) Reread(ctx context.Context) (int, error) {
	fresh := map[mariposa.Kind]map[string]*store.Record{}
	for _, k := range mariposa.Kinds {
		fresh[k] = map[string]*store.Record{}
	}
	at, err := p.store.Snapshot(ctx, func(r store.Record) error {
		fresh[r.Kind][r.ID] = &r
		return nil
	})
	if err != nil {
		return 0, err
	}
	for p.Revision() < at { // go exactly as far as the snapshot, then compare
		n, err := p.advance(ctx, at)
		if err != nil && !errors.Is(err, store.ErrTooOld) {
			return 0, err
		}
		if n == 0 {
			break // the feed does not lead there: what is missing shows in the comparison
		}
	}
	mended := p.mend(fresh, at)
	return mended, nil
}

func (p *Picture) mend(fresh map[mariposa.Kind]map[string]*store.Record, at int64) int {
	var changes []store.Change
	p.mu.Lock()
	for _, kind := range mariposa.Kinds {
		for _, id := range slices.Sorted(maps.Keys(p.records[kind])) {
			if old := p.records[kind][id]; fresh[kind][id] == nil && old.Revision <= at {
				changes = append(changes, store.Change{Revision: at, Record: *old, Deleted: true})
			}
		}
		for _, id := range slices.Sorted(maps.Keys(fresh[kind])) {
			r, old := fresh[kind][id], p.records[kind][id]
			if old == nil || old.Revision < r.Revision {
				changes = append(changes, store.Change{Revision: at, Record: *r, Spec: true, Status: true})
			}
		}
	}
	for i := range changes {
		p.apply(&changes[i])
	}
	p.join()
	behind := p.revision < at
	p.mu.Unlock()
	if len(changes) > 0 || behind {
		p.tell(changes, max(at, p.Revision()))
	}
	return len(changes)
}

// set shows a record. The indexes are made of specs alone, so that a new status
// leaves them as they are.
func (p *Picture) set(r *store.Record) {
	if old := p.records[r.Kind][r.ID]; old != nil {
		if old.Revision >= r.Revision {
			return
		}
		p.tear(r)
		// The project and node of an instance never change.
		if old.SpecRevision == r.SpecRevision || r.Kind == mariposa.KindInstance {
			p.records[r.Kind][r.ID] = r
			return
		}
		p.unset(r.Kind, r.ID)
	}
	p.records[r.Kind][r.ID] = r
	p.tear(r)
	switch spec := r.Spec.(type) {
	case *mariposa.ServiceSpec:
		p.services.add(spec.Project, r.ID)
	case *mariposa.InstanceSpec:
		p.members.add(spec.Project, r.ID)
		p.onNode.add(spec.Node, r.ID)
	case *mariposa.VolumeSpec:
		p.stored.add(spec.Node, r.ID)
		if spec.Project != "" {
			p.volumes.add(spec.Project, r.ID)
		} else {
			p.left.add(spec.Organization, r.ID)
		}
	case *mariposa.NetworkSpec:
		for _, project := range spec.Projects() {
			p.networks.add(project, r.ID)
		}
	case *mariposa.AttachmentSpec:
		p.ways.add(spec.Network, r.ID)
		p.attached.add(spec.Node, r.ID)
	case *mariposa.TaskSpec:
		p.tasks.add(spec.Project, r.ID)
		p.open.Insert(r.ID)
	case *mariposa.ProjectSpec:
		p.setProject(r.ID, spec)
	case *mariposa.OrganizationSpec:
		p.orgs[spec.Name] = r.ID
		for user := range spec.Members {
			p.joined.add(user, r.ID)
		}
	case *mariposa.UserSpec:
		p.users[spec.Name] = r.ID
	case *mariposa.TokenSpec:
		p.tokens.add(spec.User, r.ID)
	}
}

func (p *Picture) setProject(id string, spec *mariposa.ProjectSpec) {
	p.owned.add(spec.Organization, id)
	for user := range spec.Users {
		p.shared.add(user, id)
	}
	if !spec.Deleting {
		p.names[spec.Organization+"/"+spec.Name] = id
	}
}

func (p *Picture) unset(kind mariposa.Kind, id string) {
	old := p.records[kind][id]
	if old == nil {
		return
	}
	delete(p.records[kind], id)
	p.tear(old)
	switch spec := old.Spec.(type) {
	case *mariposa.ServiceSpec:
		p.services.remove(spec.Project, id)
	case *mariposa.InstanceSpec:
		p.members.remove(spec.Project, id)
		p.onNode.remove(spec.Node, id)
	case *mariposa.VolumeSpec:
		p.stored.remove(spec.Node, id)
		p.volumes.remove(spec.Project, id)
		p.left.remove(spec.Organization, id)
	case *mariposa.NetworkSpec:
		for _, project := range spec.Projects() {
			p.networks.remove(project, id)
		}
	case *mariposa.AttachmentSpec:
		p.ways.remove(spec.Network, id)
		p.attached.remove(spec.Node, id)
	case *mariposa.TaskSpec:
		p.tasks.remove(spec.Project, id)
		p.open.Delete(id)
	case *mariposa.ProjectSpec:
		p.owned.remove(spec.Organization, id)
		for user := range spec.Users {
			p.shared.remove(user, id)
		}
		unname(p.names, spec.Organization+"/"+spec.Name, id)
	case *mariposa.OrganizationSpec:
		unname(p.orgs, spec.Name, id)
		for user := range spec.Members {
			p.joined.remove(user, id)
		}
	case *mariposa.UserSpec:
		unname(p.users, spec.Name, id)
	case *mariposa.TokenSpec:
		p.tokens.remove(spec.User, id)
	}
}

// unname frees a name, unless another has it by now.
func unname(names map[string]string, name, id string) {
	if names[name] == id {
		delete(names, name)
	}
}
