package change

import (
	"context"
	"strings"
	"time"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/reason"
	"mariposa/store"
)

// DefaultDrainDeadline is when a drain stops that is not complete, if nothing else is asked
// for.
const DefaultDrainDeadline = time.Hour

// drainNode drains a node: it takes no new instances from this commit on, and the planners
// of the projects move those that it has. The task that the answer names reports how far
// they are. A drain that is in progress is continued with the new deadline.
func (c *Changer) drainNode(ctx context.Context, req *Request, ask contract.NodeAction, r *store.Node, a *attempt) error {
	spec := *r.Spec()
	if spec.Approval != "" {
		return notAccepted(&spec, "it has no instances that could be moved")
	}
	left := c.Picture.StaysOn(r)
	if ask.DryRun {
		var err error
		a.answer.Drain, err = c.forecastDrain(ctx, r, ask.Force)
		return err
	}
	now := c.Clock.Now()
	drain := &mariposa.Drain{State: mariposa.DrainActive, By: req.actor(), Since: now, Total: len(left)}
	if ask.Deadline == nil {
		drain.Deadline = now.Add(DefaultDrainDeadline)
	} else if *ask.Deadline > 0 {
		drain.Deadline = now.Add(time.Duration(*ask.Deadline * float64(time.Second)))
	}
	was := spec.Drain
	switch {
	case was != nil && was.State == mariposa.DrainDone && len(left) == 0:
		a.answer.Reason = "the node is drained already"
		return nil
	case was != nil && was.State == mariposa.DrainActive:
		drain.Task, drain.Since, drain.Total = was.Task, was.Since, max(was.Total, len(left))
		a.answer.Task, a.answer.Reason = &drain.Task, "the drain that is in progress continues with the new deadline"
	}
	spec.Drained, spec.Drain = true, drain
	a.unit.Audit[0].Reason = "drain"
	if drain.Task == "" {
		c.addDrainTask(req, r, &spec, a)
	}
	if ask.Force {
		c.removeUnmanaged(req, r, a)
	}
	a.unit.Put(store.Write{Spec: &spec, Event: mariposa.Event{Kind: "node.draining", Task: drain.Task, Reason: mariposa.Asked(req.actor() + " asked for it")}})
	return nil
}

// addDrainTask adds the task of a drain.
func (c *Changer) addDrainTask(req *Request, r *store.Node, spec *mariposa.NodeSpec, a *attempt) {
	id, d := c.NewID(), spec.Drain
	d.Task, a.answer.Task = id, &id
	why := mariposa.Asked(req.actor() + " drains node " + spec.Name)
	a.unit.Put(store.Write{
		Kind: mariposa.KindTask, ID: id,
		Spec: &mariposa.TaskSpec{
			Component: mariposa.DrainComponent, Task: mariposa.TaskReprovision, Origin: mariposa.OriginUser, Author: req.actor(), Reason: why, Created: d.Since,
			Node: r.ID, NodeName: spec.Name,
		},
		Status: &mariposa.TaskStatus{State: mariposa.TaskActive, Started: d.Since, LastProgress: d.Since, Progress: mariposa.Progress{Total: d.Total}},
		Event:  mariposa.Event{Kind: "task.active", Task: id, Reason: why},
	})
}

// removeUnmanaged removes the instances on a node that belong to no service.
func (c *Changer) removeUnmanaged(req *Request, r *store.Node, a *attempt) {
	var names []string
	var removed []*store.Instance
	for _, s := range c.Picture.StaysOn(r) {
		old := s.Spec()
		if old.Managed || old.Orphaned || old.Goal == mariposa.GoalGone {
			continue
		}
		spec := *old
		spec.Goal, spec.Generation = mariposa.GoalGone, spec.Generation+1
		spec.Reason = mariposa.Asked(req.actor() + " drains its node with --force")
		names, removed = append(names, spec.Name), append(removed, s.Instance)
		a.unit.Unchanged(s.Instance)
		a.unit.Put(store.Write{Kind: mariposa.KindInstance, ID: s.ID, Project: spec.Project, Spec: &spec, Event: spec.Event("instance.stopping", s.ID, req.actor(), spec.Reason)})
	}
	c.releaseQuota(a, removed, mariposa.Asked(req.actor()+" drains node "+r.Spec().Name+" with --force"))
	if len(names) > 0 {
		a.answer.Reason = joinReasons(a.answer.Reason, reason.Many(len(names), "unmanaged instance")+" removed: "+strings.Join(names, ", "))
	}
}

// undrainNode lets a node take instances again. Nothing is moved back.
func (c *Changer) undrainNode(req *Request, r *store.Node, a *attempt) error {
	spec := *r.Spec()
	if !spec.Drained {
		a.answer.Reason = "the node is not drained"
		return nil
	}
	why := &mariposa.Reason{Code: mariposa.ReasonDrainUndone, Subject: req.actor(), Node: spec.Name}
	if spec.Drain != nil {
		c.endDrainTask(spec.Drain, r, why, a)
	}
	spec.Drained, spec.Drain = false, nil
	a.unit.Audit[0].Reason = "undrain"
	a.unit.Put(store.Write{Spec: &spec, Event: mariposa.Event{Kind: "node.undrained", Reason: why}})
	return nil
}

