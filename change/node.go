package change

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/reason"
	"mariposa/store"
)

// ActOnNode acts on a node: a dummy can be lost and restored; purge removes
// quarantined instances, adopt takes them back into their slots, all or those that are
// named; a pending node is accepted or rejected; rotate-key replaces its key; drain and undrain, reserve and unreserve
// say whether it has instances.
func (c *Changer) ActOnNode(ctx context.Context, req *Request, id string, ask contract.NodeAction) (*contract.Changed, error) {
	if err := checkNodeAction(ask); err != nil {
		return nil, err
	}
	action := ask.Action
	switch action {
	case "accept", "approve", "reject":
		return c.decideOnNode(ctx, req, id, action != "reject", ask.Fingerprint)
	case "rotate-key":
		return c.changeNode(ctx, req, id, func(r *store.Node, a *attempt) error { return c.rotateKey(req, r, a) })
	case "adopt":
		return c.adoptInstances(ctx, req, id, ask)
	case "drain":
		return c.changeNode(ctx, req, id, func(r *store.Node, a *attempt) error { return c.drainNode(ctx, req, ask, r, a) })
	case "undrain":
		return c.changeNode(ctx, req, id, func(r *store.Node, a *attempt) error { return c.undrainNode(req, r, a) })
	case "reserve", "unreserve":
		return c.changeNode(ctx, req, id, func(r *store.Node, a *attempt) error { return reserveNode(req, r, a, action == "reserve") })
	case "reschedule-now":
		return c.changeNode(ctx, req, id, func(r *store.Node, a *attempt) error { return c.rescheduleNow(req, r, a) })
	}
	event := map[string]string{"lose": "node.lost", "restore": "node.restored", "purge": "node.purged"}[action]
	if event == "" {
		return nil, invalid("there is no action %s on a node", action)
	}
	return c.changeNode(ctx, req, id, func(r *store.Node, a *attempt) error {
		old := r.Spec()
		spec := *old
		var err error
		if action == "purge" {
			a.answer.Reason, err = c.purge(ctx, r, &spec, ask.Instances)
		} else {
			err = setPlaysDead(&spec, action == "lose")
		}
		if err != nil || (spec.Lost == old.Lost && slices.Equal(spec.Purge, old.Purge)) {
			return err
		}
		a.unit.Audit[0].Reason = action
		a.unit.Writes = []store.Write{{Spec: &spec, Event: mariposa.Event{Kind: event, Reason: mariposa.Asked(req.actor() + " asked for it")}}}
		return nil
	})
}

// checkNodeAction rejects fields that do not belong to an action.
func checkNodeAction(ask contract.NodeAction) error {
	switch action := ask.Action; {
	case ask.Fingerprint != "" && action != "accept" && action != "approve":
		return invalid("fingerprint: not allowed with action %s; only accept uses it", action)
	case ask.Replace && action != "adopt":
		return invalid("replace: not allowed with action %s; only adopt uses it", action)
	case ask.Unverified && action != "adopt":
		return invalid("unverified: not allowed with action %s; only adopt uses it", action)
	case ask.Unverified && ask.Instances == nil:
		return invalid("unverified: instances must name those to adopt; check each of them first")
	case (ask.Deadline != nil || ask.Force || ask.DryRun) && action != "drain":
		return invalid("deadline, force and dry_run are not allowed with action %s; only drain uses them", action)
	case len(ask.Instances) > 0 && action != "purge" && action != "adopt":
		return invalid("instances: not allowed with action %s; only purge and adopt use it", action)
	case ask.Instances != nil && len(ask.Instances) == 0:
		return invalid("instances must name at least one instance; leave it out for all quarantined instances")
	}
	return nil
}

// notAccepted says what to do with a node that is pending or rejected, and that something
// is not possible because of that.
func notAccepted(spec *mariposa.NodeSpec, so string) error {
	is := map[mariposa.NodeApproval]string{mariposa.ApprovalPending: "is pending", mariposa.ApprovalRejected: "was rejected"}[spec.Approval]
	return conflict("node %s %s, so %s: accept it first (`mariposa node accept %s --fingerprint SHA256:…`, with the fingerprint in the log of its agent), or remove it (`mariposa node rm %s`)",
		spec.Name, is, so, spec.Name, spec.Name)
}

