package simulate

import (
	"slices"
	"time"

	"mariposa"
	"mariposa/store"
)

const (
	// plannersKnow is the time after which every planner that works knows that a node was
	// lost.
	plannersKnow = time.Minute
	// mostBounces is how often within an hour a replacement of the same lost instance may be
	// removed before it is up: once for each loss until its node counts as unstable.
	mostBounces = 2
)

// checkStableNode checks that the replacement of a lost instance is not on a node that was
// lost several times itself, unless a user gave up the node of the lost one.
func (c *checker) checkStableNode(spec *mariposa.InstanceSpec) {
	r := c.nodes[spec.Node]
	if r == nil || !spec.Reason.Is(mariposa.ReasonReplacesLost) || len(spec.Mounts) > 0 {
		return
	}
	st := r.Status()
	if st == nil || len(st.Losses) == 0 || c.w.now.Sub(st.Since) < plannersKnow || c.w.now.Sub(st.Losses[len(st.Losses)-1]) < plannersKnow {
		return
	}
	for _, i := range c.instances {
		if i.Spec().Name != spec.Reason.Subject {
			continue
		}
		if lost := c.nodes[i.Spec().Node]; lost == nil || !lost.Spec().RescheduleNow.IsZero() {
			return
		}
	}
	if st.ShunnedUntil().Add(-plannersKnow).After(c.w.now) {
		c.w.fail("%s replaces an instance of a lost node on %s, which was lost %d times within an hour", spec.Name, r.Spec().Name, st.RecentLosses())
	}
}

// noteBounce records that a replacement of a lost instance is removed before it is up,
// because the lost one is back. If that happens again and again, its slot bounces.
func (c *checker) noteBounce(was *store.Instance, spec *mariposa.InstanceSpec) {
	st := was.Status()
	if !was.Spec().Reason.Is(mariposa.ReasonReplacesLost) || !spec.Reason.Is(mariposa.ReasonSlotHeld) || st != nil && !st.Started.IsZero() {
		return
	}
	c.w.seen["replacement removed early"]++
	lost := was.Spec().Reason.Subject
	all := slices.DeleteFunc(c.bounces[lost], func(at time.Time) bool { return c.w.now.Sub(at) > time.Hour })
	if all = append(all, c.w.now); len(all) > mostBounces+1 { // a planner may not know of the last loss yet
		c.w.fail("%s was replaced %d times within an hour, and each time the replacement was removed before it was up", lost, len(all))
	}
	c.bounces[lost] = all
}
