package picture

import (
	"mariposa"
	"mariposa/converge"
	"mariposa/pace"
	"mariposa/store"
)

// Weather says which lost nodes are not given up yet, because many were lost at once.
// byDefault is the share of nodes that may be lost, in percent, if the installation has
// no setting; 0: mariposa.DefaultStormBreaker; negative: any share.
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
		case st == nil || spec.Approval != "" || spec.SkipsWaiting(st):
		case st.State == mariposa.NodeUnknown:
			n.Lost = append(n.Lost, pace.LostNode{ID: r.ID, Since: st.Since})
		default:
			n.Reachable++
		}
	}
	return pace.JudgeWeather(n, stored, percent)
}

// StormOf returns the storm in the settings of the installation; nil: there is none.
func StormOf(r *store.Settings) *mariposa.Storm {
	if r == nil || r.Status() == nil {
		return nil
	}
	return r.Status().Storm
}

// StormIn converts the weather for use in a view.
func StormIn(w pace.Weather) *converge.Storm {
	s := &converge.Storm{Held: w.Held, After: w.After}
	if w.Storm != nil {
		s.Count, s.Of, s.Since = w.Storm.Count, w.Storm.Of, w.Storm.Since
	}
	return s
}
