package cli

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
)

// crowd returns a server with several projects and tasks.
func crowd(t *testing.T) *fake {
	t.Helper()
	s := helloState()
	for _, name := range []string{"calm", "idle", "shop"} {
		s.Projects = append(s.Projects, contract.ProjectState{
			Name: name, Goal: mariposa.GoalStarted, Status: mariposa.StatusConverged, Services: []contract.ServiceState{{Name: "web", Goal: 3, Running: 3, Status: mariposa.StatusConverged}},
		})
	}
	s.Projects[2].Goal, s.Projects[2].Status, s.Projects[2].Services[0].Running = mariposa.GoalStopped, mariposa.StatusStopped, 0
	rolling := task(mariposa.TaskActive, 3, 12)
	rolling.Task, rolling.ETA = mariposa.TaskReprovision, after(11*time.Minute)
	waits := task(mariposa.TaskQueued, 0, 0)
	waits.Reason = "ann scaled web to 2; waits for task a1 (reprovision, active)"
	f := world(t).give("GET /v1/state", s).give("GET /v1/queue", contract.Tasks{Tasks: []contract.Task{frozen(0, 0), waits, rolling}})
	nodes := helloNodes()
	nodes[0].Reserved = mariposa.Resources{MilliCPU: 1980, Memory: 6 << 30}
	return f.give("GET /v1/nodes", contract.Nodes{Nodes: nodes})
}

func TestTopEndsAfterSoManyLooks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args  string
		tty   bool
		looks int
	}{{"top -n 2", true, 2}, {"top -n 3", false, 3}, {"top -n 3 --json", false, 3}, {"top", false, 1}, {"top -n 1", true, 1}} {
		f, looked := crowd(t), make(chan struct{}, 10)
		s := helloState()
		f.on("GET /v1/state", func(w http.ResponseWriter, _ *http.Request) {
			looked <- struct{}{}
			writeJSON(w, s)
		})
		f.feed(func(w http.ResponseWriter, r *http.Request) { // a new event after each read
			for rev := int64(8); ; rev++ {
				select {
				case <-looked:
					writeEvents(w, r, projectEvent(rev, "converging", ""))
				case <-r.Context().Done():
					return
				}
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
	f := crowd(t).on("GET /v1/nodes", refuse(mariposa.Forbidden, "only who runs the installation sees nodes"))
	r := (&run{f: f}).do(t, "top")
	r.expect(exitOK, !strings.Contains(r.stdout, "NODE"), strings.Contains(r.stdout, "reprovision hello/web"))
	nothing := world(t).give("GET /v1/state", contract.State{}).give("GET /v1/queue", contract.Tasks{}).give("GET /v1/nodes", contract.Nodes{})
	r = (&run{f: nothing}).do(t, "top")
	r.expect(exitOK, r.stdout == "0 projects, 0 of 0 running, 0 open tasks\n", strings.Contains(r.stderr, "project create"))
	(&run{f: crowd(t).on("GET /v1/nodes", refuse(mariposa.Throttled, "slow down"))}).do(t, "top").expect(exitError)
}
