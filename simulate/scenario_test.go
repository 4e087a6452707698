package simulate_test

import (
	"flag"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"mariposa/simulate"
	"mariposa/simulate/scenario"
)

var (
	scenarioName = flag.String("scenario", "create", "the scenario that TestOneScenario plays")
	crash        = flag.String("crash", "", "where TestOneScenario crashes, as store:12 or agent+:3")
	replicas     = flag.Int("replicas", 1, "how many replicas TestOneScenario has")
)

func scenarios(t *testing.T) []scenario.Scenario {
	t.Helper()
	all, err := scenario.Read("../converge/testdata/scenarios")
	if err != nil || len(all) < 25 {
		t.Fatalf("only %d scenarios are there: %v", len(all), err)
	}
	return all
}

// TestScenariosEndTheSameHoweverTheyGo runs every scenario through the whole system: in
// order, with a crash at each possible point (for the longer scenarios at some points, or
// at all of them with MARIPOSA_WIDE), and with random seeds and many faults. The final
// state must always be the same, without manual help.
func TestScenariosEndTheSameHoweverTheyGo(t *testing.T) {
	t.Parallel()
	seen := &sums{of: map[string]int{}}
	t.Run("each", func(t *testing.T) {
		for _, sc := range scenarios(t) {
			t.Run(sc.Name, func(t *testing.T) {
				t.Parallel()
				calm, err := simulate.RunScenario(t.Context(), simulate.ScenarioRun{Scenario: sc})
				if err != nil {
					t.Fatal(err)
				}
				for _, at := range some(points(calm)) {
					result, err := simulate.RunScenario(t.Context(), simulate.ScenarioRun{Scenario: sc, Crash: at})
					if err != nil {
						t.Fatal(err)
					}
					if n := result.Seen["server crash"] + result.Seen["agent crash"]; n != 1 {
						t.Fatalf("%s: %d crashes", at, n)
					}
					seen.add("crash", 1)
				}
				for seed := range uint64(seeds * max(1, wide())) {
					result, err := simulate.RunScenario(t.Context(), simulate.ScenarioRun{Scenario: sc, Seed: 1 + seed, Replicas: 1 + int(seed%2)})
					if err != nil {
						t.Fatal(err)
					}
					for what, n := range result.Seen {
						seen.add(what, n)
					}
				}
			})
		}
	})
	for _, what := range []string{"crash", "server crash", "agent crash", "message lost", "message doubled", "task.terminated", "task.failed", "version taken back"} {
		if seen.of[what] < 20 {
			t.Errorf("%q happened only %d times", what, seen.of[what])
		}
	}
	t.Log(seen.of)
}

const (
	seeds  = 6  // random orders per scenario
	crowds = 24 // with more crash points than this, a normal run takes only this many
)

// wide returns the factor by which to run more of everything; 0: normal.
func wide() int {
	by, err := strconv.Atoi(os.Getenv("MARIPOSA_WIDE"))
	if err != nil {
		return 0
	}
	return by
}

// some picks a few of many points.
func some(all []simulate.Crash) []simulate.Crash {
	if len(all) <= crowds || wide() > 0 {
		return all
	}
	rng := rand.New(rand.NewPCG(uint64(len(all)), 1))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:crowds]
}

// points returns all possible crashes of a scenario: all servers at each write to the
// store (executed or not), all servers at each driver call, and the agent that makes the
// driver call (executed or not).
func points(result simulate.ScenarioResult) []simulate.Crash {
	var out []simulate.Crash
	for n := 1; n <= result.StoreCalls; n++ {
		out = append(out, simulate.Crash{Call: n}, simulate.Crash{Call: n, Done: true})
	}
	for n := 1; n <= result.DriverCalls; n++ {
		out = append(out, simulate.Crash{Call: n, Driver: true},
			simulate.Crash{Call: n, Driver: true, Agent: true}, simulate.Crash{Call: n, Driver: true, Agent: true, Done: true})
	}
	return out
}

// sums count what happened in concurrent scenarios.
type sums struct {
	mu sync.Mutex
	of map[string]int
}

func (s *sums) add(what string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[what] += n
}

func TestTheSameScenarioGoesTheSameWay(t *testing.T) {
	t.Parallel()
	for i, sc := range scenarios(t) {
		one := []simulate.ScenarioRun{{Scenario: sc}, {Scenario: sc, Crash: simulate.Crash{Call: 9}}, {Scenario: sc, Seed: 7, Replicas: 2}}[i%3]
		first, err := simulate.RunScenario(t.Context(), one)
		if err != nil {
			t.Fatal(err)
		}
		second, err := simulate.RunScenario(t.Context(), one)
		if err != nil {
			t.Fatal(err)
		}
		if first.Digest != second.Digest {
			t.Errorf("%s, seed %d: %d events, then %d", sc.Name, one.Seed, first.Events, second.Events)
		}
	}
}

// TestOneScenario runs the scenario given with -scenario, -seed, -crash and
// -replicas, for inspection.
func TestOneScenario(t *testing.T) {
	at, err := simulate.ParseCrash(*crash)
	if err != nil {
		t.Fatal(err)
	}
	for _, sc := range scenarios(t) {
		if sc.Name != *scenarioName {
			continue
		}
		one := simulate.ScenarioRun{Scenario: sc, Seed: *seed, Replicas: *replicas, Crash: at}
		if *history {
			one.Options = func(o *simulate.Options) { o.Trace = os.Stdout }
		}
		result, err := simulate.RunScenario(t.Context(), one)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", result)
		return
	}
	t.Fatalf("there is no scenario %s", *scenarioName)
}
