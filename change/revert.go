package change

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"mariposa"
	"mariposa/converge"
	"mariposa/picture"
	"mariposa/queue"
	"mariposa/store"
)

// revert makes a version current again: a new version with the manifest and the
// values of an old one. It has the old one's hash, and history stays as it was.
func (e *edit) revert(a Action) (string, error) {
	if !isText(a.Message) {
		return "", invalid("message must be text")
	}
	target, err := e.revertTarget(a.Version)
	switch {
	case err != nil:
		return "", err
	case target == nil:
		return e.undoFirst(a)
	case target.Spec.Version == e.spec.Version && !e.isNewestDropped(): // it is the newest already, in force or about to be
		return e.retryNewestRollouts(a, mariposa.Patch{Rolling: a.Rolling, Canary: a.Canary, KeepScale: true})
	}
	d, err := e.revertDraft(target)
	if err != nil {
		return "", err
	}
	d.message = cmp.Or(a.Message, "back to version "+strconv.Itoa(target.Spec.Number))
	p := mariposa.Patch{Rolling: a.Rolling, Canary: a.Canary, KeepScale: !a.WithScale}
	if a.WithScale {
		p.Scale = scalesOf(target)
	}
	changed, err := e.addVersionTask(*d, p)
	if err != nil || !changed {
		return "", err
	}
	return d.message, nil
}

// undoFirst takes the first version back, of a project of which none was ever fully
// in force: all of it is stopped, and nothing is left. A start brings the newest again.
func (e *edit) undoFirst(a Action) (string, error) {
	if a.Rolling.N > 0 || a.Canary.N > 0 || a.WithScale {
		return "", invalid("rolling, canary, with_scale: no version of %s was ever fully in force, so a revert leaves nothing to roll out", e.spec.Name)
	}
	t, err := e.setGoal(mariposa.TaskStop, mariposa.GoalStopped, nil)
	if err != nil {
		return "", err
	}
	e.answer.Reason = "no version of " + e.spec.Name + " was ever fully in force: it is stopped, and nothing of it is left"
	if t == nil {
		return "", nil
	}
	t.Component = string(mariposa.CauseRevert)
	t.Reason = mariposa.Asked(cmp.Or(a.Message, "version "+strconv.Itoa(e.spec.Number)+" is taken back, and none was fully in force before it"))
	return e.add(t, nil)
}

// retryNewestRollouts tries the rollouts of the newest version again that have stopped by
// themselves. Where there are none there is nothing to do.
func (e *edit) retryNewestRollouts(a Action, p mariposa.Patch) (string, error) {
	m, err := e.retryNewest()
	if err != nil || m == nil {
		return "", err
	}
	p.Number = e.spec.Number
	t, err := e.completeTask(m, mariposa.TaskSpec{
		Component: string(mariposa.CauseRevert), Version: e.spec.Version, Origin: mariposa.OriginUser, Supersedes: true,
		Reason: mariposa.Asked(cmp.Or(a.Message, "version "+strconv.Itoa(e.spec.Number)+" is tried again")), Patch: p,
	})
	if err != nil {
		return "", err
	}
	e.answer.Reason = "version " + strconv.Itoa(e.spec.Number) + " is that already, and is tried again for " + strings.Join(converge.Retried(e.record.Status()), ", ")
	return e.add(&t, nil)
}

// isNewestDropped reports whether the newest version was taken back, or will never come
// into force because its task was terminated while it waited.
func (e *edit) isNewestDropped() bool {
	if st := e.record.Status(); st != nil && st.Number == e.spec.Number {
		return false
	}
	return !slices.ContainsFunc(e.tasks, func(t queue.Task) bool {
		return t.Spec.Patch.Number == e.spec.Number && (t.Status == nil || t.Status.Fault == nil)
	})
}

// hasNoVersion reports whether no version is in force, and none is on its way.
func (e *edit) hasNoVersion() bool {
	st := e.record.Status()
	return (st == nil || st.Number == 0) && !slices.ContainsFunc(e.tasks, func(t queue.Task) bool { return t.Spec.Patch.Number > 0 })
}

// startAt starts the project at a version: the newest as it is, an older one by
// making it current again.
func (e *edit) startAt(a Action) (string, error) {
	if len(a.Services) > 0 {
		return "", invalid("services: a version is started as a whole")
	}
	target, err := e.revertTarget(a.Version) // it is named
	if err != nil {
		return "", err
	}
	p := mariposa.Patch{Goal: mariposa.GoalStarted, Rolling: a.Rolling, Canary: a.Canary, KeepScale: true}
	reason := e.req.actor() + " asked for a start at version " + strconv.Itoa(target.Spec.Number)
	if target.Spec.Version != e.spec.Version {
		d, err := e.revertDraft(target)
		if err != nil {
			return "", err
		}
		d.message = reason
		if _, err := e.makeVersion(*d); err != nil {
			return "", err
		}
	}
	p.Number = e.spec.Number
	return e.add(&mariposa.TaskSpec{
		Task: mariposa.TaskStart, Component: "project", Version: e.spec.Version, LiftsFreeze: e.mayLiftFreeze(), Reason: mariposa.Asked(reason), Patch: p,
	}, nil)
}

// revertTarget is the version to go back to: the one that is named, or the newest before
// the newest that was fully in force. Nil: none ever was.
func (e *edit) revertTarget(ref string) (*picture.Version, error) {
	if ref == "" {
		return e.lastCompleted()
	}
	found, err := e.c.FindVersion(e.ctx, e.record, ref)
	if err != nil {
		return nil, err
	}
	return e.c.Cache.Version(e.ctx, e.record.ID, found.Spec().Number)
}

// lastCompleted looks through the versions a few at a time: manifests may be large. The
// newest itself is meant where it makes an older one current again and has not got
// there yet.
func (e *edit) lastCompleted() (*picture.Version, error) {
	q := store.Query{Kind: mariposa.KindVersion, Project: e.record.ID, Limit: 20}
	st := e.record.Status()
	ever := st != nil && st.Completed > 0
	again := len(converge.Retried(st)) > 0
	for {
		page, err := e.c.Store.List(e.ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page {
			v := (*store.Version)(&page[i])
			spec, vs := v.Spec(), v.Status()
			if vs == nil || vs.Completed.IsZero() {
				continue
			}
			if ever = true; spec.Version != e.spec.Version || again && spec.Number != e.spec.Number {
				return e.c.Cache.Version(e.ctx, e.record.ID, spec.Number)
			}
		}
		switch {
		case len(page) == q.Limit:
			q.Before = page[len(page)-1].ID
		case ever:
			return nil, conflict("no other version of %s was ever fully in force: name the version to go back to", e.spec.Name)
		default:
			return nil, nil
		}
	}
}

// revertDraft is the draft that brings a version back.
func (e *edit) revertDraft(to *picture.Version) (*draft, error) {
	d := &draft{cause: mariposa.CauseRevert, bytes: to.Spec.Manifest, json: to.Spec.JSON, parsed: to.Manifest, from: to.Spec.Number}
	if e.spec.Metadata == 0 {
		return d, nil
	}
	now, err := e.c.Cache.Values(e.ctx, e.record.ID, e.spec.Metadata)
	if err != nil {
		return nil, err
	}
	d.values = now.Restore(to.Values, e.now)
	return d, nil
}

// scalesOf are the scales that a version names.
func scalesOf(v *picture.Version) map[string]int {
	scales := map[string]int{}
	for name, def := range v.Services {
		if def.Scale != nil {
			scales[name] = *def.Scale
		}
	}
	return scales
}
