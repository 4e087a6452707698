package main_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mariposa/client"
	"mariposa/store/postgres/pgtest"
)

// fleetTest is a cluster under random faults: every connection between its parts goes
// through a cable, and every part can be killed.
type fleetTest struct {
	*cluster
	database *pgtest.Server
	links    []*cable        // between each replica and the database
	fronts   []*cable        // between agents and each replica
	urls     []string        // through the fronts
	marker   string          // in the command line of every process that the nodes run
	printed  []*lockedBuffer // by each agent

	mu     sync.Mutex
	agents []*exec.Cmd // those that run processes
	random *rand.Rand
	killed map[string]bool // the nodes whose agents were killed: those may have been unknown
	said   []string
}

const (
	fleetReplicas = 3
	fleetAgents   = 20 // of which some run processes
	fleetReal     = 4
)

func newFleetTest(t *testing.T, seed uint64, nodes int) *fleetTest {
	t.Helper()
	f := &fleetTest{database: pgtest.New(t), killed: map[string]bool{}, random: rand.New(rand.NewPCG(seed, 0)), marker: strconv.Itoa(100000000 + rand.IntN(800000000))}
	f.cluster = &cluster{devServer: &devServer{t: t, dir: t.TempDir(), out: &lockedBuffer{}}, store: f.database.Database(t, "")}
	f.admin, f.join = f.token(), f.token("--join", "--uses", itoa(fleetAgents+nodes))
	direct := f.store
	for range fleetReplicas {
		var link *cable
		link, f.store = newCable(t, direct)
		f.links = append(f.links, link)
		front, at := newCable(t, "http://127.0.0.1:0") // the replica publishes its address before it has a port
		f.addReplica("--advertise", at)
		front.target = strings.TrimPrefix(f.replicas[len(f.replicas)-1].url, "http://")
		f.fronts, f.urls = append(f.fronts, front), append(f.urls, at)
	}
	f.ask(0)
	servers := strings.Join(f.urls, ",")
	for i := range fleetReal {
		f.agents = append(f.agents, f.startAgent(i))
	}
	for i := range fleetAgents - fleetReal {
		f.startDummies(fmt.Sprintf("dummy-%d", i), 1, servers)
	}
	f.startDummies("many", nodes, servers)
	t.Cleanup(func() {
		for _, pid := range f.processes() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("seed %d\n%s", seed, strings.Join(f.said, "\n"))
		}
	})
	f.await("all nodes run", func() bool {
		all, err := f.Nodes(t.Context())
		return err == nil && len(all.Nodes) == fleetAgents+nodes
	})
	return f
}

// startDummies starts an agent that acts as a number of nodes.
func (f *fleetTest) startDummies(name string, nodes int, servers string) {
	out := &lockedBuffer{}
	f.printed = append(f.printed, out)
	f.agentInto(out, name, nodes, servers)
}

