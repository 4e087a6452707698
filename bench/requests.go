package bench

import (
	"context"
	"errors"
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
	"syscall"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// RequestsOptions configure the benchmark of requests through a load balancer.
type RequestsOptions struct {
	Dir        string // for the data of everything
	Executable string // the mariposa binary
	Progress   io.Writer
	Instances  int // behind the balancer
	Rate       int // requests a second
	Clients    int // concurrent; half of them keep their connections
}

// RequestsResult contains the measurements. Lost requests are those that failed, or were answered
// with another status than 200.
type RequestsResult struct {
	Instances int     `json:"instances"`
	Rate      int     `json:"rate"`
	Clients   int     `json:"clients"`
	Steady    Traffic `json:"steady"`
	Update    Traffic `json:"update"` // a rolling update
	ScaleDown Traffic `json:"scale_down"`
	NodeDrain Traffic `json:"node_drain"`
	Restart   Traffic `json:"restart"` // kill -9 of the server and of all agents
	Crash     Traffic `json:"crash"`   // kill -9 of one instance: requests in progress on it may be lost
	// Reloads is the same rolling update by a script: each step starts a new process, writes the
	// configuration of HAProxy, reloads it, and stops the old process.
	Reloads Traffic `json:"haproxy_reloads"`
}

// Traffic is what clients saw during a part of the benchmark.
type Traffic struct {
	Seconds float64     `json:"s"` // what was measured; requests are sent for a while before and after it, too
	Sent    int         `json:"sent"`
	Lost    int         `json:"lost"`
	Time    Percentiles `json:"ms"`
	Why     string      `json:"why,omitempty"` // the first loss
}

// Requests measures how many requests are lost through a load balancer while what is behind it
// changes: with real processes, an HAProxy, and clients with a steady rate.
func Requests(ctx context.Context, o RequestsOptions) (*RequestsResult, error) {
	if _, err := exec.LookPath("haproxy"); err != nil {
		return nil, errors.New("HAProxy is not installed: install haproxy")
	}
	r := &RequestsResult{Instances: o.Instances, Rate: o.Rate, Clients: o.Clients}
	s := &requestsRun{RequestsOptions: o}
	defer s.end()
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	for _, part := range []struct {
		name string
		into *Traffic
		do   func(context.Context) error
	}{
		{"steady", &r.Steady, func(ctx context.Context) error { return pause(ctx, 5*time.Second) }},
		{"rolling update", &r.Update, func(ctx context.Context) error { return s.submit(ctx, 2, o.Instances) }},
		{"scale-down", &r.ScaleDown, func(ctx context.Context) error { return s.scale(ctx, max(1, o.Instances/2)) }},
		{"node drain", &r.NodeDrain, s.drainNode},
		{"restart of server and agents", &r.Restart, s.restart},
		{"crash of an instance", &r.Crash, s.crash},
	} {
		fmt.Fprintf(o.Progress, "%s\n", part.name)
		var err error
		if *part.into, err = s.measure(ctx, s.port, part.do); err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	fmt.Fprintln(o.Progress, "the same update with reloads of HAProxy")
	var err error
	if r.Reloads, err = s.reloads(ctx); err != nil {
		return nil, fmt.Errorf("reloads of HAProxy: %w", err)
	}
	return r, nil
}

// requestsRun is a server with two agents, all in processes of their own, and a project behind a
// balancer.
type requestsRun struct {
	RequestsOptions
	port, api int
	join      string
	server    *agentProcess
	agents    map[string]*agentProcess
	backends  []*agentProcess
	client    *client.Client
}

const requestsProject = "requests"

func (s *requestsRun) start(ctx context.Context) error {
	var err error
	if s.port, err = freeLoopbackPort(); err != nil {
		return err
	}
	if s.api, err = freeLoopbackPort(); err != nil {
		return err
	}
	if err := s.startServer(ctx); err != nil {
		return err
	}
	token, err := s.client.CreateToken(ctx, contract.NewToken{Name: "bench", Use: mariposa.TokenJoin})
	if err != nil {
		return err
	}
	s.join, s.agents = token.Secret, map[string]*agentProcess{}
	for _, name := range []string{"one", "two"} {
		if err := s.startAgent(ctx, name); err != nil {
			return err
		}
	}
	if err := s.await(ctx, "the nodes have joined", func() (bool, error) { return s.connected(ctx) }); err != nil {
		return err
	}
	if _, err := s.client.CreateProject(ctx, requestsProject, s.manifest(1, s.Instances), ""); err != nil {
		return err
	}
	return s.settled(ctx, s.Instances)
}

func (s *requestsRun) startServer(ctx context.Context) error {
	data := filepath.Join(s.Dir, "server")
	var err error
	if s.server, err = startAgent(s.command(ctx, nil, "server", "--store", "sqlite:"+filepath.Join(data, "m.db"), "--listen", "127.0.0.1:"+strconv.Itoa(s.api))); err != nil {
		return err
	}
	return s.await(ctx, "the server answers", func() (bool, error) {
		if err := s.server.err(); err != nil {
			return false, err
		}
		token, err := os.ReadFile(filepath.Join(data, "admin.token"))
		if err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		if s.client, err = client.New(client.Options{URL: "http://127.0.0.1:" + strconv.Itoa(s.api), Token: strings.TrimSpace(string(token))}); err != nil {
			return false, err
		}
		_, err = s.client.Ready(ctx)
		return err == nil, nil
	})
}

func (s *requestsRun) startAgent(ctx context.Context, name string) (err error) {
	s.agents[name], err = startAgent(s.command(ctx, []string{"MARIPOSA_JOIN=" + s.join}, "agent", "--server", "http://127.0.0.1:"+strconv.Itoa(s.api),
		"--data", filepath.Join(s.Dir, name), "--name", name, "--docker", "off", "--lxc", "off", "--kvm", "off"))
	return err
}

// command returns a command of our own binary that outlives a canceled benchmark until end.
func (s *requestsRun) command(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), s.Executable, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.Dir}, env...)
	return cmd
}

