package assembly

import (
	"encoding/json"
	"log/slog"
	"os"
	"time"

	"mariposa/wire"
)

// seenFile stores the newest state of the control plane's store that a node knows of, so
// that a store which has gone back is noticed after the agent was restarted too. It may
// be a second behind.
type seenFile struct {
	path   string
	newest wire.Seen
	stored wire.Seen
	at     time.Time // when it was stored
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

// write stores a state, at most once a second unless the incarnation has changed.
func (f *seenFile) write(seen wire.Seen) {
	f.newest = seen
	if seen.Incarnation != f.stored.Incarnation || time.Since(f.at) >= time.Second {
		f.flush()
	}
}

func (f *seenFile) flush() {
	if f.newest.Incarnation == f.stored.Incarnation && f.newest.Revision == f.stored.Revision {
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
