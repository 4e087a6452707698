// Package bench implements `mariposa bench`: it starts a system, puts load on it from
// outside and prints measurements. It owns the load and the figures, and does not judge
// them.
package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"mariposa/client"
	"mariposa/contract"
)

// Options configure the converge benchmark.
type Options struct {
	Environment
	Instances int
	Nodes     int
	Projects  int
	Kills     int           // single instances to kill; 200 if zero
	Idle      time.Duration // how long to measure the idle system; 5 s if zero
}

// Result contains the measurements.
type Result struct {
	Instances         int         `json:"instances"`
	Nodes             int         `json:"nodes"`
	Projects          int         `json:"projects"`
	Store             string      `json:"store"`
	UpS               float64     `json:"up_s"`
	UpPerS            float64     `json:"up_per_s"`
	RepairS           float64     `json:"repair_s"`
	Repaired          int         `json:"repaired"`
	RollS             float64     `json:"roll_s"`
	DownS             float64     `json:"down_s"`
	EventToCreate     Percentiles `json:"event_to_create_ms"`
	EventToCreateBusy Percentiles `json:"event_to_create_busy_ms"`
	Commit            Percentiles `json:"commit_ms"`
	FsyncMS           float64     `json:"fsync_ms"`
	RSSMB             float64     `json:"rss_mb"`
	CPUS              float64     `json:"cpu_s"`
	IdleCPUPct        float64     `json:"idle_cpu_pct"`
}

// run is one running benchmark.
type run struct {
	Options
	*system
	feed *follower
	ids  []string // project ids
	res  Result
}

// Converge starts N dummy instances in an empty system, kills single instances, loses a
// node, rolls out a new version and scales to zero.
func Converge(ctx context.Context, o Options) (Result, error) {
	o.Projects = max(1, o.Projects)
	if o.Kills == 0 {
		o.Kills = 200
	}
	if o.Idle == 0 {
		o.Idle = 5 * time.Second
	}
	r := &run{Options: o, res: Result{Instances: o.Instances, Nodes: o.Nodes, Projects: o.Projects, Store: o.StoreName}}
	took, err := fsync(o.Dir)
	if err != nil {
		return r.res, err
	}
	r.res.FsyncMS = ms(took)
	if r.system, err = begin(ctx, o.Environment, o.Nodes); err != nil {
		return r.res, err
	}
	defer r.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.feed = follow(ctx, r.store)
	for _, p := range []phase{
		{"starting instances", func(ctx context.Context) error { return r.profiled(ctx, "cpu", r.up) }},
		{"resting", r.rest},
		{"killing single instances", r.kill},
		{"killing single instances of a busy system", r.killBusy},
		{"losing a node", r.loseNode},
		{"rolling out a new version", func(ctx context.Context) error { return r.profiled(ctx, "cpu-roll", r.roll) }},
		{"scaling to zero", r.down},
	} {
		if err := r.run(ctx, p); err != nil {
			return r.res, err
		}
	}
	r.res.Commit, r.res.CPUS = r.store.percentiles(), round(cpu().Seconds())
	return r.res, r.run(ctx, phase{"cleaning up", r.cleanUp})
}

// cleanUp removes everything from the store except logs.
func (r *run) cleanUp(ctx context.Context) error {
	if err := r.awaitIdle(ctx); err != nil {
		return err
	}
	for _, id := range r.ids {
		if _, err := r.client.DeleteProject(ctx, id, true); err != nil {
			return err
		}
	}
	if err := r.awaitDeleted(ctx); err != nil {
		return err
	}
	return r.emptyStore(ctx)
}

func body(scale, nameLen int) []byte {
	return fmt.Appendf(nil, `services:
  load:
    compute_type: dummy
    scale: %d
    dummy: {name_len: %d}
    reschedule: {after: 0}
    stop: {preservestopped: no}
    update: {rolling: 10%%, min_healthy: 0}
`, scale, nameLen)
}

// share returns the number of instances of a project.
func (r *run) share(i int) int {
	n := r.Instances / r.Projects
	if i < r.Instances%r.Projects {
		n++
	}
	return n
}

func (r *run) up(ctx context.Context) error {
	r.progress("starting %d instances", r.Instances)
	began := time.Now()
	for i := range r.Projects {
		c, err := r.client.CreateProject(ctx, fmt.Sprintf("bench-%d", i+1), body(r.share(i), 16), "")
		if err != nil {
			return err
		}
		r.ids = append(r.ids, c.ID)
	}
	if err := r.allUp(ctx); err != nil {
		return err
	}
	took := time.Since(began)
	r.res.UpS, r.res.UpPerS = round(took.Seconds()), round(float64(r.Instances)/took.Seconds())
	r.result("up in %s: %.0f/s", took.Round(time.Millisecond), r.res.UpPerS)
	return nil
}

// allUp waits until every project has all its instances running.
func (r *run) allUp(ctx context.Context) error {
	return r.feed.until(ctx, func() bool {
		for i, id := range r.ids {
			if r.feed.running[id] < r.share(i) {
				return false
			}
		}
		return true
	})
}

