package main_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/container"
	dockerclient "github.com/moby/moby/client"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
	"mariposa/driver/docker/enginetest"
)

// runByHand runs a container without Mariposa.
func (a *containers) runByHand(name string, command ...string) string {
	a.t.Helper()
	made, err := a.engine.API.ContainerCreate(a.t.Context(), dockerclient.ContainerCreateOptions{
		Name: name, Config: &container.Config{Image: enginetest.Image, Cmd: command, Env: []string{"MODE=mine"}},
		HostConfig: &container.HostConfig{Resources: container.Resources{Memory: 32 << 20}},
	})
	must(a.t, err)
	_, err = a.engine.API.ContainerStart(a.t.Context(), made.ID, dockerclient.ContainerStartOptions{})
	must(a.t, err)
	return made.ID
}

func (a *containers) exists(id string) bool {
	_, err := a.engine.API.ContainerInspect(a.t.Context(), id, dockerclient.ContainerInspectOptions{})
	return err == nil
}

// refused wants a command to fail with a sentence.
func (a *containers) refused(word string, args ...string) {
	a.t.Helper()
	if _, errs, code := a.try(args...); code == 0 || !strings.Contains(errs, word) {
		a.t.Errorf("%v: exit %d, %s", args, code, errs)
	}
}

// A container that someone started by hand is listed and adopted. It is not restarted, and stays
// the same container when the agent is killed; other containers are never touched.
func TestAContainerThatWasStartedByHandIsAdopted(t *testing.T) {
	t.Parallel()
	a := newContainers(t)
	a.start()
	a.ok("project", "create", "shop", "-m", fileOf(t, boxes(1, "")), "--wait")
	mine := a.runByHand("Legacy_DB", "sh", "-c", "echo hello; exec sleep 100000")
	other := a.runByHand("other", "sleep", "100000")
	begun, others := a.inspect(mine).State.StartedAt, a.inspect(other).State.StartedAt

	if list := a.ok("instance", "list", "--foreign"); !strings.Contains(list, "Legacy_DB") || !strings.Contains(list, mine[:12]) || !strings.Contains(list, "other") || !strings.Contains(list, "node-a") || strings.Contains(list, "web.1") {
		t.Errorf("the list is\n%s", list)
	}
	all, err := a.ForeignContainers(t.Context(), "node-a")
	must(t, err)
	if len(all.Containers) != 2 || len(all.Missing) != 0 {
		t.Errorf("the foreign containers are %+v", all)
	}
	web := a.physical("shop")
	a.refused("no node has a foreign container \"nobody\"", "-j", "shop", "instance", "adopt", "nobody")
	a.refused("there is no container", "-j", "shop", "instance", "adopt", "nobody", "--node", "node-a")
	a.refused("nowhere", "-j", "shop", "instance", "adopt", "Legacy_DB", "--node", "nowhere")
	a.refused("nothing", "-j", "nothing", "instance", "adopt", "Legacy_DB", "--node", "node-a")
	for _, id := range web {
		a.refused("was created by Mariposa", "-j", "shop", "instance", "adopt", id, "--node", "node-a")
	}
	if n := len(a.instances("shop")); n != 1 {
		t.Fatalf("a refused adoption left %d instances", n)
	}

	if out := a.ok("-j", "shop", "instance", "adopt", "Legacy_DB"); !strings.Contains(out, "container Legacy_DB is now instance legacy-db of project shop") {
		t.Errorf("adopt says %s", out)
	}
	is := func(state mariposa.State, when string) contract.Instance {
		t.Helper()
		a.await("it is "+string(state)+" "+when, func() bool {
			i := a.instances("shop")["legacy-db"]
			return i.State == state && i.PhysicalID == mine && !i.Managed
		})
		return a.instances("shop")["legacy-db"]
	}
	one := is(mariposa.StateRunning, "once adopted")
	if a.inspect(mine).State.StartedAt != begun {
		t.Error("it was restarted")
	}
	a.refused("is already adopted", "-j", "shop", "instance", "adopt", mine, "--node", "node-a")
	if list := a.ok("instance", "list", "--foreign", "--node", "node-a"); strings.Contains(list, "Legacy_DB") || !strings.Contains(list, "other") {
		t.Errorf("after the adoption the list is\n%s", list)
	}
	if list := a.ok("-j", "shop", "instance", "list"); !strings.Contains(list, "legacy-db") {
		t.Errorf("the instances are\n%s", list)
	}
	if p, err := a.Project(t.Context(), "shop"); err != nil || p.ID != one.Project {
		t.Errorf("its project is %+v, %v", p, err)
	}
	if logs := a.ok("-j", "shop", "instance", "logs", "legacy-db"); logs != "hello\n" {
		t.Errorf("its log is %q", logs)
	}
	if out := a.ok("-j", "shop", "instance", "exec", "legacy-db", "--", "sh", "-c", "echo $MODE"); out != "mine\n" {
		t.Errorf("inside it is %q", out)
	}
	if show := a.ok("-j", "shop", "instance", "show", "legacy-db"); !strings.Contains(show, mine[:12]) || !strings.Contains(show, "of memory") {
		t.Errorf("instance show says\n%s", show)
	}
	audit, err := a.Audit(t.Context(), client.AuditFilter{Action: "instance.adopt"})
	must(t, err)
	done := slices.DeleteFunc(audit.Records, func(r mariposa.Audit) bool { return r.Outcome != mariposa.AuditDone })
	if len(done) != 1 || done[0].ObjectName != "legacy-db" || done[0].Reason != "admin adopted the container Legacy_DB of node node-a" {
		t.Errorf("the audit log has %+v", done)
	}

	end(a.parts[len(a.parts)-1]) // kill -9 of the agent
	a.start()
	is(mariposa.StateRunning, "after the agent was killed")
	if c := a.inspect(mine); c.State.StartedAt != begun || c.RestartCount != 0 {
		t.Error("the agent restarted it")
	}

	a.ok("-j", "shop", "instance", "stop", "legacy-db")
	is(mariposa.StateStopped, "once it is stopped")
	a.ok("-j", "shop", "instance", "start", "legacy-db")
	is(mariposa.StateRunning, "once it is started")
	if a.inspect(mine).State.StartedAt == begun {
		t.Error("it was not started again")
	}
	begun = a.inspect(mine).State.StartedAt
	a.ok("-j", "shop", "instance", "restart", "legacy-db")
	a.await("it is restarted", func() bool { c := a.inspect(mine); return c.State.Running && c.State.StartedAt != begun })
	is(mariposa.StateRunning, "after a restart")

	_, err = a.engine.API.ContainerKill(t.Context(), mine, dockerclient.ContainerKillOptions{Signal: "KILL"})
	must(t, err)
	if ended := is(mariposa.StateFailed, "after it was killed"); !strings.Contains(ended.Reason, "signal 9") {
		t.Errorf("it ended: %s", ended.Reason)
	}
	a.ok("-j", "shop", "instance", "rm", "legacy-db")
	a.await("it is gone", func() bool { return len(a.instances("shop")) == 1 && !a.exists(mine) })

	// Nobody has touched the others.
	a.ok("project", "delete", "shop", "--yes", "-f", "--wait")
	if c := a.inspect(other); !c.State.Running || c.State.StartedAt != others {
		t.Errorf("the other container is %+v", c.State)
	}
	if list := a.ok("instance", "list", "--foreign"); !strings.Contains(list, "other") {
		t.Errorf("at the end the list is\n%s", list)
	}
}

