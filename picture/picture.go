// Package picture keeps the current state of the store in memory and updates it from the
// feed: users, projects, open tasks, nodes, volumes and instances. Engine, fleet and API
// read the same picture and get the same changes in the same order, so they share the
// decoded objects.
//
// The package owns this copy and its indexes. It never writes, and it does not know what
// the objects mean.
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

// Picture is the in-memory copy. Any goroutine may read it. Only one goroutine may call
// Advance and Reread.
type Picture struct {
	store store.Store

	tables

	mu              sync.RWMutex
	revision        int64
	moved           chan struct{} // closed and replaced when revision grows
	records         map[mariposa.Kind]map[string]*store.Record
	instancesOf     index             // project -> instances
	instancesOn     index             // node -> instances
	volumesOf       index             // project -> volumes
	volumesOn       index             // node -> volumes
	retainedVolumes index             // organization -> volumes of deleted projects
	networksOf      index             // project -> networks that it uses
	attachmentsOf   index             // network -> its attachments
	attachmentsOn   index             // node -> attachments
	tasksOf         index             // project -> open tasks
	openTasks       btree.Set[string] // open tasks, in order
	projectsOf      index             // organization -> projects
	organizationsOf index             // user -> organizations
	projectsWith    index             // user -> projects
	tokensOf        index             // user -> tokens
	services        index             // project -> services
	names           map[string]string // organization/name -> project
	orgs            map[string]string // name -> organization
	users           map[string]string // name -> user
	subscribers     []func([]store.Change)

	// statuses are the services of each project by name, as joined into its status;
	// unjoined are the projects whose status must be joined again, with the services
	// that have changed.
	statuses map[string]map[string]*mariposa.ServiceStatus
	unjoined map[string][]string

	opened int64 // the revision of the first snapshot
	recent recent
}

// index maps an owner to the ids of its objects.
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

// batch is the number of changes read from the feed at a time.
const batch = 4096

// Open reads the current state of the store.
func Open(ctx context.Context, st store.Store) (*Picture, error) {
	p := &Picture{store: st, moved: make(chan struct{})}
	p.clear()
	p.tables.open(p)
	rev, err := st.Snapshot(ctx, func(r store.Record) error {
		p.set(&r)
		return nil
	})
	p.joinServices()
	p.revision, p.opened = rev, rev
	p.recent = recent{from: rev, to: rev, touched: map[string]int64{}}
	return p, err
}

func (p *Picture) clear() {
	p.records = map[mariposa.Kind]map[string]*store.Record{}
	for _, k := range mariposa.Kinds {
		p.records[k] = map[string]*store.Record{}
	}
	p.instancesOf, p.instancesOn, p.tasksOf = index{}, index{}, index{}
	p.openTasks.Clear()
	p.services, p.statuses, p.unjoined = index{}, map[string]map[string]*mariposa.ServiceStatus{}, map[string][]string{}
	p.volumesOf, p.volumesOn, p.retainedVolumes = index{}, index{}, index{}
	p.networksOf, p.attachmentsOf, p.attachmentsOn = index{}, index{}, index{}
	p.projectsOf, p.organizationsOf, p.projectsWith, p.tokensOf = index{}, index{}, index{}, index{}
	p.names, p.orgs, p.users = map[string]string{}, map[string]string{}, map[string]string{}
}

// Subscribe adds a subscriber, which is called with every batch of changes after the
// picture shows them. Add subscribers before the first Advance. They must not block.
func (p *Picture) Subscribe(f func([]store.Change)) { p.subscribers = append(p.subscribers, f) }

// Follow advances with the feed until the context ends. As a safety net it also rereads
// everything once per interval and calls found with the number of objects that it had to
// repair.
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
		_ = p.store.Wait(until, p.Revision()) // whatever ends the wait, read the feed again
		cancel()
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Advance applies the next changes from the feed and returns how many there were.
func (p *Picture) Advance(ctx context.Context) (int, error) { return p.advance(ctx, math.MaxInt64) }

// advance is Advance up to a given revision.
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
	p.joinServices()
	p.mu.Unlock()
	p.notify(changes, changes[len(changes)-1].Revision, true)
	return len(changes), nil
}

// notify calls the subscribers and then wakes the readers that wait for a revision, so
// that readers can rely on all subscribers having been notified. The changes of a repair are
// not those of the feed.
func (p *Picture) notify(changes []store.Change, revision int64, areFeed bool) {
	for _, f := range p.subscribers {
		f(changes)
	}
	p.mu.Lock()
	p.recent.add(changes, p.revision, revision, areFeed)
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
	if c.Record.Kind.LoadedOnDemand() {
		return // read on demand, one by one
	}
	r := c.Record
	p.set(&r)
}