// endDrainTask terminates the task of a drain, if it is open.
func (c *Changer) endDrainTask(d *mariposa.Drain, r *store.Node, why *mariposa.Reason, a *attempt) {
	t := c.Picture.Tasks.Get(d.Task)
	if t == nil || mariposa.StateOfTask(t.Status()).Ended() {
		return
	}
	st := mariposa.TaskStatus{}
	if old := t.Status(); old != nil {
		st = *old
	}
	st.State, st.Finished, st.Reason, st.EndedBy = mariposa.TaskTerminated, c.Clock.Now(), why, why.Subject
	a.unit.StatusUnchanged(t)
	a.unit.Put(store.Write{
		Kind: mariposa.KindTask, ID: t.ID, Status: &st, Archive: true,
		Event: mariposa.Event{Kind: "task.terminated", Task: t.ID, Node: r.ID, Reason: why},
	})
}

// stopDrain ends the drain of a node at a user's request: what has been moved stays where
// it is, and the node takes no new instances.
func (c *Changer) stopDrain(req *Request, task *store.Task) func() (*store.Unit, contract.Terminated, error) {
	return func() (*store.Unit, contract.Terminated, error) {
		doc := contract.Terminated{Task: task.ID, Goal: map[string]int{}, Actual: map[string]int{}}
		if err := c.Directory.Require(req.Caller, auth.RunInstallation, nil); err != nil {
			return nil, doc, err
		}
		now := c.Picture.Tasks.Get(task.ID)
		r := c.Picture.Nodes.Get(task.Spec().Node)
		if now == nil || mariposa.StateOfTask(now.Status()).Ended() || r == nil || r.Spec().Drain == nil || r.Spec().Drain.Task != task.ID {
			return nil, doc, conflict("task %s has already ended", task.ID)
		}
		spec := *r.Spec()
		drain := *spec.Drain
		drain.State = mariposa.DrainStopped
		drain.Reason = &mariposa.Reason{Code: mariposa.ReasonDrainStopped, Subject: req.actor(), Count: len(c.Picture.StaysOn(r)), Node: spec.Name}
		spec.Drain = &drain
		a := &attempt{}
		a.unit.Unchanged(r)
		c.endDrainTask(&drain, r, drain.Reason, a)
		a.unit.Put(store.Write{
			Kind: mariposa.KindNode, ID: r.ID, Spec: &spec,
			Event: mariposa.Event{Kind: "node.drain_stopped", Node: r.ID, Task: task.ID, Reason: drain.Reason},
		})
		for i := range a.unit.Writes {
			a.unit.Writes[i].Event.Actor = req.actor()
		}
		a.unit.Audit = []mariposa.Audit{{Kind: string(mariposa.KindNode), Object: r.ID, ObjectName: spec.Name, Task: task.ID, Reason: reason.Sentence(drain.Reason)}}
		undo := "mariposa node undrain " + spec.Name
		doc.ContinueWith, doc.UndoWith = "mariposa node drain "+spec.Name, &undo
		return &a.unit, doc, nil
	}
}

// reserveNode makes a node keep what it has and take no more, or take instances again.
func reserveNode(req *Request, r *store.Node, a *attempt, on bool) error {
	spec := *r.Spec()
	event, why := "node.unreserved", mariposa.Asked(req.actor()+" asked for it")
	if on {
		event, why = "node.reserved", &mariposa.Reason{Code: mariposa.ReasonReserved, Subject: req.actor(), Node: spec.Name}
	}
	if on == (spec.Reserved != "") {
		return nil
	}
	if spec.Reserved = ""; on {
		spec.Reserved = req.actor()
	}
	a.unit.Audit[0].Reason = strings.TrimPrefix(event, "node.")
	a.unit.Put(store.Write{Spec: &spec, Event: mariposa.Event{Kind: event, Reason: why}})
	return nil
}

// rescheduleNow replaces the instances on a lost node without further waiting.
func (c *Changer) rescheduleNow(req *Request, r *store.Node, a *attempt) error {
	spec, st := *r.Spec(), r.Status()
	switch {
	case spec.Approval != "":
		return notAccepted(&spec, "it has no instances that could be replaced")
	case st == nil || st.State != mariposa.NodeUnknown:
		return conflict("node %s is not unknown, so its instances are running or starting; to move them, run `mariposa node drain %s`", spec.Name, spec.Name)
	case spec.SkipsWaiting(st):
		return nil
	}
	if spec.RescheduleNow = c.Clock.Now(); spec.RescheduleNow.Before(st.Since) { // the clock of the server that judged was ahead
		spec.RescheduleNow = st.Since
	}
	why := &mariposa.Reason{Code: mariposa.ReasonRescheduledNow, Subject: req.actor()}
	a.unit.Audit[0].Reason = "reschedule now"
	a.unit.Put(store.Write{Spec: &spec, Event: mariposa.Event{Kind: "node.given_up", Reason: why}})
	return nil
}
