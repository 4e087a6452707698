package agent

import (
	"context"
	"errors"
	"time"

	"mariposa"
	"mariposa/driver"
)

// move is the next thing to do about an instance.
type move int

const (
	rest   move = iota
	start       // make it run
	change      // change it in place
	stop        // end it, and keep what is left
	lie         // say that it is stopped: there is nothing to end
	remove      // take it away
	vanish      // say that it is gone: there is nothing to take away
	await       // it cannot start before its volumes are there
)

// tryAgain is how long to wait after a stop or a removal that failed.
const tryAgain = 5 * time.Second

// next says what brings an instance closer to its goal. It is asked again
// whenever anything has changed, so nothing remembers a half-made way.
func (i *instance) next() move {
	state := i.status.State
	switch {
	case i.want.Goal == mariposa.GoalGone:
		return i.nextToGo()
	case i.alien:
		return rest
	case i.want.Goal == mariposa.GoalHalted:
		return i.nextToStop()
	case i.want.Goal != mariposa.GoalRunning || i.workload == nil: // its definition is lost: leave it as it is
		return rest
	case state == "" || state == mariposa.StateProvisioning || state == mariposa.StateStopped:
		return i.startOrAwait()
	case i.owesBounce() && i.made:
		return stop // and stopped, it is started
	case i.owesBounce():
		return i.startOrAwait()
	case state == mariposa.StateRunning && i.want.Generation > i.status.Generation:
		return change
	}
	return rest
}

func (i *instance) startOrAwait() move {
	if i.lacks() != "" {
		return await
	}
	return start
}

func (i *instance) nextToGo() move {
	switch {
	case i.status.State == mariposa.StateDestroyed:
		return rest
	case !i.made:
		return vanish
	case i.status.State == mariposa.StateRunning && !i.halted:
		return stop
	}
	return remove
}

func (i *instance) nextToStop() move {
	switch {
	case i.status.State == mariposa.StateStopped && i.status.Generation >= i.want.Generation:
		return rest
	case i.status.State == mariposa.StateStopped || !i.made:
		return lie
	case i.status.State == mariposa.StateFailed && !i.status.Finished.IsZero(): // else it may run: it could not be changed
		return lie
	}
	return stop
}

// owesBounce reports whether a person has asked for a restart that was not made.
func (i *instance) owesBounce() bool { return i.want.Bounces > i.status.Bounces }

// pursue starts the next operation that brings an instance to its goal.
func (n *Node) pursue(i *instance) {
	if i.op {
		return
	}
	switch i.next() {
	case rest:
		if i.status.State == mariposa.StateDestroyed {
			n.dirty[i.id] = struct{}{} // say it again: the last word may have been lost
		}
	case await: // whatever it lacks wakes it
		i.awaiting = true
		n.setState(i, mariposa.StateProvisioning, i.lacks())
	case lie:
		i.status.Generation = i.want.Generation
		n.setState(i, mariposa.StateStopped, i.status.Reason)
	default:
		n.begin(i)
	}
}

// operate calls the driver for what the goal needs now.
func (n *Node) operate(i *instance) {
	l := n.lane(i.compute)
	switch m := i.next(); {
	case m == vanish:
		n.post(func() { n.removed(i, nil) })
	case m == rest || m == lie || m == await: // its goal has changed, or it has ended, while it waited for its turn
		n.post(func() { n.done(i) })
	case l.driver == nil:
		n.post(func() { n.started(i, driver.Observed{}, errors.New("this node cannot run "+string(i.compute))) })
	case m == remove:
		n.beside(l, i.id, i.workload, func(ctx context.Context) func() {
			err := l.driver.Remove(ctx, i.id)
			return func() { n.removed(i, err) }
		})
	case m == stop:
		n.halt(i, l)
	case m == change:
		n.call(i, l, l.driver.Update, n.updated)
	default:
		if i.awaiting {
			i.awaiting, i.status.Reason = false, ""
		}
		n.setState(i, mariposa.StateProvisioning, i.status.Reason)
		i.made, i.halted, i.labels = true, false, n.labels
		i.bounces = i.want.Bounces
		n.showValues(i)
		n.call(i, l, n.startFrom(i, l.driver), n.started)
	}
}

// operation is a start or an update.
type operation func(context.Context, driver.Instance) (driver.Observed, error)

func (n *Node) call(i *instance, l *lane, op operation, then func(*instance, driver.Observed, error)) {
	i.generation, i.news = i.want.Generation, nil
	in := n.describe(i)
	in.Bounces = i.bounces
	n.beside(l, i.id, i.workload, func(ctx context.Context) func() {
		o, err := op(ctx, in)
		return func() { then(i, o, err) }
	})
}

// describe is what a driver needs to know of an instance.
func (n *Node) describe(i *instance) driver.Instance {
	return driver.Instance{
		ID: i.id, Name: i.want.Name, Project: i.want.Project, Service: i.want.Service, Labels: n.labels,
		Workload: i.workload, Mdata: n.mdata(i), Volumes: n.volumes(i), Networks: n.networks(i),
	}
}

