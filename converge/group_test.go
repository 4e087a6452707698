package converge

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mariposa"
)

// groupOf returns a service whose instances have been up for an hour, each on a node of its own,
// and are now as the words say, slot by slot.
func groupOf(t *testing.T, words string, more ...func(*mariposa.Service)) *world {
	t.Helper()
	states := strings.Fields(words)
	w := runningOn(t, len(states), def("web", "one", len(states), more...))
	w.wait(time.Hour)
	for n, state := range states {
		id := fmt.Sprintf("web.%d-%d", n+1, n+1)
		i := w.instances[id]
		switch state {
		case "up": // without checks
		case "healthy":
			w.setHealth(id, mariposa.HealthHealthy)
		case "unhealthy": // after it has served
			w.setHealth(id, mariposa.HealthUnhealthy)
		case "unproven": // it runs, and its checks have not passed yet
			w.startUnproven(id)
		case "never": // it did not pass within its grace
			w.startUnproven(id)
			w.setHealth(id, mariposa.HealthUnhealthy)
			st := *w.instances[id].Status
			st.Served, st.Checks = false, []mariposa.CheckStatus{{Name: "http :80/", Health: mariposa.HealthUnhealthy}}
			w.set(id, i.Spec, &st)
		case "pending": // its node has not answered yet
			w.set(id, i.Spec, nil)
		case "provisioning":
			w.set(id, i.Spec, &mariposa.InstanceStatus{State: mariposa.StateProvisioning, Since: w.now, Generation: i.Spec.Generation})
		case "failed":
			w.fail(id)
		case "leaving":
			spec := *i.Spec
			spec.Goal, spec.Generation = mariposa.GoalGone, spec.Generation+1
			w.set(id, &spec, i.Status)
		case "lost":
			w.loseNode(i.Spec.Node)
		default:
			t.Fatalf("what is %s?", state)
		}
	}
	return w
}

