package change

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"mariposa"
	"mariposa/converge"
	"mariposa/queue"
)

// undoCommands returns the commands that restore what an active task found when it
// began, in order. Its scope is frozen by then, so they also thaw it. There are none if
// nothing can be undone: the task only retries, cleans up or follows, or it is a thaw,
// whose undo is the freeze that replaces it.
func (e *edit) undoCommands(t queue.Task) ([]string, error) {
	spec, p := t.Spec, t.Spec.Patch
	thaw := "project thaw" + serviceWords(spec.Services)
	if spec.Origin == mariposa.OriginMariposa {
		return e.undoOwn(spec, thaw), nil
	}
	if t.Status == nil || t.Status.Before == nil { // it changed no goal
		return nil, nil
	}
	before := t.Status.Before
	flipped := before.Flipped
	if before.FlippedAll {
		flipped = spec.Services
	}
	flips := before.FlippedAll || len(flipped) > 0
	switch {
	case p.StopVersion > 0 && flips && len(before.Scale) > 0: // some services were stopped, others have fewer instances
		names := slices.Concat(flipped, slices.Sorted(maps.Keys(before.Scale)))
		return thawRest(spec, names, "project start"+serviceWords(flipped), "project scale "+scaleWords(before.Scale, nil)), nil
	case spec.Task == mariposa.TaskStop && flips:
		return thawRest(spec, flipped, "project start"+serviceWords(flipped)), nil
	case before.Number == 0 || p.Number > 0 && e.record.Status().Completed == 0: // there is no version to go back to
		return []string{"project stop"}, nil
	case p.Goal == mariposa.GoalStarted && flips && p.Number > 0 && p.Number != before.Number:
		return []string{"project stop" + serviceWords(flipped) + " --wait", revertWords(before.Number, before.Scale)}, nil
	case p.Goal == mariposa.GoalStarted && flips:
		return thawRest(spec, flipped, "project stop"+serviceWords(flipped)), nil
	case len(before.Held) > 0:
		return e.undoHeld(before, thaw)
	case p.Number > 0 && p.Number != before.Number: // a new version waits for the thaw, so the revert comes first
		return []string{revertWords(before.Number, before.Scale), thaw}, nil
	case len(before.Scale) > 0:
		return thawRest(spec, slices.Sorted(maps.Keys(before.Scale)), "project scale "+scaleWords(before.Scale, nil)), nil
	case len(p.Reprovision) > 0:
		return e.undoReprovision(spec), nil
	}
	return nil, nil
}

// undoOwn undoes a task of Mariposa's own. After a repair, what runs becomes the goal.
// A version that is being rolled back comes into force again.
func (e *edit) undoOwn(spec *mariposa.TaskSpec, thaw string) []string {
	switch st := e.record.Status(); {
	case spec.Component == "repair":
		return []string{"project accept" + serviceWords(spec.Services), thaw}
	case spec.Component == "rollback" && st != nil && st.RolledBack > 0:
		return []string{revertWords(st.RolledBack, nil), thaw}
	}
	return nil
}

// undoReprovision undoes a reprovision: the replaced instances are as good as the old
// ones, so the rest is left as it is. Accepting the running state ends the rollout; the
// scale command, which lifts the freeze, does not change the scale.
func (e *edit) undoReprovision(spec *mariposa.TaskSpec) []string {
	st := e.record.Status()
	scales := map[string]int{}
	for _, name := range spec.Patch.Reprovision {
		if ss := st.Services[name]; ss != nil && !ss.Removed && !ss.Stopped && st.Goal == mariposa.GoalStarted {
			scales[name] = ss.Scale
		}
	}
	if len(scales) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(scales))
	return thawRest(spec, names, "project accept"+serviceWords(names), "project scale "+scaleWords(scales, nil))
}

// thawRest adds a thaw to commands that lift the freeze of some services only; none
// means all.
func thawRest(spec *mariposa.TaskSpec, lifted []string, commands ...string) []string {
	isLifted := func(name string) bool { return slices.Contains(lifted, name) }
	if len(lifted) == 0 || len(spec.Services) > 0 && !slices.ContainsFunc(spec.Services, func(name string) bool { return !isLifted(name) }) {
		return commands
	}
	return append(commands, "project thaw"+serviceWords(spec.Services))
}

