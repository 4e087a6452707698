package api_test

import (
	"fmt"
	"testing"

	"mariposa/contract"
)

// access reads a stream up to the next event access, and returns its value.
func (l *live) access() string {
	l.t.Helper()
	for {
		e, more := l.next()
		if !more {
			l.t.Fatal("the stream ended")
		}
		if e.event == "access" {
			return read[struct{ Access string }](l.t, e.raw).Access
		}
	}
}

// Whoever loses a project hears no more of it, so a stream says that the rights are others.
func TestAStreamSaysThatTheRightsHaveChanged(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	known := func(name string) string {
		return want[contract.Whoami](w.asUser(name).call("GET", "/v1/user", nil), 200).Access
	}
	yes, no := true, false
	for _, c := range []struct {
		user   string
		change func()
	}{
		{"vera", func() {
			want[contract.Changed](w.asUser("ada").call("DELETE", "/v1/projects/"+w.shop.ID+"/users/vera", nil), 200)
		}},
		{"mia", func() {
			want[contract.Changed](w.asUser("olga").call("DELETE", "/v1/organizations/acme/members/mia", nil), 200)
		}},
		{"sam", func() { want[contract.Changed](w.call("PUT", "/v1/users/sam", contract.UserChange{Admin: &yes}), 200) }},
		{"sam", func() { want[contract.Changed](w.call("PUT", "/v1/users/sam", contract.UserChange{Admin: &no}), 200) }},
		{"olga", func() {
			want[contract.Changed](w.call("PUT", "/v1/organizations/acme/members/ada", contract.MemberChange{Role: "owner"}), 200)
			want[contract.Changed](w.call("DELETE", "/v1/organizations/acme/members/olga", nil), 200)
		}},
	} {
		before := known(c.user)
		l := w.asUser(c.user).stream(fmt.Sprintf("?states=true&kinds=task&access=%s", before), -1)
		c.change()
		if got := l.access(); got == before || got != known(c.user) {
			t.Errorf("the rights of %s are %s after %s, and the stream says %s", c.user, known(c.user), before, got)
		}
		l.close()
		// A client that was away meanwhile is told at once.
		l = w.asUser(c.user).stream("?states=true&kinds=task&access="+before, -1)
		if got := l.access(); got != known(c.user) {
			t.Errorf("later, the stream of %s says %s", c.user, got)
		}
		l.close()
	}
}
