package docker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"go.uber.org/goleak"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/docker"
	"mariposa/driver/docker/enginetest"
	"mariposa/driver/drivertest"
)

// engine is used by all tests of this package, but those that kill one.
var engine *enginetest.Engine

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "agent" {
		os.Exit(agentMain(os.Args[2], os.Args[3]))
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "mariposa-engine-")
		if err == nil {
			engine, err = enginetest.Start(dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			_ = engine.Stop()
			_ = os.RemoveAll(dir)
		}()
		code := m.Run()
		engine.API.Close() // of the tests; Stop does not need it
		if code == 0 {
			if err := goleak.Find(goleak.IgnoreAnyFunction("mariposa/driver/docker/enginetest.startForLife.func1")); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
		return code
	}())
}

// world is a node of its own on the engine.
type world struct {
	t     *testing.T
	dir   string
	scope string
	proxy *proxy
}

func newWorld(t *testing.T, on *enginetest.Engine) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), scope: drivertest.NewID()}
	w.proxy = newProxy(t, on.Socket())
	return w
}

func (w *world) open(t *testing.T) driver.Driver {
	t.Helper()
	d, err := docker.New(docker.Options{Host: "unix://" + w.proxy.path, Dir: w.dir, Scope: w.scope})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// proxy stands between a driver and the engine, and can be cut.
type proxy struct {
	path, to string
	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	work     sync.WaitGroup
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "mp-") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return newProxyAt(t, filepath.Join(dir, "s"), to)
}

func newProxyAt(t *testing.T, path, to string) *proxy {
	t.Helper()
	p := &proxy{path: path, to: to, conns: map[net.Conn]bool{}}
	p.mend(t)
	t.Cleanup(func() {
		p.cut()
		p.work.Wait()
	})
	return p
}

func (p *proxy) mend(t *testing.T) {
	l, err := net.Listen("unix", p.path)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	p.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.pass(c) })
		}
	})
}

func (p *proxy) pass(c net.Conn) {
	to, err := net.Dial("unix", p.to)
	if err != nil {
		_ = c.Close()
		return
	}
	p.mu.Lock()
	p.conns[c], p.conns[to] = true, true
	p.mu.Unlock()
	var both sync.WaitGroup
	half := func(dst, src net.Conn) {
		_, _ = io.Copy(dst, src)
		_ = dst.(*net.UnixConn).CloseWrite()
	}
	both.Go(func() { half(to, c) })
	both.Go(func() { half(c, to) })
	both.Wait()
	_ = c.Close()
	_ = to.Close()
}

// cut ends all connections and accepts no more.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.listener.Close()
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

func instance(id string, command ...string) driver.Instance {
	return driver.Instance{
		ID: id, Name: "web.1-" + strings.ToLower(id[2:8]), Project: "shop", Service: "web", Labels: driver.Labels{Cluster: "c1", Incarnation: "i1"},
		Workload: &mariposa.Workload{Compute: mariposa.ComputeDocker, Image: enginetest.Image, Command: command},
	}
}

// graceful gives an instance the image that gets a SIGTERM to stop.
func graceful(i driver.Instance) driver.Instance {
	i.Workload.Image = enginetest.Graceful
	return i
}

func TestConformance(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, harnessOn(engine))
}

// harnessOn returns the harness of an engine.
func harnessOn(engine *enginetest.Engine) func(t *testing.T) drivertest.Harness {
	return func(t *testing.T) drivertest.Harness {
		w := newWorld(t, engine)
		return drivertest.Harness{
			Open: w.open,
			Runs: func(_ *testing.T, id string) driver.Instance { return instance(id) },
			Broken: func(_ *testing.T, id string) driver.Instance {
				return instance(id, "/no/such/program")
			},
			Stubborn: func(_ *testing.T, id string) driver.Instance {
				return graceful(instance(id, "sh", "-c", "trap '' TERM; touch /tmp/ready; while :; do sleep 1000; done"))
			},
			Ready: func(t *testing.T, o driver.Observed) {
				await(t, "it ignores stops", func() bool {
					_, err := engine.API.ContainerStatPath(t.Context(), o.PhysicalID, client.ContainerStatPathOptions{Path: "/tmp/ready"})
					return err == nil
				})
			},
			End: func(t *testing.T, _ driver.Driver, o driver.Observed) {
				if _, err := engine.API.ContainerKill(t.Context(), o.PhysicalID, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
					t.Fatal(err)
				}
			},
			Reads: func(t *testing.T, d driver.Driver, id string) map[string]string {
				out := run(t, d, id, "cat", "$MARIPOSA_MDATA_FILE")
				var values map[string]string
				if err := json.Unmarshal([]byte(out), &values); err != nil {
					t.Fatalf("%q: %v", out, err)
				}
				return values
			},
			Script: func(script string) []string { return []string{"sh", "-c", script} },
			Restart: func(t *testing.T, _ driver.Driver, o driver.Observed) {
				zero := 0
				if _, err := engine.API.ContainerRestart(t.Context(), o.PhysicalID, client.ContainerRestartOptions{Timeout: &zero}); err != nil {
					t.Fatal(err)
				}
			},
			LoseEngine: func(t *testing.T, _ driver.Driver) func() {
				w.proxy.cut()
				return func() { w.proxy.mend(t) }
			},
			Writes: func(_ *testing.T, id string, lines ...string) driver.Instance {
				return instance(id, "sh", "-c", "printf '"+strings.Join(lines, "\\n")+"\\n'; exec sleep 1000")
			},
		}
	}
}

// run runs a shell command in an instance and returns its output.
func run(t *testing.T, d driver.Driver, id string, words ...string) string {
	t.Helper()
	s, err := d.(driver.Execer).Exec(t.Context(), driver.Instance{ID: id}, driver.ExecOptions{Command: []string{"sh", "-c", strings.Join(words, " ")}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() // never fails
	out, _ := io.ReadAll(s.Stdout())
	if code, err := s.Wait(); code != 0 || err != nil {
		t.Fatalf("%v: %d, %v", words, code, err)
	}
	return string(out)
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatal("not so: ", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
