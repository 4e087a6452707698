package history

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// However values are recorded, what is read is what was recorded: by interval, with gaps.
func TestASeriesReturnsWhatWasRecorded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, model, at := series[Service]{}, map[int32]Service{}, int32(1000)
		entries, oldest := 0, int32(0)
		for range rapid.IntRange(0, 60).Draw(t, "values") {
			at += int32(rapid.SampledFrom([]int{0, 1, 1, 1, 1, 2, 5}).Draw(t, "later")) //nolint:gosec // small
			v := Service{Goal: rapid.IntRange(0, 2).Draw(t, "goal"), Starts: rapid.IntRange(0, 1).Draw(t, "starts")}
			model[at] = v
			entries += s.set(at, v)
		}
		if rapid.Bool().Draw(t, "trim") {
			oldest = 1000 + int32(rapid.IntRange(0, 100).Draw(t, "before")) //nolint:gosec // small
			entries -= s.trim(oldest)
		}
		if entries != len(s.runs) {
			t.Fatalf("%d entries were counted, and there are %d", entries, len(s.runs))
		}
		from, step, steps := int32(rapid.IntRange(990, 1050).Draw(t, "from")), rapid.IntRange(1, 7).Draw(t, "step"), rapid.IntRange(1, 40).Draw(t, "steps") //nolint:gosec // small
		got := s.read(from, step, steps, timesService, mergeServices)
		for n := range steps {
			var want *Service
			for i := range step {
				at := from + int32(n*step+i) //nolint:gosec // small
				v, ok := model[at]
				if !ok || at < oldest {
					continue
				}
				if want != nil {
					v = mergeServices(*want, v)
				}
				want = &v
			}
			if say(want) != say(got[n]) {
				t.Fatalf("step %d is %s, not %s", n, say(got[n]), say(want))
			}
		}
	})
}

func say(s *Service) string {
	if s == nil {
		return "a gap"
	}
	return fmt.Sprint(*s)
}

type fixed time.Time

func (f fixed) Now() time.Time                            { return time.Time(f) }
func (fixed) After(time.Duration, func()) (cancel func()) { return func() {} }

func TestAWindowHasAtMostSoManySteps(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 18, 12, 0, 7, 0, time.UTC)
	r := &Recorder{Options: Options{Clock: fixed(now)}, began: now.Add(-time.Hour)}
	for _, c := range []struct{ last, step time.Duration }{{time.Minute, Interval}, {time.Hour, Interval}, {3 * time.Hour, 3 * Interval}, {Span, time.Minute}, {100 * Span, time.Minute}} {
		w := r.Window(c.last)
		end := w.From.Add(time.Duration(w.Steps) * w.Step)
		if w.Step != c.step || w.Steps > maxSteps || !end.After(now) || end.Sub(now) > w.Step || !w.Since.Equal(r.began) {
			t.Errorf("the window of %s is %+v", c.last, w)
		}
	}
}

// Nothing grows without bound: the earliest values are forgotten first.
func TestTheMemoryIsBounded(t *testing.T) {
	t.Parallel()
	s := &series[Service]{}
	r := &Recorder{Options: Options{Entries: 1000}, services: map[string]map[string]*series[Service]{"p": {"web": s}}, nodes: map[string]*series[Node]{}}
	for at := range int32(5000) {
		r.entries += s.set(at, Service{Running: int(at % 2)})
		for r.entries > r.Entries {
			r.forget(r.oldest + dropAtOnce)
		}
	}
	if len(s.runs) > 1000 || len(s.runs) < 800 || r.entries != len(s.runs) || s.runs[len(s.runs)-1].to != 4999 {
		t.Errorf("%d entries are left of %d", len(s.runs), r.entries)
	}
	if r.forget(6000); len(r.services) != 0 || r.entries != 0 {
		t.Errorf("%d services and %d entries stay when nothing is known", len(r.services), r.entries)
	}
}
