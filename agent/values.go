package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// values is what an instance can read while it runs, and how far the driver has
// been told.
type values struct {
	list     []mariposa.Variable
	number   int64
	heard    bool // from this store, so the number counts
	sure     bool // the list is what the driver was given last, or is being given
	stale    bool // the driver has to be told
	telling  bool // a Tell is under way
	starting bool // a Start is under way; it has them as they were
	overlap  bool // a Tell was under way when the start began: who of the two came last is not known
}

// earlyBytes bounds what is kept for instances that no assignment has named yet.
const earlyBytes = 64 << 20

// early is values that came before the assignment of their instance, as they
// should. It lives no longer than its connection.
type early struct {
	items map[string]wire.MdataItem
	bytes int
}

func (e *early) put(it wire.MdataItem) error {
	if e.items == nil {
		e.items = map[string]wire.MdataItem{}
	}
	if old, ok := e.items[it.ID]; ok {
		if it.Number < old.Number {
			return nil
		}
		e.bytes -= old.Weight()
	}
	e.items[it.ID] = it
	if e.bytes += it.Weight(); e.bytes > earlyBytes {
		return fmt.Errorf("it sent values for %d instances that it never assigned", len(e.items))
	}
	return nil
}

func (e *early) take(id string) (wire.MdataItem, bool) {
	it, ok := e.items[id]
	if ok {
		delete(e.items, id)
		e.bytes -= it.Weight()
	}
	return it, ok
}

// takeMdata takes new values for instances.
func (n *Node) takeMdata(m *wire.Mdata) error {
	for _, it := range m.Items {
		i := n.instances[it.ID]
		if i == nil {
			if err := n.early.put(it); err != nil {
				return err
			}
			continue
		}
		n.hearValues(i, it)
		n.tell(i)
	}
	return nil
}

// hearValues makes values those of an instance, unless they are older than what
// it has.
func (n *Node) hearValues(i *instance, it wire.MdataItem) {
	v := &i.values
	if v.heard && it.Number < v.number {
		return
	}
	same := v.sure && slices.Equal(v.list, it.Values)
	if !same {
		v.list, v.sure, v.stale = it.Values, true, true
	}
	if !same || !v.heard || v.number != it.Number {
		n.board.post(i.id, it.Number, v.list)
	}
	v.heard, v.number = true, it.Number
}

// meetValues gives a newly met instance what was sent ahead for it, or what it
// had when an earlier agent left.
func (n *Node) meetValues(i *instance, kind mariposa.ComputeType) {
	if d, ok := n.lane(kind).driver.(driver.Teller); ok {
		if list, err := d.Told(n.stepCtx, i.id); err == nil {
			i.list, i.sure = list, true
		}
	}
	if it, ok := n.early.take(i.id); ok {
		n.hearValues(i, it)
	}
}

// tell hands the newest values to a running instance. One that does not run gets
// them with its next start.
func (n *Node) tell(i *instance) {
	v := &i.values
	if !v.stale || v.telling || v.starting || !i.made {
		return
	}
	switch i.status.State {
	case mariposa.StateRunning, mariposa.StateDraining, mariposa.StateStopping:
	default:
		return
	}
	l := n.lane(i.compute)
	d, ok := l.driver.(driver.Teller)
	if !ok {
		return
	}
	v.telling, v.stale = true, false
	list := v.list
	n.beside(l, i.id, i.workload, func(ctx context.Context) func() {
		err := d.Tell(ctx, i.id, list)
		return func() { n.hasTold(i, err) }
	})
}

func (n *Node) hasTold(i *instance, err error) {
	v := &i.values
	v.telling = false
	if v.overlap {
		v.overlap, v.stale = false, true
	}
	if err != nil && !errors.Is(err, driver.ErrNotFound) { // not found: it went away meanwhile
		slog.Warn("cannot tell an instance its values; trying again", "instance", i.id, "err", err)
		v.stale = true
		n.Clock.After(tryAgain, func() { n.post(func() { n.tell(i) }) })
		return
	}
	n.tell(i)
}

// showValues hands the values to a start that is about to begin.
func (n *Node) showValues(i *instance) {
	v := &i.values
	v.sure, v.stale, v.starting, v.overlap = true, false, true, v.telling
	n.board.post(i.id, v.number, v.list)
}

// mdata is what a driver needs to know of an instance's values.
func (n *Node) mdata(i *instance) driver.Mdata {
	m := driver.Mdata{Values: i.list}
	if n.board != nil {
		m.URL, m.Token = n.board.url, n.board.token(i.id)
	}
	return m
}
