package cli

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func TestTopEndsAfterSoManyLooks(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	s.project("ann", "calm")
	s.slowHello(t) // never settled
	for _, c := range []struct {
		args  string
		tty   bool
		looks int
	}{{"top -n 2", true, 2}, {"top -n 3", false, 3}, {"top -n 3 --json", false, 3}, {"top", false, 1}, {"top -n 1", true, 1}} {
		f := s.proxy(t)
		var looked atomic.Int64
		f.on("GET /v1/state", func(w http.ResponseWriter, r *http.Request) { // something happens after each read
			s.ServeHTTP(w, r)
			_, err := s.SetMetadata(context.Background(), "calm", "looks", contract.MetadataValue{Value: fmt.Appendf(nil, "%q", fmt.Sprint(c.args, looked.Add(1)))}, client.KeyChange{})
			if err != nil {
				t.Error(err)
			}
		})
		r := (&run{f: f, tty: c.tty}).do(t, strings.Fields(c.args)...)
		if n := strings.Count(f.requests(), "GET /v1/state"); r.code != exitOK || n != c.looks {
			t.Errorf("%s: exit %d after %d looks: %s", c.args, r.code, n, r.stderr)
		}
		if pages := strings.Count(r.stdout, "1 not settled"); !c.tty && !strings.Contains(c.args, "json") && pages != c.looks {
			t.Errorf("%s: %d pages", c.args, pages)
		}
		if c.looks == 3 && strings.Contains(c.args, "json") && strings.Count(r.stdout, "\n") != 3 {
			t.Errorf("%s: printed %s", c.args, r.stdout)
		}
	}
}

// Users who are not installation admins see everything except nodes.
func TestTopWithoutNodesForThoseWhoMayNotSeeThem(t *testing.T) {
	t.Parallel()
	s := newTeamServer(t)
	bobs, err := s.CreateToken(t.Context(), contract.NewToken{Name: "bobs", User: "bob"})
	must(t, err)
	env := map[string]string{"MARIPOSA_TOKEN": bobs.Secret}
	r := (&run{f: s.proxy(t), env: env}).do(t, "top")
	r.expect(exitOK, r.stdout == "0 projects, 0 of 0 running, 0 open tasks\n", strings.Contains(r.stderr, "project create"))
	s.slowHello(t)
	_, err = s.PutProjectUser(t.Context(), "hello", "bob", mariposa.RoleViewer)
	must(t, err)
	r = (&run{f: s.proxy(t), env: env}).do(t, "top")
	r.expect(exitOK, !strings.Contains(r.stdout, "NODE"), strings.Contains(r.stdout, "start hello"))
	(&run{f: s.proxy(t).on("GET /v1/nodes", throttled)}).do(t, "top").expect(exitError)
}

// Instances that no service wants are not counted against the goal of others.
func TestTheSummaryOfTopCountsWhatIsWanted(t *testing.T) {
	t.Parallel()
	project := func(goal mariposa.ProjectGoal, scale, running, ill int) contract.ProjectState {
		return contract.ProjectState{Goal: goal, Status: mariposa.StatusConverging, Services: []contract.ServiceState{{Goal: scale, Running: running, Healthy: max(0, running-ill), Status: mariposa.StatusConverging}}}
	}
	for _, c := range []struct {
		projects []contract.ProjectState
		says     string
	}{
		{[]contract.ProjectState{project(mariposa.GoalStarted, 5, 5, 1)}, "1 project, 1 not settled, 5 of 5 running, 1 not healthy, 0 open tasks"},
		{[]contract.ProjectState{project(mariposa.GoalStarted, 5, 3, 0)}, "1 project, 1 not settled, 3 of 5 running, 0 open tasks"},
		{[]contract.ProjectState{project(mariposa.GoalStarted, 5, 5, 0), project(mariposa.GoalDeleted, 153, 153, 0)}, "2 projects, 2 not settled, 5 of 5 running, 153 more to remove, 0 open tasks"},
		{[]contract.ProjectState{project(mariposa.GoalStarted, 5, 3, 0), project(mariposa.GoalStarted, 1, 4, 0)}, "2 projects, 2 not settled, 4 of 6 running, 3 more to remove, 0 open tasks"},
	} {
		o := &overview{now: overviewNow{State: &contract.State{Projects: c.projects}}}
		if says := o.summary(); says != c.says {
			t.Errorf("it says %q, not %q", says, c.says)
		}
	}
}
