package docker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/docker"
	"mariposa/driver/docker/enginetest"
	"mariposa/driver/drivertest"
)

// step is a request to the engine at which somebody is killed: before the engine gets it, or when
// the engine has answered.
type step struct {
	name   string
	method string
	path   *regexp.Regexp
	before bool
}

// steps are all requests in the life of a container that change something.
var steps = []step{
	{"pull", "POST", regexp.MustCompile(`/images/create$`), false},
	{"create the network", "POST", regexp.MustCompile(`/networks/create$`), false},
	{"before create", "POST", regexp.MustCompile(`/containers/create$`), true},
	{"create", "POST", regexp.MustCompile(`/containers/create$`), false},
	{"connect", "POST", regexp.MustCompile(`/networks/[^/]+/connect$`), true},
	{"before start", "POST", regexp.MustCompile(`/containers/[^/]+/start$`), true},
	{"start", "POST", regexp.MustCompile(`/containers/[^/]+/start$`), false},
	{"update", "POST", regexp.MustCompile(`/containers/[^/]+/update$`), false},
	{"exec", "POST", regexp.MustCompile(`/exec/[^/]+/start$`), false},
	{"stop", "POST", regexp.MustCompile(`/containers/[^/]+/kill$`), false},
	{"remove", "DELETE", regexp.MustCompile(`/containers/[^/]+$`), false},
	{"remove the network", "DELETE", regexp.MustCompile(`/networks/[^/]+$`), true},
}

func (s step) matches(r *http.Request) bool {
	return r.Method == s.method && s.path.MatchString(r.URL.Path)
}

// life is everything that an agent does with a container. Each has a project of its own.
type life struct {
	Host, Dir, Scope string
	Image            string // to fetch; empty: none
	Networks         []driver.Resource
}

func (l life) instance(id string) driver.Instance {
	i := instance(id)
	i.Project, i.Workload.Files = strings.ToLower(id), []mariposa.Variable{{Name: "/run/secret", Value: "s3cret"}}
	for _, n := range l.Networks {
		i.Networks = append(i.Networks, driver.Network{ID: n.ID, Name: n.Name})
	}
	return i
}

// commandOf is the argument by which the command of a life is recognized.
func commandOf(id string) string { return "command-in-" + id }

