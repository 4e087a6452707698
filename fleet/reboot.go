package fleet

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"mariposa"
	"mariposa/store"
)

// rebootTime is how long the machine of a node that announced a reboot may take to come
// back. Then the node is unknown.
const rebootTime = 10 * time.Minute

// storeReboot stores that the node has announced a reboot, and ends the session. If that
// cannot be stored, the node becomes unknown after its lifetime.
func (s *Session) storeReboot(ctx context.Context) error {
	status := s.nodeStatus(mariposa.NodeRebooting)
	status.LastSeen = s.f.Clock.Now()
	status.Reason = &mariposa.Reason{Code: mariposa.ReasonReboots, Since: status.LastSeen.UTC()}
	event := nodeEvent("node.rebooting", s.hello)
	event.Reason = status.Reason
	unit := store.Unit{Urgent: true, Fences: s.fence()}
	unit.Put(store.Write{Kind: mariposa.KindNode, ID: s.node, Status: status, Event: event})
	if err := s.f.Store.Commit(ctx, unit)[0].Err; err != nil {
		slog.Warn("cannot store that a node is rebooting", "node", s.node, "err", err)
	}
	return errors.New("the node announced a reboot")
}

// judgeReboot marks a node as unknown that has not come back from a reboot.
func (f *Fleet) judgeReboot(ctx context.Context, r *store.Node, st *mariposa.NodeStatus, now time.Time) {
	if now.Sub(st.Since) > rebootTime && now.Sub(f.watchedSince(st.LastSeen)) > f.lifetime() {
		f.markUnknown(ctx, r, st, st.LastSeen, &mariposa.Reason{Code: mariposa.ReasonNotSeen, Since: st.LastSeen.UTC()})
	}
}
