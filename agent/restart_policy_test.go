package agent_test

import (
	"testing"

	"mariposa"
	"mariposa/wire"
)

// An instance that ends is restarted by the policy in force, not by the one that its version
// had.
func TestTheRestartPolicyInForceApplies(t *testing.T) {
	t.Parallel()
	always, never := mariposa.Restart{Policy: mariposa.RestartAlways}, mariposa.Restart{Policy: mariposa.RestartNo}
	inForce := func(it wire.Assignment, policy mariposa.Restart) wire.Assignment {
		it.Restart = &policy
		return it
	}
	r := newRig(t)
	w := work(mariposa.Workload{Compute: mariposa.ComputeDummy, Restart: never})
	x := work(mariposa.Workload{Compute: mariposa.ComputeDummy, Restart: always})
	r.connect(wanted("a", 1, w), wanted("b", 1, x))
	r.wantState("a", mariposa.StateRunning)
	r.wantState("b", mariposa.StateRunning)
	r.assign(inForce(wanted("a", 1, w), always))
	r.assign(inForce(wanted("b", 1, x), never))
	r.crash("a")
	if st := r.wantState("a", mariposa.StateRunning); st.Restarts != 1 {
		t.Errorf("restarts now: %+v", st)
	}
	r.crash("b")
	if st := r.wantState("b", mariposa.StateFailed); st.Restarts != 0 {
		t.Errorf("no longer restarts: %+v", st)
	}
	r.assign(wanted("a", 1, w)) // its own again
	r.crash("a")
	if st := r.wantState("a", mariposa.StateFailed); st.Restarts != 1 {
		t.Errorf("no longer restarts: %+v", st)
	}
}
