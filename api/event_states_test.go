package api_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// nextState reads a stream up to the next state of a project for which ok is true, and returns
// the kinds of the events before.
func (l *live) nextState(project string, ok func(contract.ProjectState) bool) (kinds []string) {
	l.t.Helper()
	for {
		e, more := l.next()
		if !more {
			l.t.Fatalf("the stream ended after %v", kinds)
		}
		if e.event != "state" {
			kinds = append(kinds, e.event)
			continue
		}
		if st := read[contract.ProjectState](l.t, e.raw); st.ID == project && ok(st) {
			return kinds
		}
	}
}

func starting(n int) func(contract.ProjectState) bool {
	return func(st contract.ProjectState) bool {
		all := 0
		for _, s := range st.Services {
			all += s.Starting
		}
		return all == n
	}
}

func TestAStreamBringsTheStatesOfProjects(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	before := h.picture.Revision()
	old := h.create("before", hello)
	l := h.stream(fmt.Sprintf("?states=true&kinds=task,project.created&since=%d", before), -1)
	defer l.close()
	if kinds := l.nextState(old.ID, starting(0)); len(kinds) > 0 {
		t.Errorf("first came %v", kinds)
	}
	c := h.create("shop", hello)
	seen := l.nextState(c.ID, starting(0))
	h.node("n1", mariposa.NodeSpec{Name: "host-1"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	h.instance("i1", c.ID, "web", "n1", mariposa.StateProvisioning, nil)
	seen = append(seen, l.nextState(c.ID, starting(1))...)
	h.instance("i2", c.ID, "web", "n1", mariposa.StateProvisioning, nil)
	seen = append(seen, l.nextState(c.ID, starting(2))...)
	if want := []string{"project.created", "task.queued", "project.created", "task.queued"}; !slices.Equal(seen, want) {
		t.Errorf("the events are %v", seen)
	}
	// A node that is lost has an event, and its instances have none.
	h.node("n1", mariposa.NodeSpec{Name: "host-1"}, mariposa.NodeStatus{State: mariposa.NodeUnknown})
	l.nextState(c.ID, func(st contract.ProjectState) bool {
		return slices.ContainsFunc(st.Services, func(s contract.ServiceState) bool { return s.Unknown == 2 })
	})
	h.call("GET", "/v1/events?kinds=task,Instance", nil).wantError(400, mariposa.InvalidArgument, "kinds", "Instance")
}

// Of one project all events are sent, of the others those of a few kinds. Lists have the same
// filter.
func TestAStreamHasTheDetailsOfOneProject(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	shop, other := h.create("shop", hello), h.create("other", hello)
	query := "?states=true&kinds=instance.failed&detail=" + shop.ID
	l := h.stream(query, -1)
	defer l.close()
	h.node("n1", mariposa.NodeSpec{Name: "host-1"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	l.nextState(other.ID, starting(0)) // those that it starts with may be newer than its events
	for i, c := range []contract.Changed{other, shop, other} {
		h.instance(fmt.Sprintf("i%d", i), c.ID, "web", "n1", "", nil)
	}
	if kinds := l.nextState(other.ID, starting(2)); len(kinds) != 1 || kinds[0] != "instance.provisioning" {
		t.Errorf("the events are %v", kinds)
	}
	list := want[contract.Events](h.call("GET", "/v1/events"+strings.Replace(query, "states=true&", "", 1), nil), 200)
	for _, e := range list.Events {
		if e.Project != shop.ID {
			t.Errorf("the list has %s of %s", e.Kind, e.ProjectName)
		}
	}
	if len(list.Events) < 4 {
		t.Errorf("the list has only %d events", len(list.Events))
	}
}

// Only states of visible projects are sent, and none after the event that a project is deleted.
func TestAStreamHasOnlyStatesThatItsReaderMaySee(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	mine := w.asUser("ulla").create("mine", hello)
	l := w.asUser("ulla").stream("?states=true&kinds=project", -1)
	defer l.close()
	for i := range 20 {
		w.create(fmt.Sprintf("hidden-%d", i), hello)
	}
	w.commit(store.Unit{Writes: []store.Write{{Kind: mariposa.KindProject, ID: mine.ID, Project: mine.ID, Delete: true, Event: mariposa.Event{Kind: "project.deleted", Project: mine.ID}}}})
	second := w.asUser("ulla").create("second", hello)
	for deleted := false; ; {
		e, ok := l.next()
		if !ok {
			t.Fatal("the stream ended")
		}
		if e.event == "project.deleted" {
			deleted = true
		}
		if e.event != "state" {
			continue
		}
		st := read[contract.ProjectState](t, e.raw)
		if strings.HasPrefix(st.Name, "hidden") || (deleted && st.ID == mine.ID) {
			t.Fatalf("the stream has the state of %s", st.Name)
		}
		if st.ID == second.ID {
			return
		}
	}
}

// Counts that are kept up to date are the same as those of a server that counts everything anew.
func TestStatesAreCountedAsIfAnew(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", "services: {web: {compute_type: dummy, scale: 2, update: {min_healthy: 3600}}, db: {compute_type: dummy}}")
	st := settled(c)
	st.Status, st.Services["web"].Status = mariposa.StatusConverging, mariposa.StatusConverging
	h.plan(c.ID, st)
	states := []mariposa.State{"", mariposa.StateProvisioning, mariposa.StateRunning, mariposa.StateRunning, mariposa.StateFailed, mariposa.StateStopping, mariposa.StateDestroyed, mariposa.StateStopped}
	rng := rand.New(rand.NewPCG(1, 2))
	setNode := func(n int, state mariposa.NodeState) {
		h.node(fmt.Sprintf("n%d", n), mariposa.NodeSpec{Name: fmt.Sprintf("host-%d", n)}, mariposa.NodeStatus{State: state})
	}
	for n := range 3 {
		setNode(n, mariposa.NodeRunning)
	}
	for i := range 120 { // so many that the counts are kept
		h.instance(fmt.Sprintf("i%03d", i), c.ID, []string{"web", "db"}[i%2], fmt.Sprintf("n%d", i%3), mariposa.StateRunning, nil)
	}
	shown := func(s *testServer) string {
		state := want[contract.State](s.call("GET", "/v1/state?project="+c.ID, nil), 200)
		return string(must(json.Marshal(state.Projects))(t))
	}
	for round := range 20 {
		for range rng.IntN(5) + 1 {
			id := fmt.Sprintf("i%03d", rng.IntN(130))
			switch known := h.picture.Instances.Get(id); {
			case known == nil:
				h.instance(id, c.ID, []string{"web", "db", "old"}[rng.IntN(3)], fmt.Sprintf("n%d", rng.IntN(3)), states[rng.IntN(len(states))], func(s *mariposa.InstanceSpec) {
					s.Digest, s.Slot = []string{s.Digest, "older"}[rng.IntN(2)], rng.IntN(9)
				})
			case rng.IntN(4) == 0:
				h.commit(store.Unit{Writes: []store.Write{{Kind: mariposa.KindInstance, ID: id, Delete: true}}})
			default:
				h.commit(store.Unit{Writes: []store.Write{{Kind: mariposa.KindInstance, ID: id, Status: &mariposa.InstanceStatus{State: states[1+rng.IntN(len(states)-1)], Since: time.Now()}}}})
			}
		}
		if round%7 == 3 {
			setNode(rng.IntN(3), []mariposa.NodeState{mariposa.NodeRunning, mariposa.NodeUnknown}[rng.IntN(2)])
		}
		if round == 15 {
			st.Services["web"].Status, st.Services["db"].Status = mariposa.StatusConverged, mariposa.StatusConverging
			h.plan(c.ID, st)
		}
		h.until("the picture shows everything", func() bool { return h.picture.Revision() == must(h.store.Revision(h.ctx))(t) })
		last := shown(h)
		if round%5 < 4 {
			continue
		}
		anew := h.restart()
		// The fleet may notice meanwhile that the nodes are not connected.
		h.until("a new server shows the same after round "+strconv.Itoa(round)+" as "+last, func() bool { return shown(h) == shown(anew) })
	}
}
