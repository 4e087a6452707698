package fleet

import (
	"reflect"
	"slices"
	"time"

	"mariposa"
)

// quarantineEvent is the event of a changed quarantine: only if other instances are in it.
// The first inventory of a session is compared with the last one of the session before.
func (s *Session) quarantineEvent() mariposa.Event {
	if !s.quarantineNews {
		return mariposa.Event{}
	}
	event := nodeEvent("node.quarantine", s.hello)
	event.Reason = &mariposa.Reason{Code: mariposa.ReasonQuarantine, Count: len(s.quarantine)}
	if len(s.quarantine) == 0 {
		event.Reason = &mariposa.Reason{Code: mariposa.ReasonQuarantineOver}
	}
	return event
}

// sameInstances reports whether two inventories have the same instances.
func sameInstances(a, b []mariposa.Quarantined) bool {
	return slices.EqualFunc(a, b, func(a, b mariposa.Quarantined) bool { return a.ID == b.ID })
}

// keepSince returns an inventory in which instances that were in quarantine before have been
// there since then: an agent that restarts does not know that.
func keepSince(now, before []mariposa.Quarantined) []mariposa.Quarantined {
	out := slices.Clone(now)
	for i := range out {
		if at := slices.IndexFunc(before, func(q mariposa.Quarantined) bool { return q.ID == out[i].ID }); at >= 0 && !before[at].Since.IsZero() {
			out[i].Since = before[at].Since
		}
	}
	return out
}

// sameQuarantine reports whether two inventories have the same instances in the same
// states.
func sameQuarantine(a, b []mariposa.Quarantined) bool {
	return slices.EqualFunc(a, b, func(a, b mariposa.Quarantined) bool {
		sameOrigin := reflect.DeepEqual(a.Origin, b.Origin)
		a.Origin, b.Origin = nil, nil
		a.Since, b.Since = time.Time{}, time.Time{}
		return sameOrigin && a == b
	})
}
