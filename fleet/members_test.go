package fleet

import (
	"testing"

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