// Reread compares the picture with a fresh snapshot, repairs differences, notifies the
// subscribers and returns the number of repaired objects, which should always be zero.
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
	for p.Revision() < at { // advance to exactly the snapshot's revision, then compare
		n, err := p.advance(ctx, at)
		if err != nil && !errors.Is(err, store.ErrTooOld) {
			return 0, err
		}
		if n == 0 {
			break // the feed ends before it: the comparison finds what is missing
		}
	}
	repaired := p.repair(fresh, at)
	return repaired, nil
}

func (p *Picture) repair(fresh map[mariposa.Kind]map[string]*store.Record, at int64) int {
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
	p.joinServices()
	behind := p.revision < at
	p.mu.Unlock()
	if len(changes) > 0 || behind {
		p.notify(changes, max(at, p.Revision()), false)
	}
	return len(changes)
}

// set adds or replaces a record. The indexes depend only on specs, so a new status does
// not change them.
func (p *Picture) set(r *store.Record) {
	if old := p.records[r.Kind][r.ID]; old != nil {
		if old.Revision >= r.Revision {
			return
		}
		p.markUnjoined(r)
		// The project and node of an instance never change.
		if old.SpecRevision == r.SpecRevision || r.Kind == mariposa.KindInstance {
			p.records[r.Kind][r.ID] = r
			return
		}
		p.unset(r.Kind, r.ID)
	}
	p.records[r.Kind][r.ID] = r
	p.markUnjoined(r)
	switch spec := r.Spec.(type) {
	case *mariposa.ServiceSpec:
		p.services.add(spec.Project, r.ID)
	case *mariposa.InstanceSpec:
		p.instancesOf.add(spec.Project, r.ID)
		p.instancesOn.add(spec.Node, r.ID)
	case *mariposa.VolumeSpec:
		p.volumesOn.add(spec.Node, r.ID)
		if spec.Project != "" {
			p.volumesOf.add(spec.Project, r.ID)
		} else {
			p.retainedVolumes.add(spec.Organization, r.ID)
		}
	case *mariposa.NetworkSpec:
		for _, project := range spec.Projects() {
			p.networksOf.add(project, r.ID)
		}
	case *mariposa.AttachmentSpec:
		p.attachmentsOf.add(spec.Network, r.ID)
		p.attachmentsOn.add(spec.Node, r.ID)
	case *mariposa.TaskSpec:
		p.tasksOf.add(spec.Project, r.ID)
		p.openTasks.Insert(r.ID)
	case *mariposa.ProjectSpec:
		p.setProject(r.ID, spec)
	case *mariposa.OrganizationSpec:
		p.orgs[spec.Name] = r.ID
		for user := range spec.Members {
			p.organizationsOf.add(user, r.ID)
		}
	case *mariposa.UserSpec:
		p.users[spec.Name] = r.ID
	case *mariposa.TokenSpec:
		p.tokensOf.add(spec.Owner(), r.ID)
	}
}

func (p *Picture) setProject(id string, spec *mariposa.ProjectSpec) {
	p.projectsOf.add(spec.Organization, id)
	for user := range spec.Users {
		p.projectsWith.add(user, id)
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
	p.markUnjoined(old)
	switch spec := old.Spec.(type) {
	case *mariposa.ServiceSpec:
		p.services.remove(spec.Project, id)
	case *mariposa.InstanceSpec:
		p.instancesOf.remove(spec.Project, id)
		p.instancesOn.remove(spec.Node, id)
	case *mariposa.VolumeSpec:
		p.volumesOn.remove(spec.Node, id)
		p.volumesOf.remove(spec.Project, id)
		p.retainedVolumes.remove(spec.Organization, id)
	case *mariposa.NetworkSpec:
		for _, project := range spec.Projects() {
			p.networksOf.remove(project, id)
		}
	case *mariposa.AttachmentSpec:
		p.attachmentsOf.remove(spec.Network, id)
		p.attachmentsOn.remove(spec.Node, id)
	case *mariposa.TaskSpec:
		p.tasksOf.remove(spec.Project, id)
		p.openTasks.Delete(id)
	case *mariposa.ProjectSpec:
		p.projectsOf.remove(spec.Organization, id)
		for user := range spec.Users {
			p.projectsWith.remove(user, id)
		}
		freeName(p.names, spec.Organization+"/"+spec.Name, id)
	case *mariposa.OrganizationSpec:
		freeName(p.orgs, spec.Name, id)
		for user := range spec.Members {
			p.organizationsOf.remove(user, id)
		}
	case *mariposa.UserSpec:
		freeName(p.users, spec.Name, id)
	case *mariposa.TokenSpec:
		p.tokensOf.remove(spec.Owner(), id)
	}
}

// freeName frees a name unless another object has taken it.
func freeName(names map[string]string, name, id string) {
	if names[name] == id {
		delete(names, name)
	}
}
