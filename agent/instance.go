package agent

import (
	"maps"
	"slices"
	"strings"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// instance is one assigned instance: its desired state, its actual state, and the
// operation in progress, if any.
type instance struct {
	id                 string
	desired            wire.Assignment
	workload           *mariposa.Workload
	login              *mariposa.Login // to the registry of its image; nil if it has none
	compute            mariposa.ComputeType
	status             mariposa.InstanceStatus
	inOperation        bool   // an operation is in progress or queued
	slots              *slots // of its operation, or the one it waits for
	tombstone          bool   // known only from a tombstone
	toQuarantine       bool   // unknown to the control plane; quarantined once its operation ends
	foreign            bool   // belongs to another cluster: never touched
	stoppedByUs        bool   // we stopped it, so it can be removed
	mayExist           bool   // the driver may have it
	recountRestarts    bool   // another store counts manual restarts from its own start
	waitsForList       string // why it is not known whether its driver has it; empty if it is known
	awaiting           bool   // its reason names a resource that it waits for
	restarts           []time.Time
	generation         int64            // the generation that the operation in progress applies
	manualRestarts     int              // the manual restarts that the start in progress covers
	labels             driver.Labels    // the labels it was created with
	pendingObservation *driver.Observed // the driver's last report during an operation
	cancelStart        func()           // cancels the start in progress
	startCanceled      bool             // the start in progress is canceled, because its goal changed
	stopping           *stopping        // the stop in progress
	resources          []*resource      // it needs these; they are not removed while it does
	checks             *wire.Checks     // its health checks; nil: it has none
	checksDigest       string           // of its checks
	watched            watched          // what the checker knows of it
	ranUnchecked       bool             // it has served without checks in this run
	hasServed          bool             // it was healthy before it was restarted because of its health
	hadPassed          passedChecks     // the checks that had passed by then
	isRecovering       bool             // it was restarted because of its health, and has not been healthy since
	ailment            string           // why its checks failed last; empty once it is healthy, or in another run
	restartReason      string           // why it is restarted in place although it runs; empty if it is not
	drains             *draining        // how long it may wait for its connections to end before it stops; nil: it does not wait
	values
}

// isUp says whether something of the instance runs, also while it stops.
func (i *instance) isUp() bool {
	switch i.status.State {
	case mariposa.StateRunning, mariposa.StateDraining, mariposa.StateStopping:
		return i.mayExist
	default:
		return false
	}
}

const (
	// maxRestarts limits restarts within restartWindow; beyond it the control plane
	// decides.
	maxRestarts   = 3
	restartWindow = 10 * time.Minute
)

// assign sets a new goal for an instance. A generation older than the known one is
// ignored.
func (n *Node) assign(it *wire.Assignment, w *mariposa.Workload, login *mariposa.Login) {
	var ended *driver.Observed
	i := n.instances[it.ID]
	if i == nil {
		i, ended = n.addInstance(it, w)
	} else if it.Generation < i.desired.Generation {
		return
	}
	if i.recountRestarts {
		done := manualRestartsOf(it.Status)
		i.recountRestarts, i.status.ManualRestarts, i.manualRestarts = false, done, done
	}
	i.desired, i.toQuarantine = *it, false
	i.desired.Project, i.desired.Service = n.intern(it.Project), n.intern(it.Service)
	i.desired.Workload, i.desired.Status = "", nil // they are kept elsewhere
	if w != nil {
		i.workload, i.compute, i.login = w, w.Compute, login
		i.status.Details = withTags(i.status.Details, w)
	}
	n.useResources(i)
	if ended != nil {
		n.handleEnd(i, *ended)
	}
	n.publishValues(i)
	n.noteDrain(i)
	i.cancelObsolete()
	n.pursue(i)
}

// manualRestartsOf returns how many manual restarts the store has recorded as done.
func manualRestartsOf(st *mariposa.InstanceStatus) int {
	if st == nil {
		return 0
	}
	return st.ManualRestarts
}

// intern returns the same text, stored once for all instances that share it.
func (n *Node) intern(text string) string {
	kept, ok := n.interned[text]
	if !ok {
		kept = strings.Clone(text)
		n.interned[kept] = kept
	}
	return kept
}

// addInstance records an instance that is assigned for the first time since the agent
// started. Its state follows from what the drivers found and what the control plane
// knew. If it ended while no agent ran, that end is returned.
func (n *Node) addInstance(it *wire.Assignment, w *mariposa.Workload) (*instance, *driver.Observed) {
	i := &instance{id: it.ID, tombstone: it.Goal == mariposa.GoalGone && it.Name == ""}
	n.instances[it.ID] = i
	n.dirtyInstances[it.ID] = struct{}{}
	if it.Status != nil {
		i.status = *it.Status
		i.ranUnchecked = i.status.State == mariposa.StateRunning && i.status.Health == ""
	}
	if w != nil {
		i.compute = w.Compute
	} else if d := n.adopter(); d != nil && it.Adopts != "" {
		i.compute = d.Compute()
	}
	i.desired.Goal = it.Goal
	if _, here := n.found[it.ID]; !here {
		if i.waitsForList = n.whyUnlisted(i.compute); i.waitsForList != "" {
			if !i.keepsReason() {
				i.status.Reason = "its state is uncertain: " + i.waitsForList
			}
			if i.status.State == "" {
				i.status.State = mariposa.StateProvisioning
			}
			n.initValues(i, i.compute)
			return i, nil
		}
	}
	return i, n.identify(i)
}

// keepsReason reports whether the reason of an instance says how it ended, and nothing is to be done
// with it. The list of its driver does not repeat it.
func (i *instance) keepsReason() bool {
	switch i.desired.Goal {
	case mariposa.GoalRunning:
		return i.status.State == mariposa.StateFailed
	case mariposa.GoalHalted:
		return i.hasEnded()
	}
	return false
}

// identify takes over an instance that a driver has found, or concludes that no driver has it.
// If it has ended and that end is not handled yet, the end is returned.
func (n *Node) identify(i *instance) *driver.Observed {
	known, here := n.found[i.id]
	if st := i.status.State; !here && n.newIncarnation && i.desired.Goal == mariposa.GoalRunning && (st == mariposa.StateRunning || st == mariposa.StateStopping) {
		// It was removed in a time that this store does not know, so it has not failed: it is
		// created again.
		i.status = mariposa.InstanceStatus{State: mariposa.StateProvisioning, Restarts: i.status.Restarts, ManualRestarts: i.status.ManualRestarts}
	}
	n.initValues(i, known.compute)
	switch {
	case here && n.isForeign(known): // never touch another cluster's instance
		i.foreign = true
		i.status.State, i.status.Finished = mariposa.StateFailed, n.Clock.Now()
		i.status.Reason = "an instance of another cluster on this node has the same id"
	case here:
		return n.adopt(i, known)
	case i.status.State == mariposa.StateRunning || i.status.State == mariposa.StateDraining || i.status.State == mariposa.StateStopping:
		i.status.State, i.status.Finished = mariposa.StateFailed, n.Clock.Now()
		i.status.Reason = "was gone from its node when the agent restarted"
	}
	return nil
}

// adopt takes over an instance that a driver found. If it has ended and that end is not
// handled yet, the end is returned.
func (n *Node) adopt(i *instance, known found) (ended *driver.Observed) {
	delete(n.found, i.id)
	n.inventory = true
	i.compute, i.mayExist, i.labels = known.compute, true, known.seen.Labels
	st := &i.status
	st.Generation = max(st.Generation, 1)
	if n.newIncarnation { // it may have been changed in a time that this store does not know
		st.Generation = 0
	}
	if known.seen.Labels.Incarnation == n.labels.Incarnation { // else another store counted them
		st.ManualRestarts = max(st.ManualRestarts, known.seen.ManualRestarts)
	}
	judged := st.State == mariposa.StateFailed || (st.State == mariposa.StateStopped && !known.seen.Running)
	switch {
	case judged && st.Started.Equal(known.seen.Started): // of this run
	case !known.seen.Running && known.seen.Started.IsZero(): // the agent ended in the middle of its start
		st.State = mariposa.StateProvisioning
	default:
		n.observe(i, mariposa.StateRunning, known.seen)
		if !known.seen.Running {
			return &known.seen
		}
	}
	return nil
}

// observe updates an instance's status to what a driver observed.
func (n *Node) observe(i *instance, state mariposa.State, o driver.Observed) {
	st := &i.status
	st.State, st.Reason = state, ""
	if o.PhysicalID != "" {
		st.PhysicalID = o.PhysicalID
	}
	st.Addresses, st.Details, st.Members = o.Addresses, withTags(o.Details, i.workload), o.Members
	st.Started, st.Finished, st.ExitCode = o.Started, o.Finished, o.ExitCode
	if state != mariposa.StateRunning {
		st.Reason = o.Reason
	}
	n.dirtyInstances[i.id] = struct{}{}
}

// withTags adds an instance's tags to the details that the driver reports.
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
	n.dirtyInstances[i.id] = struct{}{}
}

