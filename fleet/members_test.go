package fleet

import (
	"testing"
	"time"

	"mariposa"
	"mariposa/clock/clocktest"
	"mariposa/picture"
	"mariposa/store"
	"mariposa/store/memory"
)

func TestOnlyABalancerThatListsAMemberConfirmsItsDrain(t *testing.T) {
	t.Parallel()
	member := func(backend, id string, state mariposa.MemberState, idle bool) mariposa.MemberStatus {
		return mariposa.MemberStatus{Backend: backend, Instance: id, State: state, Idle: idle}
	}
	for name, c := range map[string]struct {
		members []mariposa.MemberStatus
		want    bool
	}{
		"it is not listed":                   {nil, false},
		"another is drained":                 {[]mariposa.MemberStatus{member("web.80", "b", mariposa.MemberDrain, true)}, false},
		"it is up":                           {[]mariposa.MemberStatus{member("web.80", "a", mariposa.MemberUp, false)}, false},
		"it drains, with connections":        {[]mariposa.MemberStatus{member("web.80", "a", mariposa.MemberDrain, false)}, false},
		"it is drained":                      {[]mariposa.MemberStatus{member("web.80", "a", mariposa.MemberDrain, true)}, true},
		"it is drained in one of two groups": {[]mariposa.MemberStatus{member("web.80", "a", mariposa.MemberDrain, true), member("web.81", "a", mariposa.MemberDrain, false)}, false},
		"it is down, without connections":    {[]mariposa.MemberStatus{member("web.80", "a", mariposa.MemberDown, true)}, true},
	} {
		if got := isDrained(c.members, "a"); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// In a rollout, members come and go with their instances, which have events of their own.
func TestMembersThatComeAndGoAreNoEvents(t *testing.T) {
	t.Parallel()
	member := func(id string, state mariposa.MemberState) mariposa.MemberStatus {
		return mariposa.MemberStatus{Backend: "web.80", Instance: id, Name: "web." + id, State: state, Reason: map[mariposa.MemberState]string{mariposa.MemberDown: "it does not answer"}[state]}
	}
	up, drain, down := mariposa.MemberUp, mariposa.MemberDrain, mariposa.MemberDown
	for name, c := range map[string]struct {
		before, after []mariposa.MemberStatus
		want, why     string
	}{
		"one joins":           {[]mariposa.MemberStatus{member("1", up)}, []mariposa.MemberStatus{member("1", up), member("2", up)}, "", ""},
		"one drains":          {[]mariposa.MemberStatus{member("1", up)}, []mariposa.MemberStatus{member("1", drain)}, "", ""},
		"one leaves":          {[]mariposa.MemberStatus{member("1", drain)}, nil, "", ""},
		"one goes down":       {[]mariposa.MemberStatus{member("1", up)}, []mariposa.MemberStatus{member("1", down), member("2", up)}, "instance.degraded", "1 of 2 members are down; web.1: it does not answer"},
		"another goes down":   {[]mariposa.MemberStatus{member("1", down)}, []mariposa.MemberStatus{member("1", down), member("2", down)}, "", ""},
		"one of two recovers": {[]mariposa.MemberStatus{member("1", down), member("2", down)}, []mariposa.MemberStatus{member("1", up), member("2", down)}, "", ""},
		"the last recovers":   {[]mariposa.MemberStatus{member("1", down)}, []mariposa.MemberStatus{member("1", up)}, "instance.recovered", ""},
	} {
		kind, why := memberNews(c.before, c.after)
		text := ""
		if why != nil {
			text = why.Detail
		}
		if kind != c.want || text != c.why {
			t.Errorf("%s: %q because %q, want %q because %q", name, kind, text, c.want, c.why)
		}
		a := &mariposa.InstanceStatus{State: mariposa.StateRunning, Members: c.before}
		b := &mariposa.InstanceStatus{State: mariposa.StateRunning, Members: c.after, Since: time.Unix(1, 0)}
		if !haveOnlyMembersChanged(a, b) {
			t.Errorf("%s: it is not seen that only members have changed", name)
		}
		if b.Restarts = 1; haveOnlyMembersChanged(a, b) {
			t.Errorf("%s: a restart is taken for a change of members", name)
		}
	}
}

// Which members a balancer reaches depends on where they are, and on what their node publishes.
func TestAMemberIsReachedWhereItsNodeLetsIt(t *testing.T) {
	t.Parallel()
	st := memory.New(clocktest.New())
	var u store.Unit
	for id, address := range map[string]string{"front": "10.0.0.1:4000", "twin": "10.0.0.1:5000", "far": "10.0.0.2:4000", "new": ""} {
		u.Put(store.Write{Kind: mariposa.KindNode, ID: id, Spec: &mariposa.NodeSpec{Name: id}, Status: &mariposa.NodeStatus{State: mariposa.NodeRunning, Address: address}})
	}
	if res := st.Commit(t.Context(), u); res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	pic, err := picture.Open(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{f: &Fleet{Options: Options{Picture: pic}}}
	own, published := []mariposa.Port{{Target: 80}}, []mariposa.Port{{Host: 8080, Target: 80}}
	const unpublished = "it is on another node, where only published ports of it can be reached: publish the port, like \"80:80\""
	for name, c := range map[string]struct {
		compute   mariposa.ComputeType
		node, at  string
		ports     []mariposa.Port
		want, why string
	}{
		"a process on the same node":               {mariposa.ComputeProcess, "front", "127.0.0.1:31000", own, "127.0.0.1:31000", ""},
		"a process on a node of the same machine":  {mariposa.ComputeProcess, "twin", "127.0.0.1:31000", own, "127.0.0.1:31000", ""},
		"a process on another machine":             {mariposa.ComputeProcess, "far", "127.0.0.1:31000", own, "10.0.0.2:31000", ""},
		"a process on a node without an address":   {mariposa.ComputeProcess, "new", "127.0.0.1:31000", own, "", "the address of its node is not known"},
		"a process without the port":               {mariposa.ComputeProcess, "front", "127.0.0.1:31000", []mariposa.Port{{Target: 81}}, "", "it has no port 80"},
		"a container on the same node":             {mariposa.ComputeDocker, "front", "172.17.0.2:80", own, "172.17.0.2:80", ""},
		"a container on another machine":           {mariposa.ComputeDocker, "far", "172.17.0.2:80", own, "", unpublished},
		"a published container on another machine": {mariposa.ComputeDocker, "far", "172.17.0.2:80", published, "10.0.0.2:8080", ""},
		"a virtual machine on the same node":       {mariposa.ComputeKVM, "front", "10.9.0.2:80", own, "10.9.0.2:80", ""},
		"a virtual machine on another machine":     {mariposa.ComputeKVM, "far", "10.9.0.2:80", own, "", unpublished},
		"one with a name for an address":           {mariposa.ComputeDocker, "front", "host:80", own, "", "its address is not an IP address"},
	} {
		got, why := s.reach(&mariposa.InstanceSpec{Node: c.node, Compute: c.compute}, &mariposa.InstanceStatus{Addresses: []string{c.at}}, &mariposa.Service{Ports: c.ports}, 80, "front")
		if got != c.want || why != c.why {
			t.Errorf("%s: %q because %q, want %q because %q", name, got, why, c.want, c.why)
		}
	}
}
