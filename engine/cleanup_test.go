package engine_test

import (
	"strings"
	"testing"
	"time"

	"mariposa"
)

// A step that removes the last attempt of a service that backs off belongs to the next
// attempt: it is a repair, and names the failure.
func TestATaskThatWaitsForTheNextTryIsARepair(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.create("shop", web(1))
	r.settle()
	r.pass(time.Minute)
	for range 4 {
		r.kill(r.wantInstances(1)[0].ID)
		r.settle()
		r.pass(30 * time.Second)
	}
	for _, own := range r.own() {
		if spec := own.Spec.(*mariposa.TaskSpec); spec.Component != "repair" || strings.Contains(said(spec.Reason), "kept") {
			t.Errorf("a try is a %s: %s", spec.Component, said(spec.Reason))
		}
	}
	if n := len(r.own()); n != 4 {
		t.Errorf("four failures made %d tasks", n)
	}
}
