package simulate_test

import (
	"context"
	"flag"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa/simulate"
	"mariposa/store"
	"mariposa/store/sqlite"
)

var (
	seed    = flag.Uint64("seed", 0, "the one seed that TestOneSeed plays")
	history = flag.Bool("history", false, "print every event of TestOneSeed")
)

func TestMain(m *testing.M) {
	flag.Parse()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // crashes are intended here; the trace has what matters
	debug.SetGCPercent(1600)                       // thousands of small worlds are created, and memory is not scarce
	os.Exit(m.Run())
}

// TestHistoriesKeepTheRules runs many worlds. Each must satisfy the rules after every
// event and come to rest once faults end. Every tenth world runs on SQLite.
func TestHistoriesKeepTheRules(t *testing.T) {
	t.Parallel()
	seeds := uint64(240 * max(1, wide()))
	seen := play(t, 1, seeds)
	if t.Failed() {
		return
	}
	// A simulation in which nothing happens proves nothing.
	for _, what := range []string{
		"server crash", "agent crash", "store unreachable", "store slow", "store stalled", "store went back", "backup restored", "store read again", "quarantined at rest", "returned to rest", "asked to purge", "server unreachable", "wrong clock", "message lost", "message doubled", "node lost", "rollout stopped", "backed off", "debt settled",
		"instance.provisioning", "instance.running", "instance.failed", "instance.updating", "instance.stopping", "instance.destroyed",
		"instance.collected", "node.unknown", "task.completed", "task.failed", "task.terminated", "project.deleted", "version.completed",
		"service frozen", "service paused", "service held", "version taken back", "instance.kept", "kept at rest", "referred at rest",
		"network.created", "network.joined", "network.left", "network.deleted", "network.attached", "network.detaching", "network.detached",
		"asked to thaw", "asked to pause", "asked to resume", "asked to converge", "asked to accept", "asked to terminate", "asked to revert", "asked to limit", "answered again",
		"edges inverted", "service dropped", "service added", "follower frozen", "mended", "referred to and killed",
		"storm", "node flaps", "asked to drain", "asked to undrain", "asked to stop", "asked to reschedule-now", "node.draining", "node.drained", "node.drain_stopped", "nodes.storm_began", "nodes.storm_ended",
		"check fails", "check hangs", "check lies", "healthy at rest",
		"balancer hangs", "balancer lies", "balancer flaps", "connections never end", "balancer killed", "member changed by hand", "members refused",
		"stopped without connections", "stopped after its drain", "left with its route", "asked to restart", "left for a restart", "member while others change", "balanced at rest",
		"made with a volume", "made with a shared volume", "volume.created", "volume.made", "volume.left", "attached a volume", "volume.deleting", "volume.deleted",
	} {
		if seen[what] < 5 {
			t.Errorf("in %d histories %q happened only %d times", seeds, what, seen[what])
		}
	}
	t.Log(seen)
}

// play runs worlds in parallel, one per core, and returns how often each thing happened
// in all of them.
func play(t *testing.T, from, to uint64) map[string]int {
	t.Helper()
	var next atomic.Uint64
	next.Store(from)
	var mu sync.Mutex
	seen := map[string]int{}
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for s := next.Add(1) - 1; s <= to && !t.Failed(); s = next.Add(1) - 1 {
				res, err := simulate.Run(t.Context(), options(t, s))
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				for what, n := range res.Seen {
					seen[what] += n
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return seen
}

// options returns the options of the world with a given seed.
func options(t *testing.T, seed uint64) simulate.Options {
	t.Helper()
	o := simulate.Options{Seed: seed, Nodes: 2 + int(seed%3), Replicas: 1 + int(seed%2), Events: 1500}
	if seed%3 == 1 {
		o.Graph = true
	}
	if seed > 1<<20 { // part of a soak
		o.Events = 3000
	}
	if seed%10 == 0 {
		dir := t.TempDir()
		o.Store = func(w *simulate.World) (store.Store, error) {
			return sqlite.Open(t.Context(), filepath.Join(dir, "store.db"), sqlite.Options{Clock: w.Clock()})
		}
	}
	return o
}

func TestTheSameSeedGivesTheSameHistory(t *testing.T) {
	t.Parallel()
	for s := uint64(1000); s < 1010; s++ {
		first, err := simulate.Run(t.Context(), options(t, s))
		if err != nil {
			t.Fatal(err)
		}
		second, err := simulate.Run(t.Context(), options(t, s))
		if err != nil {
			t.Fatal(err)
		}
		if first.Digest != second.Digest || first.Events != second.Events {
			t.Errorf("seed %d: %+v, then %+v", s, first, second)
		}
	}
}

// TestOneSeed runs the seed given with -seed, for inspection.
func TestOneSeed(t *testing.T) {
	o := options(t, max(*seed, 1))
	if *history {
		o.Trace = os.Stdout
	}
	res, err := simulate.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", res)
}

// TestSoak runs new worlds for the duration in MARIPOSA_SOAK. If that is not set, it runs a few
// that are always the same, so that only a change can make them fail. In the first one, a balancer
// has a route for one version. Use TestOneSeed to replay a failure.
func TestSoak(t *testing.T) {
	t.Parallel()
	ctx, worlds, from := t.Context(), uint64(30), uint64(1795119666247674345)
	if limit, err := time.ParseDuration(os.Getenv("MARIPOSA_SOAK")); err == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
		worlds, from = math.MaxInt64, uint64(time.Now().UnixNano())
	}
	if given, err := strconv.ParseUint(os.Getenv("MARIPOSA_SEED"), 10, 64); err == nil {
		from = given
	}
	var next, played atomic.Uint64
	next.Store(from)
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for s := next.Add(1) - 1; s-from < worlds && ctx.Err() == nil && !t.Failed(); s = next.Add(1) - 1 {
				o := options(t, s)
				o.Store = nil // memory is faster, and the history is the same
				if _, err := simulate.Run(t.Context(), o); err != nil {
					t.Error(err)
				}
				played.Add(1)
			}
		})
	}
	all.Wait()
	t.Logf("%d histories from seed %d", played.Load(), from)
}