// undoHeld undoes a task that continued or replaced held rollouts: it goes back to the
// version before the canary, and then to as many canaries as there were. That includes
// the canaries of other services, which the task left alone.
func (e *edit) undoHeld(before *mariposa.Before, thaw string) ([]string, error) {
	from := before.Held[slices.Min(slices.Collect(maps.Keys(before.Held)))].From
	held, finished, err := e.splitHeld(before, from)
	if err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(held))
	count := held[names[0]].Count
	for _, name := range names {
		count = min(count, held[name].Count)
	}
	if from == 0 || count == 0 {
		return []string{revertWords(before.Number, before.Scale), thaw}, nil
	}
	commands := []string{
		revertWords(from, before.Scale), thaw + " --wait",
		fmt.Sprintf("project revert %d --canary %d --wait", before.Number, count),
	}
	for _, name := range names {
		if more := held[name].Count - count; more > 0 {
			commands = append(commands, fmt.Sprintf("project reprovision --service %s --count %d --wait", name, more))
		}
	}
	if len(finished) > 0 {
		commands = append(commands, "project reprovision"+serviceWords(finished))
	}
	return commands, nil
}

// splitHeld splits the services that differ between a version and the one before a task
// into those that were held, by that task or still are, and those that were rolled out to
// their end.
func (e *edit) splitHeld(before *mariposa.Before, from int) (held map[string]mariposa.Hold, finished []string, err error) {
	changed, err := e.changedBetween(from, before.Number)
	if err != nil {
		return nil, nil, err
	}
	held = maps.Clone(before.Held)
	for _, name := range changed {
		if _, known := held[name]; known {
			continue
		}
		ss := e.record.Status().Services[name]
		switch {
		case ss == nil || ss.Rollout == nil || !ss.Rollout.Held || ss.Rollout.From != from:
			finished = append(finished, name)
		case converge.HoldOf(ss.Rollout).Count > 0:
			held[name] = converge.HoldOf(ss.Rollout)
		}
	}
	return held, finished, nil
}

// changedBetween returns the services whose instances differ between two versions and
// of which a canary would be held, sorted.
func (e *edit) changedBetween(from, to int) ([]string, error) {
	old, err := e.definitions(from)
	if err != nil {
		return nil, err
	}
	next, err := e.definitions(to)
	if err != nil {
		return nil, err
	}
	var names []string
	for name, def := range next {
		if was := old[name]; was != nil && (mariposa.FormOf(was.Digest) != mariposa.FormOf(def.Digest) || was.Live != def.Live) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// revertWords is the command that goes back to a version, with the scales that were in
// force.
func revertWords(number int, scales map[string]int) string {
	var b strings.Builder
	b.WriteString("project revert " + strconv.Itoa(number))
	for _, name := range slices.Sorted(maps.Keys(scales)) {
		fmt.Fprintf(&b, " --scale %s=%d", name, scales[name])
	}
	return b.String()
}

// chain joins commands about the project into one line for a shell; nil if there are
// none.
func (e *edit) chain(commands []string) *string {
	if len(commands) == 0 {
		return nil
	}
	lines := make([]string, len(commands))
	for i, words := range commands {
		lines[i] = e.command(words)
	}
	line := strings.Join(lines, " && ")
	return &line
}

// revertScales adds the scales that a revert names to its patch.
func (e *edit) revertScales(p *mariposa.Patch, scales map[string]Scaling, has func(service string) bool) error {
	for _, name := range slices.Sorted(maps.Keys(scales)) {
		switch ask := scales[name]; {
		case !has(name):
			return notFound("the target version of the revert has no service %q", shorten(name))
		case ask.By:
			return invalid("scale: a revert needs an absolute scale such as %s=3, not a difference", name)
		case ask.N > MaxScale:
			return invalid("scale: %s must be between 0 and %d", name, MaxScale)
		default:
			ask.into(p, name)
		}
	}
	return nil
}

// scaledServices returns the services whose scale a patch changes, sorted.
func (e *edit) scaledServices(p mariposa.Patch) []string {
	goals := e.goals()
	var names []string
	for name, n := range p.Scale {
		if ss := goals[name]; ss == nil || ss.Scale != n {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, cmp.Compare)
	return names
}
