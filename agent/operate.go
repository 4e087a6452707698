package agent

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"mariposa"
	"mariposa/driver"
)

// action is the next step for an instance.
type action int

const (
	doNothing     action = iota
	doStart              // start it
	doUpdate             // change it in place
	doStop               // stop it, but keep it
	reportStopped        // report that it is stopped: nothing runs
	doRemove             // remove it
	reportGone           // report that it is gone: there is nothing to remove
	doAdopt              // take over a foreign container
	await                // wait: its volumes or networks are not ready
	drain                // wait: its connections have not ended
)

// retryDelay is the pause before a failed stop or removal is retried.
const retryDelay = 5 * time.Second

// nextAction returns the step that brings an instance closer to its goal. It is called
// after every change, so no partial progress is remembered.
func (i *instance) nextAction() action {
	state := i.status.State
	switch {
	case i.waitsForList != "":
		return doNothing
	case i.isToBeAdopted():
		return doAdopt
	case i.desired.Goal == mariposa.GoalGone:
		return i.nextToRemove()
	case i.foreign:
		return doNothing
	case i.desired.Goal == mariposa.GoalHalted:
		return i.nextToStop()
	case i.desired.Goal != mariposa.GoalRunning || i.workload == nil: // its definition is lost: leave it as it is
		return doNothing
	case state == "" || state == mariposa.StateProvisioning || state == mariposa.StateStopped:
		return i.startOrAwait()
	case i.needsManualRestart() && i.isDraining():
		return drain
	case i.needsManualRestart() && i.mayExist:
		return doStop // once stopped, it is started again
	case i.needsManualRestart():
		return i.startOrAwait()
	case state == mariposa.StateRunning && i.restartReason != "":
		return doStop // likewise
	case state == mariposa.StateRunning && i.desired.Generation > i.status.Generation:
		return doUpdate
	}
	return doNothing
}

// isToBeAdopted reports whether an instance is a container that its driver does not know yet.
// Whatever its goal is, it is adopted first: else it could be neither stopped nor removed.
func (i *instance) isToBeAdopted() bool {
	if i.desired.Adopts == "" || i.mayExist || i.foreign || i.desired.Goal == mariposa.GoalRunning && i.workload == nil {
		return false
	}
	switch i.status.State {
	case "", mariposa.StateProvisioning:
		return true
	case mariposa.StateDestroyed:
		return false
	}
	return i.desired.Goal == mariposa.GoalRunning && (i.status.State == mariposa.StateStopped || i.needsManualRestart())
}

func (i *instance) startOrAwait() action {
	if i.missingResources() != "" {
		return await
	}
	return doStart
}

func (i *instance) nextToRemove() action {
	switch {
	case i.status.State == mariposa.StateDestroyed:
		return doNothing
	case !i.mayExist:
		return reportGone
	case i.isDraining():
		return drain
	case (i.status.State == mariposa.StateRunning || i.status.State == mariposa.StateDraining) && !i.stoppedByUs:
		return doStop
	}
	return doRemove
}

func (i *instance) nextToStop() action {
	switch {
	case i.status.State == mariposa.StateStopped && i.status.Generation >= i.desired.Generation:
		return doNothing
	case i.status.State == mariposa.StateStopped || !i.mayExist:
		return reportStopped
	case i.status.State == mariposa.StateFailed && !i.status.Finished.IsZero(): // else it may be running: it could not be updated
		return reportStopped
	case i.isDraining():
		return drain
	}
	return doStop
}

// needsManualRestart reports whether a manual restart was requested and is not done yet.
func (i *instance) needsManualRestart() bool {
	return i.desired.ManualRestarts > i.status.ManualRestarts
}

// pursue starts the next operation that brings an instance to its goal.
func (n *Node) pursue(i *instance) {
	if i.inOperation {
		n.requeue(i)
		return
	}
	if i.isRemovalUndone() {
		n.createAgain(i)
	}
	switch i.nextAction() {
	case doNothing:
		if i.status.State == mariposa.StateDestroyed {
			n.dirtyInstances[i.id] = struct{}{} // report it again: the last report may have been lost
		}
	case await: // resourceDone calls pursue again
		i.awaiting = true
		n.setState(i, mariposa.StateProvisioning, i.missingResources())
	case drain: // its timer calls pursue again, or a new assignment does
		if i.status.State != mariposa.StateDraining {
			n.setState(i, mariposa.StateDraining, "its connections end first")
		}
	case reportStopped:
		i.status.Generation = i.desired.Generation
		n.setState(i, mariposa.StateStopped, i.status.Reason)
	default:
		n.startOrQueue(i)
	}
}

// isRemovalUndone reports whether an instance was removed, or stopped for that, and must run
// again: its removal belongs to a time that the store has lost.
func (i *instance) isRemovalUndone() bool {
	removed := i.status.State == mariposa.StateDestroyed || i.status.State == mariposa.StateStopping && i.stoppedByUs
	return removed && i.desired.Goal == mariposa.GoalRunning && !i.foreign && i.workload != nil
}

