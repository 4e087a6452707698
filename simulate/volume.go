package simulate

import (
	"fmt"
	"maps"
	"slices"

	"mariposa"
	"mariposa/auth"
	"mariposa/change"
	"mariposa/contract"
	"mariposa/reason"
	"mariposa/store"
)

// volume checks the rules for volumes: a volume never changes its node or its slot, a
// slot has only one volume of a name, a tombstone is final, and a volume in use is not
// removed.
func (c *checker) volume(ch *store.Change) {
	r := (*store.Volume)(&ch.Record)
	spec := r.Spec()
	name := fmt.Sprintf("volume %s of %s", tail(r.ID), spec.Owner())
	c.w.note("r%d %s %s on %s goal %s (%s)", ch.Revision, name, ch.Event.Kind, spec.Node, spec.Goal, reason.Sentence(spec.Reason))
	if ch.Deleted {
		if spec.Goal != mariposa.GoalGone {
			c.w.fail("the record of %s was deleted, but the volume must be retained", name)
		}
		if by := c.userOf(r.ID); by != "" {
			c.w.fail("%s was deleted while %s uses it", name, by)
		}
		delete(c.volumes, r.ID)
		return
	}
	if old, known := c.volumes[r.ID]; known {
		was := old.Spec()
		attached := was.Project == "" && spec.Attaching
		if was.Node != spec.Node || !attached && !was.SameSlot(spec) {
			c.w.fail("%s on %s was one of %s.%d on %s", name, spec.Node, was.ServiceName, was.Slot, was.Node)
		}
		if was.Goal == mariposa.GoalGone && spec.Goal != mariposa.GoalGone {
			c.w.fail("%s is desired again after its removal was requested", name)
		}
		if was.Project == "" && spec.Project != "" && !attached {
			c.w.fail("%s was assigned to a project again", name)
		}
		if attached {
			c.w.seen["attached a volume"]++
		}
	}
	c.volumes[r.ID] = r
	c.checkSecondVolume(r, name)
}

// checkSecondVolume checks that a slot has only one volume of a name.
func (c *checker) checkSecondVolume(r *store.Volume, name string) {
	spec := r.Spec()
	for _, id := range slices.Sorted(maps.Keys(c.volumes)) {
		other := c.volumes[id].Spec()
		if id != r.ID && spec.Project != "" && other.Project == spec.Project && other.SameSlot(spec) &&
			other.Goal == mariposa.GoalKept && spec.Goal == mariposa.GoalKept && !other.Attaching && !spec.Attaching {
			c.w.fail("%s is a second volume for its slot, in addition to %s", name, tail(id))
		}
	}
}

// userOf returns an instance that uses a volume and still exists on its node.
func (c *checker) userOf(volume string) string {
	for _, id := range c.sorted() {
		r := c.instances[id]
		spec, status := r.Spec(), r.Status()
		if !spec.Kept && mariposa.StateOf(spec, status) != mariposa.StateDestroyed &&
			slices.ContainsFunc(spec.Mounts, func(m mariposa.Mount) bool { return m.Volume == volume }) {
			return spec.Name
		}
	}
	return ""
}

// checkVolumeNode checks that an instance is on the node of its slot's volumes.
func (c *checker) checkVolumeNode(id string, spec *mariposa.InstanceSpec) {
	for _, m := range spec.Mounts {
		r, known := c.volumes[m.Volume]
		if !known {
			c.w.fail("%s was created with an unknown volume", spec.Name)
		}
		v := r.Spec()
		if v.Shared && v.Node == spec.Node && v.Project == spec.Project && v.Name == m.Name && v.Goal == mariposa.GoalKept {
			c.w.seen["made with a shared volume"]++
			continue
		}
		if v.Node != spec.Node || v.Service != spec.Service || v.Slot != spec.Slot || v.Name != m.Name {
			c.w.fail("%s on %s was created with the volume of %s.%d on %s", spec.Name, spec.Node, v.ServiceName, v.Slot, v.Node)
		}
		if v.Goal != mariposa.GoalKept || v.Instance != id {
			c.w.fail("%s was created with a volume with goal %s and instance %s", spec.Name, v.Goal, tail(v.Instance))
		}
		c.w.seen["made with a volume"]++
	}
}

// leftToGo returns a volume with a tombstone that is not settled; empty: none.
func (c *checker) leftToGo() string {
	for _, id := range slices.Sorted(maps.Keys(c.volumes)) {
		if c.volumes[id].Spec().Goal == mariposa.GoalGone {
			return "volume " + id + " is to go"
		}
	}
	return ""
}

// attachVolume attaches a retained volume to a project: to its former slot, or to another one, which
// is more often free.
func (p *people) attachVolume(project *store.Project) {
	to := contract.VolumeAttachment{Project: project.ID}
	if p.w.chance(2) {
		to.Slot = 1 + p.w.rng.IntN(6)
	}
	for _, r := range p.asked.picture.RetainedVolumesOf(organization) {
		spec := r.Spec()
		if spec.Goal == mariposa.GoalGone {
			continue
		}
		p.send(&request{
			what: "attach volume " + tail(r.ID) + " to " + project.Spec().Name, permission: auth.AttachVolume,
			ask: func(c *change.Changer, req *change.Request) (*contract.Changed, error) {
				to := to
				if spec.Shared {
					to.Slot = 0
				}
				return c.AttachVolume(p.w.ctx, req, r.ID, project.ID, to)
			},
		})
		return
	}
}

// deleteVolume deletes a retained volume of a project.
func (p *people) deleteVolume() {
	for _, r := range p.asked.picture.RetainedVolumesOf(organization) {
		if r.Spec().Goal == mariposa.GoalGone {
			continue
		}
		p.send(&request{
			what: "forget volume " + tail(r.ID), permission: auth.DeleteVolume,
			ask: func(c *change.Changer, req *change.Request) (*contract.Changed, error) {
				return c.DeleteVolume(p.w.ctx, req, r.ID)
			},
		})
		return
	}
}
