package simulate

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
	"mariposa/change"
	"mariposa/reason"
	"mariposa/simulate/scenario"
	"mariposa/store"
)

// ScenarioRun configures one run of a scenario through the whole system.
type ScenarioRun struct {
	scenario.Scenario
	// Seed selects the order of events and the faults. 0: events happen in their natural
	// order, and nothing fails except at Crash.
	Seed     uint64
	Replicas int
	Crash    Crash
	Options  func(*Options) // further options; nil: none
}

// ScenarioResult is the result of a scenario run.
type ScenarioResult struct {
	Result
	StoreCalls  int // the number of possible crash points
	DriverCalls int
	Commits     int                   // the number of commits, if counted
	Bytes       map[mariposa.Kind]int // written specs and statuses, as JSON
}

// project is the name of the project in scenarios.
const project = "p1"

// RunScenario runs a scenario to its end and compares the final state with the expected
// one.
func RunScenario(ctx context.Context, t ScenarioRun) (ScenarioResult, error) {
	o := Options{Seed: t.Seed, Nodes: 3, Replicas: t.Replicas}
	if t.Options != nil {
		t.Options(&o)
	}
	w := newWorld(ctx, o)
	w.scenarioRun, w.orderly = &t, t.Seed == 0
	err := w.play(func() {
		w.faults = !w.orderly
		kept := w.playActions()
		w.endFaults()
		w.until(nil)
		w.matches(kept)
	})
	return ScenarioResult{Result: w.result(), StoreCalls: w.storeCalls, DriverCalls: w.driverCalls, Commits: w.commits, Bytes: w.bytes}, err
}

// replay returns the flags that repeat a run.
func (t *ScenarioRun) replay() string {
	line := fmt.Sprintf("-run TestOneScenario -scenario %s -seed %d -replicas %d", t.Name, t.Seed, t.Replicas)
	if t.Crash.Call > 0 {
		line += " -crash " + t.Crash.String()
	}
	return line
}

// playActions performs the actions of the scenario at their times, until everything is at
// rest. It returns the instances that must still exist then.
func (w *World) playActions() map[string][]string {
	kept := map[string][]string{}
	for i, a := range w.scenarioRun.Actions {
		if i > 0 {
			w.until(a.After)
		}
		if i == 1 && a.After == nil {
			for _, name := range w.scenarioRun.Kept {
				kept[name] = w.checker.desiredInstances(name)
			}
		}
		for w.stillWaiting(func() bool { return !w.people.do(a) }) {
			w.step() // refused or not answered: try again
		}
		w.checker.check() // read the requested changes
		w.checker.moves = 0
	}
	w.until(nil)
	return kept
}

// until runs the world until nodes have completed the given number of operations, or
// everything is at rest or waits for the next action.
func (w *World) until(after *int) {
	for w.stillWaiting(func() bool {
		return after == nil || w.checker.moves < *after && w.now.Sub(w.checker.changed) < standstill
	}) {
		if w.whyNotAtRest() == "" {
			return
		}
		w.step()
	}
}

// standstill is how long nothing changes before the world counts as waiting for the next
// action.
const standstill = 2 * time.Minute

// stillWaiting reports whether a condition still applies. It fails a scenario that does
// not end.
func (w *World) stillWaiting(so func() bool) bool {
	if !so() {
		return false
	}
	if w.now.Sub(epoch) > 6*time.Hour {
		w.fail("the scenario does not end: %s", w.whyNotAtRest())
	}
	return true
}

// whyNotAtRest returns what is in progress; empty: nothing is and nothing will be.
func (w *World) whyNotAtRest() string {
	switch {
	case len(w.servers) < max(1, w.Replicas):
		return "a server is missing"
	case !w.caughtUp():
		return "a server has something to do"
	}
	for _, n := range w.nodes {
		if n.agent == nil || n.woken || n.link == nil && !n.away {
			return n.name + " has something to do"
		}
	}
	for _, l := range w.links {
		if len(l.up)+len(l.down) > 0 || l.session == nil || l.server.woken[l] {
			return "a message is on its way"
		}
	}
	for id, r := range w.checker.tasks {
		if r.Spec().Task == mariposa.TaskFreeze {
			continue // open until it is thawed
		}
		if st := r.Status(); !mariposa.StateOfTask(st).Ended() {
			return "task " + id + " is open"
		}
	}
	return w.checker.unsettled()
}

