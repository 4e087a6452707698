package api_test

import (
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// reach sets where an instance is reached.
func (h *testServer) reach(id string, state mariposa.State, addresses ...string) {
	h.t.Helper()
	h.commit(store.Unit{Writes: []store.Write{{
		Kind: mariposa.KindInstance, ID: id, Status: &mariposa.InstanceStatus{State: state, Health: mariposa.HealthUnhealthy, Addresses: addresses},
		Event: mariposa.Event{Kind: "instance." + string(state), Instance: id},
	}}})
}

func TestPrometheusDiscoversRunningInstances(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	shop := h.create("shop", "services: {web: {compute_type: dummy, ports: [80]}}\n")
	other := h.create("other", "services: {web: {compute_type: dummy}}\n")
	for id, project := range map[string]string{"i1": shop.ID, "i2": shop.ID, "i3": other.ID, "i4": shop.ID} {
		h.instance(id, project, "web", "n1", mariposa.StateRunning, nil)
	}
	h.reach("i1", mariposa.StateRunning, "10.0.0.1:80", "10.0.0.1:443")
	h.reach("i2", mariposa.StateRunning, "10.0.0.2") // it has no port
	h.reach("i3", mariposa.StateRunning, "10.0.0.3:80")
	h.reach("i4", mariposa.StateStopped, "10.0.0.4:80")
	all := want[[]contract.DiscoveryTarget](h.call("GET", "/v1/discovery", nil), 200)
	if len(all) != 2 || !slices.Equal(all[0].Targets, []string{"10.0.0.1:80", "10.0.0.1:443"}) || !slices.Equal(all[1].Targets, []string{"10.0.0.3:80"}) {
		t.Fatalf("they are %+v", all)
	}
	for label, value := range map[string]string{"organization": "admin", "project": "shop", "service": "web", "health": "unhealthy", "instance_id": "i1"} {
		if got := all[0].Labels["__meta_mariposa_"+label]; got != value {
			t.Errorf("the label %s is %q, want %q", label, got, value)
		}
	}
	if one := want[[]contract.DiscoveryTarget](h.call("GET", "/v1/discovery?project=other", nil), 200); len(one) != 1 || one[0].Labels["__meta_mariposa_project"] != "other" {
		t.Errorf("of one project: %+v", one)
	}
	h.call("GET", "/v1/discovery?project=nobody", nil).wantError(404, mariposa.ResourceNotFound)
}

func TestNobodyDiscoversInstancesOfOthers(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	w.reach(w.instance, mariposa.StateRunning, "10.0.0.1:80")
	w.reach(w.darkInstance, mariposa.StateRunning, "10.0.0.2:80")
	for user, address := range map[string]string{"vera": "10.0.0.1:80", "ulla": "10.0.0.2:80", "sam": ""} {
		var found []string
		for _, target := range want[[]contract.DiscoveryTarget](w.asUser(user).call("GET", "/v1/discovery", nil), 200) {
			found = append(found, target.Targets...)
		}
		if strings.Join(found, " ") != address {
			t.Errorf("%s discovers %v, want %q", user, found, address)
		}
	}
}