// createAgain makes an instance start again under its id. It has not failed.
func (n *Node) createAgain(i *instance) {
	i.status = mariposa.InstanceStatus{Restarts: i.status.Restarts, ManualRestarts: i.status.ManualRestarts}
	n.setState(i, mariposa.StateProvisioning, "")
	n.useResources(i)
}

// operate makes the driver call that the goal needs now.
func (n *Node) operate(i *instance) {
	l := n.lane(i.compute)
	switch m := i.nextAction(); {
	case m == reportGone:
		n.post(func() { n.removeDone(i, nil) })
	case m == doNothing || m == reportStopped || m == await || m == drain: // its goal changed, or it ended, while it was queued
		n.post(func() { n.finishOperation(i) })
	case l.driver == nil:
		n.post(func() {
			n.startDone(i, driver.Observed{}, errors.New("this node does not support compute type "+string(i.compute)))
		})
	case m == doRemove:
		n.runAsync(l, i.id, i.workload, func(ctx context.Context) func() {
			err := l.driver.Remove(ctx, i.id)
			return func() { n.removeDone(i, err) }
		})
	case m == doStop:
		n.stopInstance(i, l)
	case m == doAdopt:
		n.adoptContainer(i, l)
	case m == doUpdate:
		n.callDriver(context.WithoutCancel(n.stepCtx), i, l, l.driver.Update, n.updateDone)
	default:
		n.startInstance(i, l)
	}
}

// startInstance starts an instance. The start is canceled if the instance is to stop: a
// stop never waits for a slow start to end.
func (n *Node) startInstance(i *instance, l *lane) {
	if i.awaiting {
		i.awaiting, i.status.Reason = false, ""
	}
	n.setState(i, mariposa.StateProvisioning, l.waitReason(i.status.Reason))
	i.mayExist, i.stoppedByUs, i.labels = true, false, n.labels
	i.manualRestarts, i.restartReason, i.ranUnchecked, i.ailment, i.drains = i.desired.ManualRestarts, "", false, "", nil
	n.passValuesToStart(i)
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.stepCtx))
	i.cancelStart, i.startCanceled = cancel, false
	start, members := n.startWithImage(ctx, i, l.driver), n.membersForStart(i.id)
	n.callDriver(ctx, i, l, func(ctx context.Context, in driver.Instance) (driver.Observed, error) {
		in.Members = members
		return start(ctx, in)
	}, n.startDone)
}

// operation is a start or an update.
type operation func(context.Context, driver.Instance) (driver.Observed, error)

func (n *Node) callDriver(ctx context.Context, i *instance, l *lane, op operation, then func(*instance, driver.Observed, error)) {
	i.generation, i.pendingObservation = i.desired.Generation, nil
	in := n.driverInstance(i)
	in.ManualRestarts = i.manualRestarts
	n.runAsyncWithin(ctx, l, i.id, i.workload, func(ctx context.Context) func() {
		o, err := op(ctx, in)
		return func() { then(i, o, err) }
	})
}

// driverInstance describes an instance to its driver.
func (n *Node) driverInstance(i *instance) driver.Instance {
	return driver.Instance{
		ID: i.id, Name: i.desired.Name, Project: i.desired.Project, Service: i.desired.Service, Labels: n.labels, Adopts: i.desired.Adopts, Origin: i.desired.Origin,
		Workload: i.workload, Login: i.login, Mdata: n.mdata(i), Volumes: n.volumes(i), Networks: n.networks(i),
		Search: n.Names.searchDomains(i.desired.Origin),
	}
}

// stopping is a stop in progress.
type stopping struct {
	timeout   time.Duration // negative: no limit
	cancel    func()
	shortened bool // canceled, because the timeout has become shorter
}

// stopTimeout returns how long an instance may take to stop.
func (i *instance) stopTimeout() time.Duration {
	switch {
	case i.desired.StopTimeout != nil:
		return *i.desired.StopTimeout
	case i.workload != nil:
		return i.workload.StopTimeout
	}
	return 10 * time.Second
}

// cancelObsolete cancels obsolete work in progress: a stop whose timeout has become
// shorter is retried, and the start of an instance that is to stop ends, with the pull of
// its image.
func (i *instance) cancelObsolete() {
	if i.starting && i.desired.Goal != mariposa.GoalRunning {
		i.startCanceled = true
		i.cancelStart()
	}
	s, within := i.stopping, i.stopTimeout()
	if s == nil || i.desired.Goal == mariposa.GoalRunning || within < 0 || (s.timeout >= 0 && s.timeout <= within) {
		return
	}
	s.shortened = true
	s.cancel()
}

