package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"mariposa"
	"mariposa/client"
)

// HealthOptions configure the benchmark of health checks.
type HealthOptions struct {
	Environment
	Instances int           // processes to check
	Checks    int           // of each instance
	Poll      time.Duration // between two runs of a check
	Duration  time.Duration // of the measurement
	Command   []string      // runs Answer in an instance
	// Agent returns the command that runs an agent with a data directory.
	Agent func(server, join, dir string) *exec.Cmd
}

// HealthResult contains the measurements.
type HealthResult struct {
	Instances int     `json:"instances"`
	Checks    int     `json:"checks_per_instance"`
	PollS     float64 `json:"poll_s"`
	Wanted    float64 `json:"wanted_per_s"`
	Done      float64 `json:"checks_per_s"`          // that instances have answered
	Cores     float64 `json:"agent_cores"`           // that the agent has used
	MicroS    float64 `json:"agent_us_per_check"`    // processor time
	AgentMB   float64 `json:"agent_rss_mb"`          //
	Unhealthy int     `json:"unhealthy"`             // instances that were not healthy in the end
	Replaced  int     `json:"replaced_or_restarted"` // although all of them answer
}

// healthRun is one running benchmark.
type healthRun struct {
	HealthOptions
	*system
	agent   *agentProcess
	feed    *follower
	project string
	res     HealthResult
}

// Health measures what health checks cost an agent: real processes that answer HTTP requests, an
// agent in a process of its own, and a control plane.
func Health(ctx context.Context, o HealthOptions) (HealthResult, error) {
	r := &healthRun{HealthOptions: o, res: HealthResult{Instances: o.Instances, Checks: o.Checks, PollS: o.Poll.Seconds()}}
	r.res.Wanted = round(float64(o.Instances*o.Checks) / o.Poll.Seconds())
	var err error
	// The system outlives an interruption, because it removes its instances.
	if r.system, err = begin(context.WithoutCancel(ctx), o.Environment, 0); err != nil {
		return r.res, err
	}
	defer r.end()
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	r.feed = follow(following, r.store)
	for _, p := range []phase{{"starting instances", r.up}, {"checking them", r.check}} {
		if err = r.run(ctx, p); err != nil {
			break
		}
	}
	return r.res, errors.Join(err, r.down(ctx))
}

// up starts the agent and the instances, and waits until they are healthy.
func (r *healthRun) up(ctx context.Context) error {
	agent, err := startAgent(r.Agent(r.control.URL, r.join, r.system.Dir))
	if err != nil {
		return err
	}
	r.agent = agent
	err = awaitCondition(ctx, func() (bool, error) {
		all, err := r.client.Nodes(ctx)
		if err != nil || agent.hasEnded() {
			return false, errors.Join(err, agent.err())
		}
		return len(all.Nodes) == 1 && slices.Contains(all.Nodes[0].Drivers, mariposa.ComputeProcess), nil
	})
	if err != nil {
		return err
	}
	r.progress("starting %d instances with %d checks each", r.Instances, r.Checks)
	c, err := r.client.CreateProject(context.WithoutCancel(ctx), "bench", r.manifest(), "")
	if err != nil {
		return err
	}
	r.project = c.ID
	return awaitCondition(ctx, func() (bool, error) {
		if agent.hasEnded() {
			return false, agent.err()
		}
		unhealthy, all, err := r.unhealthy(ctx)
		return all == r.Instances && unhealthy == 0, err
	})
}

func (r *healthRun) manifest() []byte {
	var b strings.Builder
	var words []string
	for _, w := range r.Command {
		words = append(words, strconv.Quote(w))
	}
	fmt.Fprintf(&b, "services:\n  load:\n    compute_type: process\n    command: [%s]\n    scale: %d\n    ports: [80]\n    stop: {timeout: 1}\n    grace: 120\n    healthchecks:\n",
		strings.Join(words, ", "), r.Instances)
	for n := range r.Checks {
		fmt.Fprintf(&b, "      - {type: http, port: 80, path: /%d, poll: %g, timeout: 10}\n", n, r.Poll.Seconds())
	}
	return []byte(b.String())
}