func (l life) lead(d driver.Driver, id string) error {
	ctx := context.Background()
	i := l.instance(id)
	start := func() error { _, err := d.Start(ctx, i); return err }
	all := []func() error{
		start,
		func() error { i.Workload.Memory = 64 << 20; _, err := d.Update(ctx, i); return err },
		func() error {
			_, err := d.(driver.Execer).Exec(ctx, i, driver.ExecOptions{Command: []string{"sh", "-c", "sleep 4242; exit 1", commandOf(id)}})
			return err
		},
		func() error { _, err := d.Stop(ctx, id, drivertest.Limit); return err },
		start,
		func() error { return d.Remove(ctx, id) },
	}
	for _, n := range l.Networks {
		all = append([]func() error{func() error { _, err := d.(driver.Provider).Provide(ctx, n); return err }}, all...)
	}
	if l.Image != "" {
		all = []func() error{func() error {
			return d.(driver.Imager).EnsureImage(ctx, l.Image, nil, func(driver.Progress) {})
		}}
	}
	for _, do := range all {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// agentMain is an agent that leads a life and is killed meanwhile: `agent LIFE ID`.
func agentMain(text, id string) int {
	var l life
	err := json.Unmarshal([]byte(text), &l)
	var d *docker.Driver
	if err == nil {
		d, err = docker.New(docker.Options{Host: l.Host, Dir: l.Dir, Scope: l.Scope})
	}
	if err == nil {
		d.Watch(func(driver.Event) {})
		fmt.Println("begins")
		err = l.lead(d, id)
	}
	fmt.Fprintln(os.Stderr, "the agent was not killed:", err)
	return 1
}

// newLife returns a life for a step on an engine, and its instance.
func newLife(t *testing.T, s step, r *enginetest.Registry) (l life, id string) {
	t.Helper()
	l, id = life{Dir: t.TempDir(), Scope: drivertest.NewID()}, drivertest.NewID()
	switch s.name {
	case "pull":
		name := strings.ToLower(id) + ":1"
		if _, err := r.Push(t.Context(), name, "FROM "+enginetest.Image+"\nLABEL a="+id+"\n"); err != nil {
			t.Fatal(err)
		}
		l.Image = r.Host + "/" + name
	case "connect":
		for _, name := range []string{"front", "back"} {
			l.Networks = append(l.Networks, driver.Resource{Kind: mariposa.KindNetwork, ID: drivertest.NewID(), Name: name})
		}
	}
	return l, id
}

// An agent may be killed at any moment of an operation. The next one finds the container at most
// once, ends the command that the killed one has run in it, starts it with everything that it
// needs, and leaves nothing when it removes it. If there is no container, nothing else is left.
func TestAnAgentIsKilledDuringOperations(t *testing.T) {
	t.Parallel()
	registry, err := engine.StartRegistry()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(registry.Stop)
	for _, s := range steps {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			l, id := newLife(t, s, registry)
			reached, killed := make(chan struct{}), make(chan struct{})
			var once sync.Once
			halt := func(r *http.Request) bool {
				if !s.matches(r) {
					return false
				}
				once.Do(func() { close(reached) })
				<-killed
				return true
			}
			l.Host = changed(t, func(r *http.Request) bool { return s.before && halt(r) }, func(r *http.Response) error {
				if !s.before {
					halt(r.Request)
				}
				return nil
			}, nil)
			cmd := drivertest.StartAgent(t, l, id, "begins")
			select {
			case <-reached:
			case <-t.Context().Done():
				t.Fatal("it has not got that far")
			}
			drivertest.KillAgent(cmd)
			close(killed)
			l.goesOn(t, openOn(t, engine.Host(), l.Dir, l.Scope), engine, id)
		})
	}
}

// goesOn checks that nothing is lost, doubled or left of a life that was interrupted.
func (l life) goesOn(t *testing.T, d *opened, e *enginetest.Engine, id string) {
	t.Helper()
	if l.Image != "" {
		l.fetches(t, d, e)
		return
	}
	var list []driver.Observed
	await(t, "the engine answers", func() bool {
		var err error
		list, err = d.List(t.Context())
		return err == nil
	})
	if len(list) > 1 {
		t.Fatalf("List: %v", list)
	}
	await(t, "its command has ended", func() bool { return !isRunning(commandOf(id)) })
	if len(list) == 0 {
		l.wantNothingLeft(t, e, id)
	}
	o := d.start(l.instance(id))
	if len(list) == 1 && list[0].Running && (o.PhysicalID != list[0].PhysicalID || !o.Started.Equal(list[0].Started)) {
		t.Errorf("it was %+v and is %+v", list[0], o)
	}
	r, err := e.API.ContainerInspect(t.Context(), o.PhysicalID, client.ContainerInspectOptions{})
	if err != nil || len(r.Container.NetworkSettings.Networks) != max(1, len(l.Networks)) {
		t.Errorf("it has the networks %v, %v", r.Container.NetworkSettings, err)
	}
	if got := run(t, d.Driver, id, "cat /run/secret"); got != "s3cret" {
		t.Errorf("its file contains %q", got)
	}
	if err := d.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for _, n := range l.Networks {
		if err := d.Driver.(driver.Provider).Withdraw(t.Context(), n); err != nil {
			t.Error(err)
		}
	}
	l.wantNothingLeft(t, e, id)
}

// fetches checks that the next agent fetches an image.
func (l life) fetches(t *testing.T, d *opened, e *enginetest.Engine) {
	t.Helper()
	if err := d.Driver.(driver.Imager).EnsureImage(t.Context(), l.Image, nil, func(driver.Progress) {}); err != nil {
		t.Fatal(err)
	}
	is, err := e.API.ImageInspect(t.Context(), l.Image)
	if err == nil {
		_, err = e.API.ImageRemove(t.Context(), is.ID, client.ImageRemoveOptions{Force: true})
	}
	if err != nil {
		t.Error(err)
	}
}

