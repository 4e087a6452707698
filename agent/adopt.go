package agent

import (
	"context"
	"encoding/json"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// listForeign sends the foreign containers of this node, or one of them.
func (s *streams) listForeign(ctx context.Context, st *wire.Stream, o *wire.Open) error {
	if o.Ack {
		if err := st.Send(wire.Message{Ack: true}); err != nil {
			return err // the peer is gone
		}
	}
	d := s.n.adopter()
	if d == nil {
		return mariposa.Errorf(mariposa.Conflict, "the node runs no containers")
	}
	var all wire.Foreign
	var err error
	if ref := o.Foreign.Container; ref != "" {
		all.Containers = make([]mariposa.ForeignContainer, 1)
		all.Containers[0], err = d.ForeignContainer(ctx, ref)
	} else if all.Containers, err = d.ForeignContainers(ctx); err == nil {
		all.Total = len(all.Containers)
		all.Containers = all.Containers[:min(all.Total, wire.MaxForeign)]
	}
	if err != nil {
		return err
	}
	b, err := json.Marshal(all)
	if err == nil {
		_, err = st.Write(b)
	}
	return err
}

// adopter returns the driver that can adopt containers; nil if there is none.
func (n *Node) adopter() driver.Adopter {
	for _, d := range n.Drivers {
		if a, ok := d.(driver.Adopter); ok {
			return a
		}
	}
	return nil
}

// adoptContainer has the driver of an instance take over a foreign container.
func (n *Node) adoptContainer(i *instance, l *lane) {
	d, ok := l.driver.(driver.Adopter)
	if !ok {
		n.post(func() {
			n.adoptDone(i, driver.Observed{}, mariposa.Errorf(mariposa.Conflict, "compute type %s has no foreign containers", i.compute))
		})
		return
	}
	n.setState(i, mariposa.StateProvisioning, i.status.Reason)
	i.manualRestarts = i.desired.ManualRestarts
	n.callDriver(context.WithoutCancel(n.stepCtx), i, l, d.Adopt, n.adoptDone)
}

// adoptDone records the result of an adoption. A container that has ended is not started by
// it, unless someone asked for a restart meanwhile.
func (n *Node) adoptDone(i *instance, o driver.Observed, err error) {
	i.status.Generation = i.generation
	switch {
	case err != nil:
		n.observe(i, mariposa.StateFailed, o)
		i.status.Reason, i.status.Finished = "could not be adopted: "+err.Error(), n.Clock.Now()
		i.status.ManualRestarts = i.manualRestarts // a restart was tried
	case o.Running:
		i.mayExist, i.labels = true, n.labels
		n.noteRunning(i, o)
	default:
		i.mayExist, i.labels = true, n.labels
		n.observe(i, mariposa.StateStopped, o)
		if i.desired.Goal == mariposa.GoalRunning {
			n.handleEnd(i, o)
		}
	}
	n.finishOperation(i)
}
