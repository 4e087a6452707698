package converge

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mariposa"
	"mariposa/manifest"
	"mariposa/simulate/scenario"
)

// interleavings is the number of random orders of events per scenario; MARIPOSA_WIDE
// multiplies it.
const interleavings = 100

// TestScenariosEndTheSameHoweverTheyGo runs every scenario once in order, then in many
// random orders, with partial commits, and with planners that crash and are replaced by
// ones that know only what is stored.
func TestScenariosEndTheSameHoweverTheyGo(t *testing.T) {
	all, err := scenario.Read("testdata/scenarios")
	if err != nil || len(all) < 25 {
		t.Fatalf("only %d scenarios are there: %v", len(all), err)
	}
	wide, _ := strconv.Atoi(os.Getenv("MARIPOSA_WIDE")) // 0 if it is not set
	for _, sc := range all {
		t.Run(sc.Name, func(t *testing.T) {
			t.Parallel()
			read := submitted(t, sc)
			play(t, sc, read, nil, "in order")
			for seed := range uint64(interleavings * max(1, wide)) {
				play(t, sc, read, rand.New(rand.NewPCG(seed, 7)), fmt.Sprintf("seed %d", seed))
				if t.Failed() {
					return
				}
			}
		})
	}
}

// scenarioRun is one run of a scenario.
type scenarioRun struct {
	*world
	scenario.Scenario
	rng    *rand.Rand // nil: in order
	moves  int        // operations of nodes since the last action
	first  map[string][]string
	broken map[string]bool // services whose new instances fail
	served map[string]bool // services that have had a running instance
}

func play(t *testing.T, sc scenario.Scenario, read [][]*mariposa.Service, rng *rand.Rand, how string) {
	t.Helper()
	s := &scenarioRun{Scenario: sc, rng: rng, broken: map[string]bool{}, served: map[string]bool{}}
	for i, a := range sc.Actions {
		if i > 0 {
			s.until(a.After)
		}
		if i == 1 && a.After == nil {
			s.first = map[string][]string{}
			for _, name := range sc.Kept {
				s.first[name] = s.of(name)
			}
		}
		s.act(t, a, read[i])
	}
	s.until(nil)
	s.matches(t, sc, how)
}

// until continues until the time of the next action.
func (s *scenarioRun) until(after *int) {
	s.Helper()
	for range 20_000 {
		if after != nil && s.moves >= *after {
			return
		}
		on := s.tick()
		s.always()
		if !on {
			s.stable(s.plan())
			return // at rest: what has not happened by now never will
		}
	}
	s.Fatalf("no end in sight:\n%s%s", show(s.plan()), s.formatHistory())
}

// tick performs one event, and reports whether there was any.
func (s *scenarioRun) tick() bool {
	s.Helper()
	moving := s.moving()
	if s.rng != nil && s.rng.IntN(12) == 0 {
		s.crash()
	}
	if len(moving) > 0 && s.rng != nil && s.rng.IntN(3) > 0 {
		s.let(moving[s.rng.IntN(len(moving))])
		return true
	}
	p := s.plan()
	n := len(p.Steps)
	if s.rng != nil && n > 0 && s.rng.IntN(4) == 0 {
		n = s.rng.IntN(n)
	}
	done := s.carryOut(p, n)
	switch {
	case done > 0 || n < len(p.Steps) || p.PlanAgain:
	case len(moving) > 0:
		s.let(moving[0])
	case s.busy(p) && p.Wake.After(s.now):
		s.now = p.Wake
	default:
		return false
	}
	return true
}

// crash replaces the planner by one that knows only what is stored.
func (s *scenarioRun) crash() { s.view = (&randomProject{world: s.world}).fresh() }

// let makes a node perform one operation.
func (s *scenarioRun) let(id string) {
	s.Helper()
	s.moves++
	s.move(id)
}

// fails reports whether a starting instance fails: it is a dummy that must fail, its
// service is broken, or the scenario's cause applies.
func (s *scenarioRun) fails(id string) bool {
	spec := s.instances[id].Spec
	if s.broken[spec.ServiceName] || s.versions[spec.Number][spec.ServiceName].Dummy.Fail {
		return true
	}
	why, some := s.Fails[spec.ServiceName]
	if !some || why.Of != 0 && why.Of != s.firstWith(spec.ServiceName, spec) {
		return false
	}
	for _, i := range s.instances {
		if i.Spec.ServiceName == why.While && i.Spec.Goal == mariposa.GoalRunning && s.isAlive(i) && s.firstWith(why.While, i.Spec) == why.Is {
			return true
		}
	}
	return false
}

// always checks what must be true at all times during a scenario.
func (s *scenarioRun) always() {
	s.Helper()
	for id, i := range s.instances {
		if name := i.Spec.ServiceName; slices.Contains(s.Never[name], s.firstWith(name, i.Spec)) {
			s.Fatalf("%s is made of version %d%s", id, i.Spec.Number, s.formatHistory())
		}
	}
	for _, name := range s.Serves {
		up := 0
		for _, id := range s.of(name) {
			if s.isUp(s.instances[id]) {
				up++
			}
		}
		if s.served[name] && up == 0 {
			s.Fatalf("nothing of %s runs any more%s", name, s.formatHistory())
		}
		s.served[name] = up > 0
	}
}

