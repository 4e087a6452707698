package fleet_test

import (
	"fmt"
	"testing"
	"time"

	"mariposa/relay"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/wire"
)

// publish makes a replica alive for an hour.
func (r *rig) publish(replica string) {
	r.t.Helper()
	if _, err := r.store.Hold(r.t.Context(), replica, time.Hour, store.ReplicaPrefix+replica); err != nil {
		r.t.Fatal(err)
	}
	note := relay.Replica{URL: "https://" + replica, Since: r.clk.Now()}.Note()
	if err := r.store.Announce(r.t.Context(), replica, store.ReplicaPrefix+replica, note); err != nil {
		r.t.Fatal(err)
	}
}

// ticks lets nodes send heartbeats while the fleet watches them.
func (r *rig) ticks(n int) {
	r.t.Helper()
	for range n {
		r.clk.Pass(2 * time.Second)
		for _, p := range r.open {
			if !p.isClosed() {
				p.say(wire.Frame{Heartbeat: &wire.Heartbeat{}})
			}
		}
		r.run()
		r.fleet.Tick(r.t.Context())
		r.run()
	}
}

func TestANewReplicaGetsNodesOneByOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	links := relay.New(relay.Options{Replica: "r1", Store: r.store, Ring: seal.NewRing(), Clock: r.clk})
	t.Cleanup(links.Close)
	r.fleet.Links = links
	r.publish("r1")
	var peers []*peer
	for i := range 6 {
		peers = append(peers, r.connect(fmt.Sprintf("n%d", i)))
	}
	left := func() (n int) {
		for _, p := range peers {
			if p.isClosed() {
				n++
			}
		}
		return n
	}
	r.ticks(20)
	if n := left(); n > 0 {
		t.Fatalf("%d nodes were sent away while there is no other replica", n)
	}
	r.publish("r2")
	r.ticks(10)
	if n := left(); n > 0 {
		t.Fatalf("%d nodes were sent to a replica that has just started", n)
	}
	r.ticks(6)
	if n := left(); n != 1 {
		t.Fatalf("%d nodes were sent away at once", n)
	}
	for _, p := range peers {
		if p.isClosed() { // it cannot reach the other replica
			r.connect(p.session.Node())
		}
	}
	r.ticks(60)
	if n := left(); n != 1 {
		t.Errorf("%d nodes were sent away although one came back", n)
	}
}