// unhealthy counts the instances that are not healthy, and all of them.
func (r *healthRun) unhealthy(ctx context.Context) (unhealthy, all int, err error) {
	doc, err := r.client.HealthChecks(ctx, r.project, "")
	if err != nil {
		return 0, 0, err
	}
	for _, i := range doc.Services[0].Instances {
		if all++; i.Health != mariposa.HealthHealthy {
			unhealthy++
		}
	}
	return unhealthy, all, nil
}

// check measures for a while.
func (r *healthRun) check(ctx context.Context) error {
	doc, err := r.client.HealthChecks(ctx, r.project, "")
	if err != nil {
		return err
	}
	var addresses []string
	before := map[string]bool{}
	for _, i := range doc.Services[0].Instances {
		addresses, before[i.Instance] = append(addresses, i.Addresses[0]), true
	}
	r.progress("measuring for %s", r.Duration)
	used, err := r.agent.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	answered, err := countAnswers(ctx, addresses)
	if err != nil {
		return err
	}
	if err := pause(ctx, r.Duration); err != nil {
		return err
	}
	now, err := countAnswers(ctx, addresses)
	if err != nil {
		return err
	}
	took := time.Since(began)
	after, err := r.agent.cpu()
	if err != nil {
		return err
	}
	n := float64(now - answered)
	r.res.Done, r.res.Cores = round(n/took.Seconds()), round((after-used).Seconds()/took.Seconds())
	if n > 0 {
		r.res.MicroS = round(float64((after - used).Microseconds()) / n)
	}
	r.res.AgentMB = r.agent.memory("VmRSS:")
	if r.res.Unhealthy, _, err = r.unhealthy(ctx); err != nil {
		return err
	}
	for i, err := range r.client.Instances(ctx, client.InstanceFilter{Project: r.project}) {
		if err != nil {
			return err
		}
		if !before[i.ID] || i.Restarts > 0 {
			r.res.Replaced++
		}
	}
	r.result("%.0f checks a second with %.2f cores of the agent: %.0f µs each", r.res.Done, r.res.Cores, r.res.MicroS)
	return nil
}

// down removes the instances and ends the agent.
func (r *healthRun) down(ctx context.Context) error {
	if r.agent == nil {
		return nil
	}
	defer r.agent.stop()
	if r.project == "" || r.agent.hasEnded() {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	if _, err := r.client.DeleteProject(ctx, r.project, true); err != nil {
		return err
	}
	return r.awaitDeleted(ctx)
}

// countAnswers returns how many requests instances have answered, apart from these.
func countAnswers(ctx context.Context, addresses []string) (sum int64, err error) {
	for _, at := range addresses {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+countPath, nil)
		if err != nil {
			return 0, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		text, err := io.ReadAll(io.LimitReader(resp.Body, 64))
		_ = resp.Body.Close()
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// countPath is where an instance says how many requests it has answered.
const countPath = "/count"

// Answer is the instance of the benchmark: it answers HTTP requests with as little work as
// possible.
func Answer(ctx context.Context, port string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var answered atomic.Int64
	for {
		conn, err := l.Accept()
		if err != nil {
			return nil // it is closed when the benchmark ends
		}
		go answerOne(conn, &answered)
	}
}

func answerOne(conn net.Conn, answered *atomic.Int64) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second)) // fails only on a closed connection
	r := bufio.NewReaderSize(conn, 1<<10)
	first, err := r.ReadString('\n')
	for line := first; err == nil && strings.TrimSpace(line) != ""; {
		line, err = r.ReadString('\n')
	}
	if err != nil {
		return
	}
	body := ""
	if strings.HasPrefix(first, "GET "+countPath+" ") {
		body = strconv.FormatInt(answered.Load(), 10)
	} else {
		answered.Add(1)
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body) // the agent may have gone
}

// cpu returns the processor time of the agent.
func (a *agentProcess) cpu() (time.Duration, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(a.cmd.Process.Pid) + "/stat")
	if err != nil {
		return 0, errors.Join(err, a.err())
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])) // the name may contain spaces
	var ticks int64
	for _, f := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil // there are 100 a second on every Linux that we support
}
