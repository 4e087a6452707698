package fleet_test

import (
	"testing"

	"mariposa"
	"mariposa/fleet"
	"mariposa/store"
	"mariposa/wire"
)

// A route is removed before the balancer has said which members it has. The former member may have
// connections, so it drains until the balancer says that it has none.
func TestAMemberDrainsAfterItsRouteIsGone(t *testing.T) {
	t.Parallel()
	const services = "services:\n  web: {compute_type: process, command: [x], ports: [80]}\n  other: {compute_type: process, command: [x], ports: [80]}\nload_balancers:\n"
	for name, leaves := range map[string]bool{"it stays": false, "it leaves": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.project("p", services+"  front: {listen: 80, service: web, port: 80, drain: 20}\n")
			one, two := r.connectFrom("n1", "192.0.2.1:1", "a"), r.connectFrom("n2", "192.0.2.1:2", "a")
			web := r.serveBehind(one, two)
			members := func() (states []mariposa.MemberState) {
				for _, m := range lastMembers(t, one) {
					states = append(states, m.State)
				}
				return states
			}
			if got := members(); len(got) != 1 || got[0] != mariposa.MemberUp {
				t.Fatalf("at first its members are %v", got)
			}

			// The next version has another route, and perhaps replaces the member.
			writes := []store.Write{
				{Kind: mariposa.KindVersion, ID: mariposa.VersionID("p", 2), Project: "p", Spec: &mariposa.VersionSpec{Project: "p", Number: 2, Manifest: []byte(services + "  front: {listen: 80, service: other, port: 80, drain: 20}\n")}},
				{Kind: mariposa.KindProject, ID: "p", Project: "p", Status: &mariposa.ProjectStatus{Services: map[string]*mariposa.ServiceStatus{"front": {Number: 2}, "web": {Number: 1}}}},
			}
			if gone := *web; leaves {
				gone.Goal, gone.Generation = mariposa.GoalGone, 2
				writes = append(writes, put("web", &gone))
			}
			r.commit(writes...)
			if got := members(); len(got) != 1 || got[0] != mariposa.MemberDrain {
				t.Errorf("without its route the member is %v, want that it drains", got)
			}
			drains := func() bool {
				all := two.assigned()
				return all[len(all)-1].Drain > 0
			}
			if drains() != leaves {
				t.Errorf("its node waits for its connections: %v", drains())
			}

			// The balancer says that it has no connections left.
			listed := statusItem("front", mariposa.StateRunning)
			listed.Status.Members = []mariposa.MemberStatus{{Backend: "web.80", Instance: "web", Name: "web.1-web", State: mariposa.MemberDrain, Idle: true}}
			one.report(listed)
			if drains() {
				t.Error("its node waits although it has no connections")
			}
			if got := members(); !leaves && len(got) != 0 {
				t.Errorf("one without connections stays %v", got)
			}
		})
	}
}

// Only version 2 has a route to the instance, which has another version. Its balancer has not said
// yet which members it has, and the balancer's node has a new session. The instance may have
// connections all the same.
func TestAMemberOfAnotherVersionDrains(t *testing.T) {
	t.Parallel()
	const front = `services:
  web: {compute_type: process, command: [x], ports: [80]}
  other: {compute_type: process, command: [x], ports: [80]}
load_balancers:
  front: {listen: 80, port: 80, drain: 20, service: `
	for name, c := range map[string]struct{ newest, inForce, web int }{
		"the route came and went":           {3, 3, 1},
		"the version was rolled back":       {2, 1, 1},
		"the instance was updated in place": {4, 4, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.project("p", front+"other}\n")
			inForce := func(number int) store.Write {
				return store.Write{Kind: mariposa.KindProject, ID: "p", Project: "p", Status: &mariposa.ProjectStatus{Services: map[string]*mariposa.ServiceStatus{"front": {Number: number}, "web": {Number: 1}}}}
			}
			submit := func(number int, manifest string) {
				spec := &mariposa.ProjectSpec{Name: "shop", Organization: "default", Number: number}
				for n := range number {
					spec.Versions = append(spec.Versions, n+1)
				}
				r.commit(
					store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID("p", number), Project: "p", Spec: &mariposa.VersionSpec{Project: "p", Number: number, Manifest: []byte(manifest)}},
					store.Write{Kind: mariposa.KindProject, ID: "p", Project: "p", Spec: spec}, inForce(number),
				)
			}
			submit(2, front+"web}\n")
			one, two := r.connectFrom("n1", "192.0.2.1:1", "a"), r.connectFrom("n2", "192.0.2.1:2", "a")
			web := r.serveBehind(one, two)
			if got := lastMembers(t, one); len(got) != 1 || got[0].State != mariposa.MemberUp {
				t.Fatalf("at first its members are %v", got)
			}
			for number := 3; number <= c.newest; number++ {
				submit(number, front+"other}\n")
			}
			r.commit(inForce(c.inForce))

			one = r.connectFrom("n1", "192.0.2.1:1", "a")
			gone := *web
			gone.Goal, gone.Generation, gone.Number = mariposa.GoalGone, 2, c.web
			r.commit(put("web", &gone))
			if got := lastMembers(t, one); len(got) != 1 || got[0].State != mariposa.MemberDrain {
				t.Errorf("without its route the members are %v, want that the former one drains", got)
			}
			if all := two.assigned(); all[len(all)-1].Drain == 0 {
				t.Error("its node does not wait for its connections")
			}
		})
	}
}

