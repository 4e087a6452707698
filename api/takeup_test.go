package api_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// service returns the state of a service of shop.
func (h *testServer) service(name string) contract.ServiceState {
	h.t.Helper()
	return want[contract.State](h.call("GET", "/v1/projects/shop/services/"+name+"/state", nil), 200).Projects[0].Services[0]
}

// running returns the environments of the running instances of a service of shop, by id.
func (h *testServer) running(service string) map[string]string {
	h.t.Helper()
	all := map[string]string{}
	for _, i := range want[contract.Instances](h.call("GET", "/v1/instances?project=shop&state=running&service="+service, nil), 200).Instances {
		r := h.call("GET", "/v1/instances/"+i.ID, nil)
		if r.status == 404 {
			continue // gone meanwhile
		}
		all[i.ID] = fmt.Sprint(want[contract.Instance](r, 200).Environment)
	}
	return all
}

// A missing required value blocks a project with a reason that says what to do. After
// it is set, the project runs.
func TestAProjectWaitsForTheValuesItNeeds(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	c := h.create("shop", `services: {web: {compute_type: dummy, environment: {MODE: "{{ .meta.mode }}"}, update: {min_healthy: 0}}}
metadata: {mode: {required: true, description: how it behaves}, pin: {required: true, secret: true}, size: {default: small, required: true}}
`)
	if fmt.Sprint(c.Missing) != "[mode pin]" {
		t.Errorf("missing: %v", c.Missing)
	}
	if m := want[contract.Metadata](h.call("GET", "/v1/projects/shop/metadata", nil, "Accept", "application/json"), 200); fmt.Sprint(m.Missing) != "[mode pin]" {
		t.Errorf("listed as missing: %v", m.Missing)
	}
	blocked := func(words ...string) func() bool {
		return func() bool {
			p := want[contract.State](h.call("GET", "/v1/projects/shop/state", nil), 200).Projects[0]
			if p.Status != mariposa.StatusBlocked || p.Services[0].Status != mariposa.StatusBlocked || p.Services[0].Running != 0 {
				return false
			}
			for _, word := range words {
				if !contains(p.Reason, word) || !contains(p.Services[0].Reason, word) {
					return false
				}
			}
			return true
		}
	}
	h.until("the project to be blocked by both", blocked("needs the metadata keys mode, pin", "mariposa meta set mode VALUE", "mariposa meta set pin -"))
	if c := want[contract.Changed](h.set("mode", "calm"), 200); fmt.Sprint(c.Missing) != "[pin]" {
		t.Errorf("still missing: %v", c.Missing)
	}
	h.until("the project to be blocked by one", blocked("needs the metadata key pin", "mariposa meta set pin -"))
	want[contract.Changed](h.set("pin", "1234"), 200)
	h.until("the project to run", func() bool {
		s := h.service("web")
		return s.Status == mariposa.StatusConverged && s.Running == 1
	})
	if got := slices.Collect(maps.Values(h.running("web"))); fmt.Sprint(got) != "[[MODE=calm]]" {
		t.Errorf("it runs with %v", got)
	}
}

// New values make instances outdated, which is shown with the key and changes nothing
// else. A reprovision applies them; a service with on_metadata applies them
// automatically.
func TestOtherValuesAreShownAndTakenUp(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	h.create("shop", `services:
  web: {compute_type: dummy, scale: 2, environment: {MODE: "{{ .meta.mode }}"}, update: {min_healthy: 0}}
  eager: {compute_type: dummy, environment: {MODE: "{{ .meta.mode }}"}, update: {min_healthy: 0, on_metadata: reprovision}}
  other: {compute_type: dummy, mdata: {mode: "{{ .meta.mode }}"}, update: {min_healthy: 0}}
metadata: {mode: {default: calm}}
`)
	converged := func() bool {
		p := want[contract.State](h.call("GET", "/v1/projects/shop/state", nil), 200).Projects[0]
		return p.Status == mariposa.StatusConverged && p.Services[2].Running == 2 && len(p.Services) == 3
	}
	h.until("the project to converge", converged)
	web, other, eager := h.running("web"), h.running("other"), h.running("eager")
	c := want[contract.Changed](h.set("mode", "wild"), 200)
	if c.Task == nil || c.Number != 2 {
		t.Fatalf("set: %+v", c)
	}
	h.until("eager to take the value up", func() bool {
		now := slices.Collect(maps.Values(h.running("eager")))
		return fmt.Sprint(now) == "[[MODE=wild]]" && converged()
	})
	s := h.service("web")
	const why = "2 instances outdated: metadata key mode changed since version 1; apply the change with `mariposa project reprovision --service web`"
	if s.Outdated != 2 || s.Status != mariposa.StatusConverged || s.Reason != why {
		t.Errorf("the state of web is %+v", s)
	}
	if s := h.service("other"); s.Outdated != 0 || s.Reason != "" {
		t.Errorf("other reads its values live, but its state is %+v", s)
	}
	if !maps.Equal(h.running("web"), web) || !maps.Equal(h.running("other"), other) || maps.Equal(h.running("eager"), eager) {
		t.Error("the wrong instances were replaced")
	}
	v := want[contract.Version](h.call("GET", "/v1/projects/shop/versions/2", nil), 200)
	if fmt.Sprint(v.ServicesChanged) != "[eager web]" || fmt.Sprint(v.MetadataChanged) != "[mode]" || v.Cause != mariposa.CauseMetadata {
		t.Errorf("the version is %+v", v)
	}
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/services/web/state", contract.Action{Action: "reprovision"}), 202)
	h.until("web to take the value up", func() bool {
		for _, env := range h.running("web") {
			if env != "[MODE=wild]" {
				return false
			}
		}
		s := h.service("web")
		return s.Outdated == 0 && s.Reason == "" && converged()
	})
	want[contract.Changed](h.call("DELETE", "/v1/projects/shop/metadata/mode", nil), 200)
	h.until("eager to take the default up again", func() bool {
		return fmt.Sprint(slices.Collect(maps.Values(h.running("eager")))) == "[[MODE=calm]]"
	})
}
