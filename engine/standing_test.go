package engine_test

import (
	"strings"
	"testing"
	"time"

	"mariposa"
)

// Repeated failures are not progress: a start that never comes up fails at its deadline,
// however often it is retried meanwhile.
func TestTriesThatFailAreNoProgress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	_, task := r.create("shop", web(2, "update: {deadline: 60, min_healthy: 0, on_failure: continue}"))
	began := r.clk.Now()
	for r.task(task).State != mariposa.TaskFailed && r.clk.Now().Sub(began) < 10*time.Minute {
		for _, x := range r.replicas {
			x.turn()
		}
		r.nodesAct()
		until := r.clk.Now().Add(100 * time.Millisecond)
		for do := r.clk.Next(until); do != nil; do = r.clk.Next(until) {
			do()
		}
		for _, rec := range r.instances() {
			if st, _ := rec.Status.(*mariposa.InstanceStatus); st != nil && st.State == mariposa.StateRunning {
				r.kill(rec.ID)
			}
		}
		for _, x := range r.replicas {
			x.renew()
		}
	}
	took := r.clk.Now().Sub(began)
	if st := r.wantTask(task, mariposa.TaskFailed); !strings.Contains(said(st.Reason), "no progress since") || took > 90*time.Second {
		t.Errorf("after %s it is %+v", took, st)
	}
}
