package simulate_test

import (
	"fmt"
	"testing"
	"time"

	"mariposa"
	"mariposa/simulate"
	"mariposa/simulate/scenario"
)

// fan is a scenario with a root, n services that depend on it, and a sink that
// depends on all of those.
func fan(n int, dummy map[string]any) scenario.Scenario {
	services, all := map[string]any{"root": map[string]any{"dummy": dummy}}, []string{}
	final := map[string]string{"root": "1 of v1", "sink": "1 of v1"}
	for i := range n {
		name := fmt.Sprintf("s%05d", i)
		services[name] = map[string]any{"dummy": dummy, "depends_on": []string{"root"}}
		all = append(all, name)
		final[name] = "1 of v1"
	}
	services["sink"] = map[string]any{"dummy": dummy, "depends_on": all}
	return scenario.Scenario{Name: "fan", Actions: []scenario.Action{{Submit: services}}, Final: final}
}

func runFan(t *testing.T, n int, dummy map[string]any) simulate.ScenarioResult {
	t.Helper()
	result, err := simulate.RunScenario(t.Context(), simulate.ScenarioRun{Scenario: fan(n, dummy), Options: func(o *simulate.Options) {
		o.Nodes, o.Capacity, o.Limit, o.Weigh = 20, 100, 8192, true
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d services in %s: %d events, %d commits, bytes %v", n, result.Elapsed, result.Events, result.Commits, result.Bytes)
	return result
}

// TestAFanConvergesAtThePaceOfTheDriver runs 1,000 services between a root and a sink,
// with a driver that takes 10 s per start. There are three layers, so everything is up
// after three starts, plus a little time for the nodes to connect and for the last
// instance to become healthy. The amount written is proportional to the size of the
// project: one report per node and layer, and the status of all services a few times.
func TestAFanConvergesAtThePaceOfTheDriver(t *testing.T) {
	t.Parallel()
	const wait = 10 * time.Second
	result := runFan(t, 1000, map[string]any{"wait_secs": int(wait / time.Second)})
	if most := 3*wait + 2*time.Second; result.Elapsed > most {
		t.Errorf("it took %s, more than %s", result.Elapsed, most)
	}
	if result.Commits > 5*20 {
		t.Errorf("there were %d commits for 3 layers on 20 nodes", result.Commits)
	}
	if most := 8 * result.Bytes[mariposa.KindInstance]; result.Bytes[mariposa.KindProject] > most {
		t.Errorf("%d bytes were written of the project, more than %d", result.Bytes[mariposa.KindProject], most)
	}
}

// TestWhatIsWrittenOfManyServicesGrowsWithThem lets every service come up at a different
// time, so that each causes a separate plan. The status of the project, which covers all
// services, is not written each time.
func TestWhatIsWrittenOfManyServicesGrowsWithThem(t *testing.T) {
	t.Parallel()
	result := runFan(t, 400, map[string]any{"max_wait_secs": 10})
	if most := 12 * result.Bytes[mariposa.KindInstance]; result.Bytes[mariposa.KindProject] > most {
		t.Errorf("%d bytes were written of the project, more than %d", result.Bytes[mariposa.KindProject], most)
	}
	if result.Elapsed > 32*time.Second {
		t.Errorf("it took %s though nothing waits for more than 10 s", result.Elapsed)
	}
}