// handleEnd handles an instance that ended by itself: its restart policy decides whether
// it restarts in place or is marked as failed. If a manual restart is due, it restarts
// regardless of the policy, and needs no stop.
func (n *Node) handleEnd(i *instance, o driver.Observed) {
	n.observe(i, mariposa.StateFailed, o)
	switch {
	case i.desired.Goal != mariposa.GoalRunning || i.workload == nil:
		return
	case i.needsManualRestart():
	case i.desired.Frozen:
		i.noteNotRestarted(o)
		return
	case n.mayRestart(i, o):
		i.restarts = append(i.restarts, n.Clock.Now())
		i.status.Restarts++
	default:
		return
	}
	i.status.State = mariposa.StateProvisioning
}

// noteNotRestarted explains why an ended instance is not restarted although its policy
// would: its service is frozen. The control plane repairs it after the thaw.
func (i *instance) noteNotRestarted(o driver.Observed) {
	if i.restartPolicy().Allows(o.ExitCode) {
		i.status.Reason = strings.TrimPrefix(i.status.Reason+"; it is not restarted while its service is frozen", "; ")
	}
}

// restartPolicy returns the policy in force, which a later version may have changed.
func (i *instance) restartPolicy() mariposa.Restart {
	if i.desired.Restart != nil {
		return *i.desired.Restart
	}
	return i.workload.Restart
}

