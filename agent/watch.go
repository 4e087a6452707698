package agent

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"mariposa"
	"mariposa/driver"
)

// handleDriverEvent handles a change that a driver reports.
func (n *Node) handleDriverEvent(kind mariposa.ComputeType, e driver.Event) {
	switch e.Kind {
	case driver.InstanceChanged:
		n.handleInstanceChange(e.Instance)
	case driver.EngineLost:
		n.offersChanged = n.updateOffer(kind, n.lane(kind)) || n.offersChanged
		slog.Warn("a driver lost its engine", "node", n.Hello.Name, "compute", kind, "reason", e.Reason)
		n.noteEngineLost(kind, e.Reason)
	case driver.EngineBack:
		n.offersChanged = n.updateOffer(kind, n.lane(kind)) || n.offersChanged
		slog.Info("a driver can use its engine", "node", n.Hello.Name, "compute", kind)
		n.noteEngineBack(kind)
		n.relist(kind)
	}
}

// waitsForEngine begins the reason of an instance whose start or stop waits for an engine that does
// not answer.
const waitsForEngine = "waits for its engine: "

// noteEngineLost says what the instances of an engine that is away are, or wait for.
func (n *Node) noteEngineLost(kind mariposa.ComputeType, why string) {
	for _, i := range n.instances {
		switch st := &i.status; {
		case i.compute != kind:
		case st.State == mariposa.StateRunning:
			n.setState(i, st.State, "its state is uncertain: "+why)
		case i.inOperation && (st.State == mariposa.StateProvisioning || st.State == mariposa.StateStopping):
			n.setState(i, st.State, waitsForEngine+why)
		}
	}
}

// noteEngineBack takes back that instances wait for an engine. Their operations go on.
func (n *Node) noteEngineBack(kind mariposa.ComputeType) {
	for _, i := range n.instances {
		if i.compute == kind && strings.HasPrefix(i.status.Reason, waitsForEngine) {
			n.setState(i, i.status.State, "")
		}
	}
}

// handleInstanceChange updates an instance to what its driver reports. During an
// operation, the report is kept until the operation ends.
func (n *Node) handleInstanceChange(o driver.Observed) {
	i := n.instances[o.ID]
	if i == nil {
		if f, ok := n.found[o.ID]; ok {
			n.found[o.ID] = found{f.compute, f.since, o}
			n.inventory = true
		}
		return
	}
	if i.inOperation && !i.isWaiting() {
		i.pendingObservation = &o // we are stopping it, or the operation in progress takes this into account
		return
	}
	switch running := i.status.State == mariposa.StateRunning || i.status.State == mariposa.StateDraining; {
	case running && !o.Running:
		n.handleEnd(i, o)
	case running && !o.Started.Before(i.status.Started):
		n.observeRunning(i, o)
	case o.Running && i.hasEnded() && o.Started.After(i.status.Started):
		n.observeRunning(i, o)
	default:
		return
	}
	n.pursue(i)
}

// hasEnded reports whether an instance has been seen to end, so that a later start is a
// new run.
func (i *instance) hasEnded() bool {
	return i.status.State == mariposa.StateFailed || i.status.State == mariposa.StateStopped
}

// observeRunning records the state of a running instance, and counts a restart made by
// its engine.
func (n *Node) observeRunning(i *instance, o driver.Observed) {
	if o.Started.After(i.status.Started) {
		i.status.Restarts++
	}
	n.observe(i, mariposa.StateRunning, o)
}

// relist lists all instances of a driver, after a time in which it may not have reported
// changes.
func (n *Node) relist(kind mariposa.ComputeType) {
	l, begun := n.lane(kind), n.Clock.Now()
	n.runAsync(l, "", nil, func(ctx context.Context) func() {
		all, err := l.driver.List(ctx)
		return func() { n.reconcile(kind, begun, all, err) }
	})
}

func (n *Node) reconcile(kind mariposa.ComputeType, begun time.Time, all []driver.Observed, err error) {
	if err != nil {
		slog.Warn("cannot list instances; retrying", "node", n.Hello.Name, "compute", kind, "err", err)
		n.Clock.After(retryDelay, func() { n.post(func() { n.relist(kind) }) })
		return
	}
	n.noteListed(kind, all)
	there := map[string]bool{}
	for _, o := range all {
		there[o.ID] = true
		n.handleInstanceChange(o)
	}
	for _, id := range slices.Sorted(maps.Keys(n.instances)) {
		i := n.instances[id]
		if i.compute == kind && !there[id] && i.status.State == mariposa.StateRunning && i.status.Started.Before(begun) {
			n.handleInstanceChange(driver.Observed{
				ID: id, Started: i.status.Started, PhysicalID: i.status.PhysicalID, Finished: n.Clock.Now(), Reason: "was gone when its engine came back",
			})
		}
	}
	for id, f := range n.found {
		if f.compute == kind && !there[id] {
			delete(n.found, id)
			n.inventory = true
		}
	}
}

// noteListed records the instances of a driver whose engine was away when the agent started.
// Those that have waited for it go on.
func (n *Node) noteListed(kind mariposa.ComputeType, all []driver.Observed) {
	l := n.lane(kind)
	if !l.isUnlisted {
		return
	}
	l.isUnlisted = false
	for _, o := range all {
		n.found[o.ID] = found{kind, n.Clock.Now(), o}
	}
	n.inventory = true
	for _, id := range slices.Sorted(maps.Keys(n.instances)) {
		i := n.instances[id]
		if _, here := n.found[id]; i.waitsForList == "" || !here && n.whyUnlisted(i.compute) != "" {
			continue
		}
		i.waitsForList = ""
		if ended := n.identify(i); ended != nil {
			n.handleEnd(i, *ended)
		}
		n.dirtyInstances[id] = struct{}{}
		n.pursue(i)
	}
}

// whyUnlisted says why it is not known whether the node has an instance of a compute type
// (empty: of an unknown one); empty if it is known.
func (n *Node) whyUnlisted(compute mariposa.ComputeType) string {
	for _, kind := range slices.Sorted(maps.Keys(n.lanes)) {
		if l := n.lanes[kind]; l.isUnlisted && (compute == "" || compute == kind) {
			return cmp.Or(l.unavailable(), "its instances are being listed")
		}
	}
	return ""
}

// factsInterval is how often the facts of the machine are read.
const factsInterval = time.Minute

// watchMachine reports changed facts of the machine until the context ends.
func (n *Node) watchMachine(ctx context.Context) {
	every := time.NewTicker(factsInterval)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			n.SetMachine(n.Machine())
		}
	}
}
