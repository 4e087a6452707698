package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/dummy"
	"mariposa/store"
)

// Crash is the point of a crash: the n-th write of servers to the store, or the n-th call
// of agents to their drivers.
type Crash struct {
	Call   int  // 0: no crash
	Driver bool // count calls to drivers
	Agent  bool // for driver calls: the calling agent crashes, otherwise all servers
	Done   bool // the call itself still takes effect
}

func (c Crash) String() string {
	what := "store"
	switch {
	case c.Agent:
		what = "agent"
	case c.Driver:
		what = "driver"
	}
	if c.Done {
		what += "+"
	}
	return what + ":" + strconv.Itoa(c.Call)
}

// ParseCrash parses the output of String; empty: no crash.
func ParseCrash(s string) (Crash, error) {
	if s == "" {
		return Crash{}, nil
	}
	what, number, _ := strings.Cut(s, ":")
	what, done := strings.CutSuffix(what, "+")
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 {
		return Crash{}, fmt.Errorf("%q names no call, like store:12 or agent+:3", s)
	}
	switch what {
	case "store", "driver", "agent":
		return Crash{Call: n, Driver: what != "store", Agent: what == "agent", Done: done}, nil
	}
	return Crash{}, fmt.Errorf("%q is neither store, driver nor agent", what)
}

// tally counts the calls at which a scenario can crash.
type tally struct {
	storeCalls, driverCalls int
	crashed                 bool
	commits                 int
	bytes                   map[mariposa.Kind]int
}

// countWrites counts the writes to the store.
func (w *World) countWrites(units []store.Unit) {
	if w.bytes == nil {
		w.bytes = map[mariposa.Kind]int{}
	}
	w.commits++
	for _, u := range units {
		for _, write := range u.Writes {
			for _, half := range []any{write.Spec, write.Status} {
				if half == nil {
					continue
				}
				b, err := json.Marshal(half)
				if err != nil {
					w.fail("encode a write: %v", err)
				}
				w.bytes[write.Kind] += len(b)
			}
		}
	}
}

// point returns the requested crash.
func (w *World) point() Crash {
	if w.scenarioRun == nil || w.crashed {
		return Crash{}
	}
	return w.scenarioRun.Crash
}

// storeCall counts a call to the store and reports whether the server crashes at this
// call.
func (w *World) storeCall() bool {
	w.storeCalls++
	c := w.point()
	return c.Call == w.storeCalls && !c.Driver
}

// callTakesEffect reports whether the call at which a server crashes is still executed.
func (w *World) callTakesEffect() bool {
	if c := w.point(); c.Call > 0 && !c.Driver {
		w.crashed = true
		return c.Done
	}
	return w.chance(2)
}

// driverCall counts a call to a driver and reports whether it is executed.
func (w *World) driverCall(n *node) bool {
	w.driverCalls++
	c := w.point()
	if c.Call != w.driverCalls || !c.Driver {
		return true
	}
	w.crashed = true
	w.later = append(w.later, func() {
		if c.Agent {
			n.crash()
			return
		}
		for _, s := range append([]*server{}, w.servers...) {
			s.store.dead = true
			s.replaceIfDead()
		}
	})
	return c.Done || !c.Agent
}

// pause returns how long a crashed process stays down. In a scenario it returns before
// anything replaces it.
func (w *World) pause(most time.Duration) time.Duration {
	switch {
	case w.orderly:
		return time.Second
	case w.scenarioRun != nil:
		most = 8 * time.Second
	}
	return time.Duration(w.rng.IntN(int(most/time.Millisecond))) * time.Millisecond
}

// gentleFaults are the faults that do not change the final state: crashed processes
// return soon, and messages are lost only with their connection.
func (w *World) gentleFaults(add func(int, func())) {
	for _, s := range w.servers {
		add(8, s.scheduleCrash)
	}
	for _, n := range w.nodes {
		if n.agent == nil {
			continue
		}
		add(1, n.crash)
		if n.link != nil {
			add(1, func() { n.link.cut("a fault") })
		}
	}
}

// countingDriver is an agent's driver that counts every call.
type countingDriver struct {
	*dummy.Driver
	n *node
}

// call counts a call. A call that is not executed never returns, because its agent
// crashes.
func (h countingDriver) call() error {
	if h.n.w.driverCall(h.n) {
		return nil
	}
	return h.n.life.Suspend(func(func()) {})
}

// Start counts the call, then starts the instance, or fails if the scenario says so.
func (h countingDriver) Start(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	if err := h.call(); err != nil {
		return driver.Observed{ID: i.ID}, err
	}
	if h.n.w.failsNow(i) {
		load := *i.Workload
		knobs := mariposa.Dummy{}
		if load.Dummy != nil {
			knobs = *load.Dummy
		}
		knobs.Fail = true
		load.Dummy, i.Workload = &knobs, &load
	}
	return h.Driver.Start(ctx, i)
}

// Update counts the call, then updates the instance.
func (h countingDriver) Update(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	if err := h.call(); err != nil {
		return driver.Observed{ID: i.ID}, err
	}
	return h.Driver.Update(ctx, i)
}

// Stop counts the call, then stops the instance.
func (h countingDriver) Stop(ctx context.Context, id string, timeout time.Duration) (driver.Observed, error) {
	if err := h.call(); err != nil {
		return driver.Observed{ID: id}, err
	}
	h.n.w.checker.fronts.checkStop(h.n.w.checker, h.n, id)
	return h.Driver.Stop(ctx, id, timeout)
}

// Remove counts the call, then removes the instance.
func (h countingDriver) Remove(ctx context.Context, id string) error {
	if err := h.call(); err != nil {
		return err
	}
	h.n.w.checker.fronts.checkStop(h.n.w.checker, h.n, id)
	return h.Driver.Remove(ctx, id)
}
