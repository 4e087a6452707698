package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"mariposa"
	"mariposa/agent"
)

// ComputeOptions configure the compute benchmark.
type ComputeOptions struct {
	Environment
	Engine     string // where the Docker engine listens; empty: as the environment says
	Image      string // its command must keep running; empty: the benchmark makes a tiny one
	Containers int    // of the service
	Rounds     int    // how often they are started, raw and by Mariposa in turn
	Kills      int    // containers to kill, one by one
	Most       int    // containers while the memory of the agent is measured
	// Agent returns the command that runs an agent with this engine and a data directory.
	Agent func(server, join, dir, engine string) *exec.Cmd
}

// ComputeResult contains the measurements. Raw are calls to the engine's API that create and
// start containers, as many at once as an agent has in progress.
type ComputeResult struct {
	Engine     string `json:"engine"` // version
	Image      string `json:"image"`
	Containers int    `json:"containers"`
	Parallel   int    `json:"parallel"`
	Store      string `json:"store"`

	// The whole service, in each round: raw, and from the request that creates its project
	// until the server has every instance as running.
	Rounds       []ComputeRound `json:"rounds"`
	ComputeRound                // medians

	// One container: raw, and from the call that kills it until the engine reports its end,
	// until its replacement is assigned to the node, and until that runs.
	Kills      int         `json:"kills"`
	RawOne     Percentiles `json:"raw_one_ms"`
	Reported   Percentiles `json:"end_reported_ms"`
	Assigned   Percentiles `json:"replace_assigned_ms"`
	Replace    Percentiles `json:"replace_ms"`
	ReplaceAdd float64     `json:"replace_over_raw_ms"` // difference of the medians

	// The agent, a process of its own, with many containers.
	Most        int     `json:"most_containers"`
	AgentMB     float64 `json:"agent_rss_mb"`
	AgentPeakMB float64 `json:"agent_peak_mb"`

	Commit  Percentiles `json:"commit_ms"`
	FsyncMS float64     `json:"fsync_ms"`
	CPUS    float64     `json:"cpu_s"` // without the engine and the agent
}

// ComputeRound is one comparison. Containers of a project are in a network of their own, and so
// are the raw ones. The engine starts those in its default network faster.
type ComputeRound struct {
	RawS         float64 `json:"raw_s"`
	UpS          float64 `json:"up_s"`
	Ratio        float64 `json:"ratio"`
	DefaultS     float64 `json:"raw_default_network_s"`
	DefaultRatio float64 `json:"ratio_default_network"`
}

// computeRun is one running compute benchmark.
type computeRun struct {
	ComputeOptions
	*system
	engine  *rawEngine
	agent   *agentProcess
	feed    *follower
	project string // id of the current project; empty: none
	res     ComputeResult
}

// Compute compares containers that Mariposa starts with those that the engine starts when it is
// called directly. It removes all containers, also if it is interrupted.
func Compute(ctx context.Context, o ComputeOptions) (ComputeResult, error) {
	r := &computeRun{ComputeOptions: o, res: ComputeResult{Containers: o.Containers, Parallel: agent.DefaultSlots, Store: o.StoreName, Kills: o.Kills, Most: o.Most}}
	took, err := fsync(o.Dir)
	if err != nil {
		return r.res, err
	}
	r.res.FsyncMS = ms(took)
	if r.engine, err = openEngine(ctx, o.Engine); err != nil {
		return r.res, errors.Join(err, o.Store.Close())
	}
	defer r.engine.close()
	r.res.Engine = r.engine.version
	// The system outlives an interruption, because it removes its containers.
	if r.system, err = begin(context.WithoutCancel(ctx), o.Environment, 0); err != nil {
		return r.res, err
	}
	defer r.end()
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	r.feed = follow(following, r.store)
	err = r.phases(ctx)
	r.res.Commit, r.res.CPUS = r.store.percentiles(), round(cpu().Seconds())
	return r.res, errors.Join(err, r.cleanUp(ctx))
}

