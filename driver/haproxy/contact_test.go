package haproxy_test

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"mariposa"
	"mariposa/driver/drivertest"
	"mariposa/listener/porttest"
)

func TestLimitsOfABalancerChangeWhileItRuns(t *testing.T) {
	t.Parallel()
	i := instance(drivertest.NewID(), mariposa.Balancer{Listen: []int{porttest.Reserve(t)}})
	d, _, o := run(t, i)
	i.Workload = &mariposa.Workload{Compute: mariposa.ComputeBalancer, Memory: 256 << 20, MilliCPU: 500}
	now, err := d.Update(t.Context(), i)
	must(t, err)
	if now.PhysicalID != o.PhysicalID || !strings.Contains(now.Details["limits"], "memory 256 MiB, cpu 0.5") {
		t.Errorf("it has %+v", now)
	}
}

// A member that runs but cannot be reached, such as a process that listens on the loopback of another
// node, gets no requests as long as others can be reached. It comes back once it can.
func TestAMemberThatCannotBeReachedGetsNoRequests(t *testing.T) {
	t.Parallel()
	at := porttest.Address(t)
	port := porttest.Reserve(t)
	i := instance(drivertest.NewID(), mariposa.Balancer{Listen: []int{port}})
	good, bad := named(t, "web"), mariposa.Member{Backend: "web.80", Instance: "bad", Address: at, Weight: 100, State: mariposa.MemberUp}
	d, seen, _ := run(t, i)
	isLost := func(m mariposa.MemberStatus) bool {
		return m.State == mariposa.MemberDown && m.Address == at && strings.Contains(m.Reason, "cannot connect to "+at+": connect: connection refused")
	}
	isUp := func(m mariposa.MemberStatus) bool { return m.State == mariposa.MemberUp }

	must(t, d.SetMembers(t.Context(), i.ID, []mariposa.Member{bad})) // it is the only one, so it is tried
	seen.await(t, i.ID, "bad", isLost)
	if got := control(t, i.ID, "show servers state web.80"); !strings.Contains(got, "bad") {
		t.Errorf("the last member is taken out: %s", got)
	}
	must(t, d.SetMembers(t.Context(), i.ID, []mariposa.Member{bad, good}))
	seen.await(t, i.ID, good.Instance, isUp)
	eventually(t, "taken out", func() string {
		if got := control(t, i.ID, "show servers state web.80"); strings.Contains(got, "bad") {
			return got
		}
		return "taken out"
	})
	if u, err := d.Usage(t.Context(), i.ID); err != nil || !isLost(u.Balancer.Members[0]) || !isUp(u.Balancer.Members[1]) {
		t.Errorf("shown: %+v, %v", u.Balancer, err)
	}
	l, err := net.Listen("tcp4", at)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	seen.await(t, i.ID, "bad", isUp)

	// One that could be reached before is found by the requests that fail.
	must(t, l.Close())
	eventually(t, "found", func() string {
		if got := get("http://127.0.0.1:" + strconv.Itoa(port)); got != "web http" {
			return got
		}
		u, err := d.Usage(t.Context(), i.ID)
		must(t, err)
		if isLost(u.Balancer.Members[0]) {
			return "found"
		}
		return u.Balancer.Members[0].Reason
	})
}
