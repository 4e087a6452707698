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
	alien      bool // another cluster's: it is never touched
	halted     bool // stopped by us, so that it can be removed
	made       bool // the driver may know it
	recount    bool // another store counts bounces now
	awaiting   bool // its reason speaks of what it waits for
	restarts   []time.Time
	generation int64            // the generation the operation under way makes true
	bounces    int              // the restarts that the start under way makes good
	labels     driver.Labels    // whose it was made as
	news       *driver.Observed // what its driver told last while an operation was under way
	fetching   func()           // ends the fetching of its image by a start under way
	stopping   *stopping        // the stop under way
	resources  []*resource      // that it needs, and nobody takes away under it
	values
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
	if i.recount {
		i.recount, i.status.Bounces = false, bouncesOf(it.Status)
	}
	i.want, i.aside = *it, false
	i.want.Project, i.want.Service = n.one(it.Project), n.one(it.Service)
	i.want.Workload, i.want.Status = "", nil // they have been taken out of the frame
	if w != nil {
		i.workload, i.compute = w, w.Compute
		i.status.Details = withTags(i.status.Details, w)
	}
	n.use(i)
	if ended != nil {
		n.ended(i, *ended)
	}
	n.tell(i)
	i.hasten()
	n.pursue(i)
}

// bouncesOf is how many restarts a store knows to be made.
func bouncesOf(st *mariposa.InstanceStatus) int {
	if st == nil {
		return 0
	}
	return st.Bounces
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
	known, here := n.found[it.ID]
	n.meetValues(i, known.compute)
	switch {
	case here && n.foreign(known): // what is another cluster's is never touched
		i.alien = true
		i.status.State, i.status.Finished = mariposa.StateFailed, n.Clock.Now()
		i.status.Reason = "another cluster has an instance of this id on the node"
	case here:
		return i, n.adopt(i, known)
	case i.status.State == mariposa.StateRunning || i.status.State == mariposa.StateStopping:
		i.status.State, i.status.Finished = mariposa.StateFailed, n.Clock.Now()
		i.status.Reason = "was gone from its node when the agent came back"
	}
	return i, nil
}

// adopt takes over what a driver found. How it ended is handed back if nobody
// has judged that yet.
func (n *Node) adopt(i *instance, known found) (ended *driver.Observed) {
	delete(n.found, i.id)
	n.inventory = true
	i.compute, i.made, i.labels = known.compute, true, known.seen.Labels
	st := &i.status
	st.Generation = max(st.Generation, 1)
	if known.seen.Labels.Incarnation == n.labels.Incarnation { // else another store counted them
		st.Bounces = max(st.Bounces, known.seen.Bounces)
	}
	judged := st.State == mariposa.StateFailed || (st.State == mariposa.StateStopped && !known.seen.Running)
	switch {
	case judged && st.Started.Equal(known.seen.Started): // of this very run
	case !known.seen.Running && known.seen.Started.IsZero(): // the agent went away in the middle of its start
		st.State = mariposa.StateProvisioning
	default:
		n.observe(i, mariposa.StateRunning, known.seen)
		if !known.seen.Running {
			return &known.seen
		}
	}
	return nil
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

// ended decides what to do about an instance that ended by itself: start it
// again in place as its restart policy says, or call it failed. One that is about
// to be restarted for a person needs no policy for it, and no stop any more.
func (n *Node) ended(i *instance, o driver.Observed) {
	n.observe(i, mariposa.StateFailed, o)
	switch {
	case i.want.Goal != mariposa.GoalRunning || i.workload == nil:
		return
	case i.owesBounce():
	case n.mayRestart(i, o):
		i.restarts = append(i.restarts, n.Clock.Now())
		i.status.Restarts++
	default:
		return
	}
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
	if n.lane(i.compute).leave(i) {
		i.op = false
	}
	if i.op {
		i.aside, i.want = true, wire.Assignment{}
		return
	}
	delete(n.instances, i.id)
	delete(n.dirty, i.id)
	n.unuse(i)
	if !i.made {
		n.board.drop(i.id)
	}
	if st := &i.status; i.made {
		n.found[i.id] = found{i.compute, driver.Observed{
			ID: i.id, Labels: i.labels, Name: i.want.Name, Project: i.want.Project, Running: st.State == mariposa.StateRunning, PhysicalID: st.PhysicalID, Addresses: st.Addresses,
			Started: st.Started, Bounces: st.Bounces, Finished: st.Finished, ExitCode: st.ExitCode, Reason: st.Reason, Details: maps.Clone(st.Details),
		}}
	}
	n.inventory = true
}
