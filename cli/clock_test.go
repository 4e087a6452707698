package cli

import (
	"strings"
	"testing"
	"time"
)

// The clock of the client is three hours behind that of the server. Ages are those of the
// server, and so is what --since counts from.
func TestAWrongClockDoesNotChangeAges(t *testing.T) {
	t.Parallel()
	s := newTeamServerWith(t, "node1")
	(&run{f: s.proxy(t), stdin: "services: {web: {compute_type: dummy}}"}).do(t, "project", "create", "hello", "-m", "-", "--wait").expect(exitOK)
	s.ahead = 3 * time.Hour
	for _, args := range []string{"project list", "instance list"} {
		if r := (&run{f: s.proxy(t)}).do(t, strings.Fields(args)...); !strings.Contains(r.stdout, " 3h") {
			t.Errorf("%s shows\n%s", args, r.stdout)
		}
	}
	for args, path := range map[string]string{"events --since 1h": "/v1/events?", "events --audit --since 1h": "/v1/audit?"} {
		f := s.proxy(t)
		(&run{f: f}).do(t, strings.Fields(args)...).expect(exitOK)
		if asked := f.requests(); !strings.Contains(asked, path) || !strings.Contains(asked, "2026-03-01T14%3A10%3A00Z") {
			t.Errorf("%s asks\n%s", args, asked)
		}
	}
}
