package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// instance is one assigned instance: what is wanted, what is so, and the one
// operation under way, if any.
type instance struct {
	id         string
	want       wire.Assignment
	workload   *mariposa.Workload
	compute    mariposa.ComputeType
	status     mariposa.InstanceStatus
	op         bool // an operation is under way or waiting for its turn
	tombstone  bool // named by a tombstone alone
	aside      bool // unknown to the control plane; goes into quarantine when its operation has ended
	halted     bool // stopped by us, so that it can be removed
	made       bool // the driver may know it
	restarts   []time.Time
	generation int64            // the generation the operation under way makes true
	labels     driver.Labels    // whose it was made as
	end        *driver.Observed // how it ended while an operation was under way
}

const (
	// restartsAllowed within restartWindow; after that the control plane decides.
	restartsAllowed = 3
	restartWindow   = 10 * time.Minute
)

// assign takes a new goal for an instance. An older generation than the one
// known is old news.
func (n *Node) assign(it *wire.Assignment, w *mariposa.Workload) {
	var ended *driver.Observed
	i := n.instances[it.ID]
	if i == nil {
		i, ended = n.meet(it)
	} else if it.Generation < i.want.Generation {
		return
	}
	i.want, i.aside = *it, false
	i.want.Project, i.want.Service = n.one(it.Project), n.one(it.Service)
	i.want.Workload, i.want.Status = "", nil // they have been taken out of the frame
	if w != nil {
		i.workload, i.compute = w, w.Compute
		i.status.Details = withTags(i.status.Details, w)
	}
	if ended != nil {
		n.ended(i, *ended)
	}
	n.pursue(i)
}

// one is the same text, kept once for all instances that share it.
func (n *Node) one(text string) string {
	kept, ok := n.texts[text]
	if !ok {
		kept = strings.Clone(text)
		n.texts[kept] = kept
	}
	return kept
}

// meet makes the node's record of an instance that it hears of for the first
// time since it started: what the drivers found and what the control plane knew
// together say what is so. What ended while nobody looked is handed back.
func (n *Node) meet(it *wire.Assignment) (*instance, *driver.Observed) {
	i := &instance{id: it.ID, tombstone: it.Goal == mariposa.GoalGone && it.Name == ""}
	n.instances[it.ID] = i
	n.dirty[it.ID] = struct{}{}
	if it.Status != nil {
		i.status = *it.Status
	}
	judged := i.status.State == mariposa.StateFailed || i.status.State == mariposa.StateStopped
	known, here := n.found[it.ID]
	switch {
	case here && n.foreign(known): // what is another cluster's is never touched
		i.status.State, i.status.Finished = mariposa.StateFailed, n.Clock.Now()
		i.status.Reason = "another cluster has an instance of this id on the node"
	case here:
		delete(n.found, it.ID)
		n.inventory = true
		i.compute, i.made, i.labels = known.compute, true, known.seen.Labels
		i.status.Generation = max(i.status.Generation, 1)
		if judged {
			return i, nil
		}
		if !known.seen.Running && known.seen.Started.IsZero() { // the agent went away in the middle of its start
			i.status.State = mariposa.StateProvisioning
			return i, nil
		}
		n.observe(i, mariposa.StateRunning, known.seen)
		if !known.seen.Running {
			return i, &known.seen
		}
	case i.status.State == mariposa.StateRunning || i.status.State == mariposa.StateStopping:
		i.status.State, i.status.Finished = mariposa.StateFailed, n.Clock.Now()
		i.status.Reason = "was gone from its node when the agent came back"
	}
	return i, nil
}

// observe brings an instance's status up to what a driver saw.
func (n *Node) observe(i *instance, state mariposa.State, o driver.Observed) {
	st := &i.status
	st.State, st.Reason = state, ""
	if o.PhysicalID != "" {
		st.PhysicalID = o.PhysicalID
	}
	st.Addresses, st.Details = o.Addresses, withTags(o.Details, i.workload)
	st.Started, st.Finished, st.ExitCode = o.Started, o.Finished, o.ExitCode
	if state != mariposa.StateRunning {
		st.Reason = o.Reason
	}
	n.dirty[i.id] = struct{}{}
}

