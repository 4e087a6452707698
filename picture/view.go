package picture

import (
	"mariposa"
	"mariposa/converge"
	"mariposa/store"
)

// View returns a project as the planner sees it, with a goal (nil: no goal yet). The
// caller must add the definitions that the view refers to with LoadDefinitions.
func (p *Picture) View(of Project, goal *mariposa.ProjectStatus) *converge.View {
	view := converge.NewView()
	if goal != nil {
		view.SetGoal(goal)
	}
	for _, r := range of.Instances {
		p.AddToView(view, r)
	}
	return view
}

// AddToView adds or updates an instance in a view. If the instance is new to the view,
// its node is added too. Unmanaged and orphaned instances are not part of a plan.
func (p *Picture) AddToView(view *converge.View, r *store.Instance) {
	spec := r.Spec()
	if !spec.Managed || spec.Orphaned {
		return
	}
	if view.Instance(r.ID) == nil {
		if n := p.Nodes.Get(spec.Node); n != nil {
			view.SetNode(spec.Node, NodeOf(n))
		}
	}
	view.SetInstance(r.ID, spec, r.Status())
}

// NodeOf converts a node record for use in a view.
func NodeOf(r *store.Node) converge.Node {
	n := converge.Node{Name: r.Spec().Name}
	if st := r.Status(); st != nil {
		n.Unknown, n.Since, n.UnstableUntil = st.State.IsAway(), st.Since, st.UnstableUntil()
	}
	n.Draining, n.GivenUp = r.Spec().Drain.MovesInstances(), r.Spec().SkipsWaiting(r.Status())
	return n
}

// LoadDefinitions adds the missing definitions that a view refers to.
func LoadDefinitions(view *converge.View, read func(number int) (converge.Definitions, error)) error {
	for missing := view.MissingVersions(); len(missing) > 0; missing = view.MissingVersions() {
		for _, n := range missing {
			defs, err := read(n)
			if err != nil {
				return err
			}
			view.SetVersion(n, defs)
		}
	}
	return nil
}
