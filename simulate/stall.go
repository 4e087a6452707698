package simulate

import "time"

// A store can be slow or stall for one server. The server's timers, the steps of its
// sessions and the hellos of agents wait for it, as coroutines, while everything else
// goes on: its sessions answer heartbeats, and other servers act. People do not wait: like
// requests to a real server, theirs fail.

// run runs f as a coroutine of the server, whose calls to the store may take long.
func (s *server) run(f func()) {
	s.life.Go(func() {
		h := s.store
		h.blocking = true
		f()
		h.blocking = false
	})
}

// delay lets a call wait, sometimes, before it reaches the store. It returns a function
// that lets its answer wait.
func (h *storeHandle) delay() (late func()) {
	late = func() {}
	if !h.blocking {
		return late
	}
	d := h.drawDelay()
	if d > 0 && h.w.chance(2) {
		return func() { h.wait(h.w.now.Add(d)) }
	}
	h.wait(h.w.now.Add(d))
	return late
}

// drawDelay returns how long a call takes: usually no time.
func (h *storeHandle) drawDelay() time.Duration {
	w := h.w
	if !w.faults || w.scenarioRun != nil || h.unreachable || h.isStalled() {
		return 0
	}
	switch n := w.rng.IntN(w.oneIn(300)); {
	case n == 0:
		d := time.Second + time.Duration(w.rng.IntN(int(29*time.Second)))
		h.stalled = w.now.Add(d)
		w.seen["store stalled"]++
		w.note("the store stalls for a server for %s", d.Round(time.Millisecond))
		return d
	case n < 10:
		w.seen["store slow"]++
		d := 100*time.Millisecond + time.Duration(w.rng.IntN(int(1900*time.Millisecond)))
		w.note("a call to the store takes %s", d.Round(time.Millisecond))
		return d
	}
	return 0
}

// isStalled reports whether the store does not answer now.
func (h *storeHandle) isStalled() bool { return h.w.now.Before(h.stalled) }

// wait suspends the calling coroutine until a time, and until the store answers.
func (h *storeHandle) wait(until time.Time) {
	for {
		if h.stalled.After(until) {
			until = h.stalled
		}
		if h.s.life.over || !h.w.now.Before(until) {
			return
		}
		h.blocking, h.waiting = false, h.waiting+1
		began := h.w.now
		_ = h.s.life.Suspend(func(wake func()) { // if its server crashed, its calls fail
			worldClock{h.w, h.s.life}.After(until.Sub(h.w.now), wake)
		})
		h.blocking, h.waiting = true, h.waiting-1
		h.s.disturbed = h.w.now
		if h.w.now.Sub(began) >= noticed {
			h.outage = h.w.now
		}
	}
}
