package engine_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/clock/clocktest"
	"mariposa/engine"
	"mariposa/picture"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/store/memory"
)

// steady is the clock of the tests. The machine's clock may be set back while they run.
var steady = clock.NewSteady()

// watchedStore is a store that records which replica commits for which project, and can
// block commits.
type watchedStore struct {
	store.Store
	mu      sync.Mutex
	inside  map[string]int
	doubled atomic.Bool
	entered chan string   // a commit has begun; nil if not observed
	leave   chan struct{} // it may end
}

func (w *watchedStore) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	project := ""
	for _, x := range units[0].Writes {
		if x.Project != "" {
			project = x.Project
		}
	}
	w.mu.Lock()
	w.inside[project]++
	if w.inside[project] > 1 {
		w.doubled.Store(true)
	}
	entered := w.entered
	w.mu.Unlock()
	if entered != nil {
		entered <- project
		<-w.leave
	}
	res := w.Store.Commit(ctx, units...)
	w.mu.Lock()
	w.inside[project]--
	w.mu.Unlock()
	return res
}

// liveEngine is an engine that runs on real time, with a rig for its people.
type liveEngine struct {
	*rig
	watched *watchedStore
	pic     *picture.Picture
	runner  *engine.Runner
	eng     *engine.Engine
	ctx     context.Context //nolint:containedctx // the life of the test
	stop    func()
}

func run(t *testing.T) *liveEngine {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	st := memory.New(steady)
	r := &rig{t: t, clk: clocktest.New(), store: st, away: map[string]bool{}, fail: map[string]bool{}}
	x := &liveEngine{rig: r, watched: &watchedStore{Store: st, inside: map[string]int{}}, runner: engine.NewRunner(8), ctx: ctx}
	var err error
	if x.pic, err = picture.Open(ctx, st); err != nil {
		t.Fatal(err)
	}
	var ids atomic.Int64
	x.eng = engine.New(engine.Options{
		Store: x.watched, Picture: x.pic, Cache: picture.NewVersionCache(st, seal.NewVault(seal.NewRing(), st)), Clock: steady, Wake: x.runner.Wake, Holder: "r1", TTL: 300 * time.Millisecond,
		NewID: func() string { return fmt.Sprintf("10000000-0000-7000-8000-%012x", ids.Add(1)) },
	})
	var all sync.WaitGroup
	all.Go(func() { _ = x.pic.Follow(ctx, time.Hour, func(int) {}) })
	all.Go(func() { x.runner.Run(ctx, x.eng) })
	x.stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	t.Cleanup(x.stop)
	return x
}

// until waits for the picture to show something.
func (x *liveEngine) until(what string, ok func() bool) {
	x.t.Helper()
	for {
		at := x.pic.Revision()
		if ok() {
			return
		}
		select {
		case <-x.pic.Moved(at):
		case <-x.ctx.Done():
			x.t.Fatalf("%s: never", what)
		}
	}
}

func TestManyProjectsRunSideBySideEachOneStepAtATime(t *testing.T) {
	t.Parallel()
	x := run(t)
	x.node("n1", mariposa.Resources{})
	const projects = 20
	for i := range projects {
		x.create(fmt.Sprint("shop", i), web(3))
	}
	x.until("all are made", func() bool { return x.pic.Instances.Len() == 3*projects })
	for x.nodesAct() {
	}
	x.until("all are done", func() bool { return x.pic.Tasks.Len() == 0 })
	if x.watched.doubled.Load() {
		t.Error("a project was planned twice at once")
	}
	x.stop()
	if n := x.events("instance.provisioning"); n != 3*projects {
		t.Errorf("%d were made", n)
	}
}

func TestAWakeUpDuringAStepIsNotLost(t *testing.T) {
	t.Parallel()
	x := run(t)
	x.node("n1", mariposa.Resources{})
	p, _ := x.create("shop", web(1))
	x.until("it is made", func() bool { return x.pic.Instances.Len() == 1 })
	for x.nodesAct() {
	}
	x.until("it is done", func() bool { return x.pic.Tasks.Len() == 0 })
	x.watched.mu.Lock()
	x.watched.entered, x.watched.leave = make(chan string), make(chan struct{})
	x.watched.mu.Unlock()
	x.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"web": 2}}, "web")
	<-x.watched.entered // the step that plans it is in progress
	x.watched.mu.Lock()
	x.watched.entered = nil
	x.watched.mu.Unlock()
	rev := x.newest()
	x.ask(p, mariposa.TaskReprovision, mariposa.Patch{Reprovision: []string{"web"}}, "web")
	x.until("the news is heard", func() bool { return x.pic.Revision() > rev })
	close(x.watched.leave)
	x.until("both are planned", func() bool {
		active := 0
		for _, rec := range x.pic.TasksOf(p) {
			if st := rec.Status(); st != nil && st.State == mariposa.TaskActive {
				active++
			}
		}
		return active == 2
	})
	if x.watched.doubled.Load() {
		t.Error("a project was planned twice at once")
	}
}

func TestARunnerThatStopsHandsItsLeasesOver(t *testing.T) {
	t.Parallel()
	x := run(t)
	x.node("n1", mariposa.Resources{})
	x.create("shop", web(2))
	x.until("it is made", func() bool { return x.pic.Instances.Len() == 2 })
	x.stop()
	if shards, projects := x.eng.Held(); shards != 0 || projects != 0 {
		t.Errorf("it holds %d shards, %d projects", shards, projects)
	}
	leases, err := x.store.Hold(context.Background(), "r2", time.Minute, "shard/0", "shard/63")
	if err != nil || len(leases) != 2 {
		t.Errorf("the next got %+v, %v", leases, err)
	}
	x.runner.Wake("somebody") // too late, and harmless
}

func TestLeasesThatLapseAndComeBackDisturbNoStep(t *testing.T) {
	t.Parallel()
	x := run(t)
	x.node("n1", mariposa.Resources{})
	names := make([]string, engine.Shards)
	for i := range names {
		names[i] = fmt.Sprint("shard/", i)
	}
	for i := range 10 {
		x.create(fmt.Sprint("shop", i), web(2))
		if i%3 == 1 { // another holder takes them all, and releases them again
			for _, n := range names {
				if _, err := x.store.Seize(x.ctx, "thief", n); err != nil {
					t.Fatal(err)
				}
			}
			if err := x.store.Release(x.ctx, "thief", names...); err != nil {
				t.Fatal(err)
			}
		}
	}
	x.until("all are made", func() bool { return x.pic.Instances.Len() == 20 })
	for x.nodesAct() {
	}
	x.until("all are done", func() bool { return x.pic.Tasks.Len() == 0 })
	x.stop()
	if n := x.events("instance.provisioning"); n != 20 {
		t.Errorf("%d were made", n)
	}
}
