// Package simulate runs the whole system in virtual time under a seeded scheduler:
// control plane, agents, dummy instances, the network and the users. Only one message,
// timer or fault happens at a time. The same seed gives the same history, so that every
// history can be replayed and inspected.
//
// The real packages run here unchanged: change, engine, fleet, agent, picture, store and
// the dummy driver. The simulation owns time, randomness, the network and crashes. It
// checks the rules of the system after every event.
package simulate

import (
	"container/heap"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"mariposa/clock"
	"mariposa/manifest"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/store/memory"
)

// Options configure a world.
type Options struct {
	Seed     uint64
	Nodes    int
	Replicas int                               // of the control plane; one if zero
	Events   int                               // number of events with faults
	Limit    int                               // instances starting at the same time; 40 if zero
	Capacity int                               // instances that fit on a node; 60 if zero
	Store    func(*World) (store.Store, error) // nil: the memory store
	Graph    bool                              // one project, few faults, and users who look at the result of a change before the next one
	Weigh    bool                              // count what servers write to the store
	Trace    io.Writer                         // where to write every event; nil: nowhere
}

// World is one run.
type World struct {
	Options
	ctx     context.Context //nolint:containedctx // the simulation is one call
	rng     *rand.Rand
	now     time.Time
	timers  timerHeap
	timerNo int64
	ids     int64
	events  int
	ticks   int // number of timers that have fired
	digest  uint64
	script  []string
	seen    map[string]int

	store       store.Store
	ring        *seal.Ring
	servers     []*server // the running replicas
	started     time.Time // when the newest of them started
	nodes       []*node
	links       []*link
	people      *people
	checker     *checker
	faults      bool
	orderly     bool            // events happen in their natural order, and time passes only when nothing else happens
	scenarioRun *ScenarioRun    // nil: chaos
	broken      map[string]bool // services of the scenario whose new instances fail
	serves      map[string]bool // services of the scenario that have a running instance and must keep one
	tally                       // of the calls at which a scenario can crash
	later       []func()        // consequences of an event, run after it
	copies      []*memory.Store // earlier states of the store, to which it may go back
	rewinds     int             // how often it went back
	parsed      map[string]*manifest.Project
}

// epoch is the start time of every world.
var epoch = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// lifetime is the time between a start and a crash. Nothing that belongs to it happens
// after the crash. Its blocking calls run as coroutines.
type lifetime struct {
	clock.Coroutines
	over bool
}

// end ends a lifetime with a crash.
func (l *lifetime) end() {
	l.over = true
	l.Abandon()
}

type timer struct {
	at   time.Time
	no   int64
	life *lifetime
	do   func()
	dead bool
}

type timerHeap []*timer

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].no < h[j].no
}
func (h timerHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(x any)   { *h = append(*h, x.(*timer)) }
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	*h = old[:len(old)-1]
	return t
}

// worldClock is the world's clock for one lifetime.
type worldClock struct {
	w *World
	*lifetime
}

func (c worldClock) Now() time.Time { return c.w.now }

func (c worldClock) After(d time.Duration, f func()) func() {
	t := &timer{at: c.w.now.Add(max(d, 0)), no: c.w.timerNo, life: c.lifetime, do: f}
	c.w.timerNo++
	heap.Push(&c.w.timers, t)
	return func() { t.dead = true }
}

// newID returns ids that grow and never repeat within a world.
func (w *World) newID() string {
	w.ids++
	return fmt.Sprintf("00000000-0000-7000-8000-%012x", w.ids)
}

// chance returns true once in n times.
func (w *World) chance(n int) bool { return w.rng.IntN(n) == 0 }

// note adds an event to the history.
func (w *World) note(format string, args ...any) { w.record(w.digestOnly(format, args...)) }

// digestOnly adds an event only to the digest of the history, for heartbeats and the
// like.
func (w *World) digestOnly(format string, args ...any) string {
	line := fmt.Sprintf(format, args...)
	h := fnv.New64a()
	fmt.Fprintf(h, "%x %s %s", w.digest, w.now.Format(time.RFC3339Nano), line)
	w.digest = h.Sum64()
	return line
}

func (w *World) record(line string) {
	full := fmt.Sprintf("%6d %10s %s", w.events, w.now.Sub(epoch).Round(time.Millisecond), line)
	if w.script = append(w.script, full); len(w.script) > 400 {
		w.script = w.script[100:]
	}
	if w.Trace != nil {
		fmt.Fprintln(w.Trace, full)
	}
}

// Result is the result of a run.
type Result struct {
	Seed    uint64
	Events  int
	Digest  uint64         // of the whole history
	Elapsed time.Duration  // virtual
	Seen    map[string]int // how often each thing happened, by name
}

// Failure is a broken rule, with the end of the history that broke it.
type Failure struct {
	Seed   uint64
	Why    string
	Tail   []string
	Replay string // the command that repeats it
}

func (f *Failure) Error() string {
	return fmt.Sprintf("seed %d: %s\nthe last events:\n%s\nreplay with: go test ./simulate -history -v %s",
		f.Seed, f.Why, strings.Join(f.Tail, "\n"), f.Replay)
}

// Run runs a world to its end: first with faults, then without, until everything is in
// its desired state.
func Run(ctx context.Context, o Options) (Result, error) {
	w := newWorld(ctx, o)
	err := w.play(func() {
		w.faults = true
		for range o.Events {
			w.step()
		}
		w.bringToRest()
		w.returnToRest()
	})
	return w.result(), err
}

func newWorld(ctx context.Context, o Options) *World {
	return &World{
		Options: o, ctx: ctx, rng: rand.New(rand.NewPCG(o.Seed, 0x6d617269706f7361)), now: epoch, seen: map[string]int{},
		parsed: map[string]*manifest.Project{}, ring: seal.NewRing(),
	}
}

// play builds the world and runs what in it. A broken rule ends the run.
func (w *World) play(what func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(*Failure)
			if !ok {
				panic(r)
			}
			err = f
		}
		for _, n := range w.nodes {
			n.life.end()
		}
		for _, s := range w.servers {
			s.end()
		}
		if w.store != nil {
			_ = w.store.Close()
		}
	}()
	if err := w.build(); err != nil {
		return err
	}
	what()
	return nil
}

func (w *World) result() Result {
	return Result{Seed: w.Seed, Events: w.events, Digest: w.digest, Elapsed: w.now.Sub(epoch), Seen: w.seen}
}

// fail ends the run.
func (w *World) fail(format string, args ...any) {
	tail := w.script[max(0, len(w.script)-80):]
	replay := fmt.Sprintf("-run TestOneSeed -seed %d", w.Seed)
	if w.scenarioRun != nil {
		replay = w.scenarioRun.replay()
	}
	panic(&Failure{Seed: w.Seed, Why: fmt.Sprintf(format, args...), Tail: tail, Replay: replay})
}
