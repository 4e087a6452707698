package api

import (
	"bytes"
	"slices"

	"mariposa"
	"mariposa/manifest"
	"mariposa/queue"
	"mariposa/store"
)

// waitingVersion is a version that comes into force after a thaw.
type waitingVersion struct {
	number   int
	services []string // those that it changes; none: the whole project
}

// awaitsThaw returns the version of a project that comes into force after a thaw: the
// newest that has a task, or a newer one that differs from it only in values and follows
// it without a task. For the past, it is not known which tasks were waiting.
func (v *viewer) awaitsThaw(p *store.Project) *waitingVersion {
	st := p.Status()
	if v.isPast() || st == nil || st.Number == p.Spec().Number || len(st.FrozenServices(nil)) == 0 {
		return nil
	}
	var newest *waitingVersion
	for _, t := range v.s.Picture.TasksOf(p.ID) {
		spec := t.Spec()
		if mariposa.StateOfTask(t.Status()) == mariposa.TaskQueued && queue.AwaitsThaw(spec) && spec.Patch.Number > st.Number &&
			(newest == nil || newest.number < spec.Patch.Number) {
			newest = &waitingVersion{spec.Patch.Number, spec.Services}
		}
	}
	return v.followedByValues(p, newest)
}

// followedByValues returns the newest version of a project if it differs from a waiting
// one, or from the one in force, only in values of frozen services. Otherwise it returns
// the waiting one.
func (v *viewer) followedByValues(p *store.Project, waiting *waitingVersion) *waitingVersion {
	spec, st := p.Spec(), p.Status()
	before := waitingVersion{number: st.Number}
	if waiting != nil {
		before = *waiting
	}
	if spec.Number <= max(before.number, st.RolledBack) {
		return waiting
	}
	was, is := v.version(p.ID, before.number), v.version(p.ID, spec.Number)
	if was == nil || is == nil || is.Spec.Cause != mariposa.CauseMetadata || !bytes.Equal(was.Spec.Manifest, is.Spec.Manifest) || len(is.NeedsApproval(spec)) > 0 {
		return waiting
	}
	var keys []string
	for _, d := range manifest.DiffValues(was.Values, is.Values) {
		keys = append(keys, d.Key)
	}
	users := is.Manifest.UsersOf(keys)
	switch {
	case waiting == nil && (len(users) == 0 || len(st.FrozenServices(users)) == 0):
		return nil
	case waiting == nil || len(waiting.services) > 0:
		users = slices.Concat(before.services, users)
	default:
		users = nil // the waiting one changes the whole project
	}
	return &waitingVersion{spec.Number, users}
}

// addToProject adds the version to the reason of a project with frozen services. The reason
// names a service that the version changes.
func (w *waitingVersion) addToProject(p *store.Project, why *mariposa.Reason) *mariposa.Reason {
	if w == nil || !why.Is(mariposa.ReasonFrozen) {
		return why
	}
	if frozen := p.Status().FrozenServices(w.services); len(frozen) > 0 && !slices.Contains(frozen, why.Service) {
		if of := p.Status().Services[frozen[0]].Reason; of.Is(mariposa.ReasonFrozen) {
			why = of.About(frozen[0]).AndMoreServices(why.MoreServices)
		}
	}
	return w.addTo(why)
}

// addTo adds the version to the reason for being frozen.
func (w *waitingVersion) addTo(why *mariposa.Reason) *mariposa.Reason {
	if w == nil || !why.Is(mariposa.ReasonFrozen) {
		return why
	}
	with := *why
	with.Version = w.number
	return &with
}
