package fleet

import (
	"testing"
	"time"

	"mariposa"
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
