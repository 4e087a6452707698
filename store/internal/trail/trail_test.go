package trail_test

import (
	"cmp"
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/store"
	"mariposa/store/internal/trail"
)

func TestAQuestionGoesByWhatBoundsItsReader(t *testing.T) {
	t.Parallel()
	actions := func(prefix string) ([]string, error) { return []string{prefix + "b", prefix + "a"}, nil }
	for name, c := range map[string]struct {
		q    store.AuditQuery
		want []trail.Arm
	}{
		"all of it is walked":                          {store.AuditQuery{Outcome: "done"}, []trail.Arm{{}}},
		"a project goes before all":                    {store.AuditQuery{Project: "p", Organizations: []string{"o"}, Actor: "u"}, []trail.Arm{{"project", "p"}}},
		"each organization once, before the actor":     {store.AuditQuery{Organizations: []string{"p", "o", "p"}, Actor: "u"}, []trail.Arm{{"organization", "o"}, {"organization", "p"}}},
		"of no organization there is nothing":          {store.AuditQuery{Organizations: []string{}, Project: "p"}, nil},
		"an actor may be meant by four words":          {store.AuditQuery{Actor: "u", Outcome: "denied"}, []trail.Arm{{"actor", "u"}, {"actor_name", "u"}, {"for_id", "u"}, {"for_name", "u"}}},
		"what was denied is rare":                      {store.AuditQuery{Outcome: "denied", Action: "a.b"}, []trail.Arm{{"outcome", "denied"}}},
		"an action is looked up":                       {store.AuditQuery{Action: "a.b"}, []trail.Arm{{"action", "a.b"}}},
		"actions of a prefix are looked up one by one": {store.AuditQuery{Action: "a."}, []trail.Arm{{"action", "a.a"}, {"action", "a.b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := trail.Arms(&c.q, actions)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%v, %v; want %v", got, err, c.want)
			}
		})
	}
	away := errors.New("away")
	if _, err := trail.Arms(&store.AuditQuery{Action: "a."}, func(string) ([]string, error) { return nil, away }); !errors.Is(err, away) {
		t.Errorf("got %v", err)
	}
}

// TestAnAnswerIsTheTopOfItsArms gives each arm only what is above the floor, as
// a store does.
func TestAnAnswerIsTheTopOfItsArms(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		arms := rapid.SliceOf(rapid.SliceOfDistinct(rapid.Int64Range(1, 30), rapid.ID[int64])).Draw(t, "arms")
		limit := rapid.IntRange(0, 10).Draw(t, "limit")
		answer := trail.NewAnswer(limit)
		var want []int64
		for _, arm := range arms {
			want = append(want, arm...)
			slices.SortFunc(arm, func(a, b int64) int { return cmp.Compare(b, a) })
			var entries []mariposa.Audit
			for _, id := range arm {
				if id > answer.Floor() && (limit == 0 || len(entries) < limit) {
					entries = append(entries, mariposa.Audit{ID: id})
				}
			}
			answer.Add(entries)
		}
		slices.SortFunc(want, func(a, b int64) int { return cmp.Compare(b, a) })
		want = slices.Compact(want)
		if limit > 0 && len(want) > limit {
			want = want[:limit]
		}
		var got []int64
		for _, a := range answer.Entries {
			got = append(got, a.ID)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func TestATimeBetweenMicrosecondsBecomesTheNext(t *testing.T) {
	t.Parallel()
	whole := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	for nanos, micros := range map[time.Duration]time.Duration{0: 0, 1: 1, 999: 1, 1000: 1, -1: 0, -999: 0, -1000: -1} {
		if got := trail.TimeToMicro(whole.Add(nanos)); !got.Equal(whole.Add(micros * time.Microsecond)) {
			t.Errorf("%d ns becomes %v", nanos, got)
		}
	}
}
