package agent_test

import (
	"slices"
	"testing"
	"time"

	"mariposa/agent"
)

// The control plane considers a node unknown that it has not heard for 11 s: attempts must
// not be far apart, and a session that ends is replaced at once, whatever came before it.
func TestPausesStartOverAfterASession(t *testing.T) {
	t.Parallel()
	var p agent.Pacer
	var got []time.Duration
	for _, lasted := range []time.Duration{0, 0, 0, 0, 0, time.Second, time.Second, 2 * time.Second, 0} {
		got = append(got, p.Next(lasted)/time.Millisecond)
	}
	if want := []time.Duration{100, 200, 400, 800, 1600, 3000, 3000, 100, 200}; !slices.Equal(got, want) {
		t.Errorf("got %d ms, want %d ms", got, want)
	}
}