func (r *computeRun) phases(ctx context.Context) error {
	for _, p := range []phase{
		{"preparing", r.prepare},
		{"starting containers", func(ctx context.Context) error { return r.profiled(ctx, "cpu", r.up) }},
		{"killing containers", r.kill},
		{"measuring the memory of the agent", r.measureMemory},
	} {
		if err := r.run(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes the image, starts the agent, and one container before anything is measured.
func (r *computeRun) prepare(ctx context.Context) error {
	err := r.engine.prepare(ctx, r.Image)
	if err != nil {
		return err
	}
	r.res.Image = r.engine.image
	if r.agent, err = startAgent(r.Agent(r.control.URL, r.join, r.system.Dir, r.engine.api.DaemonHost())); err != nil {
		return err
	}
	err = awaitCondition(ctx, func() (bool, error) {
		all, err := r.client.Nodes(ctx)
		if err != nil || r.agent.hasEnded() {
			return false, errors.Join(err, r.agent.err())
		}
		return len(all.Nodes) == 1 && slices.Contains(all.Nodes[0].Drivers, mariposa.ComputeDocker), nil
	})
	if err != nil {
		return err
	}
	_, err = r.engine.startRaw(ctx, r.engine.run, 1, 1)
	r.progress("Docker %s, and an agent that starts %d containers at once", r.engine.version, r.res.Parallel)
	return errors.Join(err, r.engine.removeRaw(ctx))
}

// up starts the containers several times, raw and by Mariposa in turn. Those of the last round
// keep running.
func (r *computeRun) up(ctx context.Context) error {
	for n := range r.Rounds {
		if err := r.deleteProject(ctx); err != nil {
			return err
		}
		one, err := r.round(ctx, n)
		if err != nil {
			return err
		}
		r.res.Rounds = append(r.res.Rounds, one)
	}
	r.res.RawS = medianOf(r.res.Rounds, func(c ComputeRound) float64 { return c.RawS })
	r.res.UpS = medianOf(r.res.Rounds, func(c ComputeRound) float64 { return c.UpS })
	r.res.Ratio = medianOf(r.res.Rounds, func(c ComputeRound) float64 { return c.Ratio })
	r.res.DefaultS = medianOf(r.res.Rounds, func(c ComputeRound) float64 { return c.DefaultS })
	r.res.DefaultRatio = medianOf(r.res.Rounds, func(c ComputeRound) float64 { return c.DefaultRatio })
	return nil
}

func (r *computeRun) round(ctx context.Context, n int) (ComputeRound, error) {
	var raw [2]time.Duration
	for k, network := range []string{"bridge", r.engine.run} {
		r.progress("round %d of %d: starting %d containers directly in %s network", n+1, r.Rounds, r.Containers, []string{"the default", "a separate"}[k])
		var err error
		if raw[k], err = r.engine.startRaw(ctx, network, r.Containers, r.res.Parallel); err != nil {
			return ComputeRound{}, err
		}
		r.result("%s", raw[k].Round(time.Millisecond))
		if err := r.engine.removeRaw(ctx); err != nil {
			return ComputeRound{}, err
		}
	}
	r.progress("round %d of %d: starting a service of %d containers", n+1, r.Rounds, r.Containers)
	up, err := r.startService(ctx)
	if err != nil {
		return ComputeRound{}, err
	}
	one := ComputeRound{
		DefaultS: round(raw[0].Seconds()), RawS: round(raw[1].Seconds()), UpS: round(up.Seconds()),
		Ratio: round(up.Seconds() / raw[1].Seconds()), DefaultRatio: round(up.Seconds() / raw[0].Seconds()),
	}
	r.result("%s: %.2f times as long as directly in a separate network, %.2f times as in the default one", up.Round(time.Millisecond), one.Ratio, one.DefaultRatio)
	return one, nil
}

// startService creates a project and returns how long it took until all its containers ran.
func (r *computeRun) startService(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	c, err := r.client.CreateProject(context.WithoutCancel(ctx), r.engine.run, []byte("services:\n  load:\n    image: "+strconv.Quote(r.engine.image)+"\n    scale: "+strconv.Itoa(r.Containers)+"\n"), "")
	if err != nil {
		return 0, err
	}
	r.project = c.ID
	if err := r.awaitRunning(ctx, r.Containers); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

func (r *computeRun) awaitRunning(ctx context.Context, n int) error {
	ctx, stop := r.agent.during(ctx)
	defer stop()
	err := r.feed.until(ctx, func() bool { return r.feed.running[r.project] >= n })
	if err != nil {
		return context.Cause(ctx)
	}
	return nil
}

// kill kills single containers, and starts a raw one after each.
func (r *computeRun) kill(ctx context.Context) error {
	r.progress("killing %d containers one by one", r.Kills)
	var raw, reported, assigned, replaced []time.Duration
	for id, name := range r.feed.originals(r.project, r.Kills) {
		i, err := r.client.Instance(ctx, id)
		if err != nil {
			return err
		}
		began := time.Now()
		end, err := r.engine.kill(ctx, i.PhysicalID)
		if err != nil {
			return err
		}
		if err := r.feed.until(ctx, func() bool { return r.feed.repaired[name] }); err != nil {
			return err
		}
		replaced = append(replaced, time.Since(began))
		r.feed.mu.Lock()
		assigned = append(assigned, r.feed.replaced[name].Sub(began))
		r.feed.mu.Unlock()
		reported = append(reported, <-end)
		one, err := r.engine.startRaw(ctx, r.engine.run, 1, 1)
		if err = errors.Join(err, r.engine.removeRaw(ctx)); err != nil {
			return err
		}
		raw = append(raw, one)
	}
	r.res.Kills, r.res.RawOne = len(replaced), percentiles(raw)
	r.res.Reported, r.res.Assigned, r.res.Replace = percentiles(reported), percentiles(assigned), percentiles(replaced)
	r.res.ReplaceAdd = round(r.res.Replace.P50 - r.res.RawOne.P50)
	r.result("a container directly: %.0f ms (p50); after a kill, the engine reports the end after %.0f ms, the replacement is assigned after %.0f ms and runs after %.0f ms (p50), %.0f ms (p99)",
		r.res.RawOne.P50, r.res.Reported.P50, r.res.Assigned.P50, r.res.Replace.P50, r.res.Replace.P99)
	return nil
}

// measureMemory scales the service up and waits until the agent has returned what memory it
// does not need any more.
func (r *computeRun) measureMemory(ctx context.Context) error {
	if err := r.awaitIdle(ctx); err != nil {
		return err
	}
	r.progress("scaling to %d containers", r.Most)
	if _, err := r.client.Scale(ctx, r.project, map[string]string{"load": strconv.Itoa(r.Most)}); err != nil {
		return err
	}
	if err := r.awaitRunning(ctx, r.Most); err != nil {
		return err
	}
	r.progress("%d run; waiting until the memory of the agent has settled", r.Most)
	const atRest, atMost = 5, 60 // seconds
	now := r.agent.memory("VmRSS:")
	for s, same := 0, 0; s < atMost && same < atRest; s++ {
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		was := now
		if now = r.agent.memory("VmRSS:"); now < 0.99*was || now > 1.01*was {
			same = 0
		} else {
			same++
		}
	}
	r.res.AgentMB, r.res.AgentPeakMB = now, r.agent.memory("VmHWM:")
	if now == 0 {
		return cmp.Or(r.agent.err(), errors.New("the memory of the agent cannot be read"))
	}
	r.result("the agent has %.1f MB, and had %.1f MB at most", now, r.res.AgentPeakMB)
	return r.writeHeapProfile()
}

// deleteProject deletes the current project, and waits until its containers are gone.
func (r *computeRun) deleteProject(ctx context.Context) error {
	if r.project != "" {
		if _, err := r.client.DeleteProject(ctx, r.project, true); err != nil {
			return err
		}
	}
	r.project = ""
	return r.awaitDeleted(ctx)
}

// cleanUp removes everything that the benchmark has made, also after an interruption. What the
// engine refuses to remove is named, and does not spoil the result.
func (r *computeRun) cleanUp(ctx context.Context) error {
	r.progress("removing all containers")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
	defer cancel()
	var err error
	if r.agent != nil {
		if !r.agent.hasEnded() {
			err = r.deleteProject(ctx)
		}
		r.agent.stop()
	}
	if left := r.engine.removeAll(ctx); left != nil {
		r.progress("not everything could be removed: %v", left)
	}
	if err = errors.Join(err, r.emptyStore(ctx)); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	return nil
}

func medianOf[T any](all []T, of func(T) float64) float64 {
	var values []float64
	for _, one := range all {
		values = append(values, of(one))
	}
	slices.Sort(values)
	if len(values) == 0 {
		return 0
	}
	return values[len(values)/2]
}