// decideOnNode accepts or rejects a pending node. A fingerprint, if given, must be that of
// its key.
func (c *Changer) decideOnNode(ctx context.Context, req *Request, id string, approve bool, fingerprint string) (*contract.Changed, error) {
	return c.changeNode(ctx, req, id, func(r *store.Node, a *attempt) error {
		spec, st := *r.Spec(), mariposa.NodeStatus{}
		if old := r.Status(); old != nil {
			st = *old
		}
		is := mariposa.Fingerprint(spec.KeyHash)
		switch {
		case fingerprint != "" && fingerprint != is:
			return conflict("the key of node %s has fingerprint %s, not %s: it may be a different machine", spec.Name, is, fingerprint)
		case spec.Approval == "" && !approve:
			return conflict("node %s is already accepted: remove it with `mariposa node rm %s`", spec.Name, spec.Name)
		case spec.Approval == "", !approve && spec.Approval == mariposa.ApprovalRejected:
			return nil // nothing to do
		case approve && c.nameInUse(r.ID, spec.Name):
			return conflict("another node already has the name %s: remove one of them first, or start the agent of the new one with another --name and a join token", spec.Name)
		}
		event := "node.approved"
		why := &mariposa.Reason{Code: mariposa.ReasonApproved, Subject: req.actor()}
		spec.Approval, st.State = "", mariposa.NodeUnknown
		tokenless := spec.Tokenless
		spec.Tokenless = tokenless && !approve
		if !approve {
			event, why.Code = "node.rejected", mariposa.ReasonRejected
			spec.Approval, st.State = mariposa.ApprovalRejected, mariposa.NodeRejected
		}
		st.Since, st.Reason = c.Clock.Now(), why
		a.answer.Reason = "its key is " + is
		if st.Address != "" {
			a.answer.Reason += ", and it connected from " + st.Address
		}
		if tokenless && approve {
			a.answer.Reason += "; it came without a join token"
		}
		a.unit.Audit[0].Reason = map[bool]string{true: "approved", false: "rejected"}[approve] + "; " + a.answer.Reason
		a.unit.Writes = []store.Write{{Spec: &spec, Status: &st, Event: mariposa.Event{Kind: event, Reason: why}}}
		return nil
	})
}

// rotateKey asks for a new key of a node. Its session, at whichever replica, passes that on;
// if there is none, the next one does.
func (c *Changer) rotateKey(req *Request, r *store.Node, a *attempt) error {
	spec := *r.Spec()
	switch st := r.Status(); {
	case spec.Approval != "":
		return notAccepted(&spec, "its key cannot be rotated")
	case !spec.RotateKey.IsZero():
		a.answer.Reason = "this was asked for before, and the node has not connected with its new key yet"
		return nil
	case st == nil || st.State != mariposa.NodeRunning:
		a.answer.Reason = "it is not connected now, so this happens when it connects"
	}
	spec.RotateKey = c.Clock.Now()
	a.unit.Audit[0].Reason = "rotate-key; the fingerprint of its key is " + mariposa.Fingerprint(spec.KeyHash)
	a.unit.Writes = []store.Write{{Spec: &spec, Event: mariposa.Event{Kind: "node.key_requested", Reason: mariposa.Asked(req.actor() + " asked for it")}}}
	return nil
}

// numbered returns a word for one thing, or for several.
func numbered(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}

// nameInUse reports whether another node owns a name.
func (c *Changer) nameInUse(id, name string) bool {
	return slices.ContainsFunc(c.Picture.Nodes.All(), func(r *store.Node) bool {
		return r.ID != id && r.Spec().Name == name && r.Spec().OwnsName()
	})
}

