package change

import (
	"context"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/reason"
	"mariposa/store"
)

// ActOnNode acts on a node: a dummy can be lost and restored; purge removes
// quarantined instances, all or those that are named; a pending node is approved or rejected.
func (c *Changer) ActOnNode(ctx context.Context, req *Request, id string, ask contract.NodeAction) (*contract.Changed, error) {
	action, instances := ask.Action, ask.Instances
	if ask.Fingerprint != "" && action != "approve" {
		return nil, invalid("fingerprint: not allowed with action %s; only approve uses it", action)
	}
	if action == "approve" || action == "reject" {
		return c.decideOnNode(ctx, req, id, action == "approve", ask.Fingerprint)
	}
	event := map[string]string{"lose": "node.lost", "restore": "node.restored", "purge": "node.purged"}[action]
	if event == "" {
		return nil, invalid("action %s on a node is not supported yet", action)
	}
	if len(instances) > 0 && action != "purge" {
		return nil, invalid("instances: not allowed with action %s; only purge uses it", action)
	}
	return c.changeNode(ctx, req, id, func(r *store.Node, a *attempt) error {
		old := r.Spec()
		spec := *old
		var err error
		if action == "purge" {
			err = purge(r, &spec, instances)
			a.answer.Reason = purgeReason(&spec)
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

// decideOnNode approves or rejects a pending node. A fingerprint, if given, must be that of
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
			return conflict("node %s is already approved: stop its agent, then remove it with `mariposa node rm %s`", spec.Name, spec.Name)
		case spec.Approval == "", !approve && spec.Approval == mariposa.ApprovalRejected:
			return nil // nothing to do
		case approve && c.nameInUse(r.ID, spec.Name):
			return conflict("another node already has the name %s: remove one of them first", spec.Name)
		}
		event := "node.approved"
		why := &mariposa.Reason{Code: mariposa.ReasonApproved, Subject: req.actor()}
		spec.Approval, st.State = "", mariposa.NodeUnknown
		if !approve {
			event, why.Code = "node.rejected", mariposa.ReasonRejected
			spec.Approval, st.State = mariposa.ApprovalRejected, mariposa.NodeRejected
		}
		st.Since, st.Reason = c.Clock.Now(), why
		a.answer.Reason = "its key is " + is
		if st.Address != "" {
			a.answer.Reason += ", and it connected from " + st.Address
		}
		a.unit.Audit[0].Reason = map[bool]string{true: "approved", false: "rejected"}[approve] + "; " + a.answer.Reason
		a.unit.Writes = []store.Write{{Spec: &spec, Status: &st, Event: mariposa.Event{Kind: event, Reason: why}}}
		return nil
	})
}

// nameInUse reports whether another node that is not rejected has a name.
func (c *Changer) nameInUse(id, name string) bool {
	return slices.ContainsFunc(c.Picture.Nodes.All(), func(r *store.Node) bool {
		return r.ID != id && r.Spec().Name == name && r.Spec().Approval != mariposa.ApprovalRejected
	})
}

// DeleteNode deletes a node that is unknown or not approved; if forced, with everything
// on it.
func (c *Changer) DeleteNode(ctx context.Context, req *Request, id string, force bool) (*contract.Changed, error) {
	return c.changeNode(ctx, req, id, func(r *store.Node, a *attempt) error {
		name, there := r.Spec().Name, c.Picture.InstancesOn(r.ID)
		if st := r.Status(); st != nil && st.State != mariposa.NodeUnknown && r.Spec().Approval == "" {
			return conflict("node %s is %s: stop its agent first, and wait until the node is unknown", name, st.State)
		}
		if n := len(there); n > 0 && !force {
			return conflict("node %s still has %s: reconnect it, or wait until they are replaced on other nodes; if it will never return, "+
				"remove it together with them (mariposa node rm %s --force, ?force=true)", name, reason.Many(n, "instance"), name)
		}
		if n := len(c.keptOn(r.ID)); n > 0 && !force {
			return conflict("node %s still has %s with the only copy of their data: reconnect it; if it will never return, "+
				"remove it and lose the data (mariposa node rm %s --force, ?force=true)", name, reason.Many(n, "volume"), name)
		}
		why := req.actor() + " asked for it"
		for _, i := range there {
			forgetInstance(a, i, "its node "+name+" was removed: "+why)
		}
		c.releaseQuota(a, there)
		c.forgetAttachments(a, r.ID, "its node "+name+" was removed: "+why)
		lost := c.forgetVolumes(a, r.ID, "its node "+name+" was removed: "+why)
		if n := len(there); n > 0 {
			a.answer.Reason = reason.Many(n, "instance") + " on it removed too"
		}
		if n := len(lost); n > 0 {
			a.answer.Reason = strings.TrimPrefix(a.answer.Reason+"; "+reason.Many(n, "volume")+" on it lost: "+listSome(lost), "; ")
		}
		if a.answer.Reason != "" {
			why += "; " + a.answer.Reason
		}
		a.unit.Put(store.Write{Delete: true, Event: mariposa.Event{Kind: "node.deleted", Reason: mariposa.Asked(why)}})
		return nil
	})
}

func setPlaysDead(spec *mariposa.NodeSpec, dead bool) error {
	if !spec.Dummy {
		return conflict("node %s is not a dummy: only dummy nodes can be lost and restored", spec.Name)
	}
	spec.Lost = dead
	return nil
}

// purge marks quarantined instances for removal. It drops earlier marks of instances
// that the node no longer reports.
func purge(r *store.Node, spec *mariposa.NodeSpec, only []string) error {
	there := map[string]bool{}
	var all []string
	if st := r.Status(); st != nil {
		for _, q := range st.Quarantined {
			there[q.ID] = true
			all = append(all, q.ID)
		}
	}
	marked := slices.DeleteFunc(slices.Clone(spec.Purge), func(id string) bool { return !there[id] })
	if only == nil {
		only = all
	}
	for _, id := range only {
		if !there[id] {
			return notFound("node %s has no instance %q in quarantine", spec.Name, id)
		}
		marked = append(marked, id)
	}
	slices.Sort(marked)
	spec.Purge = slices.Compact(marked)
	return nil
}

// purgeReason says what a purge does.
func purgeReason(spec *mariposa.NodeSpec) string {
	if len(spec.Purge) == 0 {
		return "the node has no quarantined instances"
	}
	return reason.Many(len(spec.Purge), "quarantined instance") + " will be removed"
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
			w.Event.Node, w.Event.Actor = r.ID, req.actor()
			if w.Kind == "" {
				w.Kind, w.ID = mariposa.KindNode, r.ID
			}
		}
		return a, nil
	})
}