// A container that does not run is adopted as a stopped instance; one that is removed behind
// Mariposa's back has ended, and is not created again.
func TestAdoptedContainersThatAreStoppedOrRemoved(t *testing.T) {
	t.Parallel()
	a := newContainers(t)
	a.start()
	a.ok("project", "create", "shop", "-m", fileOf(t, "services: {p: {compute_type: process, command: [sleep, '1000'], scale: 0}}"), "--wait")
	id := a.runByHand("batch", "sleep", "100000")
	zero := 0
	_, err := a.engine.API.ContainerStop(t.Context(), id, dockerclient.ContainerStopOptions{Timeout: &zero})
	must(t, err)
	a.ok("-j", "shop", "instance", "adopt", "batch", "--name", "job")
	state := func() contract.Instance { return a.instances("shop")["job"] }
	a.await("it is stopped", func() bool { return state().State == mariposa.StateStopped && state().PhysicalID == id })
	if a.inspect(id).State.Running {
		t.Error("it was started")
	}
	a.ok("-j", "shop", "instance", "start", "job")
	a.await("it runs", func() bool { return state().State == mariposa.StateRunning && a.inspect(id).State.Running })

	_, err = a.engine.API.ContainerRemove(t.Context(), id, dockerclient.ContainerRemoveOptions{Force: true})
	must(t, err)
	a.await("it has ended", func() bool { return state().State == mariposa.StateFailed })
	a.ok("-j", "shop", "instance", "restart", "job")
	a.await("it says that its container is gone", func() bool { return strings.Contains(state().Reason, "there is no container") })
	if n := a.running(); n != 0 {
		t.Errorf("%d containers run", n)
	}
	a.ok("-j", "shop", "instance", "rm", "job")
	a.await("it is gone", func() bool { return len(a.instances("shop")) == 0 })
}

// A container is adopted once, whoever asks at the same time; a request that is repeated gets the
// same answer.
func TestAContainerIsAdoptedOnce(t *testing.T) {
	t.Parallel()
	a := newContainers(t)
	a.start()
	const none = "services: {p: {compute_type: process, command: [sleep, '1000'], scale: 0}}"
	projects := []string{"one", "two", "three"}
	for _, name := range projects {
		a.ok("project", "create", name, "-m", fileOf(t, none), "--wait")
	}
	a.runByHand("db", "sleep", "100000")
	var all sync.WaitGroup
	errs := make([]error, len(projects))
	for n, name := range projects {
		all.Go(func() {
			_, errs[n] = a.AdoptContainer(t.Context(), "node-a", "db", contract.ContainerAdoption{Project: name})
		})
	}
	all.Wait()
	done := 0
	for _, err := range errs {
		switch {
		case err == nil:
			done++
		case mariposa.CodeOf(err) != mariposa.Conflict || !strings.Contains(err.Error(), "already adopted"):
			t.Errorf("one was refused: %v", err)
		}
	}
	if done != 1 {
		t.Errorf("it was adopted %d times: %v", done, errs)
	}

	a.runByHand("cache", "sleep", "100000")
	post := func() (code int, body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.url+"/v1/nodes/node-a/foreign/cache/adopt", strings.NewReader(`{"project":"one"}`))
		must(t, err)
		r.Header.Set("Authorization", "Bearer "+a.admin)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "the same")
		answer, err := http.DefaultClient.Do(r)
		must(t, err)
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		must(t, err)
		return answer.StatusCode, string(b)
	}
	code, first := post()
	if again, second := post(); code != http.StatusCreated || again != code || second != first {
		t.Errorf("the answers are %d %s and %d %s", code, first, again, second)
	}
	for _, name := range projects {
		a.ok("project", "delete", name, "--yes", "-f", "--wait")
	}
	a.await("both are removed with their projects", func() bool { return a.running() == 0 })
}
