package api_test

import (
	"testing"

	"mariposa"
	"mariposa/contract"
)

func TestAPlanTellsWhatWouldBeDoneAndChangesNothing(t *testing.T) {
	t.Parallel()
	h := newHouse(t, withPlanner)
	h.join("n1")
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 2, update: {min_healthy: 0}}\n  old: {compute_type: dummy}\n")
	h.until("the project to converge", func() bool {
		return want[contract.State](h.call("GET", "/v1/projects/shop/state", nil), 200).Projects[0].Status == mariposa.StatusConverged
	})
	before := h.picture.Revision()
	rest := want[contract.Plan](h.call("POST", "/v1/projects/shop/plan", nil), 200)
	if len(rest.Steps) != 0 || !rest.Complete || len(rest.Resources) != 2 || rest.Resources[1].Change != "unchanged" {
		t.Errorf("at rest: %+v", rest)
	}
	next := "services:\n  web: {compute_type: dummy, scale: 3, environment: {A: b}, update: {min_healthy: 0}}\n  new: {compute_type: dummy}\n"
	p := want[contract.Plan](h.call("POST", "/v1/projects/shop/plan", next, "Content-Type", "application/yaml"), 200)
	changes := map[string]string{}
	for _, r := range p.Resources {
		changes[r.Name] = r.Change
	}
	if changes["web"] != "replace" || changes["old"] != "delete" || changes["new"] != "create" || !p.Complete {
		t.Errorf("resources: %+v", p.Resources)
	}
	steps := map[string]int{}
	for _, s := range p.Steps {
		steps[s.Step+" "+s.Service]++
		if s.Reason == "" || s.Slot == "" {
			t.Errorf("step %+v", s)
		}
	}
	for step, n := range map[string]int{"create web": 3, "remove web": 2, "collect web": 2, "create new": 1, "remove old": 1, "collect old": 1} {
		if steps[step] != n {
			t.Errorf("%s %d times, not %d: %+v", step, steps[step], n, steps)
		}
	}
	if now := h.picture.Revision(); now != before {
		t.Errorf("the store went from revision %d to %d", before, now)
	}
	h.call("POST", "/v1/projects/shop/plan", "services: [", "Content-Type", "application/yaml").wantError(400, mariposa.InvalidArgument)
	h.call("POST", "/v1/projects/shop/plan?rolling=1", nil).wantError(400, mariposa.InvalidArgument)
	h.call("POST", "/v1/projects/nobody/plan", nil).wantError(404, mariposa.ResourceNotFound)
}
