package assembly

import (
	"encoding/json"
	"log/slog"
	"os"
	"sync"
	"time"

	"mariposa/wire"
)

// seenFile stores the newest state of the control plane's store that a node knows of, so
// that a store which has gone back is noticed after the agent was restarted too. It is at
// most about a second behind.
type seenFile struct {
	path string

	mu      sync.Mutex
	newest  wire.Seen
	stored  wire.Seen
	at      time.Time // when it was stored
	planned bool      // it is stored soon
}

// read returns what was stored; nothing if the file is missing or damaged.
func (f *seenFile) read() (seen wire.Seen) {
	b, err := os.ReadFile(f.path)
	if err != nil || json.Unmarshal(b, &seen) != nil {
		return wire.Seen{}
	}
	f.newest, f.stored = seen, seen
	return seen
}

const seenInterval = time.Second

// write stores a state: at once if the incarnation has changed, and otherwise at most once
// in an interval, so perhaps a little later.
func (f *seenFile) write(seen wire.Seen) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.newest = seen
	switch age := time.Since(f.at); {
	case seen.Incarnation != f.stored.Incarnation || age >= seenInterval:
		f.store()
	case !f.planned:
		f.planned = true
		time.AfterFunc(seenInterval-age, f.flush)
	}
}

// flush stores the newest state.
func (f *seenFile) flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.planned = false
	f.store()
}

func (f *seenFile) store() {
	if f.newest.Incarnation == f.stored.Incarnation && f.newest.Revision == f.stored.Revision && f.newest.Proof == f.stored.Proof {
		return
	}
	b, err := json.Marshal(f.newest)
	if err == nil {
		err = os.WriteFile(f.path+".new", b, 0o600)
	}
	if err == nil {
		err = os.Rename(f.path+".new", f.path)
	}
	if err != nil {
		slog.Warn("cannot store the newest revision that this node has seen", "err", err)
		return
	}
	f.stored, f.at = f.newest, time.Now()
}