// withTags adds an instance's tags to what the driver tells of it.
func withTags(details map[string]string, w *mariposa.Workload) map[string]string {
	if w == nil || len(w.Tags) == 0 {
		return details
	}
	out := maps.Clone(details)
	if out == nil {
		out = map[string]string{}
	}
	for _, t := range w.Tags {
		out["tag."+t.Name] = t.Value
	}
	return out
}

func (n *Node) setState(i *instance, state mariposa.State, reason string) {
	i.status.State, i.status.Reason = state, reason
	n.dirty[i.id] = struct{}{}
}

// pursue starts the next operation that brings an instance to its goal.
func (n *Node) pursue(i *instance) {
	if i.op {
		return
	}
	state := i.status.State
	switch {
	case i.want.Goal == mariposa.GoalGone && state != mariposa.StateDestroyed:
		n.begin(i)
	case i.want.Goal == mariposa.GoalGone:
		n.dirty[i.id] = struct{}{} // say it again: the last word may have been lost
	case i.workload == nil: // its definition is lost: leave it as it is
	case state == "" || state == mariposa.StateProvisioning:
		n.begin(i)
	case state == mariposa.StateRunning && i.want.Generation > i.status.Generation:
		n.begin(i)
	}
}

// begin starts an operation, or puts it in line when its kind has enough to do.
func (n *Node) begin(i *instance) {
	i.op = true
	if n.busy[i.compute] >= n.Slots && i.compute != mariposa.ComputeDummy {
		n.waiting[i.compute] = append(n.waiting[i.compute], i)
		return
	}
	n.operate(i)
}

// done ends an operation, lets the next in line begin and looks at the goal again.
func (n *Node) done(i *instance) {
	i.op = false
	n.busy[i.compute]--
	if line := n.waiting[i.compute]; len(line) > 0 {
		n.waiting[i.compute] = line[1:]
		n.operate(line[0])
	}
	if i.aside {
		n.setAside(i)
		return
	}
	n.pursue(i)
}

// operate calls the driver for what the goal needs now.
func (n *Node) operate(i *instance) {
	n.busy[i.compute]++
	d := n.drivers[i.compute]
	switch {
	case i.want.Goal == mariposa.GoalGone && (d == nil || !i.made):
		n.post(func() { n.removed(i, nil) })
	case i.want.Goal == mariposa.GoalGone && i.status.State == mariposa.StateRunning && !i.halted:
		n.setState(i, mariposa.StateStopping, "")
		n.halt(i, d)
	case i.want.Goal == mariposa.GoalGone:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(n.stepCtx), n.Timeout)
		d.Remove(ctx, i.id, func(err error) { cancel(); n.post(func() { n.removed(i, err) }) })
	case i.status.State == mariposa.StateFailed: // it ended while it waited for its turn
		n.post(func() { n.done(i) })
	case d == nil:
		n.post(func() { n.started(i, driver.Observed{}, errors.New("this node cannot run "+string(i.compute))) })
	case i.status.State == mariposa.StateRunning:
		n.call(i, d.Update, n.updated)
	default:
		n.setState(i, mariposa.StateProvisioning, i.status.Reason)
		i.made, i.labels = true, n.labels
		n.call(i, d.Start, n.started)
	}
}

func (n *Node) call(i *instance, op func(context.Context, driver.Instance, func(driver.Observed, error)), then func(*instance, driver.Observed, error)) {
	i.generation, i.end = i.want.Generation, nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.stepCtx), n.Timeout)
	op(ctx, driver.Instance{
		ID: i.id, Name: i.want.Name, Project: i.want.Project, Service: i.want.Service, Labels: n.labels, Workload: i.workload,
	}, func(o driver.Observed, err error) {
		cancel()
		n.post(func() { then(i, o, err) })
	})
}

func (n *Node) halt(i *instance, d driver.Driver) {
	timeout := 10 * time.Second
	if i.workload != nil {
		timeout = i.workload.StopTimeout
	}
	ctx, cancel := context.WithoutCancel(n.stepCtx), func() {}
	if timeout >= 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout+n.Timeout)
	}
	d.Stop(ctx, i.id, timeout, func(o driver.Observed, err error) {
		cancel()
		n.post(func() { n.stopped(i, o, err) })
	})
}