// DeleteNode deletes a node; if forced, with everything on it. That revokes its key and ends
// its session, if it has one: the replica that has it learns of it through the feed.
func (c *Changer) DeleteNode(ctx context.Context, req *Request, id string, force bool) (*contract.Changed, error) {
	done, err := c.changeNode(ctx, req, id, func(r *store.Node, a *attempt) error {
		name, there := r.Spec().Name, c.Picture.InstancesOn(r.ID)
		st := r.Status()
		isConnected := st != nil && !st.State.IsAway() && r.Spec().Approval == ""
		if n := len(there); n > 0 && !force && isConnected {
			return conflict("node %s still has %s: move %s to other nodes first (`mariposa node drain %s`), or remove the node together with %s (`mariposa node rm %s --force`, ?force=true); "+
				"%s running on the machine, which nothing manages then", name, reason.Many(n, "instance"), numbered(n, "it", "them"), name, numbered(n, "it", "them"), name, numbered(n, "it keeps", "they keep"))
		}
		if n := c.countNotReplaced(there); n > 0 && !force {
			return conflict("node %s still has %s without a running replacement on another node: reconnect the node, or replace %s now (`mariposa node reschedule-now %s`); if the node will never return, "+
				"remove it together with %s (`mariposa node rm %s --force`, ?force=true)", name, reason.Many(n, "instance"), numbered(n, "it", "them"), name, numbered(n, "it", "them"), name)
		}
		if n := len(c.keptOn(r.ID)); n > 0 && !force {
			return conflict("node %s still has %s with the only copy of %s data: reconnect the node; if it will never return, "+
				"remove it and lose the data (`mariposa node rm %s --force`, ?force=true)", name, reason.Many(n, "volume"), numbered(n, "its", "their"), name)
		}
		why := req.actor() + " asked for it"
		lost := c.forgetAllOn(a, r.ID, there, "its node "+name+" was removed: "+why)
		if n := len(there); n > 0 {
			a.answer.Reason = reason.Many(n, "instance") + " on it removed too"
			if isConnected {
				a.answer.Reason = reason.Many(n, "instance") + " on it given up; " + numbered(n, "it keeps running there until somebody stops it", "they keep running there until somebody stops them")
			}
		}
		if n := len(lost); n > 0 {
			a.answer.Reason = strings.TrimPrefix(a.answer.Reason+"; "+reason.Many(n, "volume")+" on it lost: "+listSome(lost), "; ")
		}
		if a.answer.Reason != "" {
			why += "; " + a.answer.Reason
		}
		if d := r.Spec().Drain; d != nil {
			c.endDrainTask(d, r, &mariposa.Reason{Code: mariposa.ReasonDrainGone, Subject: req.actor(), Node: name}, a)
		}
		a.unit.Put(store.Write{Delete: true, Event: mariposa.Event{Kind: "node.deleted", Reason: mariposa.Asked(why)}})
		return nil
	})
	if err == nil {
		c.forgetLate(ctx, req, done)
	}
	return done, err
}

// forgetLate forgets what was placed on a node while it was being deleted: the deletion did
// not see it. Its service places it again. Nothing is placed on a deleted node.
func (c *Changer) forgetLate(ctx context.Context, req *Request, node *contract.Changed) {
	why := "its node " + node.Name + " was removed while it was placed there: " + req.actor() + " asked for it"
	for range maxAttempts {
		a, late := &attempt{}, c.Picture.InstancesOn(node.ID)
		if len(late) == 0 {
			return
		}
		a.unit.Absent(mariposa.KindNode, node.ID)
		c.forgetAllOn(a, node.ID, late, why)
		res := c.Store.Commit(ctx, a.unit)[0]
		switch {
		case errors.Is(res.Err, store.ErrConflict):
			if c.awaitConflicting(ctx, a.unit.Require) != nil {
				return
			}
		case res.Err != nil:
			slog.Warn("cannot forget what was placed on a node while it was deleted", "node", node.Name, "instances", len(late), "err", res.Err)
			return
		default:
			c.Await(ctx, res.Last)
		}
	}
}