// stopInstance stops an instance gracefully, within its stop timeout.
func (n *Node) stopInstance(i *instance, l *lane) {
	was, timeout := i.status, i.stopTimeout()
	i.generation, i.pendingObservation = i.desired.Generation, nil
	n.setState(i, mariposa.StateStopping, l.waitReason(i.restartReason))
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.stepCtx))
	if timeout >= 0 {
		ctx, cancel = context.WithTimeout(context.WithoutCancel(n.stepCtx), timeout+n.Timeout)
	}
	i.stopping = &stopping{timeout: timeout, cancel: cancel}
	n.runAsync(l, i.id, i.workload, func(context.Context) func() {
		defer cancel()
		o, err := l.driver.Stop(ctx, i.id, timeout)
		return func() { n.stopDone(i, was, o, err) }
	})
}

func (n *Node) startDone(i *instance, o driver.Observed, err error) {
	i.starting = false
	n.dirtyInstances[i.id] = struct{}{}
	if i.cancelStart != nil {
		i.cancelStart() // releases its context
	}
	if err != nil && i.startCanceled { // it did not fail; if its goal is to run again, it starts again
		n.finishOperation(i)
		return
	}
	i.status.Generation, i.status.ManualRestarts = i.generation, i.manualRestarts
	if err != nil {
		n.observe(i, mariposa.StateFailed, o)
		i.status.Reason = "could not be started: " + err.Error()
		i.status.Finished = n.Clock.Now()
	} else {
		n.noteRunning(i, o)
	}
	n.finishOperation(i)
}

// noteRunning records that an operation left an instance running, with what the driver
// has reported of this run meanwhile. The driver reports every change, so its last
// report is the newest.
func (n *Node) noteRunning(i *instance, o driver.Observed) {
	if i.pendingObservation != nil && o.Running && !i.pendingObservation.Started.Before(o.Started) { // not of the previous run
		o = *i.pendingObservation
	}
	n.observe(i, mariposa.StateRunning, o)
	if !o.Running { // it ended by itself: no other event will follow
		n.handleEnd(i, o)
	}
}

func (n *Node) updateDone(i *instance, o driver.Observed, err error) {
	i.status.Generation = i.generation
	switch {
	case err != nil:
		n.observe(i, mariposa.StateFailed, o)
		i.status.Reason = "could not be updated in place: " + err.Error()
	case i.status.State == mariposa.StateRunning:
		n.noteRunning(i, o)
	}
	n.finishOperation(i)
}

// stopDone records the result of a stop. An instance whose goal is gone is removed next,
// by force if necessary. One that is to be kept and did not stop keeps its former state,
// and the stop is retried.
func (n *Node) stopDone(i *instance, was mariposa.InstanceStatus, o driver.Observed, err error) {
	hurried := i.stopping.shortened
	i.stopping = nil
	switch {
	case err != nil && hurried:
		n.setState(i, was.State, was.Reason)
	case i.desired.Goal == mariposa.GoalGone || i.toQuarantine:
		i.stoppedByUs = true
		if err == nil {
			i.status.ExitCode, i.status.Finished = o.ExitCode, o.Finished
		}
	case err != nil:
		n.setState(i, was.State, "cannot be stopped yet: "+err.Error())
		n.Clock.After(retryDelay, func() { n.post(func() { n.finishOperation(i) }) })
		return
	default:
		n.observe(i, mariposa.StateStopped, o)
		if o.Finished.IsZero() { // the driver has no record of it
			i.status.Finished = n.Clock.Now()
		}
		switch {
		case i.desired.Goal == mariposa.GoalHalted:
			if was.Health == mariposa.HealthUnhealthy { // the agent was restarted, perhaps
				i.ailment = cmp.Or(i.ailment, was.Reason)
			}
			if i.ailment != "" {
				i.status.Reason = strings.TrimSuffix("was not healthy: "+i.ailment+"; "+i.status.Reason, "; ")
			}
			i.status.Generation = max(i.status.Generation, i.generation)
		case i.nextAction() == doStart, i.nextAction() == await: // it may have to wait in the queue, and must not look dead meanwhile
			n.setState(i, mariposa.StateProvisioning, i.restartReason)
		}
	}
	n.finishOperation(i)
}

func (n *Node) removeDone(i *instance, err error) {
	if err != nil {
		n.setState(i, i.status.State, "cannot be removed yet: "+err.Error())
		n.Clock.After(retryDelay, func() { n.post(func() { n.finishOperation(i) }) })
		return
	}
	i.mayExist = false
	n.valuesServer.remove(i.id)
	n.releaseResources(i)
	if i.tombstone {
		delete(n.instances, i.id)
		n.inventory = true
	}
	n.setState(i, mariposa.StateDestroyed, "")
	n.finishOperation(i)
}

// forgetIfDone removes a destroyed instance once that is reported. If the report is lost,
// the control plane asks again and gets the same answer.
func (n *Node) forgetIfDone(i *instance) {
	if i.status.State == mariposa.StateDestroyed && !i.inOperation {
		n.releaseResources(i)
		n.checker.Forget(i.id)
		delete(n.instances, i.id)
		delete(n.members, i.id)
	}
}
