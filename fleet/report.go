package fleet

import (
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"

	"mariposa"
	"mariposa/store"
	"mariposa/wire"
)

// handleReport keeps what a node reports until it is stored, within its bounds.
func (s *Session) handleReport(ctx context.Context, r *wire.Report) {
	var c cutter
	for i := range r.Items {
		it := &r.Items[i]
		known := s.f.Picture.Instances.Get(it.ID)
		if known == nil || known.Spec().Node != s.node {
			continue // deleted meanwhile, or not this node's
		}
		next := it.Status
		s.maskSecrets(ctx, known.Spec(), &next)
		c.status(&next, s.f.Clock.Now())
		if s.completeStatus(it.ID, known, &next) {
			s.pending[it.ID] = &next
		}
	}
	s.handleProvided(r.Provided, &c)
	s.noteExcess(c.excess)
	s.inventory.add(r.Quarantined)
	if r.Inventory {
		v := s.inventory
		s.inventory = inventory{}
		s.setQuarantine(&v)
	}
	if m := r.Machine.Bounded(); m != nil && !reflect.DeepEqual(m, s.machine) {
		s.machine, s.machineChanged = m, true
	}
	if a := r.Abilities; a != nil {
		var c cutter
		next := c.hello(&wire.Hello{Drivers: a.Drivers, Offers: a.Offers})
		hello := *s.hello // others may still read the old one
		hello.Drivers, hello.Offers = next.Drivers, next.Offers
		s.hello, s.machineChanged = &hello, true
		s.noteExcess(c.excess)
	}
}

// completeStatus completes a reported status and reports whether it must be stored.
func (s *Session) completeStatus(id string, known *store.Instance, next *mariposa.InstanceStatus) bool {
	last := known.Status()
	if r := s.recent[id]; r != nil {
		last = r
	}
	if p := s.pending[id]; p != nil {
		last = p
	}
	from := mariposa.StateOf(known.Spec(), last)
	if !mariposa.CanFollow(from, next.State) {
		if s.f.mayLog(s.node, "invalid state") {
			slog.Warn("a node reported an invalid change of state", "node", s.node, "instance", id, "from", from, "to", shorten(string(next.State), maxWord))
		}
		return false
	}
	if last == nil && next.State == mariposa.StateProvisioning && next.PhysicalID == "" && next.Reason == "" {
		return false // an assignment implies this state
	}
	next.Since = s.f.Clock.Now()
	if last != nil && from == next.State {
		if last.Health == next.Health {
			next.Since = last.Since
		}
		return !sameStatus(last, next) || (settlesRecord(known, next) && s.recent[id] == nil)
	}
	return true
}

// settlesRecord reports whether this status allows the deletion of a record that no
// planner deletes: the instance is destroyed, and it is orphaned, or unmanaged with the
// goal gone.
func settlesRecord(known *store.Instance, st *mariposa.InstanceStatus) bool {
	spec := known.Spec()
	return (spec.Orphaned || (!spec.Managed && spec.Goal == mariposa.GoalGone)) && st.State == mariposa.StateDestroyed
}

func sameStatus(a, b *mariposa.InstanceStatus) bool {
	return a.State == b.State && a.Health == b.Health && a.Served == b.Served && slices.Equal(a.Checks, b.Checks) && a.ChecksDigest == b.ChecksDigest && a.Generation == b.Generation && a.PhysicalID == b.PhysicalID &&
		a.Restarts == b.Restarts && a.ManualRestarts == b.ManualRestarts && a.Reason == b.Reason && slices.Equal(a.Addresses, b.Addresses) && maps.Equal(a.Details, b.Details) && slices.Equal(a.Members, b.Members)
}

// noteExcess notes what the node reported beyond its bounds. It is logged once, and in the
// reason of the node as long as the session lasts.
func (s *Session) noteExcess(parts []string) {
	parts = slices.DeleteFunc(slices.Clone(parts), func(what string) bool { return slices.Contains(s.excess, what) })
	if len(parts) == 0 {
		return
	}
	s.logExcess(parts)
	s.excess, s.excessChanged = append(s.excess, parts...), true
}

func (s *Session) logExcess(parts []string) {
	slog.Warn("a node reports more than is kept, and it was cut: its agent may be faulty or hostile", "node", s.hello.Name, "id", s.node, "cut", strings.Join(parts, ", "))
}
