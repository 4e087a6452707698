package converge

import (
	"reflect"
	"testing"

	"mariposa"
)

// A task finds the version, the scales, what is stopped and what is held. Only what it
// changed is recorded.
func TestWhatATaskFoundIsWhatItChanged(t *testing.T) {
	t.Parallel()
	goal := func(p mariposa.ProjectGoal, services map[string]*mariposa.ServiceStatus) *mariposa.ProjectStatus {
		return &mariposa.ProjectStatus{Goal: p, Number: 2, Services: services}
	}
	held := &mariposa.Rollout{Held: true, Limit: 3, From: 1}
	a, b := &mariposa.ServiceStatus{Scale: 4, Rollout: held}, &mariposa.ServiceStatus{Scale: 2, Stopped: true}
	old := goal(mariposa.GoalStarted, map[string]*mariposa.ServiceStatus{"a": a, "b": b, "c": {Removed: true, Scale: 9}})
	for _, c := range []struct {
		name string
		old  *mariposa.ProjectStatus
		next map[string]*mariposa.ServiceStatus
		goal mariposa.ProjectGoal
		want mariposa.Before
	}{
		{"nothing", old, old.Services, mariposa.GoalStarted, mariposa.Before{Number: 2}},
		{"before the first version", nil, old.Services, mariposa.GoalStarted, mariposa.Before{}},
		{"a scale", old, map[string]*mariposa.ServiceStatus{"a": {Scale: 8, Rollout: held}, "b": b}, mariposa.GoalStarted, mariposa.Before{Number: 2, Scale: map[string]int{"a": 4}}},
		{"a removal", old, map[string]*mariposa.ServiceStatus{"a": a, "b": {Scale: 2, Removed: true, Stopped: true}}, mariposa.GoalStarted, mariposa.Before{Number: 2, Scale: map[string]int{"b": 2}}},
		{"a stop of all", old, old.Services, mariposa.GoalStopped, mariposa.Before{Number: 2, Flipped: []string{"a"}}},
		{"a start", old, map[string]*mariposa.ServiceStatus{"a": a, "b": {Scale: 2}}, mariposa.GoalStarted, mariposa.Before{Number: 2, Flipped: []string{"b"}}},
		{
			"a start of all", goal(mariposa.GoalStopped, map[string]*mariposa.ServiceStatus{"a": a, "b": {Scale: 2}}),
			map[string]*mariposa.ServiceStatus{"a": a, "b": {Scale: 2}},
			mariposa.GoalStarted,
			mariposa.Before{Number: 2, FlippedAll: true},
		},
		{
			"a canary that goes on", old,
			map[string]*mariposa.ServiceStatus{"a": {Scale: 4, Rollout: &mariposa.Rollout{From: 1}}, "b": b},
			mariposa.GoalStarted,
			mariposa.Before{Number: 2, Held: map[string]mariposa.Hold{"a": {Count: 3, From: 1}}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := FindBefore(c.old, goal(c.goal, c.next)); !reflect.DeepEqual(*got, c.want) {
				t.Errorf("it found %+v, not %+v", *got, c.want)
			}
		})
	}
}
