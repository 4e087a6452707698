package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/wire"
)

// checkHome refuses an agent whose data directory is at another place than that of the agent
// which runs the node. If the directory was moved, the other agent is silent, and its node
// soon not running any more. If it is a copy, both would take turns.
func (f *Fleet) checkHome(ctx context.Context, h *wire.Hello, by Admission) *wire.Bye {
	r := f.Picture.Nodes.Get(h.Node)
	if r == nil || by.Own || h.Home == "" {
		return nil
	}
	st := r.Status()
	if st == nil || st.State != mariposa.NodeRunning || st.Home == "" || st.Home == h.Home {
		return nil
	}
	if f.mayLog(h.Node, "copied directory") {
		slog.Warn("refusing an agent with a copy of a node's data directory", "node", r.Spec().Name, "from", by.From, "connected", st.Address)
	}
	f.noteCopy(ctx, r, by.From)
	return &wire.Bye{Copied: true, Reason: fmt.Sprintf("node %s runs with another data directory (its agent connected from %s): if this one is a copy, use an empty directory instead; "+
		"if it was moved, stop the other agent: this one is admitted %d s after that one was last heard", r.Spec().Name, cmp.Or(st.Address, "an unknown address"), int(f.lifetime().Seconds()))}
}

// copyInterval is how often a refused copy of a node's data directory is noted.
const copyInterval = time.Minute

// noteCopy makes it known that an agent with a copy of a node's data directory was refused.
// It has the key of the node, so nobody else can write this.
func (f *Fleet) noteCopy(ctx context.Context, r *store.Node, from string) {
	now, next := f.Clock.Now(), *r.Status()
	if next.Copy != nil && now.Sub(next.Copy.At) < copyInterval {
		return
	}
	from = cmp.Or(from, "an unknown address")
	next.Copy = &mariposa.RefusedCopy{At: now, From: from}
	unit := store.Unit{}
	unit.StatusUnchanged(r)
	unit.Put(store.Write{Kind: mariposa.KindNode, ID: r.ID, Status: &next, Event: mariposa.Event{
		Kind: "node.copy_refused", Node: r.ID, Actor: "mariposa", Reason: &mariposa.Reason{Code: mariposa.ReasonCopyRefused, Subject: from},
	}})
	if res := f.Store.Commit(ctx, unit)[0]; res.Err != nil && !errors.Is(res.Err, store.ErrConflict) { // the agent tries again
		slog.Warn("cannot note that a copy of a data directory was refused", "node", r.Spec().Name, "err", res.Err)
	}
}
