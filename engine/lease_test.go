package engine_test

import (
	"testing"
	"time"

	"mariposa/clock/clocktest"
	"mariposa/engine"
	"mariposa/picture"
	"mariposa/store/memory"
)

// A replica that never gets its lease must not act for longer than one that has lost it:
// the time that it may act begins with its start, and each renewal extends it.
func TestTheTimeWithoutALeaseBeginsAtTheStart(t *testing.T) {
	t.Parallel()
	clk := clocktest.New()
	st := memory.New(clk)
	defer st.Close()
	pic, err := picture.Open(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	var until []time.Duration
	e := engine.New(engine.Options{
		Store: st, Picture: pic, Clock: clk, Wake: func(string) {}, Holder: "r1", TTL: 6 * time.Second,
		Renewed: func(ttl time.Duration) { until = append(until, ttl) },
	})
	if len(until) != 1 || until[0] != 6*time.Second {
		t.Fatalf("at the start: %v", until)
	}
	if err := e.Renew(t.Context()); err != nil || len(until) != 2 {
		t.Errorf("after a renewal: %v, %v", until, err)
	}
}
