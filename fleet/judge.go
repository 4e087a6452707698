package fleet

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"mariposa"
	"mariposa/store"
)

// Tick checks the nodes whose session belongs to this replica, or to a replica that is
// gone: a node that has been silent for its lifetime becomes unknown. Silence counts only
// while this replica watched: after it starts, after an outage of the store, while it has
// lost its lease and after its process was stopped, each node gets a full lifetime to
// connect.
func (f *Fleet) Tick(ctx context.Context) {
	defer f.endTick(f.beginTick())
	others := f.findReplicas(ctx)
	now := f.Clock.Now() // not before: reading may have taken long
	if others.known {
		f.balance(others.all, now)
	}
	for _, r := range f.Picture.Nodes.All() {
		st := r.Status()
		if st != nil && st.State == mariposa.NodeRebooting {
			f.judgeReboot(ctx, r, st, now)
			continue
		}
		if st == nil || st.State != mariposa.NodeRunning {
			continue
		}
		sign, mine := f.lastSign(r.ID, st, others, now)
		if mine && sign.session == nil && now.Sub(sign.counts) > f.lifetime() {
			others.ask(ctx)
			sign, mine = f.lastSign(r.ID, st, others, now)
		}
		if !mine {
			continue // its own replica watches it
		}
		why, bye := &mariposa.Reason{Code: mariposa.ReasonNotSeen, Since: sign.heard.UTC()}, "no heartbeat for too long"
		if r.Spec().Lost {
			why, bye = &mariposa.Reason{Code: mariposa.ReasonPlaysDead}, "the node is simulating a failure"
		} else if now.Sub(sign.counts) <= f.lifetime() {
			continue
		}
		if sign.session != nil {
			sign.session.end(bye)
		}
		f.markUnknown(ctx, r, st, sign.heard, why)
	}
	f.renewSessions(now)
	f.expirePending(ctx, now)
	f.watchStorm(ctx)
	f.watchDrains(ctx)
}

// sign is the last sign of life of a node.
type sign struct {
	session *Session  // here; nil if there is none
	heard   time.Time // when it was
	counts  time.Time // the start of the silence that counts against the node
}

// lastSign returns the last sign of life of a node as far as this replica knows; false if
// the node's own replica is alive and watches it.
func (f *Fleet) lastSign(node string, st *mariposa.NodeStatus, others *replicas, now time.Time) (sign, bool) {
	heard, session := f.LastHeard(node)
	if session != nil {
		return sign{session, heard, f.watchedSince(heard)}, true
	}
	since := heard
	if st.Replica == f.Replica {
		heard = laterOf(heard, f.heardByOthers(node))
	} else {
		gone, dead := others.goneSince(st.Replica, now)
		if !dead {
			return sign{}, false
		}
		since = f.laterStored(node, gone)
		heard = f.lastSeenAround(node, since)
	}
	since = laterOf(since, heard) // it has tried to connect since: it lives, whatever keeps it from getting a session
	return sign{nil, heard, laterOf(f.watchedSince(since), f.lastReplicaLoss())}, true
}

func (f *Fleet) markUnknown(ctx context.Context, r *store.Node, st *mariposa.NodeStatus, heard time.Time, why *mariposa.Reason) {
	began := f.Clock.Now()
	next := *st
	next.State, next.Reason, next.LastSeen = mariposa.NodeUnknown, why, heard
	if st.State != mariposa.NodeRebooting { // it has been away since then
		next.Since = began
	}
	next.Losses = mariposa.AddLoss(st.Losses, began)
	unit := store.Unit{Urgent: true}
	unit.StatusUnchanged(r)
	unit.Put(store.Write{Kind: mariposa.KindNode, ID: r.ID, Status: &next, Event: mariposa.Event{Kind: "node.unknown", Node: r.ID, Actor: "mariposa", Reason: why}})
	res := f.Store.Commit(ctx, unit)[0]
	if errors.Is(res.Err, store.ErrConflict) {
		return
	}
	f.noteCall(began, res.Err)
	if res.Err != nil {
		slog.Warn("cannot mark a node as unknown; retrying", "node", r.ID, "err", res.Err)
	}
}

// beginTick detects that the process was stopped since the last tick, or that this replica
// cannot renew its lease: a store that can only be read answers, and opens no session. After a stop that is
// too short to be detected, a node whose heartbeats have not been read yet is still within
// its lifetime.
func (f *Fleet) beginTick() (began time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.Clock.Now()
	if f.lapsed || !f.lastTick.IsZero() && now.Sub(f.lastTick) > f.Beat {
		f.watching = now
	}
	return now
}

// endTick detects an outage of the store by a tick that took long, whichever of its calls
// did.
func (f *Fleet) endTick(began time.Time) {
	f.noteCall(began, nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastTick = f.Clock.Now()
}

// noteCall detects an outage of the store by a call that failed or took long. Nodes that
// want to connect have no chance to meanwhile, at this or at any other replica.
func (f *Fleet) noteCall(began time.Time, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.Clock.Now(); err != nil || now.Sub(began) > f.Beat/2 {
		f.watching = now
	}
}

func (f *Fleet) noteAsked(at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = at
}

func (f *Fleet) noteAnswered(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked, f.unanswered = time.Time{}, err != nil
}

// Stalled reports that the store does not answer this replica, so that it cannot open a
// session. Its agents had better try another one, and not wait here.
func (f *Fleet) Stalled() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unanswered || !f.asked.IsZero() && f.Clock.Now().Sub(f.asked) > f.Beat/5
}

// watchedSince returns from when on the silence of a node counts that was last heard at a
// time.
func (f *Fleet) watchedSince(heard time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watching.After(heard) {
		return f.watching
	}
	return heard
}

// laterStored returns when a node whose replica is gone last showed that it lives: if it
// opened a session after this replica noticed that, the other one has just come back.
func (f *Fleet) laterStored(node string, gone time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at := f.lastStored[node]; at.After(gone) {
		return at
	}
	return gone
}

const lapsedReason = "the server cannot reach its database; try another server"

// KeepLease notes that this replica's own lease was renewed for a time. If it is not
// renewed again until then, the sessions end, so that the agents connect to a replica that
// can store what they report: the others consider this one dead.
func (f *Fleet) KeepLease(ttl time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancelLapse()
	if f.lapsed { // nodes could not connect meanwhile, perhaps at no replica
		f.lapsed, f.watching, f.regained = false, f.Clock.Now(), f.Clock.Now()
	}
	f.cancelLapse = f.Clock.After(ttl, f.lapse)
}

func (f *Fleet) lapse() {
	f.mu.Lock()
	f.lapsed = true
	var all []*Session
	for _, node := range slices.Sorted(maps.Keys(f.sessions)) {
		all = append(all, f.sessions[node])
	}
	f.mu.Unlock()
	if len(all) > 0 {
		slog.Warn("this server could not renew its lease in the database; ending the sessions of its nodes, so that they connect to another server", "nodes", len(all))
	}
	for _, s := range all {
		s.end(lapsedReason)
	}
}

// LacksNodes reports whether this replica has lost its lease, so that no node is connected
// to it, or has regained it just now, so that they have not returned yet.
func (f *Fleet) LacksNodes() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lapsed || !f.regained.IsZero() && f.Clock.Now().Sub(f.regained) < f.lifetime()
}

func (f *Fleet) hasLapsed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lapsed
}
