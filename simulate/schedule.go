package simulate

import (
	"cmp"
	"container/heap"
	"time"
)

// choice is a possible next event.
type choice struct {
	weight int
	do     func()
}

// instant is the duration of an event when events happen in order. It is not zero,
// because failures are distinguished by their time.
const instant = time.Microsecond

// step performs one event, then checks the rules.
func (w *World) step() {
	w.events++
	choices := w.choices()
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	switch {
	case total == 0:
		w.tickTime()
	case w.orderly:
		w.now = w.now.Add(instant)
		choices[0].do()
	default:
		pick := w.rng.IntN(total)
		for _, c := range choices {
			if pick -= c.weight; pick < 0 {
				c.do()
				break
			}
		}
	}
	for len(w.later) > 0 {
		do := w.later[0]
		w.later = w.later[1:]
		do()
	}
	w.checker.check()
}

// choices lists the possible next events, always in the same order.
func (w *World) choices() []choice {
	var out []choice
	add := func(weight int, do func()) { out = append(out, choice{weight, do}) }
	for _, s := range w.servers {
		s.choices(add)
	}
	for _, n := range w.nodes {
		n.choices(add)
	}
	for _, l := range w.links {
		l.choices(add)
	}
	busy := len(out) > 0
	switch {
	case !busy:
		add(20, w.tickTime)
	case !w.orderly:
		add(1, w.tickTime)
	}
	if w.faults && w.chance(w.oneIn(12)) {
		w.faultChoices(add)
	}
	if w.faults && w.scenarioRun == nil && (w.chance(w.oneIn(3)) || w.Graph && !busy) {
		w.people.choices(add)
	}
	return out
}

// oneIn makes an event happen once in n times, and less often in a Graph world.
func (w *World) oneIn(n int) int {
	if w.Graph {
		return 5 * n
	}
	return n
}

// tickTime lets the next timer fire.
func (w *World) tickTime() {
	w.ticks++
	for len(w.timers) > 0 {
		t := heap.Pop(&w.timers).(*timer)
		if t.dead || t.life.over {
			continue
		}
		if t.at.After(w.now) {
			w.now = t.at
		}
		t.do()
		return
	}
	w.now = w.now.Add(time.Second)
}

// faultChoices are the possible faults.
func (w *World) faultChoices(add func(int, func())) {
	if w.scenarioRun != nil {
		w.gentleFaults(add)
		return
	}
	for _, s := range w.servers {
		add(1, s.scheduleCrash)
		if w.chance(2) {
			add(1, s.loseStore)
		}
	}
	if len(w.nodes) > 1 && w.chance(12) {
		add(1, w.storm)
	}
	w.rewindChoices(add)
	for _, n := range w.nodes {
		if n.agent == nil {
			continue
		}
		if w.chance(4) {
			add(1, n.crash)
		}
		if ids := n.ids(); len(ids) > 0 && w.chance(2) {
			add(1, func() { n.failInstance(n.pickVictim(ids)) })
			add(1, func() { n.sicken(n.pickVictim(ids)) })
		}
		for _, f := range n.sortedFronts() {
			add(1, f.upset)
			add(2, f.meddle)
		}
		if n.link != nil && w.chance(4) {
			add(1, n.loseConnection)
		}
		if !n.away && w.chance(6) {
			add(1, n.leave)
		}
		if !n.away && w.chance(12) {
			add(1, func() { n.flap(1 + w.rng.IntN(6)) })
		}
		if n.unreached == nil && len(w.servers) > 1 && w.chance(4) {
			add(1, func() { n.loseServer(w.servers[w.rng.IntN(len(w.servers))]) })
		}
	}
}

// bringToRest ends all faults, lets users ask for reachable goals, and runs until the
// machines match them.
func (w *World) bringToRest() {
	w.people.settlingSince = w.now
	w.endFaults()
	asked := false
	deadline := w.now.Add(3 * time.Hour)
	for w.now.Before(deadline) {
		w.step()
		if !asked && w.caughtUp() {
			w.people.asked = w.servers[0]
			asked = w.people.askForReachableGoals()
			continue
		}
		if asked && w.events%16 == 0 && w.caughtUp() {
			if w.checker.atRest() == "" {
				w.checker.final()
				return
			}
			asked = !w.people.askAgain()
		}
	}
	w.fail("not at rest 3 hours after the last fault: %s", w.checker.atRest())
}

// enlargeNodes restarts every agent on a larger machine.
func (w *World) enlargeNodes() {
	w.Capacity = 4 * cmp.Or(w.Capacity, 60)
	for _, n := range w.nodes {
		if n.agent != nil {
			n.crash()
		}
	}
}

// endFaults ends all faults, cancels scheduled crashes and starts missing servers.
func (w *World) endFaults() {
	w.faults = false
	w.note("peace")
	for _, n := range w.nodes {
		n.comeBack()
		n.healAll()
		for _, f := range n.sortedFronts() {
			f.calmDown()
		}
		n.unreached = nil
	}
	for _, s := range w.servers {
		s.store.cancelCrash()
		s.regainStore()
	}
	for len(w.servers) < max(1, w.Replicas) {
		w.startServer(w.newProcess())
	}
}

// caughtUp reports whether only heartbeats are in flight.
func (w *World) caughtUp() bool {
	for _, s := range w.servers {
		if len(s.ready) > 0 || s.behind() {
			return false
		}
	}
	return len(w.servers) > 0
}
