package change

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/converge"
	"mariposa/store"
)

// reprovision replaces the instances of all or some services, or those that match a
// filter. Held rollouts continue instead: if no services are named, it continues those
// and touches nothing else.
func (e *edit) reprovision(a Action) (*mariposa.TaskSpec, error) {
	if err := e.requireVersion(); err != nil {
		return nil, err
	}
	refs, filter, err := e.filter(a)
	if err != nil {
		return nil, err
	}
	names, err := e.scope(refs)
	if err != nil {
		return nil, err
	}
	if a.All && filter != nil {
		return nil, invalid("all and filters cannot be combined: use one or the other")
	}
	t := &mariposa.TaskSpec{
		Task: mariposa.TaskReprovision, Component: "project", Services: names, LiftsFreeze: e.mayLiftFreeze(),
		Patch: mariposa.Patch{Reprovision: names, Rolling: a.Rolling, Canary: a.Canary, Filter: filter, All: a.All},
	}
	continues := false
	if len(names) == 0 {
		if held, affected := e.heldServices(); len(held) > 0 && filter == nil && !a.All {
			t.Patch.Reprovision, t.Services, continues = held, affected, true
		} else {
			t.Patch.Reprovision = slices.Sorted(maps.Keys(e.goals()))
		}
	}
	if len(t.Patch.Reprovision) == 0 {
		return nil, nil
	}
	if filter != nil && e.isIdle(names) && !e.matches(t.Patch.Reprovision, filter) {
		e.answer.Reason = "no instance matches the filter"
		if filter.Version > 0 { // lists show these instances at the newer version
			e.answer.Reason += "; an instance that a newer version did not change still counts as created from the older version"
		}
		return nil, nil
	}
	why := e.req.actor() + " asked to reprovision " + strings.Join(t.Patch.Reprovision, ", ") + e.filterWords(filter)
	if continues {
		why = e.req.actor() + " asked to continue the held rollout of " + strings.Join(t.Patch.Reprovision, ", ")
	}
	if a.Canary.N > 0 && continues {
		why += " by " + a.Canary.String()
	} else if a.Canary.N > 0 {
		why += ", " + a.Canary.String() + " first"
	}
	t.Reason = mariposa.Asked(why)
	return t, nil
}

// heldServices returns the services whose rollouts are held, and those together with
// the services whose rollouts wait for them; both sorted.
func (e *edit) heldServices() (held, affected []string) {
	st := e.record.Status()
	if st == nil {
		return nil, nil
	}
	for name, ss := range st.Services {
		switch {
		case ss.Removed || ss.Rollout == nil:
		case ss.Rollout.Held && ss.Rollout.Filter == nil:
			held = append(held, name)
		case ss.Status == mariposa.StatusHeld:
			affected = append(affected, name)
		}
	}
	slices.Sort(held)
	return held, union(held, affected)
}

// filter resolves an action's filter to services and instances. A filter by instance
// selects their services too.
func (e *edit) filter(a Action) (services []string, f *mariposa.Filter, err error) {
	in := a.Filter
	if in == nil {
		return a.Services, nil, nil
	}
	filter := &mariposa.Filter{Image: in.Image}
	services = slices.Concat(a.Services, in.Services)
	named := len(services) > 0
	if in.Version != "" {
		found, err := e.c.FindVersion(e.ctx, e.record, in.Version)
		if err != nil {
			return nil, nil, err
		}
		filter.Version = found.Spec().Number
	}
	for _, ref := range in.Instances {
		r, err := e.instance(ref)
		if err != nil {
			return nil, nil, err
		}
		filter.Instances = append(filter.Instances, r.ID)
		if !named {
			services = append(services, r.Spec().ServiceName)
		}
	}
	for _, ref := range in.Nodes {
		node, err := e.node(ref)
		if err != nil {
			return nil, nil, err
		}
		filter.Nodes = append(filter.Nodes, node)
	}
	if filter.Version == 0 && filter.Image == "" && len(filter.Instances) == 0 && len(filter.Nodes) == 0 {
		filter = nil // by service alone
	}
	return services, filter, nil
}

// instance finds a managed instance of the project by id, name or id prefix.
func (e *edit) instance(ref string) (*store.Instance, error) {
	var found []*store.Instance
	for _, r := range e.c.Picture.InstancesOf(e.record.ID) {
		spec := r.Spec()
		if r.ID == ref && spec.Managed {
			return r, nil
		}
		if spec.Managed && (spec.Name == ref || len(ref) >= 4 && strings.HasPrefix(r.ID, ref)) {
			found = append(found, r)
		}
	}
	switch len(found) {
	case 0:
		return nil, notFound("project %s has no managed instance %q", e.spec.Name, shorten(ref))
	case 1:
		return found[0], nil
	}
	return nil, invalid("%q matches more than one instance, including %s and %s: use the full id", ref, found[0].ID, found[1].ID)
}

// node finds a node that runs an instance of the project, by id or name: only the
// installation's admins know of others.
func (e *edit) node(ref string) (id string, err error) {
	for _, i := range e.c.Picture.InstancesOf(e.record.ID) {
		if id = i.Spec().Node; id == ref || e.c.name(mariposa.KindNode, id) == ref {
			return id, nil
		}
	}
	return "", notFound("no node %q with instances of project %s", shorten(ref), e.spec.Name)
}

// matches reports whether a filter selects any wanted instance of some services.
func (e *edit) matches(services []string, f *mariposa.Filter) bool {
	return slices.ContainsFunc(e.c.Picture.InstancesOf(e.record.ID), func(r *store.Instance) bool {
		spec := r.Spec()
		if !spec.Managed || spec.Goal != mariposa.GoalRunning || !slices.Contains(services, spec.ServiceName) {
			return false
		}
		return converge.Matches(f, r.ID, spec, e.definition(spec.Number, spec.ServiceName))
	})
}

// filterWords describes a filter, as the rest of a sentence.
func (e *edit) filterWords(f *mariposa.Filter) string {
	if f == nil {
		return ""
	}
	var words []string
	if len(f.Instances) > 0 {
		words = append(words, "only "+e.c.listNames(mariposa.KindInstance, f.Instances))
	}
	if f.Version > 0 {
		words = append(words, fmt.Sprintf("only instances created from version %d", f.Version))
	}
	if f.Image != "" {
		words = append(words, "only with image "+shorten(f.Image))
	}
	if len(f.Nodes) > 0 {
		words = append(words, "only on "+e.c.listNames(mariposa.KindNode, f.Nodes))
	}
	return ": " + strings.Join(words, ", ")
}
