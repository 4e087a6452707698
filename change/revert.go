package change

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"mariposa"
	"mariposa/converge"
	"mariposa/picture"
	"mariposa/queue"
	"mariposa/store"
)

// revert makes a version current again: it adds a new version with the manifest, the
// values and the hash of the old one. History is unchanged.
func (e *edit) revert(a Action) (string, error) {
	if !isText(a.Message) {
		return "", invalid("message must be UTF-8 text without NUL bytes")
	}
	target, err := e.revertTarget(a.Version)
	switch {
	case err != nil:
		return "", err
	case target == nil:
		return e.undoFirst(a)
	case target.Spec.Version == e.spec.Version && !e.isNewestDropped(): // it is the newest already, in force or on its way
		if scales := e.scalesLeft(a, target); len(scales) > 0 {
			return e.add(e.scale(scales))
		}
		return e.retryNewestRollouts(a, mariposa.Patch{Rolling: a.Rolling, Canary: a.Canary, KeepScale: true})
	}
	d, err := e.revertDraft(target)
	if err != nil {
		return "", err
	}
	d.message = cmp.Or(a.Message, "back to version "+strconv.Itoa(target.Spec.Number))
	p := mariposa.Patch{Rolling: a.Rolling, Canary: a.Canary, KeepScale: !a.WithScale, SkipCanary: true}
	if a.WithScale {
		p.Scale = scalesOf(target)
	}
	if err := e.revertScales(&p, a.Scale, func(name string) bool { return target.Services[name] != nil }); err != nil {
		return "", err
	}
	changed, err := e.addVersionTask(*d, p)
	if err != nil || !changed {
		return "", err
	}
	return d.message, nil
}

// scalesLeft returns the scales that a revert to the newest version still has to change:
// those that it names, and with_scale those of the manifest that are not in force.
func (e *edit) scalesLeft(a Action, newest *picture.Version) map[string]Scaling {
	scales := maps.Clone(a.Scale)
	if !a.WithScale || e.requireVersion() != nil {
		return scales
	}
	goals := e.goals()
	for name, n := range scalesOf(newest) {
		if _, named := scales[name]; !named && goals[name] != nil && goals[name].Scale != n {
			if scales == nil {
				scales = map[string]Scaling{}
			}
			scales[name] = Scaling{N: n}
		}
	}
	return scales
}

// undoFirst undoes the first version of a project that never completed one: it stops
// everything. A start rolls out the newest version again.
func (e *edit) undoFirst(a Action) (string, error) {
	if a.Rolling.N > 0 || a.Canary.N > 0 || a.WithScale || len(a.Scale) > 0 {
		return "", invalid("rolling, canary, scale, with_scale: no version of %s ever completed, so this revert stops the project and rolls nothing out", e.spec.Name)
	}
	t, err := e.setGoal(mariposa.TaskStop, mariposa.GoalStopped, nil)
	if err != nil {
		return "", err
	}
	e.answer.Reason = "no version of " + e.spec.Name + " ever completed: the project is stopped and its instances are removed"
	if t == nil {
		return "", nil
	}
	t.Component = string(mariposa.CauseRevert)
	t.Reason = mariposa.Asked(cmp.Or(a.Message, "version "+strconv.Itoa(e.spec.Number)+" is undone, and no earlier version ever completed"))
	return e.add(t, nil)
}

// retryNewestRollouts retries the rollouts of the newest version that have stopped by
// themselves. If there are none, it does nothing.
func (e *edit) retryNewestRollouts(a Action, p mariposa.Patch) (string, error) {
	m, err := e.retryNewest()
	if err != nil || m == nil {
		return "", err
	}
	p.Number = e.spec.Number
	t, err := e.completeTask(m, mariposa.TaskSpec{
		Component: string(mariposa.CauseRevert), Origin: mariposa.OriginUser, Supersedes: true,
		Reason: mariposa.Asked(cmp.Or(a.Message, "version "+strconv.Itoa(e.spec.Number)+" is retried")), Patch: p,
	})
	if err != nil {
		return "", err
	}
	e.answer.Reason = "version " + strconv.Itoa(e.spec.Number) + " is already the current version; its rollout is retried for " + strings.Join(converge.RetriedServices(e.record.Status()), ", ")
	return e.add(&t, nil)
}

