package simulate_test

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa/simulate"
)

var (
	seed    = flag.Uint64("seed", 0, "the one seed that TestOneSeed plays")
	history = flag.Bool("history", false, "print every event of TestOneSeed")
)

func TestMain(m *testing.M) {
	flag.Parse()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // crashes are the point here; what matters is in the trace
	os.Exit(m.Run())
}

// TestHistoriesKeepTheRules plays many worlds; every one of them must keep the
// rules at every event and come to rest in peace.
func TestHistoriesKeepTheRules(t *testing.T) {
	t.Parallel()
	const seeds = 300
	play(t, 1, seeds, nil)
}

// play runs worlds side by side, as many as there are cores.
func play(t *testing.T, from, to uint64, change func(*simulate.Options)) {
	t.Helper()
	var next atomic.Uint64
	next.Store(from)
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for s := next.Add(1) - 1; s <= to && !t.Failed(); s = next.Add(1) - 1 {
				o := simulate.Options{Seed: s, Nodes: 2 + int(s%3), Events: 1500}
				if change != nil {
					change(&o)
				}
				if _, err := simulate.Run(t.Context(), o); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestTheSameSeedGivesTheSameHistory(t *testing.T) {
	t.Parallel()
	for s := uint64(1000); s < 1010; s++ {
		o := simulate.Options{Seed: s, Nodes: 3, Events: 1500}
		first, err := simulate.Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		second, err := simulate.Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if first != second {
			t.Errorf("seed %d: %+v, then %+v", s, first, second)
		}
	}
}

// TestOneSeed plays the seed given with -seed, to look at what happened.
func TestOneSeed(t *testing.T) {
	o := simulate.Options{Seed: max(*seed, 1), Nodes: 2 + int(max(*seed, 1)%3), Events: 1500}
	if *history {
		o.Trace = os.Stdout
	}
	res, err := simulate.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", res)
}

// TestSoak plays new worlds for as long as MARIPOSA_SOAK says; without it, it
// plays a handful.
func TestSoak(t *testing.T) {
	t.Parallel()
	limit, err := time.ParseDuration(os.Getenv("MARIPOSA_SOAK"))
	if err != nil {
		limit = time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	from := uint64(time.Now().UnixNano())
	for s := from; ctx.Err() == nil; s++ {
		if _, err := simulate.Run(t.Context(), simulate.Options{Seed: s, Nodes: 2 + int(s%4), Events: 3000}); err != nil {
			t.Fatal(err)
		}
	}
}
