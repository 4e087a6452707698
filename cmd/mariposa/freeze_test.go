package main_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// Nothing is restarted in a frozen service, whatever its restart policy: the agent does
// not restart a killed instance, even without a connection, and users cannot restart one
// manually. The thaw repairs the service.
func TestNothingIsRestartedInAFrozenScope(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"always", "on-failure", "unless-stopped"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			a := newSplitSystem(t)
			a.agent()
			a.env = []string{"MARIPOSA_URL=" + a.url, "MARIPOSA_TOKEN=" + a.admin}
			a.create("shop", fmt.Sprintf("services:\n  web: {compute_type: process, command: [sleep, '1000'], restart: %s, update: {min_healthy: 0}}\n", policy))
			a.converged("shop", "web", 1)
			kill := func() (name string) {
				t.Helper()
				for name, pid := range a.pids("shop") {
					must(t, syscall.Kill(pid, syscall.SIGKILL))
					return name
				}
				t.Fatal("nothing runs")
				return ""
			}
			name := kill() // without a freeze, it is restarted in place
			a.await("it is restarted in place", func() bool {
				i := a.instances("shop")[name]
				return i.Restarts == 1 && i.State == mariposa.StateRunning
			})

			a.ok("-j", "shop", "project", "freeze", "--wait")
			a.cannot("cannot be restarted because admin froze service web: thaw it first with mariposa -j shop project thaw --service web", "-j", "shop", "instance", "restart", name)
			away := policy == "always" // here the agent has no connection
			if away {
				end(a.server)
			}
			for pid := range a.processes() {
				must(t, syscall.Kill(pid, syscall.SIGKILL))
			}
			a.await("it is dead", func() bool { return len(a.processes()) == 0 })
			if away {
				a.serve()
			}
			var dead contract.Instance
			a.await("it is seen to be dead", func() bool {
				dead = a.instances("shop")[name]
				return dead.State == mariposa.StateFailed
			})
			if dead.Restarts != 1 || !strings.Contains(dead.Reason, "not restarted while its service is frozen") || len(a.processes()) != 0 {
				t.Errorf("after its end under the freeze: %+v, %v", dead, a.processes())
			}
			if st := a.state("shop"); st.Status != mariposa.StatusFrozen || !strings.Contains(st.Services[0].Reason, "after thaw") {
				t.Errorf("the state is %+v", st)
			}
			a.ok("-j", "shop", "project", "thaw", "--wait")
			a.converged("shop", "web", 1)
			name = kill() // the policy applies again
			a.await("it is restarted in place", func() bool {
				i := a.instances("shop")[name]
				return i.Restarts == 1 && i.State == mariposa.StateRunning
			})
		})
	}
}

// Whoever terminates a slow start does not wait for it: what never ran is removed at once,
// and the freeze has settled. A stop ends a slow start in the same way.
func TestASlowStartIsCanceledByATerminationAndByAStop(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 2, dummy: {wait_secs: 3600}}\n")
	starting := func() bool {
		all := h.instances("shop")
		for _, i := range all {
			if i.State != mariposa.StateProvisioning || i.NodeName == "" {
				return false
			}
		}
		return len(all) == 2
	}
	tasks := func() []contract.Task {
		list, err := h.Queue(t.Context(), client.TaskFilter{Project: "shop"})
		must(t, err)
		return list.Tasks
	}
	h.await("both are starting", starting)
	h.ok("queue", "terminate", tasks()[0].ID)
	h.await("nothing is left of the start", func() bool { return len(h.instances("shop")) == 0 })
	h.await("the freeze has settled", func() bool {
		all := tasks()
		return len(all) == 1 && all[0].Task == mariposa.TaskFreeze && all[0].Progress.Done == all[0].Progress.Total
	})
	h.ok("-j", "shop", "project", "thaw")
	h.await("both are starting again", starting)
	h.ok("-j", "shop", "project", "stop", "--wait")
	if all := h.instances("shop"); len(all) != 0 {
		t.Errorf("after the stop there is %+v", all)
	}
}