// isNewestDropped reports whether the newest version was rolled back, or will never
// come into force because its task was terminated while it waited.
func (e *edit) isNewestDropped() bool {
	if st := e.record.Status(); st != nil && st.Number == e.spec.Number {
		return false
	}
	return !slices.ContainsFunc(e.tasks, func(t queue.Task) bool {
		return t.Spec.Patch.Number == e.spec.Number && (t.Status == nil || t.Status.Fault == nil)
	})
}

// hasNoVersion reports whether no version is in force or on its way.
func (e *edit) hasNoVersion() bool {
	st := e.record.Status()
	return (st == nil || st.Number == 0) && !slices.ContainsFunc(e.tasks, func(t queue.Task) bool { return t.Spec.Patch.Number > 0 })
}

// startAt starts the project at a version: the newest as it is, or an older one by a
// revert to it.
func (e *edit) startAt(a Action) (string, error) {
	if len(a.Services) > 0 {
		return "", invalid("services: not allowed with a version; a version starts as a whole")
	}
	target, err := e.revertTarget(a.Version) // the version is named here
	if err != nil {
		return "", err
	}
	p := mariposa.Patch{Goal: mariposa.GoalStarted, Rolling: a.Rolling, Canary: a.Canary, KeepScale: true, SkipCanary: true}
	reason := e.req.actor() + " asked to start version " + strconv.Itoa(target.Spec.Number)
	if target.Spec.Version != e.spec.Version {
		d, err := e.revertDraft(target)
		if err != nil {
			return "", err
		}
		d.message = reason
		if _, err := e.makeVersion(*d); err != nil {
			return "", err
		}
	} else if e.isNewestDropped() {
		if err := e.requireAllowed(target.Spec.Manifest, target.Services); err != nil {
			return "", err
		}
	}
	p.Number = e.spec.Number
	return e.add(&mariposa.TaskSpec{
		Task: mariposa.TaskStart, Component: "project", LiftsFreeze: e.mayLiftFreeze(), Reason: mariposa.Asked(reason), Patch: p,
	}, nil)
}

// revertTarget returns the version to go back to: the one that is named, or else the
// last that completed before the newest. It returns nil if none ever completed.
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

// lastCompleted returns the last completed version other than the newest. It reads a
// few at a time, because manifests may be large. An older version with the newest
// one's hash counts only while the newest, a revert to it, has rollouts to retry.
func (e *edit) lastCompleted() (*picture.Version, error) {
	q := store.Query{Kind: mariposa.KindVersion, Project: e.record.ID, Limit: 20}
	st := e.record.Status()
	ever := st != nil && st.Completed > 0
	again := len(converge.RetriedServices(st)) > 0
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
			return nil, conflict("no other version of %s ever completed: name the version to revert to", e.spec.Name)
		default:
			return nil, nil
		}
	}
}

// revertDraft returns the draft that restores a version.
func (e *edit) revertDraft(to *picture.Version) (*draft, error) {
	d := &draft{cause: mariposa.CauseRevert, bytes: to.Spec.Manifest, json: to.Spec.JSON, parsed: to.Manifest, from: to.Spec.Number, images: to.Spec.Images, refreshed: to.Spec.Refreshed}
	if e.spec.Metadata == 0 {
		return d, nil
	}
	now, err := e.c.Cache.Values(e.ctx, e.record.ID, e.spec.Metadata)
	if err != nil {
		return nil, err
	}
	d.values, err = e.keepProtected(now, now.Restore(to.Values, e.now))
	return d, err
}

// scalesOf returns the scales that a version specifies.
func scalesOf(v *picture.Version) map[string]int {
	scales := map[string]int{}
	for name, def := range v.Services {
		if def.Scale != nil {
			scales[name] = *def.Scale
		}
	}
	return scales
}
