package api

import (
	"slices"
	"strconv"

	"mariposa"
	"mariposa/contract"
	"mariposa/picture"
	"mariposa/queue"
	"mariposa/store"
)

// revert makes a version current again: a new version with the manifest and the
// values of an old one. It has the old one's hash, and history stays as it was.
func (e *edit) revert(a contract.Action, rolling, canary mariposa.Amount) (string, error) {
	if !isText(a.Message) {
		return "", invalid("message must be text")
	}
	target, err := e.target(a.Version)
	if err != nil {
		return "", err
	}
	if target.Spec.Version == e.spec.Version && !e.dropped() {
		return "", nil // it is the newest already, in force or about to be
	}
	d, err := e.back(target)
	if err != nil {
		return "", err
	}
	d.message = firstOf(a.Message, "back to version "+strconv.Itoa(target.Spec.Number))
	p := mariposa.Patch{Rolling: rolling, Canary: canary, KeepScale: !a.WithScale}
	if a.WithScale {
		p.Scale = scalesOf(target)
	}
	changed, err := e.bring(*d, p)
	if err != nil || !changed {
		return "", err
	}
	return d.message, nil
}

// dropped reports whether the newest version was taken back, or will never come
// into force because its task was terminated while it waited.
func (e *edit) dropped() bool {
	if st := statusOf(e.record); st != nil && st.Number == e.spec.Number {
		return false
	}
	return !slices.ContainsFunc(e.tasks, func(t queue.Task) bool {
		return t.Spec.Patch.Number == e.spec.Number && (t.Status == nil || t.Status.Fault == "")
	})
}

// nothing reports whether no version is in force, and none is on its way.
func (e *edit) nothing() bool {
	st := statusOf(e.record)
	return (st == nil || st.Number == 0) && !slices.ContainsFunc(e.tasks, func(t queue.Task) bool { return t.Spec.Patch.Number > 0 })
}

// startAt starts the project at a version: the newest as it is, an older one by
// making it current again.
func (e *edit) startAt(a contract.Action, rolling, canary mariposa.Amount) (string, error) {
	if len(a.Services) > 0 {
		return "", invalid("services: a version is started as a whole")
	}
	target, err := e.target(a.Version)
	if err != nil {
		return "", err
	}
	p := mariposa.Patch{Goal: mariposa.GoalStarted, Rolling: rolling, Canary: canary, KeepScale: true}
	reason := actor(e.ctx) + " asked for a start at version " + strconv.Itoa(target.Spec.Number)
	if target.Spec.Version != e.spec.Version {
		d, err := e.back(target)
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
		Task: mariposa.TaskStart, Component: "project", Version: e.spec.Version, Lifts: e.lifts(), Reason: reason, Patch: p,
	}, nil)
}

// target is the version to go back to: the one that is named, or the newest before
// the newest that was fully in force.
func (e *edit) target(ref string) (*picture.Version, error) {
	if ref == "" {
		return e.lastGood()
	}
	found, err := e.s.findVersion(e.ctx, e.record, ref)
	if err != nil {
		return nil, err
	}
	return e.s.Shelf.Version(e.ctx, e.record.ID, found.Spec.(*mariposa.VersionSpec).Number)
}

// lastGood looks through the versions a few at a time: manifests may be large.
func (e *edit) lastGood() (*picture.Version, error) {
	q := store.Query{Kind: mariposa.KindVersion, Project: e.record.ID, Limit: 20}
	for {
		page, err := e.s.Store.List(e.ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page {
			spec := page[i].Spec.(*mariposa.VersionSpec)
			st, _ := page[i].Status.(*mariposa.VersionStatus)
			if st != nil && !st.Completed.IsZero() && spec.Version != e.spec.Version {
				return e.s.Shelf.Version(e.ctx, e.record.ID, spec.Number)
			}
		}
		if len(page) < q.Limit {
			return nil, conflict("no other version of %s was ever fully in force: name the version to go back to", e.spec.Name)
		}
		q.Before = page[len(page)-1].ID
	}
}

// back is the draft that brings a version back.
func (e *edit) back(to *picture.Version) (*draft, error) {
	d := &draft{cause: mariposa.CauseRevert, bytes: to.Spec.Manifest, json: to.Spec.JSON, parsed: to.Manifest, from: to.Spec.Number}
	if e.spec.Metadata == 0 {
		return d, nil
	}
	now, err := e.s.Shelf.Values(e.ctx, e.record.ID, e.spec.Metadata)
	if err != nil {
		return nil, err
	}
	d.values = now.Become(to.Values, e.now)
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
