package main_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	dockerclient "github.com/moby/moby/client"

	"mariposa"
	"mariposa/contract"
	"mariposa/driver/docker/enginetest"
)

// containers is a system with a node that uses a Docker engine.
type containers struct {
	*splitSystem
	engine *enginetest.Engine
}

func newContainers(t *testing.T) *containers {
	t.Helper()
	e, err := enginetest.Start(t.TempDir(), "--live-restore")
	must(t, err)
	t.Cleanup(func() { must(t, e.Stop()) })
	a := &containers{splitSystem: newSplitSystem(t), engine: e}
	a.env = []string{"MARIPOSA_URL=" + a.url, "MARIPOSA_TOKEN=" + a.admin}
	return a
}

// start starts the agent, and waits until it offers containers.
func (a *containers) start() {
	a.t.Helper()
	a.agent("--docker", a.engine.Host(), "--docker-publish", "127.0.0.1")
	a.await("the node offers containers", func() bool { return slices.Contains(a.node().Drivers, mariposa.ComputeDocker) })
}

// physical returns the containers of a project by the names of their instances.
func (a *containers) physical(project string) map[string]string {
	a.t.Helper()
	all := map[string]string{}
	for name, i := range a.instances(project) {
		if i.State == mariposa.StateRunning {
			all[name] = i.PhysicalID
		}
	}
	return all
}

func (a *containers) inspect(id string) container.InspectResponse {
	a.t.Helper()
	r, err := a.engine.API.ContainerInspect(a.t.Context(), id, dockerclient.ContainerInspectOptions{})
	must(a.t, err)
	return r.Container
}

// running counts the containers that run.
func (a *containers) running() int {
	a.t.Helper()
	list, err := a.engine.API.ContainerList(context.Background(), dockerclient.ContainerListOptions{})
	must(a.t, err)
	return len(list.Items)
}

func boxes(scale int, more string) string {
	return fmt.Sprintf("services:\n  web:\n    image: %s\n    scale: %d\n    update: {min_healthy: 0}\n%s", enginetest.Image, scale, more)
}

// A service without a compute type runs in containers: from a manifest to its logs, its
// commands, its values, its limits and its end.
func TestAServiceRunsInContainers(t *testing.T) {
	t.Parallel()
	a := newContainers(t)
	a.start()
	a.ok("project", "create", "shop", "-m", fileOf(t, boxes(2, `    command: [sh, -c, "echo hello from $MARIPOSA_NAME; id -u; exec sleep 100000"]
    environment: {MODE: test}
    user: web
    memory: 32m
    cpu: 0.5
    ports: [8080]
    mdata: {color: "{{ .meta.color }}"}
    files: {/run/secrets/pin: "{{ .meta.pin }}"}
metadata: {color: {}, pin: {secret: true}}
`)), "--metadata", fileOf(t, "color: red\npin: s3cret-pin\n"), "--wait")
	before := a.physical("shop")
	if len(before) != 2 || a.running() != 2 {
		t.Fatalf("%v run, and %d containers", before, a.running())
	}
	var one contract.Instance
	for _, i := range a.instances("shop") {
		one = i
	}
	if one.ComputeType != mariposa.ComputeDocker || len(one.Addresses) != 1 || !strings.HasSuffix(one.Addresses[0], ":8080") {
		t.Errorf("it is %+v", one)
	}
	a.await("their logs", func() bool {
		logs := a.ok("-j", "shop", "logs")
		return strings.Count(logs, "hello from web.") == 2 && strings.Count(logs, "1234") == 2
	})
	if out := a.ok("-j", "shop", "instance", "exec", one.Name, "--", "sh", "-c", "cat /run/secrets/pin $MARIPOSA_MDATA_FILE; echo $MODE"); out != "s3cret-pin{\"color\":\"red\"}\ntest\n" {
		t.Errorf("inside it is %q", out)
	}
	a.ok("-j", "shop", "meta", "set", "color", "blue")
	a.await("it reads the new value", func() bool {
		return strings.Contains(a.ok("-j", "shop", "instance", "exec", one.Name, "--", "sh", "-c", "cat $MARIPOSA_MDATA_FILE"), "blue")
	})
	if show := a.ok("-j", "shop", "instance", "show", one.Name); !strings.Contains(show, one.PhysicalID[:12]) || strings.Contains(show, "s3cret-pin") {
		t.Errorf("instance show says\n%s", show)
	}

	// Limits change in place.
	manifest := strings.Replace(a.ok("-j", "shop", "project", "version", "get", "1"), "32m", "48m", 1)
	a.ok("-j", "shop", "project", "update", "-m", fileOf(t, manifest), "--force", "--wait")
	if after := a.physical("shop"); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the containers were %v and are %v", before, after)
	}
	for _, id := range before {
		if c := a.inspect(id); c.HostConfig.Memory != 48<<20 || c.HostConfig.CPUQuota != 50_000 {
			t.Errorf("it has %d and %d", c.HostConfig.Memory, c.HostConfig.CPUQuota)
		}
	}

	// A container that someone kills is replaced.
	_, err := a.engine.API.ContainerKill(t.Context(), one.PhysicalID, dockerclient.ContainerKillOptions{Signal: "KILL"})
	must(t, err)
	a.await("it is replaced", func() bool {
		now := a.physical("shop")
		return len(now) == 2 && now[one.Name] != one.PhysicalID
	})
	a.ok("project", "delete", "shop", "--yes", "-f", "--wait")
	a.await("no container is left", func() bool { return a.running() == 0 })
}

