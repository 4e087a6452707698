package change

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/reason"
	"mariposa/store"
)

// maxAdopted is how many instances one request adopts. More take several requests. Of those
// that cannot be adopted, the answer names maxRefused.
const (
	maxAdopted = 500
	maxRefused = 500
)

// adoptInstances takes quarantined instances back into the slots that they came from. They
// keep running: their node learns that they are wanted. An instance that a slot was
// refilled with is removed if replace is true.
func (c *Changer) adoptInstances(ctx context.Context, req *Request, node string, ask contract.NodeAction) (*contract.Changed, error) {
	return c.changeNode(ctx, req, node, func(r *store.Node, a *attempt) error {
		wanted, err := c.findQuarantined(ctx, r, ask.Instances)
		if err != nil {
			return err
		}
		d := adoption{c: c, ctx: ctx, req: req, node: r, ask: ask, a: a, taken: map[slotKey]bool{}, added: map[string]int{}}
		for i, q := range wanted {
			if known := c.Picture.Instances.Get(q.ID); ask.Instances == nil && known != nil && known.Spec().Node == r.ID {
				continue // it was adopted before, and its node has not said so yet
			}
			if len(a.unit.Writes) >= maxAdopted {
				a.answer.Remaining = len(wanted) - i
				break
			}
			why, err := d.adopt(q)
			if err != nil {
				return err
			}
			d.say(q, why)
		}
		return d.finish()
	})
}

// slotKey names a slot of a service.
type slotKey struct {
	service string
	slot    int
}

// adoption is one attempt to adopt instances of a node.
type adoption struct {
	c       *Changer
	ctx     context.Context //nolint:containedctx // of the request, which this is a part of
	req     *Request
	node    *store.Node
	ask     contract.NodeAction
	a       *attempt
	taken   map[slotKey]bool // slots that this request has filled
	added   map[string]int   // how many instances it has added, by service
	adopted int
	refused int
}

// say adds to the answer what became of an instance, within bounds: the answer is stored.
func (d *adoption) say(q mariposa.Quarantined, why string) {
	if why == "" {
		d.adopted++
	} else if d.refused++; d.refused > maxRefused {
		return
	}
	d.a.answer.Adoptions = append(d.a.answer.Adoptions, contract.Adoption{ID: q.ID, Name: q.Name, Adopted: why == "", Reason: why})
}

func (d *adoption) finish() error {
	a := d.a
	switch total := d.adopted + d.refused + a.answer.Remaining; {
	case total == 0:
		a.answer.Reason = "the node has no quarantined instances"
	case d.adopted == 0:
		var all []string
		for _, it := range a.answer.Adoptions {
			all = append(all, cmp.Or(it.Name, it.ID)+": "+it.Reason)
		}
		return conflict("no instance on node %s can be adopted: %s", d.node.Spec().Name, strings.Join(all[:min(len(all), 20)], "; "))
	default:
		a.answer.Reason = reason.Many(d.adopted, "instance") + " adopted"
		if left := total - d.adopted; left > 0 {
			a.answer.Reason += fmt.Sprintf(", %d left in quarantine", left)
		}
		a.unit.Audit[0].Reason = "adopt: " + a.answer.Reason
		if d.ask.Unverified {
			a.unit.Audit[0].Reason += ", even if unverified"
		}
	}
	return nil
}

// adopt adds the writes that adopt an instance, or says why it cannot be adopted.
func (d *adoption) adopt(q mariposa.Quarantined) (why string, err error) {
	o, known := q.Origin, d.c.Picture.Instances.Get(q.ID)
	switch {
	case known != nil && known.Spec().Node != d.node.ID:
		return "another node has an instance with its id, so this one cannot be it: remove it with `mariposa node purge`", nil
	case known != nil:
		return "it is already adopted; its node has not confirmed it yet", nil
	case slices.Contains(d.node.Spec().Purge, q.ID):
		return "it is being removed", nil
	case q.State != mariposa.StateRunning:
		return "it is not running: remove it with `mariposa node purge`", nil
	case o == nil:
		return "its node does not know which slot it came from", nil
	case o.Service == "":
		return "it belongs to no service: create it again", nil
	case !d.ask.Unverified && !d.c.isOriginProven(d.node.ID, q):
		return "no server of this installation has signed where it came from for this node: if you trust the node, name the instance and add --unverified", nil
	}
	project := d.c.Picture.Projects.Get(o.Project)
	if project == nil || project.Spec().Deleting {
		return "its project does not exist, or is being deleted", nil
	}
	st := project.Status()
	if st == nil || st.Services[o.ServiceName] == nil || st.Services[o.ServiceName].ID != o.Service || st.Services[o.ServiceName].Removed {
		return fmt.Sprintf("project %s has no service %s", project.Spec().Name, o.ServiceName), nil
	}
	def, number, why, err := d.definition(project, st.Services[o.ServiceName], o)
	if why != "" || err != nil {
		return why, err
	}
	if def.Compute != q.Compute {
		return fmt.Sprintf("it is a %s instance, and its service has %s instances", q.Compute, def.Compute), nil
	}
	spec := &mariposa.InstanceSpec{
		Name: q.Name, Slot: o.Slot, Project: o.Project, Service: o.Service, ServiceName: o.ServiceName, Number: number, Digest: def.Digest, Live: o.Live,
		Compute: def.Compute, Node: d.node.ID, Goal: mariposa.GoalRunning, Generation: 1, Reason: mariposa.Asked(d.req.actor() + " adopted it"),
		Created: o.Created, Managed: true, Memory: def.Memory, MilliCPU: def.MilliCPU, Ports: def.FixedPorts(), Mounts: o.Mounts, Networks: o.Networks,
		Bindings: o.Bindings, Bound: o.Bound,
	}
	resources, why := d.resources(spec)
	if why != "" {
		return why, nil
	}
	occupants, why := d.occupants(project, st, spec)
	if why != "" {
		return why, nil
	}
	d.write(q.ID, spec, project, resources, occupants)
	return "", nil
}

