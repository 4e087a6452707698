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

// values are the live values of an instance, and how far the driver has them.
type values struct {
	list          []mariposa.Variable
	number        int64
	fromThisStore bool // they came from this store, so their number can be compared
	confirmed     bool // the driver was given this list last, or is being given it
	unpublished   bool // the driver has to publish them
	publishing    bool // a PublishValues is in progress
	starting      bool // a Start is in progress, with the values as they were
	overlap       bool // a PublishValues was in progress when the start began: which one came last is unknown
}

// earlyBytes limits the values kept for instances that are not assigned yet.
const earlyBytes = 64 << 20

// earlyValues holds values that arrived before the assignment of their instance, which
// is the normal order. It lives as long as its connection.
type earlyValues struct {
	items map[string]wire.MdataItem
	bytes int
}

func (e *earlyValues) put(it wire.MdataItem) error {
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
		return fmt.Errorf("the control plane sent values for %d instances that it has not assigned", len(e.items))
	}
	return nil
}

func (e *earlyValues) take(id string) (wire.MdataItem, bool) {
	it, ok := e.items[id]
	if ok {
		delete(e.items, id)
		e.bytes -= it.Weight()
	}
	return it, ok
}

// handleMdata handles new values for instances.
func (n *Node) handleMdata(m *wire.Mdata) error {
	for _, it := range m.Items {
		i := n.instances[it.ID]
		if i == nil {
			if err := n.earlyValues.put(it); err != nil {
				return err
			}
			continue
		}
		n.receiveValues(i, it)
		n.publishValues(i)
	}
	return nil
}

// receiveValues sets the values of an instance, unless they are older than those it has.
func (n *Node) receiveValues(i *instance, it wire.MdataItem) {
	v := &i.values
	if v.fromThisStore && it.Number < v.number {
		return
	}
	same := v.confirmed && slices.Equal(v.list, it.Values)
	if !same {
		v.list, v.confirmed, v.unpublished = it.Values, true, true
	}
	if !same || !v.fromThisStore || v.number != it.Number {
		n.valuesServer.publish(i.id, it.Number, v.list)
	}
	v.fromThisStore, v.number = true, it.Number
}

// initValues gives a new instance the values that arrived ahead of it, or those that an
// earlier agent published.
func (n *Node) initValues(i *instance, kind mariposa.ComputeType) {
	if d, ok := n.lane(kind).driver.(driver.ValuePublisher); ok {
		if list, err := d.PublishedValues(n.stepCtx, i.id); err == nil {
			i.list, i.confirmed = list, true
		}
	}
	if it, ok := n.earlyValues.take(i.id); ok {
		n.receiveValues(i, it)
	}
}

// publishValues passes the newest values to a running instance. One that does not run
// gets them with its next start.
func (n *Node) publishValues(i *instance) {
	v := &i.values
	if !v.unpublished || v.publishing || v.starting || !i.isUp() {
		return
	}
	l := n.lane(i.compute)
	d, ok := l.driver.(driver.ValuePublisher)
	if !ok {
		return
	}
	v.publishing, v.unpublished = true, false
	list := v.list
	n.runAsync(l, i.id, i.workload, func(ctx context.Context) func() {
		err := d.PublishValues(ctx, i.id, list)
		return func() { n.valuesPublished(i, err) }
	})
}

func (n *Node) valuesPublished(i *instance, err error) {
	v := &i.values
	v.publishing = false
	if v.overlap {
		v.overlap, v.unpublished = false, true
	}
	if err != nil && !errors.Is(err, driver.ErrNotFound) { // not found: it is gone meanwhile
		slog.Warn("cannot publish live values to an instance; retrying", "instance", i.id, "err", err)
		v.unpublished = true
		n.Clock.After(retryDelay, func() { n.post(func() { n.publishValues(i) }) })
		return
	}
	n.publishValues(i)
}

// passValuesToStart passes the values to a start that is about to begin.
func (n *Node) passValuesToStart(i *instance) {
	v := &i.values
	v.confirmed, v.unpublished, v.starting, v.overlap = true, false, true, v.publishing
	n.valuesServer.publish(i.id, v.number, v.list)
}

// mdata describes an instance's values to its driver.
func (n *Node) mdata(i *instance) driver.Mdata {
	m := driver.Mdata{Values: i.list}
	if n.valuesServer != nil {
		m.URL, m.Token = n.valuesServer.url, n.valuesServer.token(i.id)
	}
	return m
}
