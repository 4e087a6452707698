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

// joinTask answers a submission that equals the newest version: with the newest open task that is to
// bring its manifest into force, or with why there is none. Other tasks may do the work as well, if
// that one was terminated or taken over; they are not about the manifest.
func (e *edit) joinTask(d draft, p mariposa.Patch) error {
	newest, err := e.newest()
	if err != nil || newest == nil {
		return err
	}
	for _, t := range slices.Backward(slices.SortedFunc(slices.Values(e.tasks), queue.CompareAge)) {
		if t.Spec.Origin != mariposa.OriginUser || !isAbout(t.Spec.Services, d.service) || t.Status != nil && t.Status.Fault != nil {
			continue
		}
		brings, err := e.bringsIntoForce(t.Spec, newest, d.service)
		if err != nil {
			return err
		}
		if brings {
			return e.join(t, newest, p)
		}
	}
	e.explainNoTask(newest, d.service)
	return nil
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

// join answers with an open task, and with what that and the newest version wait for.
func (e *edit) join(t queue.Task, newest *picture.Version, p mariposa.Patch) error {
	e.answer.Task, e.answer.Joined = &t.ID, true
	e.answer.Missing = newest.Manifest.Missing(newest.Values)
	e.answer.Reason = joinReasons(e.answer.Reason, e.awaitedThaw(t.Spec))
	if number := t.Spec.Patch.Number; number != newest.Spec.Number {
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
