package fleet

import (
	"context"
	"encoding/json"
	"io"
	"reflect"
	"slices"
	"time"

	"mariposa"
	"mariposa/wire"
)

// The quarantined instances of a node can be many. The status of the node has a few of them
// and their number. The complete list stays in the memory of the session: whoever adopts or
// purges instances asks for it, at whichever replica.

// setQuarantine keeps the inventory that the node reported completely.
func (s *Session) setQuarantine(v *inventory) {
	v.finish()
	s.noteInventory()
	if v.total == s.quarantineTotal && sameQuarantine(v.kept, s.quarantine) {
		return
	}
	s.quarantineNews = s.quarantineNews || v.total != s.quarantineTotal || !sameInstances(sampleOf(v.kept), sampleOf(s.quarantine))
	keepSince(v.kept, s.quarantine)
	if len(v.excess) > 0 && len(s.quarantineExcess) == 0 {
		s.logExcess(v.excess)
	}
	s.quarantineTotal, s.quarantineExcess, s.quarantineChanged = v.total, v.excess, true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quarantine = v.kept
}

// quarantineEvent is the event of a changed quarantine: only if other instances are in it.
// The first inventory of a session is compared with the last one of the session before.
func (s *Session) quarantineEvent() mariposa.Event {
	if !s.quarantineNews {
		return mariposa.Event{}
	}
	event := nodeEvent("node.quarantine", s.hello)
	event.Reason = &mariposa.Reason{Code: mariposa.ReasonQuarantine, Count: s.quarantineTotal}
	if s.quarantineTotal == 0 {
		event.Reason = &mariposa.Reason{Code: mariposa.ReasonQuarantineOver}
	}
	return event
}

// sameInstances reports whether two inventories have the same instances.
func sameInstances(a, b []mariposa.Quarantined) bool {
	return slices.EqualFunc(a, b, func(a, b mariposa.Quarantined) bool { return a.ID == b.ID })
}

// keepSince notes in an inventory that instances which were in quarantine before have been
// there since then: an agent that restarts does not know that.
func keepSince(now, before []mariposa.Quarantined) {
	since := map[string]time.Time{}
	for _, q := range before {
		since[q.ID] = q.Since
	}
	for i := range now {
		if at := since[now[i].ID]; !at.IsZero() {
			now[i].Since = at
		}
	}
}

func (s *Session) noteInventory() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sampled = false
}

// wholeQuarantine returns the quarantined instances; none as long as only some of them are
// known. It may be called from any goroutine.
func (s *Session) wholeQuarantine() []mariposa.Quarantined {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sampled {
		return nil
	}
	return s.quarantine
}

// listQuarantine returns the quarantined instances that are known. It may be called from any
// goroutine.
func (s *Session) listQuarantine() []mariposa.Quarantined {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quarantine
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

// Quarantine returns all quarantined instances of a node, from the replica that it is
// connected to.
func (f *Fleet) Quarantine(ctx context.Context, node string) (all []mariposa.Quarantined, err error) {
	err = f.reach(ctx, errand{
		node: node, what: "the list of quarantined instances",
		here: func(s *Session) error {
			all = s.wholeQuarantine()
			return nil
		},
		there: func(waits context.Context, replica string) error {
			all, err = f.readQuarantine(ctx, waits, replica, node)
			return err
		},
	})
	return all, err
}

// quarantineTimeout is how long a replica may take to send a list of quarantined instances.
const quarantineTimeout = 20 * time.Second

// readQuarantine reads the quarantined instances of a node from another replica. The context
// waits limits the time until that answers.
func (f *Fleet) readQuarantine(ctx, waits context.Context, replica, node string) (all []mariposa.Quarantined, err error) {
	st, err := f.Links.Open(waits, replica, wire.Forward{Node: node, Quarantine: true})
	if err != nil {
		return nil, err
	}
	defer st.Close()
	ctx, cancel := context.WithTimeout(ctx, quarantineTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = st.Close() })()
	r := &reader{stream: &stream{channel: st, endReason: st.EndReason}}
	if err := json.NewDecoder(io.LimitReader(r, 2*maxQuarantineBytes)).Decode(&all); err != nil {
		return nil, &mariposa.Error{Code: mariposa.Unavailable, Cause: err, Message: "replica " + replica + " did not send the whole list of quarantined instances: try again"}
	}
	return all, nil
}

// sendQuarantine sends another replica the quarantined instances of a node.
func sendQuarantine(link *wire.Stream, s *Session) {
	b, err := json.Marshal(s.wholeQuarantine())
	if err != nil || link.Send(wire.Message{}) != nil {
		return
	}
	if _, err := link.Write(b); err == nil {
		_ = link.Send(wire.Message{Last: true}) // fails only if the other replica is gone
	}
}
