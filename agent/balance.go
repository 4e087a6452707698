package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// The members of the node's load balancers, and instances that wait until their connections have
// ended. Without a connection to the control plane, balancers keep the members that they have,
// except those on this node that are known to be down.

// membership is what a balancer of the node was told.
type membership struct {
	desired  []mariposa.Member // as the control plane sent them
	sent     []mariposa.Member // as the driver was told
	told     bool              // the driver was told, or is being told
	failed   bool              // the driver has refused them, and they are sent again after a while
	inFlight bool
	untold   bool // there is something newer than what is in flight
}

// handleBalance handles the members of a balancer, which may not be assigned yet.
func (n *Node) handleBalance(b *wire.Balance) {
	m := n.members[b.ID]
	if m == nil {
		m = &membership{}
		n.members[b.ID] = m
	}
	if m.desired = b.Members; m.desired == nil {
		m.desired = []mariposa.Member{} // known, and none
	}
	n.tellMembers(b.ID, m)
}

// updateMembers tells the drivers of balancers about members of this node that have changed, and
// those of balancers that have been taken over what they have not been told yet.
func (n *Node) updateMembers() {
	if len(n.members) == 0 {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(n.members)) {
		if m := n.members[id]; len(n.dirtyInstances) > 0 || !m.told && !m.failed {
			n.tellMembers(id, m)
		}
	}
}

// present returns the members of a balancer without those on this node that are known to be down.
func (n *Node) present(all []mariposa.Member) []mariposa.Member {
	out := make([]mariposa.Member, 0, len(all))
	for _, m := range all {
		if i := n.instances[m.Instance]; i == nil || !i.isKnownDown() {
			out = append(out, m)
		}
	}
	return out
}

// isKnownDown reports whether connections to an instance would certainly fail.
func (i *instance) isKnownDown() bool {
	switch i.status.State {
	case mariposa.StateRunning:
		return i.status.Health == mariposa.HealthUnhealthy
	case mariposa.StateDraining, mariposa.StateStopping:
		return false
	}
	return true
}

// tellMembers tells the driver of a running balancer its members, if they have changed. One that
// does not run gets them with its start.
func (n *Node) tellMembers(id string, m *membership) {
	i := n.instances[id]
	if i == nil || i.foreign || i.starting || !i.isUp() {
		return
	}
	l := n.lane(i.compute)
	d, ok := l.driver.(driver.Balancer)
	if !ok {
		return
	}
	list := n.present(m.desired)
	if m.told && slices.Equal(m.sent, list) {
		return
	}
	if m.inFlight {
		m.untold = true
		return
	}
	m.sent, m.told, m.failed, m.inFlight, m.untold = list, true, false, true, false
	n.runAsync(l, id, i.workload, func(ctx context.Context) func() {
		err := d.SetMembers(ctx, id, list)
		return func() { n.membersTold(id, m, err) }
	})
}

func (n *Node) membersTold(id string, m *membership, err error) {
	m.inFlight = false
	if n.members[id] != m {
		return
	}
	if err != nil && !errors.Is(err, driver.ErrNotFound) { // not found: it is gone meanwhile
		slog.Warn("cannot set the members of a load balancer; retrying", "instance", id, "err", err)
		m.told, m.failed = false, true
		n.Clock.After(retryDelay, func() {
			n.post(func() {
				if n.members[id] == m { // else the balancer is gone, and may have been created again
					n.tellMembers(id, m)
				}
			})
		})
		return
	}
	if m.untold {
		n.tellMembers(id, m)
	}
}

// membersForStart returns the members that a balancer starts with; nil if they are not known.
func (n *Node) membersForStart(id string) []mariposa.Member {
	m := n.members[id]
	if m == nil {
		return nil
	}
	m.sent, m.told = n.present(m.desired), true
	return m.sent
}

// noteDrain notes how long a leaving instance may wait for its connections to end. The time is
// counted by timers, so that a clock that is set does not change it.
func (n *Node) noteDrain(i *instance) {
	wait := i.desired.Drain
	switch {
	case !i.leaves() || wait <= 0 || i.status.State != mariposa.StateRunning && i.status.State != mariposa.StateDraining:
		i.drains = nil // one that does not run has no connections
		if i.status.State == mariposa.StateDraining && !i.leaves() {
			n.setState(i, mariposa.StateRunning, "")
		}
		return
	case i.drains == nil:
		i.drains = &draining{within: wait}
	case wait < i.drains.within: // a timer for the shorter time ends the drain, unless the first one is earlier
		i.drains.within = wait
	default:
		return
	}
	d := i.drains
	n.Clock.After(wait, func() {
		n.post(func() {
			if n.instances[i.id] == i && i.drains == d {
				d.isOver = true
				n.pursue(i)
			}
		})
	})
}

// draining is the time in which an instance waits for its connections to end.
type draining struct {
	within time.Duration
	isOver bool
}

// leaves reports whether an instance is to stop, for good or to be restarted by a user.
func (i *instance) leaves() bool {
	return i.desired.Goal != mariposa.GoalRunning || i.needsManualRestart()
}

// isDraining reports whether a leaving instance runs until its connections have ended.
func (i *instance) isDraining() bool {
	return i.drains != nil && !i.drains.isOver && i.mayExist && (i.status.State == mariposa.StateRunning || i.status.State == mariposa.StateDraining)
}