func (s *requestsRun) manifest(version, scale int) []byte {
	return fmt.Appendf(nil, `services:
  web:
    compute_type: process
    command: [%s, bench, respond]
    environment: [VERSION=%d]
    scale: %d
    ports: [8080]
    healthchecks: [{type: tcp, port: 8080, poll: 1, unhealthy_poll: 0.1, timeout: 5, retries: 2}]
    update: {min_healthy: 0}
load_balancers:
  front: {listen: %d, service: web, port: 8080, drain: 30}
`, s.Executable, version, scale, s.port)
}

// connected reports whether both nodes are running.
func (s *requestsRun) connected(ctx context.Context) (bool, error) {
	nodes, err := s.client.Nodes(ctx)
	if err != nil {
		return false, nil //nolint:nilerr // the server may be restarting
	}
	n := 0
	for _, node := range nodes.Nodes {
		if node.Status == mariposa.NodeRunning {
			n++
		}
	}
	return n == 2, nil
}

// settled waits until the project is converged, and as many members are up.
func (s *requestsRun) settled(ctx context.Context, members int) error {
	return s.await(ctx, "the project is converged", func() (bool, error) {
		st, err := s.client.State(ctx, requestsProject, "")
		if err != nil || len(st.Projects) != 1 || st.Projects[0].Status != mariposa.StatusConverged {
			return false, nil //nolint:nilerr // the server may be restarting
		}
		b, err := s.client.Balancers(ctx, requestsProject)
		if err != nil || len(b.Balancers) != 1 {
			return false, nil //nolint:nilerr // likewise
		}
		up := 0
		for _, m := range b.Balancers[0].Members {
			if m.State == mariposa.MemberUp {
				up++
			}
		}
		return up == members && len(b.Balancers[0].Members) == members, nil
	})
}

func (s *requestsRun) await(ctx context.Context, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		done, err := ok()
		if done || err != nil {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("waited too long until %s", what)
		}
	}
}

func (s *requestsRun) submit(ctx context.Context, version, scale int) error {
	changed, err := s.client.UpdateManifest(ctx, requestsProject, s.manifest(version, scale), client.Update{Force: true})
	if err != nil {
		return err
	}
	err = s.await(ctx, "the task has ended", func() (bool, error) {
		if changed.Task == nil {
			return true, nil
		}
		task, err := s.client.Task(ctx, *changed.Task)
		return err == nil && task.Finished != nil, err
	})
	if err != nil {
		return err
	}
	return s.settled(ctx, scale)
}

func (s *requestsRun) scale(ctx context.Context, n int) error { return s.submit(ctx, 2, n) }