// Containers outlive the agent and the engine. A node says when it cannot run containers, and
// takes them over when it can again, without touching what runs.
func TestContainersOutliveTheAgentAndTheEngine(t *testing.T) {
	t.Parallel()
	a := newContainers(t)
	a.start()
	a.ok("project", "create", "shop", "-m", fileOf(t, boxes(2, "")), "--wait")
	before := a.physical("shop")
	same := func(when string) {
		t.Helper()
		a.await("both run "+when, func() bool { return fmt.Sprint(a.physical("shop")) == fmt.Sprint(before) })
		for _, id := range before {
			if c := a.inspect(id); !c.State.Running || c.RestartCount != 0 {
				t.Errorf("%s it is %+v", when, c.State)
			}
		}
	}
	end(a.parts[len(a.parts)-1]) // the agent
	a.start()
	a.converged("shop", "web", 2)
	same("after a restart of the agent")

	must(t, a.engine.Kill())
	a.await("the node says that its engine is away", func() bool {
		n := a.node()
		return !slices.Contains(n.Drivers, mariposa.ComputeDocker) && strings.Contains(n.Offers[mariposa.ComputeDocker].Unavailable, "the Docker engine cannot be reached")
	})
	if show := a.ok("node", "show", "node-a"); !strings.Contains(show, "the Docker engine cannot be reached") {
		t.Errorf("node show says\n%s", show)
	}
	end(a.parts[len(a.parts)-1])
	a.agent("--docker", a.engine.Host()) // it starts without its engine
	a.await("the node is back", func() bool { return a.node().Status == mariposa.NodeRunning })
	a.ok("project", "create", "other", "-m", fileOf(t, "services: {p: {compute_type: process, command: [sleep, '1000']}}"), "--wait") // others are not held up
	a.must(a.Scale(t.Context(), "shop", map[string]string{"web": "3"}))
	a.await("the third says what it waits for", func() bool {
		return strings.Contains(a.state("shop").Services[0].Reason, "the Docker engine cannot be reached")
	})
	if n := len(a.physical("shop")); n != 2 {
		t.Errorf("%d instances count as running", n)
	}
	must(t, a.engine.Launch())
	a.converged("shop", "web", 3)
	now := a.physical("shop")
	for name, id := range before {
		if now[name] != id {
			t.Errorf("%s was %s and is %s", name, id, now[name])
		}
	}
	if a.running() != 3 {
		t.Errorf("%d containers run", a.running())
	}
}

// What cannot be started says why, in one sentence.
func TestAContainerThatCannotStartSaysWhy(t *testing.T) {
	t.Parallel()
	a := newContainers(t)
	a.start()
	for name, c := range map[string]struct{ manifest, why string }{
		"gone":  {"services: {web: {image: '127.0.0.1:1/no/such:1'}}", "the registry of image 127.0.0.1:1/no/such:1 cannot be reached"},
		"wrong": {boxes(1, "    command: [/no/such/program]\n"), "its image has no program /no/such/program: check `command` and `entrypoint`"},
	} {
		a.ok("project", "create", name, "-m", fileOf(t, c.manifest))
		a.await(name+" says why", func() bool {
			return strings.Contains(a.state(name).Services[0].Reason, c.why)
		})
	}
	if n := a.running(); n != 0 {
		t.Errorf("%d containers run", n)
	}
}
