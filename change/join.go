package change

import (
	"fmt"
	"slices"
	"strings"

	"mariposa"
	"mariposa/picture"
	"mariposa/queue"
	"mariposa/reason"
)

// joinOrContinue answers a submission that equals the newest version. It returns a draft if rollouts
// of that are to go on after a thaw.
func (e *edit) joinOrContinue(d draft, p mariposa.Patch) (*draftResult, error) {
	if joined, err := e.joinTask(d, p); joined || err != nil {
		return nil, err
	}
	m, err := e.continueFrozen(d)
	if m != nil || err != nil {
		return m, err
	}
	return nil, e.explainNoTask(d.service)
}

// joinTask answers a submission that equals the newest version with the open task that brings it into
// force, so that the client can wait for it. That may be another task than that of the first
// submission, which may have been taken over. It reports whether there is one.
func (e *edit) joinTask(d draft, p mariposa.Patch) (bool, error) {
	newest, err := e.newest()
	if err != nil || newest == nil {
		return false, err
	}
	var found *queue.Task
	for _, t := range slices.Backward(slices.SortedFunc(slices.Values(e.tasks), queue.CompareAge)) {
		if !mayRollOut(t.Spec, d.service) {
			continue
		}
		brings, err := e.bringsIntoForce(t.Spec, newest, d.service)
		if err != nil {
			return false, err
		}
		if brings && t.Spec.Component != string(mariposa.CauseMetadata) {
			found = &t
			break
		}
		if found == nil && (brings || e.hasUnfinished(t.Spec.Services, d.service)) {
			found = &t
		}
	}
	if found == nil {
		return false, nil
	}
	return true, e.join(*found, newest, p)
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
	if t.Component != string(mariposa.CauseMetadata) || st == nil {
		return true, nil
	}
	goal, err := e.readVersion(st.Number)
	return goal == nil || !isSame(goal, newest, service), err
}

// mayRollOut reports whether a task of a user may bring a service into force; any if it is empty.
func mayRollOut(t *mariposa.TaskSpec, service string) bool {
	isHold := t.Task == mariposa.TaskFreeze && (t.Patch.Mode == mariposa.ModeFreeze || t.Patch.Mode == mariposa.ModePause)
	return t.Origin == mariposa.OriginUser && t.Task != mariposa.TaskStop && !isHold && isAbout(t.Services, service)
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
	return one != nil && other != nil && mariposa.FormOf(one.Digest) == mariposa.FormOf(other.Digest)
}

// hasUnfinished reports whether a rollout in a scope is not finished: of a service, or of any if that
// is empty.
func (e *edit) hasUnfinished(scope []string, service string) bool {
	if service != "" {
		scope = []string{service} // which is in the scope
	}
	return e.anyService(scope, isUnfinished)
}

func isUnfinished(ss *mariposa.ServiceStatus) bool { return ss.Rollout != nil && !ss.Rollout.Held }

// join answers with an open task, and with what that and the newest version wait for.
func (e *edit) join(t queue.Task, newest *picture.Version, p mariposa.Patch) error {
	e.answer.Task, e.answer.Joined = &t.ID, true
	e.answer.Missing = newest.Manifest.Missing(newest.Values)
	if number := t.Spec.Patch.Number; number > 0 && number != newest.Spec.Number {
		v, err := e.readVersion(number)
		if err != nil {
			return err
		}
		e.explainApproval(v)
	}
	e.explainApproval(newest)
	ignored := ""
	if p.Rolling != (mariposa.Amount{}) || p.Canary != (mariposa.Amount{}) {
		ignored = "the rollout was requested before: rolling and canary have no effect on it"
	}
	e.answer.Reason = joinReasons(e.answer.Reason, e.awaitedThaw(t.Spec), ignored)
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

// continueFrozen resubmits the newest version if rollouts of it were frozen before they were
// finished, and the task of the rollout has ended. The new task waits for the thaw. A rollout that has
// failed is not retried by that. It returns nil if there are none.
func (e *edit) continueFrozen(d draft) (*draftResult, error) {
	goal := e.record.Status()
	if goal == nil || goal.Goal != mariposa.GoalStarted || goal.Number != e.spec.Number {
		return nil, nil
	}
	var frozen []string
	for _, name := range goal.FrozenServices(nil) {
		ss := goal.Services[name]
		if isAbout([]string{name}, d.service) && isUnfinished(ss) && !ss.Rollout.HasFailed() && !ss.Stopped && !ss.Paused {
			frozen = append(frozen, name)
		}
	}
	newest, err := e.newest()
	if err != nil || newest == nil || len(frozen) == 0 {
		return nil, err
	}
	m, err := e.resubmission(newest)
	if m != nil {
		m.continued, e.answer.Missing = frozen, m.missing
	}
	return m, err
}

// explainNoTask says why a version that needs no task, or a service of it, is not what runs.
func (e *edit) explainNoTask(service string) error {
	newest, err := e.newest()
	if err != nil {
		return err
	}
	e.explainApproval(newest)
	st := e.record.Status()
	if st == nil {
		return nil
	}
	if st.Goal == mariposa.GoalStopped {
		e.answer.Reason = joinReasons(e.answer.Reason, fmt.Sprintf("%s is stopped: start it with %s", e.spec.Name, e.command("project start")))
	}
	frozen := slices.DeleteFunc(st.FrozenServices(nil), func(name string) bool {
		return !isAbout([]string{name}, service) || !isUnfinished(st.Services[name])
	})
	if len(frozen) > 0 {
		e.answer.Reason = joinReasons(e.answer.Reason, fmt.Sprintf("%s: frozen before the rollout was finished; thaw with %s", strings.Join(frozen, ", "), e.command("project thaw --service "+strings.Join(frozen, " --service "))))
	}
	return nil
}
