package fleet_test

import (
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/fleet"
	"mariposa/wire"
)

func helloFrom(home string) *wire.Hello {
	h := hello("n1")
	h.Home = home
	return h
}

// An agent with a copy of the data directory is refused while the other one is heard from.
// A directory that was moved is accepted once the node counts as lost.
func TestAnAgentWithACopyOfTheDataDirectoryWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, bye := r.try(helloFrom("here")); bye != nil {
		t.Fatal(bye.Reason)
	}
	r.run()
	r.by = fleet.Admission{Node: "n1", From: "192.0.2.9"}
	refused := func() {
		t.Helper()
		h := helloFrom("there")
		h.Name = "renamed"
		_, bye := r.try(h)
		if bye == nil || bye.Final || !strings.Contains(bye.Reason, "node n1 runs with another data directory") || !strings.Contains(bye.Reason, "11 s") {
			t.Fatalf("it said %+v", bye)
		}
		r.run()
	}
	refused()
	if spec, st := r.node("n1"); spec.Name != "n1" || st.Epoch != 1 || r.fleet.Sessions() != 1 {
		t.Errorf("the copy changed %+v %+v", spec, st)
	}
	again, bye := r.try(helloFrom("here")) // it restarted
	if bye != nil {
		t.Fatal(bye.Reason)
	}
	r.run()
	again.session.End("gone")
	for range 10 { // what the copy tries is no sign of life of the node
		r.pass(time.Second)
		refused()
	}
	r.pass(2 * time.Second)
	if _, st := r.node("n1"); st.State != mariposa.NodeUnknown {
		t.Fatalf("the node is %s", st.State)
	}
	if _, bye := r.try(helloFrom("there")); bye != nil {
		t.Errorf("the moved one: %s", bye.Reason)
	}
	r.run()
	if _, bye := r.try(helloFrom("here")); bye == nil {
		t.Error("the former one got in")
	}
	if _, bye := r.try(helloFrom("")); bye != nil { // one that does not say where it is
		t.Errorf("without a home: %s", bye.Reason)
	}
}
