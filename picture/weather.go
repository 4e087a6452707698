package picture

import (
	"mariposa"
	"mariposa/converge"
	"mariposa/pace"
	"mariposa/store"
)

// Weather says which lost nodes are not given up yet, because many were lost at once.
// byDefault is the share of nodes that may be lost, in percent, if the installation has
// no setting; 0: mariposa.DefaultStormBreaker; negative: any share. Only nodes with
// instances count (see pace.Nodes).
func (p *Picture) Weather(byDefault int) pace.Weather {
	percent := byDefault
	if percent == 0 {
		percent = mariposa.DefaultStormBreaker
	}
	var stored *mariposa.Storm
	if r := p.Settings.Get(mariposa.SettingsID); r != nil {
		if set := r.Spec().StormBreaker; set != nil {
			percent = *set
		}
		stored = StormOf(r)
	}
	var n pace.Nodes
	for _, r := range p.Nodes.All() {
		spec, st := r.Spec(), r.Status()
		switch {
		case st == nil || spec.Approval != "" || !p.HasInstances(r.ID):
		case spec.SkipsWaiting(st):
			n.GivenUp = append(n.GivenUp, pace.LostNode{ID: r.ID, Since: st.Since})
		case st.State == mariposa.NodeUnknown:
			n.Lost = append(n.Lost, pace.LostNode{ID: r.ID, Since: st.Since})
		default:
			n.Reachable++
		}
	}
	return pace.JudgeWeather(n, stored, percent)
}

// HasInstances reports whether anything is placed on a node, in whatever state. What was
// replaced elsewhere stays on a lost node until the node returns, so the answer for a lost
// node does not change while its instances are replaced.
func (p *Picture) HasInstances(node string) bool { return p.CountOn(node) > 0 }

// StormOf returns the storm in the settings of the installation; nil: there is none.
func StormOf(r *store.Settings) *mariposa.Storm {
	if r == nil || r.Status() == nil {
		return nil
	}
	return r.Status().Storm
}

// CountUnreplaced counts the instances on lost nodes whose slots no other instance has
// taken.
func (p *Picture) CountUnreplaced(nodes map[string]bool) (n int) {
	type slot struct {
		project, service string
		number           int
	}
	waiting, projects := map[slot]int{}, map[string]bool{}
	slotOf := func(s *mariposa.InstanceSpec) slot { return slot{s.Project, s.ServiceName, s.Slot} }
	for node := range nodes {
		for _, r := range p.InstancesOn(node) {
			if spec := r.Spec(); holdsSlot(r) {
				waiting[slotOf(spec)]++
				projects[spec.Project] = true
			}
		}
	}
	for project := range projects {
		for _, r := range p.InstancesOf(project) {
			if spec := r.Spec(); waiting[slotOf(spec)] > 0 && holdsSlot(r) && !p.isLost(spec.Node) {
				delete(waiting, slotOf(spec))
			}
		}
	}
	for _, on := range waiting {
		n += on
	}
	return n
}

// holdsSlot reports whether an instance runs, or should, as far as the store knows.
func holdsSlot(r *store.Instance) bool {
	spec := r.Spec()
	switch mariposa.StateOf(spec, r.Status()) {
	case mariposa.StateStopped, mariposa.StateFailed, mariposa.StateDestroyed:
		return false
	}
	return spec.Managed && spec.Goal == mariposa.GoalRunning && !spec.Kept && !spec.Orphaned
}

func (p *Picture) isLost(node string) bool {
	r := p.Nodes.Get(node)
	return r == nil || r.Status() == nil || r.Status().State == mariposa.NodeUnknown
}

// StormIn converts the weather for use in a view.
func StormIn(w pace.Weather) *converge.Storm {
	s := &converge.Storm{Held: w.Held, After: w.After}
	if w.Storm != nil {
		s.Count, s.Of, s.Since = w.Storm.Count, w.Storm.Of, w.Storm.Since
	}
	return s
}
