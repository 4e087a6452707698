package wire

import (
	"sync"
	"time"

	"mariposa"
)

// Unfinished bounds the frames of several connections that have arrived in part: for how
// long each may be unfinished, and how many bytes they have together. Honest agents send a
// frame within seconds; a hostile one could keep its memory as long as it is connected.
type Unfinished struct {
	limit  int64
	within time.Duration

	mu    sync.Mutex
	total int64
	all   map[*assembly]int64 // how many bytes of each have arrived
}

// NewUnfinished returns bounds for connections that are to share them.
func NewUnfinished(limit int64, within time.Duration) *Unfinished {
	return &Unfinished{limit: limit, within: within, all: map[*assembly]int64{}}
}

// Bytes returns how many bytes of unfinished frames there are.
func (u *Unfinished) Bytes() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.total
}

// grow counts bytes of a frame. Beyond the limit, the oldest unfinished frame is dropped.
func (u *Unfinished) grow(a *assembly, n int) {
	var dropped []*assembly
	u.mu.Lock()
	u.all[a] += int64(n)
	for u.total += int64(n); u.total > u.limit; {
		oldest := a
		for other := range u.all {
			if other.since.Before(oldest.since) {
				oldest = other
			}
		}
		u.removeLocked(oldest)
		dropped = append(dropped, oldest)
	}
	u.mu.Unlock()
	for _, a := range dropped {
		a.drop()
	}
}

func (u *Unfinished) remove(a *assembly) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.removeLocked(a)
}

func (u *Unfinished) removeLocked(a *assembly) {
	u.total -= u.all[a]
	delete(u.all, a)
}

// assembly joins the pieces of a frame. Its connection reads them; another one may drop
// them.
type assembly struct {
	bounds *Unfinished // nil: there are none
	since  time.Time   // when the first piece arrived; not changed while the bounds know it

	mu      sync.Mutex
	bytes   []byte
	dropped bool
}

// add adds a piece.
func (a *assembly) add(piece []byte) error {
	if a.bounds != nil {
		if a.size() == 0 {
			a.bounds.remove(a) // it counts none, unless all pieces were empty
			a.since = time.Now()
		}
		a.bounds.grow(a, len(piece))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dropped {
		return a.errDropped()
	}
	a.bytes = append(a.bytes, piece...)
	return nil
}

// take returns the joined pieces, and forgets them.
func (a *assembly) take() (frame []byte) {
	if a.bounds != nil {
		a.bounds.remove(a)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	frame, a.bytes = a.bytes, nil
	return frame
}

// check returns an error if the frame was dropped, or has been unfinished for too long. It
// is called by the reader for each message, so heartbeats do not keep a frame alive.
func (a *assembly) check() error {
	if a.bounds == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.dropped:
		return a.errDropped()
	case len(a.bytes) > 0 && time.Since(a.since) > a.bounds.within:
		return mariposa.Errorf(mariposa.InvalidArgument, "a frame has been unfinished for more than %v: %d bytes of it have arrived", a.bounds.within, len(a.bytes))
	}
	return nil
}

func (a *assembly) errDropped() error {
	return mariposa.Errorf(mariposa.TooLarge, "the server dropped an unfinished frame: those of all agents exceed %d bytes, and this one was the oldest", a.bounds.limit)
}

func (a *assembly) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bytes, a.dropped = nil, true
}

func (a *assembly) size() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.bytes)
}
