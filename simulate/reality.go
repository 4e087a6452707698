package simulate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mariposa"
	"mariposa/reason"
	"mariposa/simulate/scenario"
)

// desiredInstances lists the ids of a service's instances that should run.
func (c *checker) desiredInstances(service string) []string {
	var ids []string
	for id, r := range c.instances {
		if spec := r.Spec(); spec.ServiceName == service && spec.Goal == mariposa.GoalRunning {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// reality summarizes the instances of each service in the format of scenarios. Apart from
// kept instances, nothing else may exist.
func (c *checker) reality() map[string]string {
	count := map[string]map[int]int{}
	for _, id := range c.sorted() {
		r := c.instances[id]
		spec, status := r.Spec(), r.Status()
		if spec.Kept {
			continue
		}
		if state := mariposa.StateOf(spec, status); spec.Goal != mariposa.GoalRunning || state != mariposa.StateRunning {
			c.w.fail("%s is left over, %s with the goal %s", spec.Name, state, spec.Goal)
		}
		if count[spec.ServiceName] == nil {
			count[spec.ServiceName] = map[int]int{}
		}
		count[spec.ServiceName][c.firstLike(spec)]++
	}
	out := map[string]string{}
	for name, versions := range count {
		var parts []string
		for _, number := range slices.Sorted(maps.Keys(versions)) {
			parts = append(parts, fmt.Sprintf("%d of v%d", versions[number], number))
		}
		out[name] = strings.Join(parts, ", ")
	}
	return out
}

// firstLike returns the oldest version with the same definition as an instance.
func (c *checker) firstLike(spec *mariposa.InstanceSpec) int {
	for number := 1; number <= spec.Number; number++ {
		def, err := c.w.definition(spec.Project, number, spec.ServiceName)
		if err != nil {
			c.w.fail("read version %d: %v", number, err)
		}
		if def != nil && def.Digest == spec.Digest && def.Live == spec.Live {
			return number
		}
	}
	return 0
}

// checkStatuses compares the status of services with the scenario's. Deleted
// projects have none.
func (c *checker) checkStatuses(sc scenario.Scenario) {
	last := sc.Actions[len(sc.Actions)-1]
	if gone := last.Do == "delete"; gone != (len(c.projects) == 0) {
		c.w.fail("%d projects exist at the end", len(c.projects))
	}
	for _, r := range c.projects {
		st := r.Status()
		for name, ss := range st.Services {
			if want := sc.StatusOf(name); ss.Status != want {
				c.w.fail("%s is %s (%s), want %s", name, ss.Status, reason.Sentence(ss.Reason), want)
			}
		}
	}
}

// calm is how long nothing may change before an undesired state counts as final. It is
// longer than any wait that ends by itself.
const calm = 20 * time.Second

// unsettled returns what may still change although no task is open: after a task has
// failed, the rest of its changes continues, and the remains on an unreachable node are
// removed without a task.
func (c *checker) unsettled() string {
	for _, id := range c.sorted() {
		if spec := c.instances[id].Spec(); spec.Goal == mariposa.GoalGone && !spec.Kept && c.w.now.Sub(c.changed) < calm {
			return spec.Name + " is still to be removed"
		}
	}
	for _, r := range c.projects {
		st := r.Status()
		switch {
		case st == nil:
			return "nothing is planned yet"
		case st.Status == mariposa.StatusConverged, st.Status == mariposa.StatusStopped:
		case st.Status == mariposa.StatusBackingOff:
			return reason.Sentence(st.Reason)
		case c.w.now.Sub(c.changed) < calm:
			return "something has just changed"
		case c.w.now.Sub(c.w.started) < calm:
			return "a server has just started, and may not have looked at it yet"
		}
	}
	return ""
}
