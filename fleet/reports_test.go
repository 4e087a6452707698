package fleet_test

import (
	"fmt"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/wire"
)

func (r *rig) countChanges() int64 {
	r.t.Helper()
	n, err := r.store.Revision(r.t.Context())
	must(r.t, err)
	return n
}

// A node that changes its instances all the time has only their newest states stored. None
// is lost, and none waits for the others for ever.
func TestANodeCannotStoreChangesWithoutEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	p := r.connect("n1")
	names := []string{"i1", "i2", "i3"}
	for _, id := range names {
		r.commit(put(id, instance(id, "n1", "web")))
	}
	restarted := func(n int) (all []wire.Status) {
		for _, id := range names {
			it := statusItem(id, mariposa.StateRunning)
			it.Status.Restarts = n
			all = append(all, it)
		}
		return all
	}
	before := r.countChanges()
	for n := range 1000 {
		p.report(restarted(n)...)
	}
	if n := r.countChanges() - before; n < 200 || n > 300 {
		t.Errorf("%d changes were stored", n)
	}
	before = r.countChanges()
	for n := range 60 { // they go on for a minute
		p.report(restarted(1000 + n)...)
		p.say(wire.Frame{Heartbeat: &wire.Heartbeat{}})
		r.pass(time.Second)
	}
	if n := r.countChanges() - before; n < 60 || n > 90 {
		t.Errorf("%d changes were stored within a minute", n)
	}
	for _, id := range names {
		if n := r.status(id).Restarts; n < 1050 {
			t.Errorf("%s waits since its restart %d", id, n)
		}
	}
	for range 5 {
		p.say(wire.Frame{Heartbeat: &wire.Heartbeat{}})
		r.pass(time.Second)
	}
	for _, id := range names {
		if n := r.status(id).Restarts; n != 1059 {
			t.Errorf("of %s, restart %d is stored", id, n)
		}
	}
}

// Thousands of instances that start, become healthy and stop at once do not wait.
func TestManyInstancesAreNotHeldUp(t *testing.T) {
	t.Parallel()
	const total = 5000
	r := newRig(t)
	r.project("p", manifestBody)
	p := r.connect("n1")
	var all []store.Write
	for i := range total {
		id := fmt.Sprintf("i%05d", i)
		all = append(all, put(id, instance(id, "n1", "web")))
	}
	r.commit(all...)
	for n, state := range []mariposa.State{mariposa.StateRunning, mariposa.StateRunning, mariposa.StateStopping, mariposa.StateStopped, mariposa.StateDestroyed} {
		before := r.countChanges()
		var items []wire.Status
		for i := range total {
			it := statusItem(fmt.Sprintf("i%05d", i), state)
			it.Status.Restarts = n
			items = append(items, it)
		}
		p.report(items...)
		if n := r.countChanges() - before; n != total {
			t.Errorf("%d of %d changes to %s were stored at once", n, total, state)
		}
	}
}