// do performs an action. It reports whether it was accepted.
func (p *people) do(a scenario.Action) bool {
	if len(p.w.servers) == 0 {
		return false
	}
	p.asked = p.w.servers[0]
	if q := p.open; q != nil { // it was sent but not answered
		return p.send(q)
	}
	r := p.project(project)
	switch {
	case a.Do == "lose":
		n := p.w.named(a.Name)
		n.away = true
		n.link.cut("the node is lost")
		return true
	case a.Do == "return":
		p.w.named(a.Name).comeBack()
		return true
	case a.Do == "break", a.Do == "mend":
		p.w.setBroken(a.Name, a.Do == "break")
		return true
	case a.Submit != nil && !p.made[project]:
		return p.create(project, p.manifestOf(a))
	case r == nil: // the picture does not have it yet
		return false
	case a.Submit != nil:
		return p.update(r, p.manifestOf(a), "manifest")
	}
	return p.request(a, r)
}

// request performs an action that needs no manifest.
func (p *people) request(a scenario.Action, r *store.Project) bool {
	switch {
	case a.Scale != nil:
		scale := map[string]change.Scaling{}
		for name, n := range a.Scale {
			scale[name] = change.Scaling{N: n}
		}
		return p.act(r, change.Action{Action: "scale", Scale: scale})
	case a.Do == "delete":
		return p.delete(r)
	case a.Do == "resubmit":
		newest, err := p.w.store.Get(p.w.ctx, mariposa.KindVersion, mariposa.VersionID(r.ID, r.Spec().Number))
		return err == nil && p.update(r, string((*store.Version)(&newest).Spec().Manifest), "the same manifest")
	case a.Do == "revert":
		st := r.Status()
		return st != nil && st.Completed > 0 && p.act(r, change.Action{Action: "revert"})
	case slices.Contains([]string{"start", "stop", "freeze", "thaw", "pause", "resume", "converge"}, a.Do):
		act := change.Action{Action: a.Do, Services: a.Scope()}
		if a.Version > 0 {
			act.Version = strconv.Itoa(a.Version)
		}
		return p.act(r, act)
	}
	p.w.fail("unknown action %+v", a)
	return false
}

// manifestOf returns the manifest of an action.
func (p *people) manifestOf(a scenario.Action) string {
	body, err := a.Manifest()
	if err != nil {
		p.w.fail("encode the manifest: %v", err)
	}
	return string(body)
}

// named returns a node by its name in scenarios, such as n2.
func (w *World) named(name string) *node {
	at, err := strconv.Atoi(strings.TrimPrefix(name, "n"))
	if err != nil || at < 1 || at > len(w.nodes) {
		w.fail("there is no node %s", name)
	}
	return w.nodes[at-1]
}

// matches compares the final state with the expected one.
func (w *World) matches(kept map[string][]string) {
	sc, c := w.scenarioRun.Scenario, w.checker
	is := c.reality()
	for name, want := range sc.Final {
		if is[name] != want {
			w.fail("%s is %q at the end, want %q", name, is[name], want)
		}
	}
	for name, what := range is {
		if _, result := sc.Final[name]; !result {
			w.fail("%s is %q at the end, want nothing", name, what)
		}
	}
	for name, ids := range kept {
		if now := c.desiredInstances(name); !slices.Equal(now, ids) {
			w.fail("%s was %v and is now %v", name, ids, now)
		}
	}
	c.checkStatuses(sc)
	st := c.tasks[w.people.last].Status()
	if state := mariposa.StateOfTask(st); state != sc.LastEnds() {
		w.fail("the last task is %s (%s), want %s", state, reason.Sentence(st.Reason), sc.LastEnds())
	}
	c.checkLedger()
}
