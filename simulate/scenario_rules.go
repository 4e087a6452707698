package simulate

import (
	"slices"

	"mariposa"
	"mariposa/driver"
	"mariposa/store"
)

// This file implements the causes of failures in a scenario and the rules that apply at
// all times.

// setBroken makes all new instances of a service fail, or start normally again.
func (w *World) setBroken(service string, broken bool) {
	if w.broken == nil {
		w.broken = map[string]bool{}
	}
	w.broken[service] = broken
	w.note("%s is broken: %v", service, broken)
}

// failsNow reports whether an instance fails on start: its service is broken, or
// the scenario's cause applies.
func (w *World) failsNow(i driver.Instance) bool {
	if w.scenarioRun == nil {
		return false
	}
	r, known := w.checker.instances[i.ID]
	if !known {
		return false
	}
	spec := r.Spec()
	if w.broken[spec.ServiceName] {
		return true
	}
	why, some := w.scenarioRun.Fails[spec.ServiceName]
	if !some || why.Of != 0 && why.Of != w.checker.firstLike(spec) {
		return false
	}
	for _, id := range w.checker.sorted() {
		r := w.checker.instances[id]
		other := r.Spec()
		if other.ServiceName == why.While && other.Project == spec.Project && isWanted(r) && w.checker.firstLike(other) == why.Is {
			return true
		}
	}
	return false
}

// isWanted reports whether an instance is desired and has not ended. An instance that is
// being removed does not count, however long its removal takes.
func isWanted(r *store.Instance) bool {
	spec := r.Spec()
	switch mariposa.StateOf(spec, r.Status()) {
	case mariposa.StateFailed, mariposa.StateStopped, mariposa.StateDestroyed:
		return false
	}
	return spec.Goal == mariposa.GoalRunning
}

// checkAlways checks the scenario's rules that apply at all times: versions that must
// never get an instance, and services that must always have a running instance after
// their first one.
func (c *checker) checkAlways(spec *mariposa.InstanceSpec, made bool) {
	t := c.w.scenarioRun
	if t == nil {
		return
	}
	if made && len(t.Never) > 0 && slices.Contains(t.Never[spec.ServiceName], c.firstLike(spec)) {
		c.w.fail("%s was created from version %d", spec.Name, spec.Number)
	}
	if !slices.Contains(t.Serves, spec.ServiceName) {
		return
	}
	up := c.countRunning(spec.Project, spec.ServiceName)
	if up == 0 && c.w.serves[spec.ServiceName] {
		c.w.fail("no instance of %s runs any more", spec.ServiceName)
	}
	if c.w.serves == nil {
		c.w.serves = map[string]bool{}
	}
	c.w.serves[spec.ServiceName] = up > 0
}
