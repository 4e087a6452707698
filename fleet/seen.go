package fleet

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"

	"mariposa/wire"
)

// Nodes remember the newest state of the store that a server told them. If the store is
// older than that, it has gone back, which a server that was restarted meanwhile cannot
// know by itself. A node may be hostile, so its word alone counts for nothing: servers sign
// every state that they tell a node, and believe only what they signed.

const (
	seenUse = "seen state of the store" // of signatures
	// maxPast is how many former incarnations of the store a node remembers.
	maxPast = 32
)

// proofs signs states of the store. All nodes are told the same few, so the newest
// signatures are kept.
type proofs struct {
	mu       sync.Mutex
	revision int64
	byPast   map[string]string // signatures of this revision
}

// prove returns the proof that this server told a node a state of the store; empty if it
// has no keys.
func (f *Fleet) prove(revision int64, past []string) string {
	if f.Ring == nil {
		return ""
	}
	p, key := &f.proofs, strings.Join(past, " ")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.revision != revision || p.byPast == nil {
		p.revision, p.byPast = revision, map[string]string{}
	}
	if p.byPast[key] == "" {
		p.byPast[key] = f.Ring.Sign(seenUse, f.seenParts(&wire.Seen{Incarnation: f.identity.Incarnation, Revision: revision, Past: past})...)
	}
	return p.byPast[key]
}

func (f *Fleet) seenParts(seen *wire.Seen) []string {
	return append([]string{f.identity.Cluster, seen.Incarnation, strconv.FormatInt(seen.Revision, 10)}, seen.Past...)
}

// isProven reports whether a server of this installation told a node that state.
func (f *Fleet) isProven(seen *wire.Seen) bool {
	return seen != nil && f.Ring != nil && len(seen.Past) <= maxPast && f.Ring.Verify(seen.Proof, seenUse, f.seenParts(seen)...)
}

// pastOf returns the incarnations of the store before the current one, as far as a node has
// seen them. They are part of what is signed: a node cannot change their order.
func (f *Fleet) pastOf(h *wire.Hello) []string {
	if !f.isProven(h.Seen) {
		return nil
	}
	is := f.identity.Incarnation
	past := slices.Clone(h.Seen.Past)
	if h.Seen.Incarnation != is {
		past = append(past, h.Seen.Incarnation)
	}
	past = slices.DeleteFunc(past, func(former string) bool { return former == is })
	return past[max(0, len(past)-maxPast):]
}

// checkSeen compares what a node has seen of the store with what is there.
func (f *Fleet) checkSeen(ctx context.Context, h *wire.Hello) *wire.Bye {
	seen := h.Seen
	if seen == nil || f.Outdated == nil {
		return nil
	}
	former := slices.Contains(seen.Past, f.identity.Incarnation)
	if !former && (seen.Incarnation != f.identity.Incarnation || seen.Revision <= f.Picture.Revision()) {
		return nil
	}
	if !f.isProven(seen) {
		if f.mayLog(h.Node, "unproven state") {
			slog.Warn("a node says that it has seen a newer state of the database, without a proof of this installation; it is not believed", "node", h.Node, "seen", seen.Revision)
		}
		return nil
	}
	newest, err := f.Store.Revision(ctx) // the picture may be a little behind
	if err != nil {
		return unavailableError("open a session", err)
	}
	if !former && seen.Revision <= newest {
		return nil
	}
	slog.Error("the database is older than what a node has seen of it", "node", h.Name, "seen", seen.Revision, "revision", newest)
	f.Outdated(seen.Revision)
	return &wire.Bye{Reason: "the server's database has gone back to an earlier state; the server is reading it again"}
}