// rest measures the idle system.
func (r *run) rest(ctx context.Context) error {
	if err := pause(ctx, 3*time.Second); err != nil { // wait for the last task to end and for garbage collection
		return err
	}
	before := cpu()
	if err := pause(ctx, r.Idle); err != nil {
		return err
	}
	r.res.IdleCPUPct = round(100 * (cpu() - before).Seconds() / r.Idle.Seconds())
	r.res.RSSMB = rss()
	if err := r.writeHeapProfile(); err != nil {
		return err
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.result("at rest: %.2f %% of a core, %.0f MB (heap: %d MB in use, %d MB idle of which %d MB returned)", r.res.IdleCPUPct, r.res.RSSMB,
		m.HeapInuse>>20, m.HeapIdle>>20, m.HeapReleased>>20)
	return nil
}

func (r *run) kill(ctx context.Context) error {
	r.progress("killing %d single instances", r.Kills)
	began := time.Now()
	took, err := r.killSome(ctx, r.Kills)
	if err != nil {
		return err
	}
	if err := r.allUp(ctx); err != nil {
		return err
	}
	r.res.EventToCreate, r.res.RepairS, r.res.Repaired = percentiles(took), round(time.Since(began).Seconds()), len(took)
	r.result("replacement assigned after %.2f ms (p50), %.2f ms (p99)", r.res.EventToCreate.P50, r.res.EventToCreate.P99)
	return nil
}

// killSome kills instances one after another and returns, for each, the time from the
// kill until its replacement was assigned.
func (r *run) killSome(ctx context.Context, n int) ([]time.Duration, error) {
	var took []time.Duration
	for id, name := range r.feed.originals(r.ids[0], n) {
		began := time.Now()
		if _, err := r.client.ActOnInstance(ctx, id, "crash"); err != nil {
			return nil, err
		}
		if err := r.feed.until(ctx, func() bool { return !r.feed.replaced[name].IsZero() }); err != nil {
			return nil, err
		}
		r.feed.mu.Lock()
		took = append(took, max(0, r.feed.replaced[name].Sub(began)))
		r.feed.mu.Unlock()
	}
	return took, nil
}

// killBusy kills single instances while another project converges.
func (r *run) killBusy(ctx context.Context) error {
	n := r.Instances / 2
	r.progress("killing single instances while another project starts %d", n)
	c, err := r.client.CreateProject(ctx, "bench-busy", body(n, 16), "")
	if err != nil {
		return err
	}
	var all []time.Duration
	for done := false; !done && len(all) < 2000; {
		took, err := r.killSome(ctx, 10)
		if err != nil {
			return err
		}
		all = append(all, took...)
		r.feed.mu.Lock()
		done = r.feed.running[c.ID] >= n
		r.feed.mu.Unlock()
	}
	r.res.EventToCreateBusy = percentiles(all)
	r.result("busy: replacement assigned after %.2f ms (p50), %.2f ms (p99) in %d kills", r.res.EventToCreateBusy.P50, r.res.EventToCreateBusy.P99, len(all))
	if _, err := r.client.DeleteProject(ctx, c.ID, true); err != nil {
		return err
	}
	return r.feed.until(ctx, func() bool { return r.feed.running[c.ID] == 0 })
}

// loseNode makes a node simulate a failure and waits until its instances run elsewhere.
func (r *run) loseNode(ctx context.Context) error {
	if r.Nodes < 2 {
		return nil
	}
	if err := r.allUp(ctx); err != nil {
		return err
	}
	nodes, err := r.client.Nodes(ctx)
	if err != nil {
		return err
	}
	victim := nodes.Nodes[0]
	n := r.feed.countOnNode(victim.ID)
	r.progress("losing node %s with %d instances", victim.Name, n)
	began := time.Now()
	if _, err := r.client.ActOnNode(ctx, victim.ID, contract.NodeAction{Action: "lose"}); err != nil {
		return err
	}
	err = r.feed.until(ctx, func() bool {
		all := 0
		for _, id := range r.ids {
			all += r.feed.running[id]
		}
		return all >= r.Instances+n // instances of the lost node are still in the store
	})
	if err != nil {
		return err
	}
	took := time.Since(began)
	r.res.RepairS, r.res.Repaired = round(r.res.RepairS+took.Seconds()), r.res.Repaired+n
	r.result("%d instances run elsewhere after %s", n, took.Round(time.Millisecond))
	if _, err := r.client.ActOnNode(ctx, victim.ID, contract.NodeAction{Action: "restore"}); err != nil {
		return err
	}
	return r.feed.until(ctx, func() bool {
		for i, id := range r.ids {
			if r.feed.running[id] != r.share(i) {
				return false
			}
		}
		return true
	})
}

func (r *run) roll(ctx context.Context) error {
	r.progress("rolling out a new version, a tenth at a time")
	began := time.Now()
	for i, id := range r.ids {
		c, err := r.client.UpdateManifest(ctx, id, body(r.share(i), 17), client.Update{Force: true})
		if err != nil {
			return err
		}
		r.feed.countFrom(id, c.Number)
	}
	err := r.feed.until(ctx, func() bool {
		for i, id := range r.ids {
			if r.feed.at[id] < r.share(i) || r.feed.running[id] > r.share(i) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	r.res.RollS = round(time.Since(began).Seconds())
	r.result("rolled in %.2f s", r.res.RollS)
	return nil
}

func (r *run) down(ctx context.Context) error {
	r.progress("scaling to zero")
	if err := r.awaitIdle(ctx); err != nil {
		return err
	}
	began := time.Now()
	for _, id := range r.ids {
		if _, err := r.client.Scale(ctx, id, map[string]string{"load": "0"}); err != nil {
			return err
		}
	}
	if err := r.feed.until(ctx, func() bool { return len(r.feed.state) == 0 }); err != nil {
		return err
	}
	r.res.DownS = round(time.Since(began).Seconds())
	r.result("down in %.2f s", r.res.DownS)
	return nil
}
