package api_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// nextInstances reads a stream up to the next instances, and returns the kinds of the events before.
func (l *live) nextInstances() (e sse, doc contract.ChangedInstances, kinds []string) {
	l.t.Helper()
	for {
		e, more := l.next()
		if !more {
			l.t.Fatalf("the stream ended after %v", kinds)
		}
		if e.event == "instances" {
			return e, read[contract.ChangedInstances](l.t, e.raw), kinds
		}
		kinds = append(kinds, e.event)
	}
}

func TestAStreamBringsTheChangedInstancesOfAProject(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	shop, other := h.create("shop", hello), h.create("other", hello)
	h.node("n1", mariposa.NodeSpec{Name: "host-1"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	query := "?states=true&kinds=instance.failed&instances=" + shop.ID
	l := h.stream(query, -1)
	defer l.close()
	one := func(l *live) (sse, contract.ChangedInstance) {
		t.Helper()
		e, doc, kinds := l.nextInstances()
		if doc.Project != shop.ID || len(doc.Instances) != 1 || doc.Instances[0].ID != "i1" || slices.Contains(kinds, "instance.provisioning") {
			t.Fatalf("after %v: %+v", kinds, doc)
		}
		return e, doc.Instances[0]
	}
	h.instance("o1", other.ID, "web", "n1", mariposa.StateProvisioning, nil)
	h.instance("i1", shop.ID, "web", "n1", mariposa.StateProvisioning, nil)
	e, i := one(l)
	if i.State != mariposa.StateProvisioning || i.Name != "web.1-i1" || i.Slot != "web.1" || i.ServiceName != "web" || i.Number != 1 || i.NodeName != "host-1" ||
		i.Node != "n1" || i.Goal != mariposa.GoalRunning || i.ComputeType != mariposa.ComputeDummy || i.Created == nil || !i.Managed || i.Revision <= e.id {
		t.Errorf("a new one is %+v", i)
	}
	again := h.stream(query, e.id) // as after a disconnect right after them
	defer again.close()
	if _, i := one(again); i.Name != "web.1-i1" {
		t.Errorf("then it is %+v", i)
	}
	started, odd := time.Now().UTC(), "says \"no\"\n\\ <b>é</b>"
	h.commit(store.Unit{Writes: []store.Write{{
		Kind: mariposa.KindInstance, ID: "i1", Project: shop.ID, Status: &mariposa.InstanceStatus{State: mariposa.StateRunning, Started: started, Restarts: 2, Health: mariposa.HealthHealthy, Reason: odd},
		Event: mariposa.Event{Kind: "instance.running", Project: shop.ID, Instance: "i1"},
	}}})
	if _, i = one(l); i.State != mariposa.StateRunning || i.Health != mariposa.HealthHealthy || i.Started == nil || !i.Started.Equal(started) || i.Restarts != 2 || i.Reason != odd || i.Name != "" {
		t.Errorf("a running one is %+v", i)
	}
	h.commit(store.Unit{Writes: []store.Write{{
		Kind: mariposa.KindInstance, ID: "i1", Project: shop.ID, Delete: true, Event: mariposa.Event{Kind: "instance.deleted", Project: shop.ID, Instance: "i1"},
	}}})
	if _, i = one(l); i.State != mariposa.StateDestroyed {
		t.Errorf("a deleted one is %+v", i)
	}
	h.call("GET", "/v1/events?instances="+shop.ID, nil).wantError(400, mariposa.InvalidArgument, "states=true")
}

// If many instances change at once, a stream brings them all, but not all of their events.
func TestAStreamBringsOnlyTheNewestOfManyEvents(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.node("n1", mariposa.NodeSpec{Name: "host-1"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	l := h.stream("?states=true&kinds=task&detail="+c.ID+"&instances="+c.ID, -1)
	defer l.close()
	const n = 3000 // more than one event has
	u := store.Unit{}
	for i := range n {
		id := fmt.Sprintf("i%04d", i)
		u.Writes = append(u.Writes, store.Write{
			Kind: mariposa.KindInstance, ID: id, Project: c.ID, Event: mariposa.Event{Kind: "instance.provisioning", Project: c.ID, Instance: id},
			Spec: &mariposa.InstanceSpec{Name: "web." + id, Slot: i, Project: c.ID, ServiceName: "web", Number: 1, Compute: mariposa.ComputeDummy, Node: "n1", Goal: mariposa.GoalRunning, Generation: 1, Managed: true},
		})
	}
	h.commit(u)
	seen, events, newest := map[string]bool{}, 0, ""
	for len(seen) < n || newest != fmt.Sprintf("i%04d", n-1) {
		e, ok := l.next()
		if !ok {
			t.Fatalf("the stream ended after %d instances and %d events, the last of %s", len(seen), events, newest)
		}
		switch e.event {
		case "instances":
			for _, i := range read[contract.ChangedInstances](t, e.raw).Instances {
				seen[i.ID] = true
			}
		case "instance.provisioning":
			events, newest = events+1, e.data.Instance
		}
	}
	if events > n/2 {
		t.Errorf("%d events", events)
	}
}

func TestAStreamHasOnlyInstancesThatItsReaderMaySee(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	hidden, mine := w.create("hidden", hello), w.asUser("ulla").create("mine", hello)
	l := w.asUser("ulla").stream("?states=true&kinds=task&instances="+hidden.ID, -1)
	defer l.close()
	w.node("n1", mariposa.NodeSpec{Name: "host-1"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	w.testServer.instance("i1", hidden.ID, "web", "n1", mariposa.StateProvisioning, nil)
	w.testServer.instance("i2", mine.ID, "web", "n1", mariposa.StateProvisioning, nil)
	if kinds := l.nextState(mine.ID, starting(1)); slices.Contains(kinds, "instances") {
		t.Errorf("the stream has %v", kinds)
	}
}
