package agent_test

import (
	"strings"
	"testing"

	"mariposa"
	"mariposa/wire"
)

// frozen is an assignment to a frozen service.
func frozen(it wire.Assignment) wire.Assignment {
	it.Frozen = true
	return it
}

// An instance that ends in a frozen service is not restarted, whatever its policy: with a
// connection, without one, and while the agent was away. Instances that ended during the
// freeze are left to the control plane after the thaw; those that run then are restarted
// again.
func TestWhatIsFrozenIsNotRestarted(t *testing.T) {
	t.Parallel()
	w := work(mariposa.Workload{Compute: mariposa.ComputeDummy, Restart: mariposa.Restart{Policy: mariposa.RestartAlways}})
	for name, die := range map[string]func(r *rig){
		"connected": func(r *rig) { r.crash("a") },
		"disconnected": func(r *rig) {
			r.node.Disconnected(r.conn)
			r.run()
			r.crash("a")
			r.connect(frozen(known(wanted("a", 1, w), mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1})), wanted("b", 1, w))
		},
		"away": func(r *rig) {
			started, _ := r.real("a")
			r.boot()
			r.crash("a")
			r.connect(frozen(known(wanted("a", 1, w), mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1, Started: started.Started})), wanted("b", 1, w))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.connect(wanted("a", 1, w), wanted("b", 1, w))
			r.wantState("a", mariposa.StateRunning)
			r.assign(frozen(wanted("a", 1, w)))
			die(r)
			if st := r.wantState("a", mariposa.StateFailed); st.Restarts != 0 || !strings.Contains(st.Reason, "not restarted while its service is frozen") {
				t.Errorf("reported %+v", st)
			}
			r.crash("b")
			if st := r.wantState("b", mariposa.StateRunning); st.Restarts != 1 {
				t.Errorf("what is not frozen: %+v", st)
			}
			r.assign(wanted("a", 1, w))
			r.wantState("a", mariposa.StateFailed)
			r.assign(frozen(wanted("b", 1, w)))
			r.assign(wanted("b", 1, w))
			r.crash("b")
			if st := r.wantState("b", mariposa.StateRunning); st.Restarts != 2 {
				t.Errorf("after the thaw: %+v", st)
			}
		})
	}
}