func (n *Node) started(i *instance, o driver.Observed, err error) {
	i.status.Generation = i.generation
	if err != nil {
		n.observe(i, mariposa.StateFailed, o)
		i.status.Reason = "could not be started: " + err.Error()
		i.status.Finished = n.Clock.Now()
	} else {
		n.runs(i, o)
	}
	n.done(i)
}

// runs notes that an operation left an instance running, unless it has ended
// meanwhile: by itself, so nobody else will tell.
func (n *Node) runs(i *instance, o driver.Observed) {
	n.observe(i, mariposa.StateRunning, o)
	switch {
	case !o.Running:
		n.ended(i, o)
	case i.end != nil && !i.end.Started.Before(o.Started): // of this run, not of the one before
		n.ended(i, *i.end)
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

func (n *Node) stopped(i *instance, o driver.Observed, err error) {
	i.halted = true
	if err == nil {
		i.status.ExitCode, i.status.Finished = o.ExitCode, o.Finished
	}
	n.done(i) // removal by force is next, whatever happened
}

func (n *Node) removed(i *instance, err error) {
	if err != nil {
		n.setState(i, i.status.State, "cannot be removed yet: "+err.Error())
		n.Clock.After(5*time.Second, func() { n.post(func() { n.done(i) }) })
		return
	}
	i.made = false
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
		delete(n.instances, i.id)
	}
}

// hearEnded is told by a driver that an instance ended by itself.
func (n *Node) hearEnded(kind mariposa.ComputeType, o driver.Observed) {
	i := n.instances[o.ID]
	if i == nil {
		if f, ok := n.found[o.ID]; ok {
			n.found[o.ID] = found{f.compute, o}
			n.inventory = true
		}
		return
	}
	if i.op && !slices.Contains(n.waiting[i.compute], i) {
		i.end = &o // we are stopping it, or the operation under way counts this in
		return
	}
	if i.status.State != mariposa.StateRunning {
		return
	}
	n.ended(i, o)
	n.pursue(i)
}

// ended decides what to do about an instance that ended by itself: start it
// again in place as its restart policy says, or call it failed.
func (n *Node) ended(i *instance, o driver.Observed) {
	n.observe(i, mariposa.StateFailed, o)
	if i.want.Goal != mariposa.GoalRunning || i.workload == nil || !n.mayRestart(i, o) {
		return
	}
	i.restarts = append(i.restarts, n.Clock.Now())
	i.status.Restarts++
	i.status.State = mariposa.StateProvisioning
}

func (n *Node) mayRestart(i *instance, o driver.Observed) bool {
	r := i.workload.Restart
	clean := o.ExitCode != nil && *o.ExitCode == 0
	switch {
	case r.Policy == mariposa.RestartNo || r.Policy == "":
		return false
	case r.Policy == mariposa.RestartOnFailure && clean:
		return false
	case r.Policy == mariposa.RestartOnFailure && r.Max > 0 && i.status.Restarts >= r.Max:
		i.status.Reason += " and was restarted as often as its policy allows"
		return false
	}
	now := n.Clock.Now()
	i.restarts = slices.DeleteFunc(i.restarts, func(at time.Time) bool { return now.Sub(at) >= restartWindow })
	if len(i.restarts) >= restartsAllowed {
		i.status.Reason += " after 3 restarts in 10 minutes"
		return false
	}
	return true
}

// setAside puts an instance that the control plane does not know into
// quarantine: it is left as it is. An operation under way ends first, and
// nothing follows it; one that waits for its turn never begins.
func (n *Node) setAside(i *instance) {
	line := n.waiting[i.compute]
	if at := slices.Index(line, i); at >= 0 {
		n.waiting[i.compute] = slices.Delete(line, at, at+1)
		i.op = false
	}
	if i.op {
		i.aside, i.want = true, wire.Assignment{}
		return
	}
	delete(n.instances, i.id)
	delete(n.dirty, i.id)
	if st := &i.status; i.made {
		n.found[i.id] = found{i.compute, driver.Observed{
			ID: i.id, Labels: i.labels, Name: i.want.Name, Project: i.want.Project, Running: st.State == mariposa.StateRunning, PhysicalID: st.PhysicalID, Addresses: st.Addresses,
			Started: st.Started, Finished: st.Finished, ExitCode: st.ExitCode, Reason: st.Reason, Details: maps.Clone(st.Details),
		}}
	}
	n.inventory = true
}