// explain returns what happened around the loss of a node: the faults, and what its agent
// printed.
func (f *fleetTest) explain(node string) string {
	lines := slices.Clone(f.said)
	for _, out := range f.printed {
		for line := range strings.Lines(out.String()) {
			if strings.Contains(line+" ", "node="+node+" ") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
	}
	return strings.Join(lines, "\n")
}

// startAgent starts an agent whose node runs processes.
func (f *fleetTest) startAgent(i int) *exec.Cmd {
	name := fmt.Sprintf("real-%d", i)
	out := &lockedBuffer{}
	f.mu.Lock()
	f.printed = append(f.printed, out)
	f.mu.Unlock()
	return f.spawnProcess(out, []string{"MARIPOSA_JOIN=" + f.join}, "agent", "--server", strings.Join(f.urls, ","),
		"--data", filepath.Join(f.dir, name), "--name", name)
}

// processes returns the ids of the processes that nodes run.
func (f *fleetTest) processes() (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline") // a correct pattern
	for _, file := range all {
		line, err := os.ReadFile(file)
		if err == nil && strings.HasPrefix(string(line), "sleep\x00"+f.marker) {
			pids = append(pids, atoi(filepath.Base(filepath.Dir(file))))
		}
	}
	return pids
}

// say notes what is done, for the log of a failed test.
func (f *fleetTest) say(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.said = append(f.said, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// up to draws a duration.
func (f *fleetTest) upTo(most time.Duration) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Duration(f.random.Int64N(int64(most)))
}

func (f *fleetTest) pick(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.IntN(n)
}

// restartReplica kills a replica and starts another one at its address.
func (f *fleetTest) restartReplica(i int, pause time.Duration) {
	f.mu.Lock()
	r := f.replicas[i]
	f.mu.Unlock()
	end(r.cmd)
	time.Sleep(pause)
	u, err := url.Parse(r.url)
	must(f.t, err)
	target, err := url.Parse(f.store)
	must(f.t, err)
	target.Host = f.links[i].listener.Addr().String()
	cmd := f.spawnProcess(r.out, []string{"MARIPOSA_STORE=" + target.String()}, "server", "--listen", u.Host, "--advertise", f.urls[i])
	f.mu.Lock()
	r.cmd = cmd
	f.mu.Unlock()
}

// disturb causes one random fault and ends it. No fault lasts so long that a healthy node
// would have to be unknown.
func (f *fleetTest) disturb() {
	i := f.pick(fleetReplicas)
	switch f.pick(9) {
	case 0, 1:
		pause := f.upTo(3 * time.Second)
		f.say("replica %d is killed and away for %s", i, pause)
		f.restartReplica(i, pause)
	case 2:
		pause := f.upTo(9 * time.Second)
		f.mu.Lock()
		cmd := f.replicas[i].cmd
		f.mu.Unlock()
		f.say("replica %d stands still for %s", i, pause)
		_ = cmd.Process.Signal(syscall.SIGSTOP) // fails if it has just been killed
		time.Sleep(pause)
		_ = cmd.Process.Signal(syscall.SIGCONT)
	case 3:
		f.breakCable("database of replica", f.links[i], i, (*cable).setCut, f.upTo(6*time.Second))
	case 4:
		f.breakCable("database of replica", f.links[i], i, (*cable).setHung, f.upTo(6*time.Second))
	case 5:
		f.breakCable("agents of replica", f.fronts[i], i, (*cable).setCut, f.upTo(4*time.Second))
	case 6:
		f.breakCable("agents of replica", f.fronts[i], i, (*cable).setHung, f.upTo(4*time.Second))
	case 7:
		n, pause := f.pick(fleetReal), f.upTo(2*time.Second)
		f.mu.Lock()
		cmd := f.agents[n]
		f.mu.Unlock()
		f.say("agent %d is killed and away for %s", n, pause)
		f.killed[fmt.Sprintf("real-%d", n)] = true
		end(cmd)
		time.Sleep(pause)
		cmd = f.startAgent(n)
		f.mu.Lock()
		f.agents[n] = cmd
		f.mu.Unlock()
	case 8:
		pause := f.upTo(2 * time.Second)
		f.say("the database is killed and away for %s", pause)
		f.database.Kill()
		time.Sleep(pause)
		must(f.t, f.database.Start())
	}
}

func (f *fleetTest) breakCable(what string, c *cable, i int, broken func(*cable, bool), pause time.Duration) {
	f.say("the cable to the %s %d is broken for %s", what, i, pause)
	broken(c, true)
	time.Sleep(pause)
	broken(c, false)
}

// fleetSoak is how long TestAFleetSurvivesChaos lasts.
func fleetSoak(t *testing.T) time.Duration {
	text := os.Getenv("MARIPOSA_FLEET_SOAK")
	if text == "" {
		return 20 * time.Second
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

// Replicas, agents, the database and the connections between them fail at random, while
// clients change projects. In the end everything is as the last acknowledged changes say.
func TestAFleetSurvivesChaos(t *testing.T) {
	t.Parallel()
	soak, nodes, seed := fleetSoak(t), 30, rand.Uint64()
	pause := 100 * time.Millisecond // leaves the processor to the other tests
	if soak > time.Minute {
		nodes, pause = 1000, 0
	}
	if s, err := strconv.ParseUint(os.Getenv("MARIPOSA_SEED"), 10, 64); err == nil {
		seed = s
	}
	f := newFleetTest(t, seed, nodes)
	const processes = 8
	f.create("real", fmt.Sprintf("services: {p: {compute_type: process, command: [sleep, \"%s\"], scale: %d}}", f.marker, processes))
	f.create("shop", "services: {d: {compute_type: dummy, scale: 10}}")
	f.create("wide", "services: {d: {compute_type: dummy, scale: 50}}")
	f.converged("real", "p", processes)
	f.converged("wide", "d", 50)
	before := f.processes()
	if len(before) != processes {
		t.Fatalf("processes %v run", before)
	}

	ctx, stop := context.WithTimeout(t.Context(), soak)
	defer stop()
	var all sync.WaitGroup
	direct := []string{f.replicas[0].url, f.replicas[1].url, f.replicas[2].url}
	var writers []*writer
	for i := range 3 {
		w := &writer{name: fmt.Sprintf("w%d", i), token: f.admin, urls: direct, pause: pause}
		writers = append(writers, w)
		all.Go(func() { w.run(ctx) })
	}
	s := &scaler{writer: writer{name: "scaler", token: f.admin, urls: direct}, scale: 50}
	all.Go(func() { s.run(ctx) })
	faults := 0
	for ctx.Err() == nil {
		f.disturb()
		faults++
	}
	all.Wait()
	f.say("healed")

	f.await("a replica answers", func() bool { _, err := f.Ready(t.Context()); return err == nil })
	f.converged("wide", "d", s.scale)
	f.converged("shop", "d", 10)
	f.converged("real", "p", processes)
	want := 0
	for _, w := range writers {
		want += w.acked
		if len(w.wrong) > 0 {
			t.Errorf("%s: %d changes were refused: %s", w.name, len(w.wrong), w.wrong[0])
		}
	}
	t.Logf("%d faults; %d increments and %d scales acknowledged; seed %d", faults, want, s.acked, seed)
	for i := range f.replicas {
		f.ask(i)
		f.await("the replica has seen every increment", func() bool {
			v, err := f.MetadataKey(t.Context(), "shop", "count", false)
			return err == nil && atoi(v.Value) >= want
		})
		v, err := f.MetadataKey(t.Context(), "shop", "count", false)
		must(t, err)
		if atoi(v.Value) != want {
			t.Errorf("%d increments were acknowledged, and replica %d counts %s", want, i, v.Value)
		}
	}
	if after := f.processes(); !slices.Equal(after, before) {
		t.Errorf("processes %v ran, and now %v do", before, after)
	}
	nodesNow, err := f.Nodes(t.Context())
	must(t, err)
	unknown := f.everUnknown()
	for _, n := range nodesNow.Nodes {
		if slices.Contains(unknown, n.ID) && !f.killed[n.Name] {
			t.Errorf("the healthy node %s has been unknown:\n%s", n.Name, f.explain(n.Name))
		}
	}
	list, err := f.AllInstances(t.Context(), client.InstanceFilter{})
	must(t, err)
	slots := map[string]string{}
	for _, i := range list.Instances {
		key := i.Project + " " + i.Slot
		if other := slots[key]; other != "" {
			t.Errorf("%s and %s are in the same slot", other, i.Name)
		}
		slots[key] = i.Name
	}
	if len(slots) != processes+10+s.scale {
		t.Errorf("%d slots are filled, want %d", len(slots), processes+10+s.scale)
	}
	f.must(f.Scale(t.Context(), "real", map[string]string{"p": "0"}))
	f.await("no process is left", func() bool { return len(f.processes()) == 0 })
}

// scaler scales a service to random numbers.
type scaler struct {
	writer
	scale int // the last that was acknowledged
}

func (s *scaler) run(ctx context.Context) {
	for n := 1; ctx.Err() == nil; n++ {
		next := 30 + rand.IntN(40)
		body := fmt.Sprintf(`{"action":"scale","scale":{"d":%d}}`, next)
		if s.change("PUT", "/v1/projects/wide/state", body, "application/json", fmt.Sprintf("%s-%d", s.name, n)) {
			s.scale, s.acked = next, s.acked+1
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}
