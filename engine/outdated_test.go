package engine_test

import (
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
)

// A person may restart an instance while a turn plans with what it read before. The turn
// must not overwrite the restart.
func TestATurnDoesNotOverwriteARestart(t *testing.T) {
	t.Parallel()
	r, p := settled(t, web(1))
	x := r.replicas[0]
	r.ask(p, mariposa.TaskScale, scaleTo("web", 0), "web")
	if _, err := x.pic.Advance(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.deaf = true

	read := func() *mariposa.InstanceSpec { return r.list(mariposa.KindInstance)[0].Spec.(*mariposa.InstanceSpec) }
	rec, spec := r.wantInstances(1)[0], *read()
	spec.ManualRestarts, spec.Generation = spec.ManualRestarts+1, spec.Generation+1
	u := store.Unit{}
	u.Unchanged((*store.Instance)(&rec))
	u.Put(store.Write{Kind: mariposa.KindInstance, ID: rec.ID, Project: p, Spec: &spec})
	r.commit(u)

	x.turn()
	if now := read(); now.ManualRestarts != spec.ManualRestarts || now.Goal != mariposa.GoalRunning || now.Generation != spec.Generation {
		t.Fatalf("the turn overwrote the restart: %+v", now)
	}
	x.deaf = false
	r.pass(time.Second)
	r.wantInstances(0)
}
