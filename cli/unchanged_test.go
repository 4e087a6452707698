package cli

import (
	"strings"
	"testing"
)

// A command that changes nothing says so.
func TestCommandsSayThatNothingChanged(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.again(t, "services:\n  a: {compute_type: dummy, scale: 1, update: {min_healthy: 0}}\n")
	f := s.proxy(t)
	const same = "compute_type: dummy\nscale: 1\nupdate: {min_healthy: 0}\n"
	for _, c := range []struct{ args, stdin, want string }{
		{"project revert hello 1", "", "hello: nothing to do; "},
		{"project revert hello 1 --scale a=1", "", "hello: nothing to do; "},
		{"project revert hello 1 --scale a=2", "", "hello: version 1 is already in force: only scales change"},
		{"project revert hello 1 --scale a=2", "", "hello: nothing to do; "},
		{"-j hello service update a -m -", same + "tags: {x: y}\n", "hello: service a is updated, version 2"},
		{"-j hello service update a -m -", same + "tags: {x: y}\n", "hello: nothing to do; service a is already like this in version 2"},
		{"-j hello service update a -m -", same, "hello: service a is updated, version 3"},
	} {
		r := (&run{f: f, stdin: c.stdin}).do(t, strings.Fields(c.args)...)
		r.expect(exitOK, strings.Contains(r.stdout, c.want))
		s.quiet()
	}
}

// A change of a service that is submitted again follows the task of the first submission.
func TestAServiceUpdateThatIsRepeatedFollowsItsTask(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.again(t, "services:\n  a: {compute_type: dummy, scale: 1, update: {min_healthy: 0}}\n")
	f := s.proxy(t)
	r := (&run{f: f}).do(t, "project", "freeze", "hello")
	r.expect(exitOK)
	const other = "compute_type: dummy\nscale: 2\nupdate: {min_healthy: 0}\n"
	for _, said := range []string{"hello: service a is updated, version 2", "hello: service a is already like this in version 2"} {
		r := (&run{f: f, stdin: other}).do(t, "-j", "hello", "service", "update", "a", "-m", "-")
		r.expect(exitOK, strings.Contains(r.stdout, said), strings.Contains(r.stdout, "\ntask "))
	}
}

// A change of a service that failed is retried if it is submitted again.
func TestAServiceUpdateThatFailedIsRetried(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.again(t, "services:\n  a: {compute_type: dummy, scale: 1, update: {min_healthy: 0}}\n")
	f := s.proxy(t)
	const bad = "compute_type: dummy\ndummy: {fail_prop: \"yes\"}\nupdate: {min_healthy: 0}\n"
	for _, said := range []string{"hello: service a is updated, version 2", "hello: service a is already like this in version 2"} {
		r := (&run{f: f, stdin: bad}).do(t, "-j", "hello", "service", "update", "a", "-m", "-", "--wait")
		r.expect(exitFailed, strings.Contains(r.stdout, said), strings.Contains(said, "updated") || strings.Contains(r.stdout, "; its rollout is retried"))
	}
}

// Scripts read the id of the task.
func TestQuietPrintsNothingButTheTask(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.again(t, "services:\n  a: {compute_type: dummy, scale: 1, update: {min_healthy: 0}}\n")
	f := s.proxy(t)
	for _, c := range []struct {
		args  string
		tasks int
	}{{"project scale hello a=2 -q", 1}, {"project scale hello a=2 -q", 0}, {"project stop hello -q", 1}} {
		r := (&run{f: f}).do(t, strings.Fields(c.args)...)
		ids := strings.Fields(r.stdout)
		r.expect(exitOK, len(ids) == c.tasks, c.tasks == 0 || strings.HasPrefix(r.stdout, "0198c000-"))
		s.quiet()
	}
}
