package api_test

import (
	"fmt"
	"testing"

	"mariposa/contract"
)

// crowd creates users with some projects each, and returns a client of the last user.
func (h *testServer) crowd(from, to int) *testServer {
	h.t.Helper()
	one := h
	for i := from; i < to; i++ {
		name := fmt.Sprintf("user-%d", i)
		if r := h.call("POST", "/v1/users", contract.NewUser{Name: name}); r.status != 201 {
			h.t.Fatalf("%d %s", r.status, r.body)
		}
		one = h.as(h.mint(contract.NewToken{Name: "crowd", User: name}))
		for j := range 5 {
			c := one.create(fmt.Sprintf("project-%d", j), hello)
			h.plan(c.ID, settled(c))
		}
	}
	return one
}

var looks = []string{"/v1/projects", "/v1/state", "/v1/services", "/v1/instances", "/v1/queue", "/v1/organizations", "/v1/projects/project-3"}

// The test limits the number of allocations, which depends only on how much a request
// reads. It counts those of the whole process, so nothing may run in parallel.
func TestWhatOneUserLooksAtCostsNoMoreForTheManyOthers(t *testing.T) {
	h := newTestServer(t)
	one := h.crowd(0, 1)
	cost := func(path string) float64 {
		return testing.AllocsPerRun(50, func() {
			if r := one.call("GET", path, nil); r.status != 200 {
				t.Fatalf("%d %s", r.status, r.body)
			}
		})
	}
	alone := map[string]float64{}
	for _, path := range looks {
		alone[path] = cost(path)
	}
	h.crowd(1, 60)
	for _, path := range looks {
		if now := cost(path); now > 1.3*alone[path]+20 {
			t.Errorf("GET %s took %.0f allocations alone, and takes %.0f beside 300 projects of others", path, alone[path], now)
		}
	}
}

func BenchmarkLookingAsOneOfManyUsers(b *testing.B) {
	h := newTestServer(b)
	one := h.crowd(0, 200)
	for _, path := range looks {
		b.Run(path, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if r := one.call("GET", path, nil); r.status != 200 {
					b.Fatalf("%d %s", r.status, r.body)
				}
			}
		})
	}
}
