package simulate_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/simulate"
	"mariposa/simulate/scenario"
	"mariposa/store"
	"mariposa/store/memory"
)

// dummyOf returns a service of a manifest whose definition differs from version to
// version.
func dummyOf(version int, refersTo string, more map[string]any) map[string]any {
	s := map[string]any{"dummy": map[string]any{"name_len": 8 + version}, "update": map[string]any{"min_healthy": 0}}
	if refersTo != "" {
		s["environment"] = map[string]any{"OTHER": "{{ .services." + refersTo + ".id }}"}
	}
	for key, value := range more {
		s[key] = value
	}
	return s
}

// TestNoTwoServicesWaitForEachOther inverts an edge, lets a follower fail, and then
// corrects both. The remains of the old edges must not make two services wait for each
// other.
func TestNoTwoServicesWaitForEachOther(t *testing.T) {
	t.Parallel()
	fails := map[string]any{"dummy": map[string]any{"name_len": 10, "fail_prop": "yes"}}
	for after := -1; after < 14; after++ {
		sc := scenario.Scenario{
			Name: fmt.Sprint("inverted-and-dropped-after-", after),
			Actions: []scenario.Action{
				{Submit: map[string]any{"g": dummyOf(1, "h", nil), "h": dummyOf(1, "", nil), "y": dummyOf(1, "g", nil)}},
				{Submit: map[string]any{"g": dummyOf(2, "", nil), "h": dummyOf(2, "g", nil), "y": dummyOf(2, "g", fails)}},
				{Submit: map[string]any{"g": dummyOf(3, "", nil), "h": dummyOf(3, "", nil)}},
			},
			Final: map[string]string{"g": "1 of v3", "h": "1 of v3"},
		}
		if after >= 0 { // otherwise once the second version is at rest
			sc.Actions[2].After = &after
		}
		t.Run(sc.Name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(4) {
				if _, err := simulate.RunScenario(t.Context(), simulate.ScenarioRun{Scenario: sc, Seed: seed}); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// meddler is a store that changes what planners write, to inject the errors that the
// rules must detect.
type meddler struct {
	store.Store
	meddle func(u *store.Unit)
}

func (m meddler) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	for i := range units {
		units[i].Writes = slices.Clone(units[i].Writes)
		m.meddle(&units[i])
	}
	return m.Store.Commit(ctx, units...)
}

// restate changes the service statuses that a planner writes.
func restate(change func(*mariposa.ServiceStatus)) func(*store.Unit) {
	return func(u *store.Unit) {
		for i, w := range u.Writes {
			if st, ok := w.Status.(*mariposa.ServiceStatus); ok {
				c := *st
				change(&c)
				u.Writes[i].Status = &c
			}
		}
	}
}

// letGoOf removes an instance of a service as soon as an instance of another service
// runs.
func letGoOf(service, once string) func(*store.Unit) {
	first, specs := map[string]string{}, map[string]mariposa.InstanceSpec{}
	return func(u *store.Unit) {
		for _, w := range u.Writes {
			if spec, ok := w.Spec.(*mariposa.InstanceSpec); ok && first[spec.ServiceName] == "" {
				first[spec.ServiceName], specs[spec.ServiceName] = w.ID, *spec
			}
			if st, ok := w.Status.(*mariposa.InstanceStatus); ok && st.State == mariposa.StateRunning && w.ID == first[once] {
				spec := specs[service]
				spec.Goal, spec.Generation, spec.Reason = mariposa.GoalGone, spec.Generation+1, mariposa.TextReason("a fault")
				u.Writes = append(u.Writes, store.Write{Kind: mariposa.KindInstance, ID: first[service], Spec: &spec})
			}
		}
	}
}

// TestHistoriesWithFaultsFail checks that the rules detect the errors they exist for.
func TestHistoriesWithFaultsFail(t *testing.T) {
	t.Parallel()
	sc := scenario.Scenario{
		Name:    "two",
		Actions: []scenario.Action{{Submit: map[string]any{"db": dummyOf(1, "", nil), "web": dummyOf(1, "db", nil)}}},
		Final:   map[string]string{"db": "1 of v1", "web": "1 of v1"},
	}
	for name, c := range map[string]struct {
		meddle func(*store.Unit)
		want   string
	}{
		"no fault": {meddle: func(*store.Unit) {}},
		"a plan that repeats itself": {
			meddle: restate(func(ss *mariposa.ServiceStatus) { ss.Status = mariposa.StatusHeld }),
			want:   "times while nothing else changed",
		},
		"a reason that grows": {
			meddle: restate(func(ss *mariposa.ServiceStatus) { ss.ID = strings.Repeat("x", 10_000) }),
			want:   "bytes",
		},
		"an instance that goes before what refers to it": {
			meddle: letGoOf("db", "web"),
			want:   "which Mariposa has removed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := simulate.RunScenario(t.Context(), simulate.ScenarioRun{Scenario: sc, Options: func(o *simulate.Options) {
				o.Store = func(w *simulate.World) (store.Store, error) { return meddler{memory.New(w.Clock()), c.meddle}, nil }
			}})
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("want %q, got %v", c.want, err)
			}
		})
	}
}

// TestAStopBeforeTheDrainIsDetected lets servers believe that balancers have no connections.
func TestAStopBeforeTheDrainIsDetected(t *testing.T) {
	t.Parallel()
	claim := func(u *store.Unit) {
		for i, w := range u.Writes {
			if st, ok := w.Status.(*mariposa.InstanceStatus); ok && len(st.Members) > 0 {
				c := *st
				c.Members = slices.Clone(st.Members)
				for k := range c.Members {
					c.Members[k].Idle = true
				}
				u.Writes[i].Status = &c
			}
		}
	}
	for s := uint64(1); s <= 100; s++ {
		o := options(t, s)
		o.Store = func(w *simulate.World) (store.Store, error) { return meddler{memory.New(w.Clock()), claim}, nil }
		if _, err := simulate.Run(t.Context(), o); err != nil {
			if !strings.Contains(err.Error(), "has not confirmed that") {
				t.Error(err)
			}
			return
		}
	}
	t.Error("100 histories did not notice that instances are stopped too early")
}