// A group of instances converges to its count: which states are waited for, which are replaced,
// what happens to those that are too many, and which reasons say so.
func TestAGroupConverges(t *testing.T) {
	t.Parallel()
	scale := func(n int) func(*world) { return func(w *world) { w.scale("web", n) } }
	freeze := func(w *world) { w.mode(mariposa.ModeFreeze, "web") }
	after := func(d time.Duration) func(*world) { return func(w *world) { w.step(); w.wait(d) } }
	for _, c := range []struct {
		name   string
		states string
		more   func(*mariposa.Service)
		then   func(*world)
		steps  string // separated by commas
		says   string // part of the reason
	}{
		{name: "without checks, running is enough", states: "up up up"},
		{name: "all are healthy", states: "healthy healthy healthy"},
		{name: "one that was just assigned is waited for", states: "healthy pending healthy"},
		{name: "one that is being created is waited for", states: "healthy provisioning healthy"},
		{name: "one whose checks have not passed yet is waited for", states: "healthy unproven healthy"},
		{name: "one that is being created for long is still waited for: its node says when it fails", states: "healthy provisioning healthy", then: after(30 * time.Minute)},
		{name: "one whose checks have not passed for long is still waited for: its node counts the grace", states: "healthy unproven healthy", then: after(30 * time.Minute)},
		{name: "all are waited for", states: "unproven unproven unproven"},
		{name: "one that has failed is replaced at once", states: "healthy failed healthy", steps: "create web.2 v1, remove web.2-2"},
		{name: "one that never passed its checks is replaced at once", states: "healthy never healthy", steps: "create web.2 v1, remove web.2-2"},
		{name: "one that served and is unhealthy gets a successor first", states: "healthy unhealthy healthy", steps: "create web.2 v1", says: "web.2-2 is not healthy (http :80/ answered 503, 3 times in 15 s); it is removed once its successor is healthy"},
		{name: "with stop-first, an unhealthy one goes first", states: "healthy unhealthy healthy", more: stopFirst, steps: "remove web.2-2"},
		{name: "one that leaves does not count", states: "healthy leaving healthy", steps: "create web.2 v1"},
		{name: "one on a lost node is waited for", states: "healthy lost healthy", says: "web.2-2 is on node n2, which has been unknown since 07:00:00 UTC; it is replaced at 07:01:00 UTC"},
		{name: "one on a node that stays lost is replaced", states: "healthy lost healthy", then: after(time.Hour), steps: "create web.2 v1"},
		{name: "all that have failed are replaced, if it is the first time", states: "failed failed failed", steps: "create web.1 v1, remove web.1-1, create web.2 v1, remove web.2-2, create web.3 v1, remove web.3-3"},
		{name: "all that never passed have failed", states: "never never never", steps: "create web.1 v1, remove web.1-1, create web.2 v1, remove web.2-2, create web.3 v1, remove web.3-3"},
		{name: "if none is healthy, one is tried", states: "unhealthy unhealthy unhealthy", steps: "create web.1 v1", says: "web.1-1 is not healthy (http :80/ answered 503, 3 times in 15 s); it is removed once its successor is healthy"},
		{name: "if none is healthy, one is tried, whatever the batch is", states: "unhealthy unhealthy unhealthy", more: rolling("100%"), steps: "create web.1 v1", says: "web.1-1 is not healthy (http :80/ answered 503, 3 times in 15 s); it is removed once its successor is healthy"},
		{name: "two of three are unhealthy, one at a time", states: "unhealthy unhealthy healthy", more: rolling("1"), steps: "create web.1 v1", says: "web.1-1 is not healthy (http :80/ answered 503, 3 times in 15 s); it is removed once its successor is healthy"},
		{name: "two of three are unhealthy, two at a time", states: "unhealthy unhealthy healthy", more: rolling("2"), steps: "create web.1 v1, create web.2 v1", says: "web.1-1 is not healthy (http :80/ answered 503, 3 times in 15 s); it is removed once its successor is healthy"},
		{name: "one that has failed is replaced before an unhealthy one", states: "unhealthy failed healthy", steps: "create web.2 v1, remove web.2-2", says: "web.1-1 is not healthy (http :80/ answered 503, 3 times in 15 s); it is replaced once others of the service are healthy"},
		{name: "more are wanted", states: "healthy healthy", then: scale(4), steps: "create web.3 v1, create web.4 v1"},
		{name: "more are wanted while one is being created", states: "healthy provisioning", then: scale(4), steps: "create web.3 v1, create web.4 v1"},
		{name: "more are wanted while one is unproven", states: "healthy unproven", then: scale(4), steps: "create web.3 v1, create web.4 v1"},
		{name: "more are wanted while all are unhealthy: they are made, and nothing else", states: "unhealthy unhealthy unhealthy", then: scale(5), steps: "create web.4 v1, create web.5 v1", says: "web.1-1 is not healthy (http :80/ answered 503, 3 times in 15 s); it is replaced once others of the service are healthy"},
		{name: "fewer are wanted: the oldest go", states: "healthy healthy healthy healthy", then: scale(2), steps: "remove web.1-1, remove web.2-2"},
		{name: "fewer are wanted: the unhealthy one goes", states: "healthy unhealthy healthy healthy", then: scale(3), steps: "remove web.2-2"},
		{name: "fewer are wanted: the unproven one goes", states: "healthy unproven healthy healthy", then: scale(3), steps: "remove web.2-2"},
		{name: "fewer are wanted: the one that is being created goes", states: "healthy provisioning healthy healthy", then: scale(3), steps: "remove web.2-2"},
		{name: "fewer are wanted: the one that was just assigned goes", states: "healthy pending healthy healthy", then: scale(3), steps: "remove web.2-2"},
		{name: "fewer are wanted: the failed one is not replaced", states: "healthy failed healthy healthy", then: scale(3), steps: "remove web.2-2"},
		{name: "fewer are wanted: one leaves already", states: "healthy leaving healthy healthy", then: scale(3)},
		{name: "fewer are wanted: the lost one goes", states: "healthy lost healthy healthy", then: scale(3), steps: "remove web.2-2", says: "web.2-2 is on node n2"},
		{name: "none is wanted", states: "healthy healthy", then: scale(0), steps: "remove web.1-1, remove web.2-2"},
		{name: "none is wanted, and all are unhealthy", states: "unhealthy unhealthy", then: scale(0), steps: "remove web.1-1, remove web.2-2"},
		{name: "a frozen group replaces no unhealthy one", states: "healthy unhealthy healthy", then: freeze, says: "1 instance is not healthy and would be replaced after thaw"},
		{name: "a frozen group replaces no failed one", states: "healthy failed healthy", then: freeze, says: "1 instance is gone and would be replaced after thaw"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var more []func(*mariposa.Service)
			if c.more != nil {
				more = append(more, c.more)
			}
			w := groupOf(t, c.states, more...)
			if c.then != nil {
				c.then(w)
			}
			if got := strings.Join(w.step(), ", "); got != c.steps {
				t.Errorf("the steps are %s, want %s", got, c.steps)
			}
			if got := reasonOf(w.status("web")); (c.says == "") != (got == "") || !strings.Contains(got, c.says) {
				t.Errorf("the reason is %q, want %q", got, c.says)
			}
		})
	}
}