// isOriginProven reports whether a server assigned a quarantined instance to its node, with
// the provenance that the node reports.
func (c *Changer) isOriginProven(node string, q mariposa.Quarantined) bool {
	return c.IsOriginProven != nil && c.IsOriginProven(node, q)
}

// definition returns the definition that an instance was created from, if it is still in
// force: any other instance would be replaced at once.
func (d *adoption) definition(project *store.Project, ss *mariposa.ServiceStatus, o *mariposa.Provenance) (def *mariposa.Service, number int, why string, err error) {
	current, err := d.c.definitions(d.ctx, project.ID, ss.Number)
	if err != nil {
		return nil, 0, "", err
	}
	old, err := d.c.definitions(d.ctx, project.ID, o.Number)
	if err != nil {
		return nil, 0, "", err
	}
	inForce, was := current[o.ServiceName], old[o.ServiceName]
	known := was != nil && was.Digest == o.Digest
	switch {
	case inForce != nil && inForce.Digest == o.Digest && known:
		return was, o.Number, "", nil
	case inForce != nil && inForce.Digest == o.Digest: // another version defines the same service
		return inForce, ss.Number, "", nil
	case known:
		return nil, 0, fmt.Sprintf("its version %d is no longer in force; version %d is", o.Number, ss.Number), nil
	}
	return nil, 0, fmt.Sprintf("its version (number %d) is unknown", o.Number), nil
}

// resources returns the volumes and attachments of an instance, or says which one the store
// does not know.
func (d *adoption) resources(spec *mariposa.InstanceSpec) (read []store.Any, why string) {
	for _, m := range spec.Mounts {
		v := d.c.Picture.Volumes.Get(m.Volume)
		if v == nil || v.Spec().Goal != mariposa.GoalKept || v.Spec().Node != spec.Node || v.Spec().Service != spec.Service || v.Spec().Slot != spec.Slot {
			return nil, fmt.Sprintf("its volume %s is unknown", m.Name)
		}
		read = append(read, v)
	}
	for _, j := range spec.Networks {
		at := d.c.Picture.Attachments.Get(j.Attachment)
		if d.c.Picture.Networks.Get(j.Network) == nil || at == nil || at.Spec().Goal != mariposa.GoalKept || at.Spec().Node != spec.Node {
			return nil, fmt.Sprintf("its network %s is unknown, or not on this node", j.Name)
		}
		read = append(read, at)
	}
	return read, ""
}

// occupants returns the instances that are in the slot of an instance, to be removed; or
// why it cannot take the slot.
func (d *adoption) occupants(project *store.Project, st *mariposa.ProjectStatus, spec *mariposa.InstanceSpec) (in []*store.Instance, why string) {
	ss, scale, live := st.Services[spec.ServiceName], st.RunningScale(spec.ServiceName), d.added[spec.Service]
	d.c.Picture.EachInstanceOf(project.ID, func(r *store.Instance) bool {
		if s := r.Spec(); s.Service == spec.Service && s.Managed && s.Goal == mariposa.GoalRunning && !s.Kept {
			if live++; s.Slot == spec.Slot {
				in = append(in, r)
			}
		}
		return true
	})
	slot := slotName(spec.Origin())
	switch {
	case d.taken[slotKey{spec.Service, spec.Slot}]:
		return nil, "another instance in quarantine takes its slot " + slot
	case len(in) > 0 && !d.ask.Replace:
		return nil, fmt.Sprintf("its slot %s is taken by %s: --replace removes that one instead", slot, in[0].Spec().Name)
	case len(in) > 0 && ss.Frozen != nil:
		return nil, fmt.Sprintf("its slot %s is taken by %s, and service %s is frozen: thaw it first", slot, in[0].Spec().Name, spec.ServiceName)
	case live-len(in) >= scale:
		return nil, fmt.Sprintf("service %s has %d of %s without it: scale it up first", spec.ServiceName, live-len(in), reason.Many(scale, "instance"))
	}
	return in, ""
}

// write adds the writes: the adopted instance takes its place, and those in its slot are
// removed. Its resources must still be as they were read.
func (d *adoption) write(id string, spec *mariposa.InstanceSpec, project *store.Project, resources []store.Any, occupants []*store.Instance) {
	u := &d.a.unit
	d.taken[slotKey{spec.Service, spec.Slot}] = true
	d.added[spec.Service] += 1 - len(occupants)
	u.Unchanged(project)
	u.Absent(mariposa.KindInstance, id)
	for _, r := range occupants {
		old := *r.Spec()
		old.Goal, old.Generation, old.Reason = mariposa.GoalGone, old.Generation+1, mariposa.Asked(d.req.actor()+" adopted "+spec.Name+" in its place")
		u.Unchanged(r)
		u.Put(store.Write{Kind: mariposa.KindInstance, ID: r.ID, Project: project.ID, Spec: &old, Event: old.Event("instance.stopping", r.ID, "", old.Reason)})
	}
	for _, r := range resources {
		u.Unchanged(r)
	}
	u.Put(store.Write{Kind: mariposa.KindInstance, ID: id, Project: project.ID, Spec: spec, Event: spec.Event("instance.adopted", id, "", spec.Reason)})
	u.Take(spec.Node, spec.Resources(), mariposa.Resources{}) // it uses them already
}
