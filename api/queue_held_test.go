package api_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// values counts the instances of a service by the V in their environment.
func (h *testServer) values(project, service string) string {
	h.t.Helper()
	counts := map[string]int{}
	for id := range h.instances(project, service) {
		answer := h.call("GET", "/v1/instances/"+id, nil)
		if answer.status == 404 { // it went meanwhile
			continue
		}
		for _, line := range want[contract.Instance](answer, 200).Environment {
			if v, ok := strings.CutPrefix(line, "V="); ok {
				counts[v]++
			}
		}
	}
	var words []string
	for _, v := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%d of V=%s", counts[v], v))
	}
	return strings.Join(words, ", ")
}

// A revert ignores the canary of the manifest: it undoes held canaries and completed
// versions. A revert with its own canary is held.
func TestARevertIsNoCanaryUnlessAsked(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	for name, c := range map[string]struct {
		finish bool // the second version is completed before it is reverted
		revert string
		status mariposa.Status
		values string
	}{
		"of a held canary":         {false, `{"action":"revert"}`, mariposa.StatusConverged, "4 of V=1"},
		"of a completed version":   {true, `{"action":"revert"}`, mariposa.StatusConverged, "4 of V=1"},
		"with scales":              {true, `{"action":"revert","version":"1","with_scale":true}`, mariposa.StatusConverged, "4 of V=1"},
		"that asks for a canary":   {true, `{"action":"revert","version":"1","canary":3}`, mariposa.StatusHeld, "3 of V=1, 1 of V=2"},
		"by a start at a version":  {true, `{"action":"start","version":"1"}`, mariposa.StatusConverged, "4 of V=1"},
		"of a held one by a start": {false, `{"action":"start","version":"1"}`, mariposa.StatusConverged, "4 of V=1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, project := h.in(t), "p"+newID()[28:]
			h.create(project, fleetOf(4, 1, ", canary: 1"))
			h.awaitRest(project)
			canary := h.awaitTask(h.putManifest(project, fleetOf(4, 2, ", canary: 1"), ""), mariposa.TaskCompleted)
			if canary.Progress != (mariposa.Progress{Done: 2, Total: 8}) { // one of four was created and one removed
				t.Errorf("at the hold: %+v", canary.Progress)
			}
			if s := h.of(project, "web"); s.Status != mariposa.StatusHeld || h.values(project, "web") != "3 of V=1, 1 of V=2" {
				t.Fatalf("the canary is %+v, %s", s, h.values(project, "web"))
			}
			if c.finish {
				h.awaitTask(h.startTask(project, `{"action":"reprovision"}`), mariposa.TaskCompleted)
			}
			h.awaitTask(h.startTask(project, "%s", c.revert), mariposa.TaskCompleted)
			if s := h.of(project, "web"); s.Status != c.status || h.values(project, "web") != c.values {
				t.Errorf("after the revert it is %+v, %s", s, h.values(project, "web"))
			}
		})
	}
}

// heldPair is a manifest with two services, of which web holds at a canary of 1.
func heldPair(web, db int) string {
	return fmt.Sprintf("services:\n  web: {compute_type: dummy, scale: 3, environment: {V: %d}, depends_on: [db], update: {min_healthy: 0, canary: 1}}\n"+
		"  db: {compute_type: dummy, scale: 2, environment: {V: %d}, update: {min_healthy: 0}}\n", web, db)
}

// While a canary is held, a plain reprovision finishes it and touches nothing else; a
// count continues it. With all, every instance is replaced.
func TestAPlainReprovisionFinishesWhatIsHeld(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	for name, c := range map[string]struct {
		ask, scope, web string
		status          mariposa.Status
		kept            bool // the instances of db stay
		canary          bool // so does the canary
	}{
		"plain":             {`{"action":"reprovision"}`, "web", "3 of V=2", mariposa.StatusConverged, true, true},
		"with a count":      {`{"action":"reprovision","count":1}`, "web", "1 of V=1, 2 of V=2", mariposa.StatusHeld, true, true},
		"of web":            {`{"action":"reprovision","services":["web"]}`, "web", "3 of V=2", mariposa.StatusConverged, true, true},
		"of db":             {`{"action":"reprovision","services":["db"]}`, "db", "2 of V=1, 1 of V=2", mariposa.StatusHeld, false, true},
		"of all":            {`{"action":"reprovision","all":true}`, "", "3 of V=2", mariposa.StatusConverged, false, false},
		"of all of web":     {`{"action":"reprovision","services":["web"],"all":true}`, "web", "3 of V=2", mariposa.StatusConverged, true, false},
		"when named, of db": {`{"action":"reprovision","services":["web","db"]}`, "db web", "3 of V=2", mariposa.StatusConverged, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, project := h.in(t), "p"+newID()[28:]
			first := h.create(project, heldPair(1, 1))
			h.awaitRest(project)
			h.awaitTask(h.putManifest(project, heldPair(2, 1), ""), mariposa.TaskCompleted)
			if s := h.of(project, "web"); s.Status != mariposa.StatusHeld {
				t.Fatalf("web is %+v", s)
			}
			db, canary := h.instances(project, "db"), ""
			for id, i := range h.instances(project, "web") {
				if i.Version != first.Version {
					canary = id
				}
			}
			task := h.awaitTask(h.startTask(project, "%s", c.ask), mariposa.TaskCompleted)
			if got := strings.Join(task.Services, " "); got != c.scope {
				t.Errorf("the task is about %q: %+v", got, task)
			}
			if s := h.of(project, "web"); s.Status != c.status || h.values(project, "web") != c.web {
				t.Errorf("web is %+v, %s", s, h.values(project, "web"))
			}
			same := maps.EqualFunc(db, h.instances(project, "db"), func(a, b contract.Instance) bool { return a.ID == b.ID })
			if _, still := h.instances(project, "web")[canary]; same != c.kept || still != c.canary {
				t.Errorf("the instances of db are the same: %v; the canary is there: %v", same, still)
			}
		})
	}
	h.create("plain", heldPair(1, 1))
	h.awaitRest("plain")
	h.putAction("plain", `{"action":"reprovision","all":true,"filters":{"version":"1"}}`).wantError(400, mariposa.InvalidArgument, "all")
	h.putAction("plain", `{"action":"stop","all":true}`).wantError(400, mariposa.InvalidArgument, "all")
	before := h.instances("plain", "")
	h.awaitTask(h.startTask("plain", `{"action":"reprovision"}`), mariposa.TaskCompleted) // nothing is held: everything is made anew
	for id := range h.instances("plain", "") {
		if _, old := before[id]; old {
			t.Errorf("%s was not replaced", id)
		}
	}
}