func (n *Node) mayRestart(i *instance, o driver.Observed) bool {
	r := i.restartPolicy()
	switch {
	case !r.Allows(o.ExitCode):
		return false
	case r.Policy == mariposa.RestartOnFailure && r.Max > 0 && i.status.Restarts >= r.Max:
		i.status.Reason += "; its restart policy allows no more restarts"
		return false
	}
	now := n.Clock.Now()
	i.restarts = slices.DeleteFunc(i.restarts, func(at time.Time) bool {
		return now.Sub(at) >= restartWindow || now.Before(at) // the clock was set back
	})
	if len(i.restarts) >= maxRestarts {
		i.status.Reason += " after 3 restarts in 10 minutes"
		return false
	}
	return true
}

// quarantine puts an instance that the control plane does not know into quarantine,
// where it is left as it is. An operation in progress ends first, and none follows; a
// queued one never starts.
func (n *Node) quarantine(i *instance) {
	if i.dequeue() {
		i.inOperation = false
	}
	if i.inOperation {
		i.toQuarantine, i.desired = true, wire.Assignment{Name: i.desired.Name, Project: i.desired.Project, Origin: i.desired.Origin}
		return
	}
	delete(n.instances, i.id)
	delete(n.dirtyInstances, i.id)
	delete(n.members, i.id)
	n.checker.Forget(i.id)
	n.releaseResources(i)
	if !i.mayExist {
		n.valuesServer.remove(i.id)
	}
	if st := &i.status; i.mayExist {
		n.found[i.id] = found{i.compute, n.Clock.Now(), driver.Observed{
			ID: i.id, Labels: i.labels, Origin: i.desired.Origin, Name: i.desired.Name, Project: i.desired.Project, Running: st.State == mariposa.StateRunning || st.State == mariposa.StateDraining, PhysicalID: st.PhysicalID, Addresses: st.Addresses,
			Started: st.Started, ManualRestarts: st.ManualRestarts, Finished: st.Finished, ExitCode: st.ExitCode, Reason: st.Reason, Details: maps.Clone(st.Details), Members: st.Members,
		}}
	}
	n.inventory = true
}
