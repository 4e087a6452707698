package agent

import (
	"context"
	"errors"
	"time"

	"mariposa"
	"mariposa/driver"
)

// action is the next thing to do about an instance.
type action int

const (
	doNothing      action = iota
	doStart               // make it run
	doUpdate              // change it in place
	doStop                // end it, and keep what is left
	reportStopped         // say that it is stopped: there is nothing to end
	doRemove              // take it away
	reportGone            // say that it is gone: there is nothing to take away
	awaitResources        // it cannot start before its volumes are there
)

// retryDelay is how long to wait after a stop or a removal that failed.
const retryDelay = 5 * time.Second

// nextAction says what brings an instance closer to its goal. It is asked again
// whenever anything has changed, so nothing remembers a half-made way.
func (i *instance) nextAction() action {
	state := i.status.State
	switch {
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
	case i.owesRestart() && i.mayExist:
		return doStop // and stopped, it is started
	case i.owesRestart():
		return i.startOrAwait()
	case state == mariposa.StateRunning && i.desired.Generation > i.status.Generation:
		return doUpdate
	}
	return doNothing
}

func (i *instance) startOrAwait() action {
	if i.missingResources() != "" {
		return awaitResources
	}
	return doStart
}

func (i *instance) nextToRemove() action {
	switch {
	case i.status.State == mariposa.StateDestroyed:
		return doNothing
	case !i.mayExist:
		return reportGone
	case i.status.State == mariposa.StateRunning && !i.stoppedByUs:
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
	case i.status.State == mariposa.StateFailed && !i.status.Finished.IsZero(): // else it may run: it could not be changed
		return reportStopped
	}
	return doStop
}

// owesRestart reports whether a person has asked for a restart that was not made.
func (i *instance) owesRestart() bool { return i.desired.ManualRestarts > i.status.ManualRestarts }

// pursue starts the next operation that brings an instance to its goal.
func (n *Node) pursue(i *instance) {
	if i.inOperation {
		return
	}
	switch i.nextAction() {
	case doNothing:
		if i.status.State == mariposa.StateDestroyed {
			n.dirtyInstances[i.id] = struct{}{} // say it again: the last word may have been lost
		}
	case awaitResources: // whatever it lacks wakes it
		i.awaiting = true
		n.setState(i, mariposa.StateProvisioning, i.missingResources())
	case reportStopped:
		i.status.Generation = i.desired.Generation
		n.setState(i, mariposa.StateStopped, i.status.Reason)
	default:
		n.startOrQueue(i)
	}
}

// operate calls the driver for what the goal needs now.
func (n *Node) operate(i *instance) {
	l := n.lane(i.compute)
	switch m := i.nextAction(); {
	case m == reportGone:
		n.post(func() { n.removeDone(i, nil) })
	case m == doNothing || m == reportStopped || m == awaitResources: // its goal has changed, or it has ended, while it waited for its turn
		n.post(func() { n.finishOperation(i) })
	case l.driver == nil:
		n.post(func() { n.startDone(i, driver.Observed{}, errors.New("this node cannot run "+string(i.compute))) })
	case m == doRemove:
		n.runAsync(l, i.id, i.workload, func(ctx context.Context) func() {
			err := l.driver.Remove(ctx, i.id)
			return func() { n.removeDone(i, err) }
		})
	case m == doStop:
		n.stopInstance(i, l)
	case m == doUpdate:
		n.callDriver(i, l, l.driver.Update, n.updateDone)
	default:
		if i.awaiting {
			i.awaiting, i.status.Reason = false, ""
		}
		n.setState(i, mariposa.StateProvisioning, i.status.Reason)
		i.mayExist, i.stoppedByUs, i.labels = true, false, n.labels
		i.manualRestarts = i.desired.ManualRestarts
		n.passValuesToStart(i)
		n.callDriver(i, l, n.startWithImage(i, l.driver), n.startDone)
	}
}

// operation is a start or an update.
type operation func(context.Context, driver.Instance) (driver.Observed, error)

func (n *Node) callDriver(i *instance, l *lane, op operation, then func(*instance, driver.Observed, error)) {
	i.generation, i.pendingObservation = i.desired.Generation, nil
	in := n.driverInstance(i)
	in.ManualRestarts = i.manualRestarts
	n.runAsync(l, i.id, i.workload, func(ctx context.Context) func() {
		o, err := op(ctx, in)
		return func() { then(i, o, err) }
	})
}

