package change

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/picture"
	"mariposa/queue"
	"mariposa/reason"
)

// joinOrWatch answers a submission that equals the newest version, so that its client can wait until
// that is in force: with the open task that brings it there, or with a new one that only waits for the
// rollouts that are not finished. The first task may have been taken over or terminated. It reports
// whether it adds a task.
func (e *edit) joinOrWatch(d draft, p mariposa.Patch) (bool, error) {
	newest, err := e.newest()
	if err != nil || newest == nil {
		return false, err
	}
	unfinished, err := e.unfinishedServices(newest, d.service)
	if err != nil {
		return false, err
	}
	covering, overlapping, err := e.findRollout(newest, d.service, unfinished)
	if err != nil {
		return false, err
	}
	if covering == nil && len(unfinished) > 0 {
		watch := mariposa.TaskSpec{
			Component: string(mariposa.CauseManifest), Task: mariposa.TaskReprovision, Origin: mariposa.OriginUser, Services: unfinished,
			Reason: mariposa.Asked(cmp.Or(d.message, fmt.Sprintf("version %d was submitted again", newest.Spec.Number))),
		}
		if a, err := queue.Admit(e.tasks, &watch); err == nil && len(a.Terminate) == 0 {
			return true, e.watch(&watch, newest, p)
		}
		covering = overlapping
	}
	if covering == nil {
		e.explainNoTask(newest, d.service)
		return false, nil
	}
	e.answer.Task, e.answer.Joined = &covering.ID, true
	e.answer.Reason = joinReasons(e.answer.Reason, e.awaitedThaw(covering.Spec))
	return false, e.explainOpen(covering.Spec.Patch.Number, newest, p)
}

// watch adds a task that waits for rollouts.
func (e *edit) watch(t *mariposa.TaskSpec, newest *picture.Version, p mariposa.Patch) error {
	e.answer.Reason = joinReasons(e.answer.Reason, fmt.Sprintf("version %d has this manifest already; the task waits for its rollout", newest.Spec.Number))
	if err := e.admit(t); err != nil {
		return err
	}
	return e.explainOpen(0, newest, p)
}

// findRollout returns the newest open task that brings the newest version into force: the one that
// rolls out its manifest, or else one that replaces instances of all its unfinished services. It also
// returns one that replaces instances of some of them. Other tasks do not fail if the rollout does.
func (e *edit) findRollout(newest *picture.Version, service string, unfinished []string) (covering, overlapping *queue.Task, err error) {
	for _, t := range slices.Backward(slices.SortedFunc(slices.Values(e.tasks), queue.CompareAge)) {
		if t.Spec.Origin != mariposa.OriginUser || !isAbout(t.Spec.Services, service) || t.Status != nil && t.Status.Fault != nil {
			continue
		}
		brings, err := e.bringsIntoForce(t.Spec, newest, service)
		if err != nil {
			return nil, nil, err
		}
		if brings && t.Spec.Component != string(mariposa.CauseMetadata) {
			return &t, nil, nil
		}
		replaces := t.Spec.Task == mariposa.TaskReprovision && len(unfinished) > 0
		if covering == nil && (brings || replaces && !slices.ContainsFunc(unfinished, func(name string) bool { return !isAbout(t.Spec.Services, name) })) {
			covering = &t
		}
		if overlapping == nil && replaces && queue.Overlap(t.Spec.Services, unfinished) {
			overlapping = &t
		}
	}
	return covering, overlapping, nil
}

// bringsIntoForce reports whether a task brings a version with a manifest, or with its definition of a
// service, into force. A task of values does if the manifest is not the goal yet.
func (e *edit) bringsIntoForce(t *mariposa.TaskSpec, newest *picture.Version, service string) (bool, error) {
	if t.Patch.Number == 0 {
		return false, nil
	}
	v, err := e.readVersion(t.Patch.Number)
	if err != nil || v == nil || !isSame(v, newest, service) {
		return false, err
	}
	st := e.record.Status()
	if t.Component != string(mariposa.CauseMetadata) || st == nil || st.Number == 0 {
		return true, nil
	}
	goal, err := e.readVersion(st.Number)
	return goal == nil || !isSame(goal, newest, service), err
}