// A former member is restarted. It drains until its balancer says that it has no connections, and no
// longer.
func TestAFormerMemberDrainsBeforeARestart(t *testing.T) {
	t.Parallel()
	const front = `services:
  web: {compute_type: process, command: [x], ports: [80]}
  other: {compute_type: process, command: [x], ports: [80]}
load_balancers:
  front: {listen: 80, port: 80, drain: 20, service: `
	r := newRig(t)
	r.project("p", front+"web}\n")
	r.commit(
		store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID("p", 2), Project: "p", Spec: &mariposa.VersionSpec{Project: "p", Number: 2, Manifest: []byte(front + "other}\n")}},
		store.Write{
			Kind: mariposa.KindProject, ID: "p", Project: "p", Spec: &mariposa.ProjectSpec{Name: "shop", Organization: "default", Number: 2, Versions: []int{1, 2}},
			Status: &mariposa.ProjectStatus{Services: map[string]*mariposa.ServiceStatus{"front": {Number: 2}, "web": {Number: 2}}},
		},
	)
	one, two := r.connectFrom("n1", "192.0.2.1:1", "a"), r.connectFrom("n2", "192.0.2.1:2", "a")
	web := *r.serveBehind(one, two)
	web.Number, web.ManualRestarts, web.Generation = 2, 1, 2
	r.commit(put("web", &web))
	drain := func() int {
		all := two.assigned()
		return int(all[len(all)-1].Drain.Seconds())
	}
	members := lastMembers(t, one)
	if len(members) != 1 || members[0].State != mariposa.MemberDrain || drain() != 20 {
		t.Fatalf("it waits %d s, and the members are %v", drain(), members)
	}
	listed := statusItem("front", mariposa.StateRunning)
	listed.Status.Members = []mariposa.MemberStatus{{Backend: members[0].Backend, Instance: "web", Name: members[0].Name, State: mariposa.MemberDrain, Idle: true}}
	one.report(listed)
	if members := lastMembers(t, one); drain() != 0 || len(members) != 1 {
		t.Errorf("without connections it waits %d s, and the members are %v", drain(), members)
	}
}

// connectFrom connects a node that can run balancers, from an address and a network stack.
func (r *rig) connectFrom(node, address, stack string) *peer {
	r.t.Helper()
	r.by = fleet.Admission{Own: true, From: address}
	h := hello(node)
	h.Drivers = []mariposa.ComputeType{mariposa.ComputeProcess, mariposa.ComputeBalancer}
	h.Machine = &mariposa.Machine{Network: stack}
	p, bye := r.try(h)
	if bye != nil {
		r.t.Fatal(bye.Reason)
	}
	r.run()
	return p
}

// serveBehind runs a balancer on n1, and web on n2, which it returns.
func (r *rig) serveBehind(n1, n2 *peer) *mariposa.InstanceSpec {
	r.t.Helper()
	front, web := instance("front", "n1", "front"), instance("web", "n2", "web")
	front.Compute, web.Compute = mariposa.ComputeBalancer, mariposa.ComputeProcess
	r.commit(put("front", front), put("web", web))
	n1.report(statusItem("front", mariposa.StateRunning))
	up := statusItem("web", mariposa.StateRunning)
	up.Status.Addresses = []string{"127.0.0.1:4000"}
	n2.report(up)
	return web
}

// lastMembers returns the members that an agent was last sent for a balancer.
func lastMembers(t *testing.T, p *peer) []mariposa.Member {
	t.Helper()
	var last *wire.Balance
	for _, f := range p.heard() {
		if f.Balance != nil {
			last = f.Balance
		}
	}
	if last == nil {
		t.Fatal("a balancer got no members")
	}
	return last.Members
}