// act does what an action says, with the services that it submits.
func (s *scenarioRun) act(t *testing.T, a scenario.Action, submitted []*mariposa.Service) {
	t.Helper()
	s.moves = 0
	switch {
	case a.Submit != nil && s.world == nil:
		s.world = newWorld(t, submitted...)
		s.cause = s.fails
	case a.Submit != nil:
		s.submit(submitted...)
	case a.Scale != nil:
		s.patch(mariposa.Patch{Scale: a.Scale})
	case a.Do == "start":
		s.aim(mariposa.GoalStarted)
	case a.Do == "stop" && a.Version > 0:
		s.patch(mariposa.Patch{StopVersion: a.Version}, a.Scope()...)
	case a.Do == "stop":
		s.aim(mariposa.GoalStopped)
	case a.Do == "delete":
		s.aim(mariposa.GoalDeleted)
	case a.Do == "revert":
		s.submitBy(mariposa.Patch{SkipCanary: true}, slices.Collect(maps.Values(s.versions[s.goal.Completed]))...) // a new version with the content of the old one
	case a.Do == "resubmit":
		s.patch(mariposa.Patch{Number: len(s.versions), Retry: true})
	case a.Do == "freeze", a.Do == "thaw", a.Do == "pause", a.Do == "resume":
		s.mode(mariposa.Mode(a.Do), a.Scope()...)
	case a.Do == "converge":
		s.patch(mariposa.Patch{Retry: true}, a.Scope()...)
	case a.Do == "break", a.Do == "mend":
		s.broken[a.Name] = a.Do == "break"
	case a.Do == "lose":
		s.loseNode(a.Name)
	case a.Do == "return":
		s.comeBack(a.Name)
	default:
		t.Fatalf("nobody knows how to do %+v", a)
	}
}

// submitted parses the services that a scenario submits, by action. All runs share
// them, because definitions do not change.
func submitted(t *testing.T, sc scenario.Scenario) [][]*mariposa.Service {
	t.Helper()
	out := make([][]*mariposa.Service, len(sc.Actions))
	for i, a := range sc.Actions {
		if a.Submit != nil {
			out[i] = services(t, a)
		}
	}
	return out
}

// services parses the services of a manifest as a user would submit them.
func services(t *testing.T, a scenario.Action) []*mariposa.Service {
	t.Helper()
	text, err := a.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	p, err := manifest.Parse(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return p.Services
}

// matches compares the final state of a run with the scenario's: it must be the same,
// whatever the order of events.
func (s *scenarioRun) matches(t *testing.T, sc scenario.Scenario, how string) {
	t.Helper()
	for _, name := range serviceNames(s.view) {
		is := s.reality(name)
		if is != sc.Final[name] {
			t.Errorf("%s: %s is %q, want %q%s", how, name, is, sc.Final[name], s.formatHistory())
			return
		}
		want := sc.StatusOf(name)
		if ss := s.goal.Services[name]; ss != nil && ss.Status != want {
			t.Errorf("%s: %s is %s (%s), want %s%s", how, name, ss.Status, reasonOf(ss), want, s.formatHistory())
			return
		}
	}
	for name := range sc.Final {
		if !slices.Contains(serviceNames(s.view), name) {
			t.Errorf("%s: %s is not there%s", how, name, s.formatHistory())
		}
	}
	for name, ids := range s.first {
		if now := s.of(name); !slices.Equal(now, ids) {
			t.Errorf("%s: %s was %v and is now %v%s", how, name, ids, now, s.formatHistory())
		}
	}
}

// reality describes the instances of a service briefly. It is valid only if every slot
// has one instance, and nothing else is left except instances kept for inspection.
func (s *scenarioRun) reality(name string) string {
	count, slots := map[int]int{}, map[int]bool{}
	for _, i := range s.instances {
		switch {
		case i.Spec.ServiceName != name || i.Spec.Kept:
			continue
		case i.Spec.Goal != mariposa.GoalRunning || mariposa.StateOf(i.Spec, i.Status) != mariposa.StateRunning:
			return i.ID + " is left over"
		case slots[i.Spec.Slot]:
			return i.ID + " is a double"
		}
		slots[i.Spec.Slot] = true
		count[s.firstWith(name, i.Spec)]++
	}
	var out []string
	for _, number := range slices.Sorted(maps.Keys(count)) {
		out = append(out, fmt.Sprintf("%d of v%d", count[number], number))
	}
	return strings.Join(out, ", ")
}

// firstWith returns the oldest version with the definition of an instance.
func (s *scenarioRun) firstWith(name string, spec *mariposa.InstanceSpec) int {
	for number := 1; number <= len(s.versions); number++ {
		if d := s.versions[number][name]; d != nil && d.Digest == spec.Digest && d.Live == spec.Live {
			return number
		}
	}
	return 0
}
