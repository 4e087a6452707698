package api

import (
	"mariposa"
	"mariposa/contract"
	"mariposa/picture"
	"mariposa/store"
)

// maxListedStays bounds the list of instances that a drain cannot move.
const maxListedStays = 20

// showEligibility shows whether a node takes instances, and how far its drain is. The
// status is drained only when no instance is left.
func (v *viewer) showEligibility(r *store.Node, doc *contract.Node) {
	spec := r.Spec()
	doc.Eligible = spec.TakesInstances()
	why := v.whyAvoided(r)
	if d := spec.Drain; d != nil {
		doc.Drain = &contract.NodeDrain{State: d.State, Task: d.Task, By: d.By, Since: d.Since, Deadline: optionalTime(d.Deadline), Stays: []contract.DrainMove{}}
		var left []picture.Staying
		if !v.isPast() {
			left = v.s.Picture.StaysOn(r)
			v.showStays(left, doc.Drain)
		}
		switch d.State {
		case mariposa.DrainActive:
			why = &mariposa.Reason{Code: mariposa.ReasonDrainLeft, Count: doc.Drain.Left, Of: max(d.Total, doc.Drain.Left), Node: spec.Name}
			why = why.Because(picture.WhyLeft(left))
		case mariposa.DrainStopped:
			why = v.whyStopped(d, left)
		case mariposa.DrainDone:
			why = d.Reason
		}
	}
	if doc.Status != mariposa.NodeRunning {
		return // that it cannot be reached is more important
	}
	if spec.Drained && (spec.Drain == nil || spec.Drain.State == mariposa.DrainDone) {
		doc.Status = mariposa.NodeDrained
	}
	if why != nil && doc.Reason == "" {
		doc.Reason, doc.ReasonCode = v.sentence(why)
	}
}

// whyStopped returns why a drain stopped early, with what is left now.
func (v *viewer) whyStopped(d *mariposa.Drain, left []picture.Staying) *mariposa.Reason {
	if d.Reason == nil || v.isPast() {
		return d.Reason
	}
	why := *d.Reason
	why.Count, why.Cause = len(left), nil
	return why.Because(picture.WhyLeft(left))
}

// whyAvoided returns why a node gets no new instances, or only if no other fits; nil: it
// does.
func (v *viewer) whyAvoided(r *store.Node) *mariposa.Reason {
	if by := r.Spec().Reserved; by != "" {
		return &mariposa.Reason{Code: mariposa.ReasonReserved, Subject: by, Node: r.Spec().Name}
	}
	if st := r.Status(); st != nil {
		if until := st.UnstableUntil(); until.After(v.now()) {
			return &mariposa.Reason{Code: mariposa.ReasonUnstable, Count: st.RecentLosses(), Until: until}
		}
	}
	return nil
}

// showStays lists the instances that still have to leave a node: first those that cannot be
// moved, then those that are, then those that wait for others. Of the last, one stands for
// all of its service.
func (v *viewer) showStays(left []picture.Staying, doc *contract.NodeDrain) {
	doc.Left = len(left)
	for _, s := range picture.Summarize(left) {
		if len(doc.Stays) == maxListedStays {
			return
		}
		spec := s.Spec()
		move := contract.DrainMove{Instance: s.ID, Name: spec.Name, Project: spec.Project, ProjectName: v.projectName(spec.Project), ServiceName: spec.ServiceName}
		move.Reason, move.ReasonCode = v.sentence(s.Why)
		doc.Stays = append(doc.Stays, move)
	}
}

// storm shows that many nodes were lost at once; nil: they were not.
func (v *viewer) storm() *contract.Storm {
	w := v.s.Picture.Weather(v.s.Fleet.StormBreaker)
	if w.Storm == nil {
		return nil
	}
	doc := &contract.Storm{Since: w.Storm.Since, Began: w.Storm.Began, Count: w.Storm.Count, Of: w.Storm.Of, Waiting: v.s.Picture.CountUnreplaced(w.Held)}
	doc.Text, _ = v.sentence(&mariposa.Reason{
		Code: mariposa.ReasonStormLasts, Count: doc.Count, Of: doc.Of, Since: doc.Since, Tally: map[string]int{mariposa.TallyWaiting: doc.Waiting},
	})
	return doc
}