// forgetAllOn adds the writes that forget everything on a node, and returns the volumes that
// are lost.
func (c *Changer) forgetAllOn(a *attempt, node string, there []*store.Instance, why string) (lost []string) {
	for _, i := range there {
		forgetInstance(a, i, why)
	}
	c.releaseQuota(a, there, &mariposa.Reason{Code: mariposa.ReasonNodeGivenUp})
	c.forgetAttachments(a, node, why)
	return c.forgetVolumes(a, node, why)
}

// countNotReplaced returns how many instances of a lost node would be missing if they were
// dropped: those that are wanted and whose slot has no running instance elsewhere.
func (c *Changer) countNotReplaced(there []*store.Instance) (n int) {
	type slot struct {
		service string
		number  int
	}
	connected := map[string]bool{}
	for _, r := range c.Picture.Nodes.All() {
		connected[r.ID] = r.Status() != nil && !r.Status().State.IsAway()
	}
	replaced := map[string]map[slot]bool{} // by project
	for _, i := range there {
		spec := i.Spec()
		if spec.Goal == mariposa.GoalGone || len(spec.Mounts) > 0 { // without its volumes, no other node can replace it
			continue
		}
		if replaced[spec.Project] == nil {
			slots := map[slot]bool{}
			replaced[spec.Project] = slots
			c.Picture.EachInstanceOf(spec.Project, func(o *store.Instance) bool {
				is := o.Spec()
				runs := is.Goal == mariposa.GoalRunning && connected[is.Node] && mariposa.StateOf(is, o.Status()) == mariposa.StateRunning
				if runs && is.Managed && !is.Orphaned && is.Node != spec.Node {
					slots[slot{is.Service, is.Slot}] = true
				}
				return true
			})
		}
		if !spec.Managed || spec.Orphaned || spec.Kept || !replaced[spec.Project][slot{spec.Service, spec.Slot}] {
			n++
		}
	}
	return n
}

func setPlaysDead(spec *mariposa.NodeSpec, dead bool) error {
	if !spec.Dummy {
		return conflict("node %s is not a dummy: only dummy nodes can be lost and restored", spec.Name)
	}
	spec.Lost = dead
	return nil
}

// keptOn lists the volumes on a node whose goal is to be kept.
func (c *Changer) keptOn(node string) []*store.Volume {
	return slices.DeleteFunc(c.Picture.VolumesOn(node), func(r *store.Volume) bool { return r.Spec().Goal != mariposa.GoalKept })
}

// forgetInstance deletes an instance's record and returns its claim on the node. The
// record must be as read, so that a claim is returned only once.
func forgetInstance(a *attempt, i *store.Instance, why string) {
	spec := i.Spec()
	a.unit.Unchanged(i)
	a.unit.GiveBack(spec.Node, spec.Resources())
	a.unit.Put(store.Write{
		Kind: mariposa.KindInstance, ID: i.ID, Project: spec.Project, Delete: true,
		Event: mariposa.Event{Kind: "instance.forgotten", Project: spec.Project, Service: spec.ServiceName, Instance: i.ID, Reason: mariposa.Asked(why)},
	})
}

// changeNode changes a node in its current state. Without writes there is no change.
func (c *Changer) changeNode(ctx context.Context, req *Request, id string, build func(*store.Node, *attempt) error) (*contract.Changed, error) {
	return c.commit(ctx, req, id, func() (*attempt, error) {
		r := c.Picture.Nodes.Get(id)
		if r == nil {
			return nil, notFound("the node no longer exists")
		}
		a := &attempt{answer: contract.Changed{ID: r.ID, Name: r.Spec().Name}}
		a.unit.Unchanged(r)
		a.unit.StatusUnchanged(r)
		a.unit.Audit = []mariposa.Audit{{Kind: string(mariposa.KindNode)}}
		if err := build(r, a); err != nil {
			return nil, err
		}
		for i := range a.unit.Writes {
			w := &a.unit.Writes[i]
			w.Event.Node, w.Event.Actor = cmp.Or(w.Event.Node, r.ID), req.actor()
			if w.Kind == "" {
				w.Kind, w.ID = mariposa.KindNode, r.ID
			}
		}
		return a, nil
	})
}