// unfinishedServices returns the services whose definition in the newest version is the goal, and is
// still being rolled out: all of them, or the named one. Those that are held, or have failed, are not
// included.
func (e *edit) unfinishedServices(newest *picture.Version, service string) ([]string, error) {
	st := e.record.Status()
	if st == nil || st.Goal != mariposa.GoalStarted {
		return nil, nil
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(st.Services)) {
		ss := st.Services[name]
		if !isAbout([]string{name}, service) || ss.Removed || ss.Stopped || ss.Rollout == nil || ss.Rollout.Held || ss.Rollout.HasFailed() {
			continue
		}
		is, err := e.rollsOutDefinition(ss, newest, name)
		if err != nil {
			return nil, err
		}
		if is {
			names = append(names, name)
		}
	}
	return names, nil
}

// rollsOutDefinition reports whether a service's rollout brings its definition in the newest version.
// Others replace instances, or bring values.
func (e *edit) rollsOutDefinition(ss *mariposa.ServiceStatus, newest *picture.Version, name string) (bool, error) {
	goal, err := e.readVersion(ss.Number)
	if err != nil || goal == nil || !isSame(goal, newest, name) || ss.Rollout.From == 0 {
		return err == nil && goal != nil && isSame(goal, newest, name), err
	}
	from, err := e.readVersion(ss.Rollout.From)
	return err == nil && (from == nil || !isSame(from, newest, name)), err
}

// isAbout reports whether a scope includes a service; any if it is empty.
func isAbout(scope []string, service string) bool {
	return service == "" || queue.Overlap(scope, []string{service})
}

// isSame reports whether two versions have the same manifest, or define a service alike apart from
// values.
func isSame(a, b *picture.Version, service string) bool {
	if service == "" {
		return sameDefinition(a.Spec, b.Spec)
	}
	one, other := a.Services[service], b.Services[service]
	return one != nil && other != nil && mariposa.FormOf(one.Digest) == mariposa.FormOf(other.Digest) && one.Live == other.Live
}

// explainOpen adds to the answer what the newest version, and that of its open task, wait for.
func (e *edit) explainOpen(number int, newest *picture.Version, p mariposa.Patch) error {
	e.answer.Missing = newest.Manifest.Missing(newest.Values)
	if number > 0 && number != newest.Spec.Number {
		v, err := e.readVersion(number)
		if err != nil {
			return err
		}
		e.explainApproval(v)
	}
	e.explainApproval(newest)
	if p.Rolling != (mariposa.Amount{}) || p.Canary != (mariposa.Amount{}) {
		e.answer.Reason = joinReasons(e.answer.Reason, "the rollout was requested before: rolling and canary have no effect on it")
	}
	return nil
}

// explainApproval adds to the answer that a version waits for an approval.
func (e *edit) explainApproval(v *picture.Version) {
	if st := e.record.Status(); v == nil || st != nil && st.Number >= v.Spec.Number {
		return // it is in force: an approval that was withdrawn since does not stop it
	}
	if uses := v.NeedsApproval(e.record.Spec()); len(uses) > 0 {
		e.answer.NeedsApproval = union(e.answer.NeedsApproval, uses)
		e.answer.Reason = joinReasons(e.answer.Reason, reason.Sentence(mariposa.AwaitsApproval(v.Spec.Number, uses)))
	}
}

// explainNoTask says why a version that needs no task, or a service of it, is not what runs.
func (e *edit) explainNoTask(newest *picture.Version, service string) {
	e.explainApproval(newest)
	st := e.record.Status()
	if st == nil {
		return
	}
	if st.Goal == mariposa.GoalStopped {
		e.answer.Reason = joinReasons(e.answer.Reason, fmt.Sprintf("%s is stopped: start it with %s", e.spec.Name, e.command("project start")))
	}
	frozen := slices.DeleteFunc(st.FrozenServices(nil), func(name string) bool {
		r := st.Services[name].Rollout
		return !isAbout([]string{name}, service) || r == nil || r.Held
	})
	if len(frozen) > 0 {
		e.answer.Reason = joinReasons(e.answer.Reason, fmt.Sprintf("%s: frozen before the rollout was finished; thaw with %s", strings.Join(frozen, ", "), e.command("project thaw --service "+strings.Join(frozen, " --service "))))
	}
}