func (l life) wantNothingLeft(t *testing.T, e *enginetest.Engine, id string) {
	t.Helper()
	var left []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if left = l.left(t, e, id); len(left) == 0 {
			return
		}
	}
	t.Errorf("left are\n%s", strings.Join(left, "\n"))
}

// left returns what is left of a life, on the machine and in the engine.
func (l life) left(t *testing.T, e *enginetest.Engine, id string) []string {
	t.Helper()
	all := slices.DeleteFunc(drivertest.Traces(l.Dir, id), func(trace string) bool {
		return strings.Contains(trace, "/conmon ") // Podman keeps it for some minutes after a command
	})
	files, _ := filepath.Glob(filepath.Join(l.Dir, "records", "*")) // the pattern is valid
	all = append(all, files...)
	ours := make(client.Filters).Add("label", "mariposa.node="+l.Scope)
	containers, err := e.API.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: ours})
	networks, netErr := e.API.NetworkList(t.Context(), client.NetworkListOptions{Filters: ours})
	if err := errors.Join(err, netErr); err != nil {
		t.Fatal(err)
	}
	for _, c := range containers.Items {
		all = append(all, "container "+strings.Join(c.Names, " "))
	}
	for _, n := range networks.Items {
		all = append(all, "network "+n.Name)
	}
	return all
}

// isRunning reports whether a process has an argument.
func isRunning(argument string) bool {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is valid
	for _, path := range paths {
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(argument)) {
			return true
		}
	}
	return false
}

// testAnEngineKilledDuringOperations checks that an engine may be killed during any operation, or
// all of them at once.
func testAnEngineKilledDuringOperations(t *testing.T, e *enginetest.Engine) {
	registry, err := e.StartRegistry()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(registry.Stop)
	var reached, ended sync.WaitGroup
	killed, dead := make(chan struct{}), make(chan struct{})
	// Docker 20.10 panics at every start after it was killed while removing a network, so these
	// requests wait until it is dead.
	holdRemoval := func(r *http.Request) {
		if !e.IsPodman() && r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/networks/") {
			<-dead
		}
	}
	type led struct {
		life
		step, id string
		d        *opened
	}
	var lives []led
	for _, s := range steps {
		if s.name == "before start" {
			continue // Docker 20.10 never answers again if it is killed while it starts a container
		}
		l, id := newLife(t, s, registry)
		var once sync.Once
		halt := func(r *http.Request) {
			if s.matches(r) {
				once.Do(func() { // the engine dies while it does this, or just after it
					reached.Done()
					<-killed
				})
			}
		}
		l.Host = changedOn(t, e, func(r *http.Request) bool {
			if s.before {
				halt(r)
			}
			holdRemoval(r)
			return false
		}, func(r *http.Response) error {
			if !s.before {
				halt(r.Request)
			}
			return nil
		}, nil)
		reached.Add(1)
		at := led{l, s.name, id, openOn(t, l.Host, l.Dir, l.Scope)}
		lives = append(lives, at)
		ended.Go(func() { _ = at.lead(at.d.Driver, at.id) }) // what has been done is not an error
	}
	reached.Wait()
	over := make(chan error, 1)
	go func() { over <- e.Kill() }()
	close(killed)
	err = <-over
	close(dead)
	if err != nil {
		t.Fatal(err)
	}
	ended.Wait()
	if err := e.Launch(); err != nil {
		t.Fatal(err)
	}
	if err := registry.Launch(); err != nil {
		t.Fatal(err)
	}
	t.Run("everything goes on", func(t *testing.T) {
		for _, l := range lives {
			t.Run(l.step, func(t *testing.T) {
				t.Parallel()
				await(t, "the return is reported", func() bool { return l.d.saw(driver.EngineBack) })
				l.goesOn(t, l.d, e, l.id)
			})
		}
	})
}