// stopping is a stop under way.
type stopping struct {
	within  time.Duration // negative: however long it takes
	giveUp  func()
	hurried bool // it was given up, as there is less time by now
}

// mayTake is how long an instance may take to stop.
func (i *instance) mayTake() time.Duration {
	switch {
	case i.want.Within != nil:
		return *i.want.Within
	case i.workload != nil:
		return i.workload.StopTimeout
	}
	return 10 * time.Second
}

// hasten gives up what is under way and obsolete: a stop that has less time by now
// is tried anew, and an image that nobody needs is not fetched.
func (i *instance) hasten() {
	if i.starting && i.fetching != nil && i.want.Goal != mariposa.GoalRunning {
		i.fetching()
	}
	s, within := i.stopping, i.mayTake()
	if s == nil || i.want.Goal == mariposa.GoalRunning || within < 0 || (s.within >= 0 && s.within <= within) {
		return
	}
	s.hurried = true
	s.giveUp()
}

// halt ends an instance gently, within its own stop timeout.
func (n *Node) halt(i *instance, l *lane) {
	was, timeout := i.status, i.mayTake()
	i.generation, i.news = i.want.Generation, nil
	n.setState(i, mariposa.StateStopping, "")
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.stepCtx))
	if timeout >= 0 {
		ctx, cancel = context.WithTimeout(context.WithoutCancel(n.stepCtx), timeout+n.Timeout)
	}
	i.stopping = &stopping{within: timeout, giveUp: cancel}
	n.beside(l, i.id, i.workload, func(context.Context) func() {
		defer cancel()
		o, err := l.driver.Stop(ctx, i.id, timeout)
		return func() { n.stopped(i, was, o, err) }
	})
}

func (n *Node) started(i *instance, o driver.Observed, err error) {
	i.status.Generation, i.status.Bounces, i.starting, i.fetching = i.generation, i.bounces, false, nil
	if err != nil {
		n.observe(i, mariposa.StateFailed, o)
		i.status.Reason = "could not be started: " + err.Error()
		i.status.Finished = n.Clock.Now()
	} else {
		n.runs(i, o)
	}
	n.done(i)
}

// runs notes that an operation left an instance running, and what its driver told
// of this run meanwhile. Every change is told, so the last word is the newest.
func (n *Node) runs(i *instance, o driver.Observed) {
	if i.news != nil && o.Running && !i.news.Started.Before(o.Started) { // not of the run before
		o = *i.news
	}
	n.observe(i, mariposa.StateRunning, o)
	if !o.Running { // by itself, so nobody else will tell
		n.ended(i, o)
	}
}

func (n *Node) updated(i *instance, o driver.Observed, err error) {
	i.status.Generation = i.generation
	switch {
	case err != nil:
		n.observe(i, mariposa.StateFailed, o)
		i.status.Reason = "could not be changed in place: " + err.Error()
	case i.status.State == mariposa.StateRunning:
		n.runs(i, o)
	}
	n.done(i)
}

// stopped takes note of a stop. What is to go is removed next, by force if need
// be; what is to stay is kept as it was, and tried again, when it did not stop.
func (n *Node) stopped(i *instance, was mariposa.InstanceStatus, o driver.Observed, err error) {
	hurried := i.stopping.hurried
	i.stopping = nil
	switch {
	case err != nil && hurried:
		n.setState(i, was.State, was.Reason)
	case i.want.Goal == mariposa.GoalGone || i.aside:
		i.halted = true
		if err == nil {
			i.status.ExitCode, i.status.Finished = o.ExitCode, o.Finished
		}
	case err != nil:
		n.setState(i, was.State, "cannot be stopped yet: "+err.Error())
		n.Clock.After(tryAgain, func() { n.post(func() { n.done(i) }) })
		return
	default:
		n.observe(i, mariposa.StateStopped, o)
		if o.Finished.IsZero() { // the driver has nothing left of it
			i.status.Finished = n.Clock.Now()
		}
		switch {
		case i.want.Goal == mariposa.GoalHalted:
			i.status.Generation = max(i.status.Generation, i.generation)
		case i.next() == start, i.next() == await: // it may have to wait for its turn, and must not be taken for dead
			n.setState(i, mariposa.StateProvisioning, "")
		}
	}
	n.done(i)
}

func (n *Node) removed(i *instance, err error) {
	if err != nil {
		n.setState(i, i.status.State, "cannot be removed yet: "+err.Error())
		n.Clock.After(tryAgain, func() { n.post(func() { n.done(i) }) })
		return
	}
	i.made = false
	n.board.drop(i.id)
	n.unuse(i)
	if i.tombstone {
		delete(n.instances, i.id)
		n.inventory = true
	}
	n.setState(i, mariposa.StateDestroyed, "")
	n.done(i)
}

// forgetIfDone lets go of what is destroyed once that was reported; should the
// report be lost, the control plane will ask again and get the same answer.
func (n *Node) forgetIfDone(i *instance) {
	if i.status.State == mariposa.StateDestroyed && !i.op {
		n.unuse(i)
		delete(n.instances, i.id)
	}
}
