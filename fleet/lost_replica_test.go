package fleet_test

import (
	"testing"
	"time"

	"mariposa"
	"mariposa/fleet"
	"mariposa/listener/porttest"
	"mariposa/relay"
	"mariposa/store"
)

// A node tries one replica after another. What a replica heard is lost if it dies before it
// was asked, so the node gets another lifetime to connect.
func TestANodeIsNotUnknownBecauseItsAttemptsDiedWithAReplica(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.boot("r2")
	r.connect("n1")
	r.boot("r1")
	r.renew("r2")
	r.passWith("r3", 10*time.Second) // meanwhile r2 dies, then r3
	r.pass(12 * time.Second)         // r2 has been gone for longer than a lifetime
	r.wantNode("n1", mariposa.NodeRunning)
	r.pass(6 * time.Second)
	r.wantNode("n1", mariposa.NodeUnknown)
}

// links returns the connections of a replica of the rig.
func (r *rig) links(replica string) *relay.Links {
	l := relay.New(relay.Options{Replica: replica, Cluster: "c", Store: r.store, Ring: r.ring, Clock: r.clk})
	r.t.Cleanup(l.Close)
	return l
}

// addReplica makes another replica live for an hour, at an address.
func (r *rig) addReplica(replica, url string) {
	r.t.Helper()
	if _, err := r.store.Hold(r.t.Context(), replica, time.Hour, store.ReplicaPrefix+replica); err != nil {
		r.t.Fatal(err)
	}
	if err := r.store.Announce(r.t.Context(), replica, store.ReplicaPrefix+replica, relay.Replica{URL: url}.Note()); err != nil {
		r.t.Fatal(err)
	}
}

// A replica is alive, as its lease says, and does not answer: it may have heard from a node
// that no other replica hears from.
func TestANodeIsNotUnknownWhileAReplicaCannotBeAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.connect("n1")
	r.addReplica("r2", "http://"+porttest.Address(t)) // nobody listens there
	r.fleet.Links = r.links("r1")
	p.session.End("the connection was lost")
	r.pass(20 * time.Second)
	r.wantNode("n1", mariposa.NodeRunning)
	r.pass(5 * time.Second) // it is not waited for any longer
	r.wantNode("n1", mariposa.NodeUnknown)
}

// Before a node becomes unknown, the other replicas are asked about it. One of them cannot
// open sessions, and knows that the node lives.
func TestTheOtherReplicasAreAskedBeforeANodeIsUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.boot("r2")
	other, links := r.fleet, r.links("r2")
	srv := serveReplicas(links, other.ServeReplica)
	t.Cleanup(srv.Close)
	r.boot("r1")
	p := r.connect("n1")
	r.addReplica("r2", srv.URL)
	r.fleet.Links, r.fleet.NeighborTimeout = r.links("r1"), time.Minute
	t.Cleanup(r.fleet.Links.Close) // before the server, which waits for its connections
	p.session.End("the connection was lost")
	r.pass(8 * time.Second)
	other.NoteAttempt(fleet.Admission{Node: "n1"})
	r.pass(10 * time.Second)
	r.wantNode("n1", mariposa.NodeRunning)
	r.pass(5 * time.Second)
	r.wantNode("n1", mariposa.NodeUnknown)
	if _, st := r.node("n1"); !st.Reason.Since.Equal(r.clk.Now().Add(-15 * time.Second)) {
		t.Errorf("it was seen last at %s, 15 s ago would be right", st.Reason.Since)
	}
}
