package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	dockerclient "github.com/moby/moby/client"

	"mariposa"
	"mariposa/contract"
	"mariposa/driver/docker/enginetest"
	"mariposa/driver/kvm/guesttest"
)

// tiersPage is what the front end of the examples with three tiers answers.
type tiersPage struct {
	Greeting string
	Web      struct{ Name string }
	Backend  *struct {
		Greeting, Name string
		Store          struct {
			Name   string
			Visits int
		}
	}
}

// visit asks a front end for its page. The error says which answer it got unless all tiers
// answered. A request that hangs ends long before the limit of a wait.
func visit(ctx context.Context, at string, dial func(ctx context.Context, address string) (net.Conn, error)) (*tiersPage, error) {
	client := &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, address string) (net.Conn, error) { return dial(ctx, address) },
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/", http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close() // it was only read
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	page := &tiersPage{}
	if err := json.Unmarshal(b, page); err != nil {
		return nil, fmt.Errorf("%s: %q: %w", res.Status, b, err)
	}
	if page.Backend == nil || page.Backend.Store.Visits == 0 {
		return nil, fmt.Errorf("%s: not all tiers answered: %q", res.Status, b)
	}
	return page, nil
}

// Examples that publish a port leave that of `mariposa dev` free, which runs them.
func TestExamplesDoNotPublishThePortOfDev(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../examples/*/*.yaml")
	must(t, err)
	for _, path := range files {
		text, err := os.ReadFile(path)
		must(t, err)
		if strings.Contains(string(text), "8080:") || len(files) < 5 {
			t.Errorf("%s publishes port 8080", path)
		}
	}
}

// The example with three tiers in containers, as its README says: the images, the project, the
// page behind the port of the node, and a store that is killed.
func TestTheComposeLikeExample(t *testing.T) {
	t.Parallel()
	a := newContainers(t)
	const example = "../../examples/compose-like/"
	build := exec.CommandContext(t.Context(), example+"images.sh", filepath.Join(binaries, "hello"))
	build.Env = append(build.Environ(), "DOCKER_HOST="+a.engine.Host())
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	a.start()
	a.ok("project", "create", "tiers", "-m", example+"mariposa.yaml", "--wait")
	// The port is published in the network of the engine.
	var page *tiersPage
	var last error
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last answer of the front end: %v", last)
		}
	})
	open := func() bool {
		page, last = visit(t.Context(), "127.0.0.1:8000", a.engine.Dial)
		return page != nil
	}
	a.await("the front end answers", open)
	first := page.Backend.Store
	store, known := a.instances("tiers")[first.Name]
	if page.Greeting != "hello" || !known || store.ServiceName != "store" || store.Details["image_version"] != "1.0.0" {
		t.Errorf("it answers %+v, and the store is %+v", page, store)
	}
	_, err := a.engine.API.ContainerKill(t.Context(), store.PhysicalID, dockerclient.ContainerKillOptions{Signal: "KILL"})
	must(t, err)
	a.await("another store continues to count", func() bool {
		return open() && page.Backend.Store.Name != first.Name && page.Backend.Store.Visits > first.Visits
	})
	a.ok("project", "delete", "tiers", "--yes", "-f", "--wait")
}

// The example with three kinds of compute, as its README says. The instances of the project reach
// each other, also after a restart of the agent; others do not reach them.
func TestTheMixedExample(t *testing.T) {
	t.Parallel()
	i := emptyIsland(t)
	engine, err := enginetest.StartInside(i.anchor.Process.Pid, t.TempDir())
	must(t, err)
	t.Cleanup(func() { must(t, engine.Stop()) })
	kernel, err := guesttest.Kernel()
	must(t, err)
	modules, err := filepath.Abs("../../.cache/kernel/lib/modules")
	must(t, err)
	example, err := filepath.Abs("../../examples/mixed")
	must(t, err)
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), example+"/images.sh", dir, filepath.Join(binaries, "hello"))
	build.Env = append(build.Environ(), "DOCKER_HOST="+engine.Host(), "KERNEL="+kernel, "MODULES="+modules)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	i.env = []string{"MARIPOSA_DOCKER=" + engine.Host()}
	i.open()
	i.ok("image", "import", dir+"/app.tar", "--name", "mariposa-example/app:1")
	i.ok("image", "import", dir+"/vmlinuz", "--initrd", dir+"/store.cpio", "--append", guesttest.Append, "--name", "mariposa-example/store:1")
	i.ok("project", "create", "mixed", "-m", example+"/mariposa.yaml", "--wait")
	var page *tiersPage
	var last error
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last answer of the front end: %v\n%s", last, i.describe("mixed"))
		}
	})
	visits := 0
	open := func() bool {
		if page, last = visit(t.Context(), "127.0.0.1:8000", engine.Dial); page == nil || page.Backend.Store.Visits <= visits {
			return false
		}
		visits = page.Backend.Store.Visits
		return true
	}
	i.await("the front end answers", open)
	all := i.running("mixed")
	if len(all) != 3 || all[page.Web.Name].ComputeType != mariposa.ComputeDocker || all[page.Backend.Name].ComputeType != mariposa.ComputeInfrastructure || !strings.HasPrefix(page.Backend.Store.Name, "store-1") {
		t.Errorf("%v run, and the front end answers %+v", all, page)
	}

	// Containers of other projects, and of nobody that Mariposa knows, do not reach them, nor a project
	// without containers.
	i.ok("project", "create", "system", "-m", fileOf(t, `services:
  app: {compute_type: infrastructure, image: "mariposa-example/app:1", command: [/hello, backend], environment: {LISTEN: 0.0.0.0}, ports: [7101], update: {min_healthy: 0}}
`), "--wait")
	i.ok("project", "create", "other", "-m", fileOf(t, "services: {box: {image: '"+enginetest.Image+"', update: {min_healthy: 0}}}"), "--wait")
	var alone contract.Instance
	for _, alone = range i.running("other") {
	}
	front, err := engine.API.ContainerInspect(t.Context(), all[page.Web.Name].PhysicalID, dockerclient.ContainerInspectOptions{})
	must(t, err)
	_, err = engine.API.NetworkCreate(t.Context(), "foreign", dockerclient.NetworkCreateOptions{Driver: "bridge"})
	must(t, err)
	insider, outsider := boxIn(t, engine, front.Container.HostConfig.NetworkMode), boxIn(t, engine, "foreign")
	var asked sync.WaitGroup
	for _, project := range []string{"mixed", "system"} {
		for _, one := range i.running(project) {
			if project == "mixed" {
				i.await("a container of the project reaches "+one.Name, func() bool { return canReach(t, engine, insider, one.Addresses[0], 60) })
			}
			for who, from := range map[string]string{"a foreign container": outsider, "a container of another project": alone.PhysicalID} {
				asked.Go(func() {
					if canReach(t, engine, from, one.Addresses[0], 2) {
						t.Errorf("%s reaches %s of %s", who, one.Name, project)
					}
				})
			}
		}
	}
	asked.Wait()
	_, err = engine.API.ContainerRemove(t.Context(), insider, dockerclient.ContainerRemoveOptions{Force: true})
	must(t, err)

	end(i.dev)
	i.start()
	i.await("all three answer after a restart of the agent", open)
	i.await("a project with nothing but containers still has its network", func() bool { return i.reaches(alone) })
	for _, project := range []string{"system", "other", "mixed"} {
		i.ok("project", "delete", project, "--yes", "-f", "--wait")
	}
	i.await("their networks are gone", func() bool {
		out, err := exec.CommandContext(t.Context(), "nsenter", "--target", strconv.Itoa(i.anchor.Process.Pid), "--net", "ip", "-o", "link").CombinedOutput()
		must(t, err)
		return !strings.Contains(string(out), "mplx-")
	})
}

// boxIn starts a container that Mariposa does not know, in a network of the engine.
func boxIn(t *testing.T, e *enginetest.Engine, network container.NetworkMode) string {
	t.Helper()
	c, err := e.API.ContainerCreate(t.Context(), dockerclient.ContainerCreateOptions{Image: enginetest.Image, HostConfig: &container.HostConfig{NetworkMode: network}})
	must(t, err)
	_, err = e.API.ContainerStart(t.Context(), c.ID, dockerclient.ContainerStartOptions{})
	must(t, err)
	return c.ID
}

// canReach reports whether a container with a shell reaches a program of the examples within a
// number of seconds.
func canReach(t *testing.T, e *enginetest.Engine, id, address string, seconds int) bool {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	must(t, err)
	cmd := exec.CommandContext(t.Context(), "docker", "exec", id, "sh", "-c", `printf 'GET /health HTTP/1.0\r\n\r\n' | nc -w "$2" "$0" "$1"`, host, port, strconv.Itoa(seconds))
	cmd.Env = append(cmd.Environ(), "DOCKER_HOST="+e.Host())
	out, _ := cmd.CombinedOutput() // it fails if nobody answers
	return strings.Contains(string(out), "ready")
}