// driverInstance is what a driver needs to know of an instance.
func (n *Node) driverInstance(i *instance) driver.Instance {
	return driver.Instance{
		ID: i.id, Name: i.desired.Name, Project: i.desired.Project, Service: i.desired.Service, Labels: n.labels,
		Workload: i.workload, Mdata: n.mdata(i), Volumes: n.volumes(i), Networks: n.networks(i),
	}
}

// stopping is a stop under way.
type stopping struct {
	timeout   time.Duration // negative: however long it takes
	cancel    func()
	shortened bool // it was given up, as there is less time by now
}

// stopTimeout is how long an instance may take to stop.
func (i *instance) stopTimeout() time.Duration {
	switch {
	case i.desired.StopTimeout != nil:
		return *i.desired.StopTimeout
	case i.workload != nil:
		return i.workload.StopTimeout
	}
	return 10 * time.Second
}

// cancelObsolete gives up what is under way and obsolete: a stop that has less time by now
// is tried anew, and an image that nobody needs is not fetched.
func (i *instance) cancelObsolete() {
	if i.starting && i.cancelFetch != nil && i.desired.Goal != mariposa.GoalRunning {
		i.cancelFetch()
	}
	s, within := i.stopping, i.stopTimeout()
	if s == nil || i.desired.Goal == mariposa.GoalRunning || within < 0 || (s.timeout >= 0 && s.timeout <= within) {
		return
	}
	s.shortened = true
	s.cancel()
}

// stopInstance ends an instance gently, within its own stop timeout.
func (n *Node) stopInstance(i *instance, l *lane) {
	was, timeout := i.status, i.stopTimeout()
	i.generation, i.pendingObservation = i.desired.Generation, nil
	n.setState(i, mariposa.StateStopping, "")
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
	i.status.Generation, i.status.ManualRestarts, i.starting, i.cancelFetch = i.generation, i.manualRestarts, false, nil
	if err != nil {
		n.observe(i, mariposa.StateFailed, o)
		i.status.Reason = "could not be started: " + err.Error()
		i.status.Finished = n.Clock.Now()
	} else {
		n.noteRunning(i, o)
	}
	n.finishOperation(i)
}

// noteRunning notes that an operation left an instance running, and what its driver told
// of this run meanwhile. Every change is told, so the last word is the newest.
func (n *Node) noteRunning(i *instance, o driver.Observed) {
	if i.pendingObservation != nil && o.Running && !i.pendingObservation.Started.Before(o.Started) { // not of the run before
		o = *i.pendingObservation
	}
	n.observe(i, mariposa.StateRunning, o)
	if !o.Running { // by itself, so nobody else will tell
		n.handleEnd(i, o)
	}
}

func (n *Node) updateDone(i *instance, o driver.Observed, err error) {
	i.status.Generation = i.generation
	switch {
	case err != nil:
		n.observe(i, mariposa.StateFailed, o)
		i.status.Reason = "could not be changed in place: " + err.Error()
	case i.status.State == mariposa.StateRunning:
		n.noteRunning(i, o)
	}
	n.finishOperation(i)
}

// stopDone takes note of a stop. What is to go is removed next, by force if need
// be; what is to stay is kept as it was, and tried again, when it did not stop.
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
		if o.Finished.IsZero() { // the driver has nothing left of it
			i.status.Finished = n.Clock.Now()
		}
		switch {
		case i.desired.Goal == mariposa.GoalHalted:
			i.status.Generation = max(i.status.Generation, i.generation)
		case i.nextAction() == doStart, i.nextAction() == awaitResources: // it may have to wait for its turn, and must not be taken for dead
			n.setState(i, mariposa.StateProvisioning, "")
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

// forgetIfDone lets go of what is destroyed once that was reported; should the
// report be lost, the control plane will ask again and get the same answer.
func (n *Node) forgetIfDone(i *instance) {
	if i.status.State == mariposa.StateDestroyed && !i.inOperation {
		n.releaseResources(i)
		delete(n.instances, i.id)
	}
}
