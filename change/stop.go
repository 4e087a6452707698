package change

import (
	"fmt"
	"slices"
	"strings"

	"mariposa"
)

// stopVersion stops the instances of one version and leaves others alone. It does
// nothing if there are none.
func (e *edit) stopVersion(a Action) (*mariposa.TaskSpec, error) {
	version, err := e.c.FindVersion(e.ctx, e.record, a.Version)
	if err != nil {
		return nil, err
	}
	number := version.Spec().Number
	scope, err := e.scope(a.Services)
	if err != nil {
		return nil, err
	}
	t := &mariposa.TaskSpec{
		Task: mariposa.TaskStop, Component: "project", LiftsFreeze: e.mayLiftFreeze(),
		Patch: mariposa.Patch{StopVersion: number},
	}
	goal := e.record.Status()
	if goal == nil {
		return nil, conflict("project %s has not been planned yet, so there is nothing to stop: try again shortly", e.spec.Name)
	}
	view, err := e.view(goal)
	if err != nil {
		return nil, err
	}
	for name, is := range view.Running() {
		if at, _ := is.At(number); at > 0 && (len(scope) == 0 || slices.Contains(scope, name)) {
			t.Services = append(t.Services, name)
		}
	}
	if len(t.Services) == 0 {
		e.answer.Reason = fmt.Sprintf("no instance runs version %d", number)
		return nil, nil
	}
	slices.Sort(t.Services)
	t.Reason = mariposa.Asked(fmt.Sprintf("%s asked for a stop of version %d of %s", e.req.actor(), number, strings.Join(t.Services, ", ")))
	return t, nil
}