// drainNode drains the node without the balancer, and uses it again.
func (s *requestsRun) drainNode(ctx context.Context) error {
	b, err := s.client.Balancers(ctx, requestsProject)
	if err != nil {
		return err
	}
	name := "one"
	if b.Balancers[0].Instances[0].NodeName == name {
		name = "two"
	}
	if _, err := s.client.ActOnNode(ctx, name, contract.NodeAction{Action: "drain"}); err != nil {
		return err
	}
	err = s.await(ctx, "the node is empty", func() (bool, error) {
		nodes, err := s.client.Nodes(ctx)
		if err != nil {
			return false, err
		}
		for _, n := range nodes.Nodes {
			if n.Name == name {
				return n.Instances == 0, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	if _, err := s.client.ActOnNode(ctx, name, contract.NodeAction{Action: "undrain"}); err != nil {
		return err
	}
	return s.settled(ctx, max(1, s.Instances/2))
}

// restart kills the server and all agents, and starts them again.
func (s *requestsRun) restart(ctx context.Context) error {
	kill(s.server)
	for _, a := range s.agents {
		kill(a)
	}
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	if err := s.startServer(ctx); err != nil {
		return err
	}
	for name := range s.agents {
		if err := s.startAgent(ctx, name); err != nil {
			return err
		}
	}
	if err := s.await(ctx, "the nodes are back", func() (bool, error) { return s.connected(ctx) }); err != nil {
		return err
	}
	return s.settled(ctx, max(1, s.Instances/2))
}

// crash kills one instance.
func (s *requestsRun) crash(ctx context.Context) error {
	if err := s.await(ctx, "an instance is killed", func() (bool, error) { return s.killOne(ctx) }); err != nil {
		return err
	}
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	return s.settled(ctx, max(1, s.Instances/2))
}

// killOne kills a running instance, and reports whether there was one: it may have ended since it was
// listed.
func (s *requestsRun) killOne(ctx context.Context) (bool, error) {
	list, err := s.client.AllInstances(ctx, client.InstanceFilter{Project: requestsProject, Service: "web", State: string(mariposa.StateRunning)})
	if err != nil || len(list.Instances) == 0 {
		return false, err
	}
	i, err := s.client.Instance(ctx, list.Instances[0].ID)
	if mariposa.CodeOf(err) == mariposa.ResourceNotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	pid, _ := strconv.Atoi(i.Details["pid"])
	if pid <= 1 {
		return false, nil
	}
	err = syscall.Kill(pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return false, nil
	}
	return err == nil, err
}

func kill(a *agentProcess) {
	if a != nil {
		_ = a.cmd.Process.Kill() // it may have ended
		<-a.ended
	}
}

// end removes the project with its processes, and ends everything.
func (s *requestsRun) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if s.client != nil && s.agents != nil {
		if _, err := s.client.DeleteProject(ctx, requestsProject, true); err == nil {
			_ = s.await(ctx, "everything is removed", func() (bool, error) {
				list, err := s.client.AllInstances(ctx, client.InstanceFilter{})
				return err == nil && len(list.Instances) == 0, nil
			})
		}
	}
	for _, a := range s.backends {
		kill(a)
	}
	for _, a := range s.agents {
		kill(a)
	}
	kill(s.server)
}

func freeLoopbackPort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close() // it is opened again by what uses it
	return l.Addr().(*net.TCPAddr).Port, nil
}

// margin is how long requests are sent before and after what is measured.
const margin = 2 * time.Second

// measure sends requests at a steady rate while something is done.
func (s *requestsRun) measure(ctx context.Context, port int, do func(context.Context) error) (Traffic, error) {
	loadCtx, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	var t Traffic
	var times []time.Duration
	var work sync.WaitGroup
	interval := time.Duration(float64(time.Second) * float64(s.Clients) / float64(s.Rate))
	url := "http://127.0.0.1:" + strconv.Itoa(port) + "/"
	for i := range s.Clients {
		work.Go(func() {
			c := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: i%2 == 0}}
			defer c.CloseIdleConnections()
			tick := time.NewTicker(interval)
			defer tick.Stop()
			for {
				select {
				case <-loadCtx.Done():
					return
				case <-tick.C:
				}
				begun := time.Now()
				err := get(context.WithoutCancel(loadCtx), c, url) // a request in progress is not lost
				mu.Lock()
				t.Sent++
				times = append(times, time.Since(begun))
				if err != nil {
					if t.Lost++; t.Why == "" {
						t.Why = err.Error()
					}
				}
				mu.Unlock()
			}
		})
	}
	err := pause(ctx, margin)
	begun := time.Now()
	if err == nil {
		err = do(ctx)
	}
	t.Seconds = time.Since(begun).Seconds()
	if err == nil {
		err = pause(ctx, margin)
	}
	stop()
	work.Wait()
	t.Time = percentiles(times)
	return t, err
}

func get(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r, err := c.Do(req)
	if err != nil {
		return err
	}
	defer r.Body.Close() // it was read
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", r.StatusCode)
	}
	return nil
}
