package api

import (
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"slices"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/converge"
	"mariposa/queue"
	"mariposa/reason"
	"mariposa/store"
)

// change is one attempt at a change: what is to be written, and what to answer
// once it is. Without writes there is nothing to do.
type change struct {
	unit   store.Unit
	answer contract.Changed
}

const (
	tries   = 10
	catchUp = 2 * time.Second // how long to wait for the picture
)

// commit makes a change of a project and commits it.
func (s *server) commit(ctx context.Context, key string, build func() (*change, error)) (*contract.Changed, error) {
	return commit(ctx, s, key, func() (*store.Unit, contract.Changed, error) {
		c, err := build()
		if err != nil {
			return nil, contract.Changed{}, err
		}
		return &c.unit, c.answer, nil
	})
}

// commit makes a change and commits it, again and again while others change the
// same things. Changes under one key stand in line here, so that tries are lost
// to other replicas and actors only. The answer is kept in the same commit, if
// whoever asked may ask again; so is the audit record. When it returns, reads show
// the change.
func commit[T any](ctx context.Context, s *server, key string, build func() (*store.Unit, T, error)) (*T, error) {
	unlock, err := s.locks.lock(ctx, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	ses := asking(ctx)
	again := ses.again
	for range tries {
		now := s.renew(ses.caller)
		if now == nil {
			return nil, mariposa.Errorf(mariposa.Unauthorized, "the token is no longer valid")
		}
		ses.caller = now
		if ses.route.object == nil {
			if err := s.authorizeAgain(ctx, nil); err != nil {
				return nil, err
			}
		}
		var old *store.Record
		if again != nil { // another one with the same key may have been faster
			body, expired, err := s.answered(ctx, again)
			if err != nil {
				return nil, err
			}
			if body != nil {
				asking(ctx).header.Set(replayedHeader, "true")
				var first T
				return &first, json.Unmarshal(body, &first)
			}
			old = expired
		}
		unit, answer, err := build()
		if err != nil {
			return nil, err
		}
		if len(unit.Writes) > 0 {
			s.audit(ctx, unit, answer)
		}
		if again != nil {
			if err := s.keep(ctx, again, old, unit, answer); err != nil {
				return nil, err
			}
		}
		if len(unit.Writes) == 0 {
			return &answer, nil
		}
		unit.Urgent = true
		res := s.Store.Commit(ctx, *unit)[0]
		if res.Err == nil {
			s.await(ctx, res.Last)
			return &answer, nil
		}
		if errors.Is(res.Err, store.ErrNoCapacity) {
			return nil, s.overQuota(ctx, unit, res.Err)
		}
		if !errors.Is(res.Err, store.ErrConflict) {
			return nil, res.Err
		}
		if err := s.look(ctx, unit.Require); err != nil {
			return nil, err
		}
	}
	return nil, store.ErrConflict
}

// await waits a while until reads show a revision. A picture that lags is no
// reason to call a change failed.
func (s *server) await(ctx context.Context, revision int64) {
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	_ = s.Picture.Await(ctx, revision)
}

// look waits until the picture shows what a change ran into.
func (s *server) look(ctx context.Context, met []store.Require) error {
	seen, newest := s.Picture.Revision(), int64(0)
	for _, q := range met {
		r, err := s.Store.Get(ctx, q.Kind, q.ID)
		switch {
		case errors.Is(err, store.ErrNotFound): // removed: the picture will hear of that too
			if s.Picture.Get(q.Kind, q.ID) != nil {
				newest = max(newest, seen+1)
			}
		case err != nil:
			return err
		case !q.Kind.Shelved():
			newest = max(newest, r.Revision)
		}
	}
	s.await(ctx, newest)
	return nil
}

// edit is a change of a project: its Spec as it will be, with the task that
// carries the change out.
type edit struct {
	s       *server
	ctx     context.Context //nolint:containedctx // an edit lasts one attempt
	record  *store.Record
	spec    mariposa.ProjectSpec
	tasks   []queue.Task         // the open ones
	seen    map[string]int64     // their status revisions
	ended   map[string]bool      // those that this change ends
	task    *mariposa.TaskSpec   // that this change adds
	fresh   converge.Definitions // of the version that this change makes
	counter string               // the metadata key that it counts
	now     time.Time
	change
}

// edit begins a change of a project as it stands. Its Spec is written anew and
// required to be as read, so that of two changes at once one must look again.
func (s *server) edit(ctx context.Context, id string) (*edit, error) {
	r, tasks := s.asItStands(id)
	if r == nil {
		return nil, notFound("the project is gone")
	}
	if err := s.authorizeAgain(ctx, r); err != nil {
		return nil, err
	}
	e := &edit{s: s, ctx: ctx, record: r, spec: *r.Spec.(*mariposa.ProjectSpec), seen: map[string]int64{}, now: s.Clock.Now()}
	if e.spec.Deleting {
		return nil, conflict("project %s is being deleted", e.spec.Name)
	}
	for _, t := range tasks {
		e.tasks = append(e.tasks, queue.Task{ID: t.ID, Spec: t.Spec.(*mariposa.TaskSpec), Status: taskStatus(t)})
		e.seen[t.ID] = t.StatusRevision
	}
	e.answer = contract.Changed{ID: r.ID, Name: e.spec.Name, Version: e.spec.Version, Number: e.spec.Number}
	e.unit.Require = []store.Require{{Kind: mariposa.KindProject, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: -1}}
	e.begin()
	return e, nil
}

// asItStands is a project with its open tasks, both of the same moment: a task whose
// change has just become a part of the goal is no longer one that waits.
func (s *server) asItStands(id string) (*store.Record, []*store.Record) {
	r := s.Picture.Get(mariposa.KindProject, id)
	for r != nil {
		tasks, was := s.Picture.TasksOf(id), r
		if r = s.Picture.Get(mariposa.KindProject, id); r == was {
			return r, tasks
		}
	}
	return nil, nil
}

// begin begins the audit record of an edit.
func (e *edit) begin() {
	e.unit.Audit = []mariposa.Audit{{
		Kind: string(mariposa.KindProject), Object: e.record.ID, ObjectName: e.spec.Name, Project: e.record.ID, ProjectName: e.spec.Name,
		Organization: e.spec.Organization,
	}}
}

// idle reports whether no task of a person is open in a scope.
func (e *edit) idle(services []string) bool {
	return !slices.ContainsFunc(e.tasks, func(t queue.Task) bool {
		return t.Spec.Origin == mariposa.OriginUser && queue.Overlap(t.Spec.Services, services)
	})
}

// write adds a write whose event is the project's.
func (e *edit) write(w store.Write, kind string, why *mariposa.Reason) {
	w.Project = e.record.ID
	w.Event = mariposa.Event{Kind: kind, Project: e.record.ID, Actor: actor(e.ctx), Reason: why}
	if e.answer.Task != nil {
		w.Event.Task = *e.answer.Task
	}
	e.unit.Writes = append(e.unit.Writes, w)
}

// admit adds a task, if those already open allow it. Those it ends, end in the
// same commit.
func (e *edit) admit(t *mariposa.TaskSpec) error {
	open, over := slices.Clone(e.tasks), []queue.Task(nil)
	if t.Patch.Goal == mariposa.GoalDeleted { // a delete goes further than a stop, so it takes its place
		over = slices.DeleteFunc(slices.Clone(open), func(o queue.Task) bool { return o.Spec.Task != mariposa.TaskStop })
		open = slices.DeleteFunc(open, func(o queue.Task) bool { return o.Spec.Task == mariposa.TaskStop })
	}
	t.Project, t.ProjectName, t.Origin, t.Author, t.Created = e.record.ID, e.spec.Name, mariposa.OriginUser, actor(e.ctx), e.now
	admission, err := queue.Admit(open, t)
	if err != nil {
		return err
	}
	id := e.s.NewID()
	e.answer.Task, e.task = &id, t
	e.unit.Audit[0].Reason = firstOf(e.unit.Audit[0].Reason, reason.Sentence(t.Reason))
	for _, old := range append(over, admission.Terminate...) {
		if queue.Supersedes(old.Spec, t) && old.State() == mariposa.TaskActive {
			e.end(old) // by the planner, which writes its progress all the time
		} else {
			e.terminate(old, id)
		}
		e.answer.Ended = append(e.answer.Ended, e.ends(old, t))
	}
	e.write(store.Write{Kind: mariposa.KindTask, ID: id, Spec: t}, "task.queued", t.Reason)
	if len(t.Services) == 1 {
		e.unit.Writes[len(e.unit.Writes)-1].Event.Service = t.Services[0]
	}
	return nil
}

// ends tells whoever asks for a task of an older one that it ends. What had not begun is
// dropped, which nobody may miss; a newer version takes the place of what was to come.
func (e *edit) ends(old queue.Task, by *mariposa.TaskSpec) contract.EndedTask {
	doc := contract.EndedTask{ID: old.ID, Task: old.Spec.Task, Services: list(old.Spec.Services), State: mariposa.TaskQueued, Reason: reason.Sentence(old.Spec.Reason)}
	if old.Status != nil {
		doc.State = old.Status.State
	}
	if doc.State == mariposa.TaskQueued && by.Patch.Number == 0 && by.Patch.Goal != mariposa.GoalDeleted {
		doc.ContinueWith = "mariposa -j " + e.spec.Name + e.elsewhere() + " " + again(old.Spec)
	}
	return doc
}

func (e *edit) terminate(old queue.Task, by string) {
	st := mariposa.TaskStatus{}
	if old.Status != nil {
		st = *old.Status
	}
	st.State, st.Finished, st.EndedBy, st.Reason = mariposa.TaskTerminated, e.now, by, &mariposa.Reason{Code: mariposa.ReasonEndedBy, Subject: by}
	e.end(old)
	e.unit.Require = append(e.unit.Require, store.Require{Kind: mariposa.KindTask, ID: old.ID, SpecRevision: -1, StatusRevision: e.seen[old.ID]})
	e.write(store.Write{Kind: mariposa.KindTask, ID: old.ID, Status: &st, Archive: true}, "task.terminated", st.Reason)
	e.unit.Writes[len(e.unit.Writes)-1].Event.Task = old.ID
}

// end notes that a task ends with this change.
func (e *edit) end(old queue.Task) {
	if e.ended == nil {
		e.ended = map[string]bool{}
	}
	e.ended[old.ID] = true
}

// done reserves what the goal takes, writes the Spec and returns the change.
func (e *edit) done(why string) (*change, error) {
	if !e.spec.Deleting { // what is deleted gives back at its end
		if err := e.reserve(); err != nil {
			return nil, err
		}
	}
	spec := e.spec
	kind := "project.updated"
	if spec.Deleting {
		kind = "project.deleting"
	}
	e.write(store.Write{Kind: mariposa.KindProject, ID: e.record.ID, Spec: &spec}, kind, mariposa.Asked(why))
	return &e.change, nil
}

// locks let changes of one key happen one after the other, a few keys sharing
// each lock.
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
