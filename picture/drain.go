package picture

import (
	"mariposa"
	"mariposa/store"
)

// Staying is an instance on a node that is drained, and why it is still there.
type Staying struct {
	*store.Instance
	Why *mariposa.Reason // nil: it is being moved, or about to be
}

// StaysOn lists the instances on a node that a drain has to move, by id. Ended ones that
// are kept for inspection are not among them.
func (p *Picture) StaysOn(r *store.Node) []Staying {
	var all []Staying
	for _, i := range p.InstancesOn(r.ID) {
		if i.Spec().Kept || mariposa.StateOf(i.Spec(), i.Status()) == mariposa.StateDestroyed {
			continue
		}
		all = append(all, Staying{i, p.whyStays(r, i)})
	}
	return all
}

// whyStays returns why a drain does not move an instance; nil: it does.
func (p *Picture) whyStays(r *store.Node, i *store.Instance) *mariposa.Reason {
	spec := i.Spec()
	if st := r.Status(); st != nil && st.State == mariposa.NodeUnknown {
		return &mariposa.Reason{Code: mariposa.ReasonDrainAway, Node: r.Spec().Name, Since: st.Since}
	}
	switch {
	case spec.Goal == mariposa.GoalGone:
		return nil
	case !spec.Managed || spec.Orphaned:
		return &mariposa.Reason{Code: mariposa.ReasonDrainUnmanaged, Subject: spec.Name}
	}
	ss, project := p.serviceOf(spec)
	about := mariposa.Reason{Subject: spec.Name, Keys: []string{spec.ServiceName}, Other: project}
	switch {
	case ss != nil && ss.Frozen != nil:
		about.Code = mariposa.ReasonDrainFrozen
	case len(spec.Mounts) > 0:
		names := []string{}
		for _, m := range spec.Mounts {
			names = append(names, m.Name)
		}
		return &mariposa.Reason{Code: mariposa.ReasonDrainVolumes, Subject: spec.Name, Keys: names}
	case ss == nil:
		return nil
	case ss.Paused:
		about.Code = mariposa.ReasonDrainPaused
	case ss.Status == mariposa.StatusBlocked || ss.Status == mariposa.StatusBackingOff || ss.Reason.Is(mariposa.ReasonDrainRollout, mariposa.ReasonReferrers):
		about.Code, about.Keys = mariposa.ReasonDrainService, nil
		return about.Because(ss.Reason)
	default:
		return nil
	}
	return &about
}

// serviceOf returns the status of an instance's service, and the name of its project.
func (p *Picture) serviceOf(spec *mariposa.InstanceSpec) (*mariposa.ServiceStatus, string) {
	r := p.Projects.Get(spec.Project)
	if r == nil {
		return nil, spec.Project
	}
	if r.Status() == nil {
		return nil, r.Spec().Name
	}
	return r.Status().Services[spec.ServiceName], r.Spec().Name
}
