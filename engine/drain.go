package engine

import (
	"slices"

	"mariposa"
	"mariposa/converge"
	"mariposa/place"
)

// claimNode claims a place on a node. The commit requires that the node is as it was: it
// must not get an instance if a person drains it at the same moment.
func (t *turn) claimNode(instance string, need place.Need) (place.Node, *mariposa.Reason) {
	node, why := t.e.placer.Pick(instance, need)
	if why != nil || t.placedOn[node.ID] {
		return node, why
	}
	r := t.e.Picture.Nodes.Get(node.ID)
	if r == nil || !r.Spec().TakesInstances() { // since a moment ago
		t.e.placer.Release(instance)
		return place.Node{}, &mariposa.Reason{Code: mariposa.ReasonNodeRefuses, Node: node.Name, Detail: "takes no instances"}
	}
	if t.placedOn == nil {
		t.placedOn = map[string]bool{}
	}
	t.placedOn[node.ID] = true
	t.unit.Unchanged(r)
	return node, nil
}

// mayLeave reports whether an instance may be removed from a node that is drained. One
// that is removed before its successor starts must have another place to go to.
func (t *turn) mayLeave(s converge.Step) bool {
	def := t.view.Definition(t.goal.Services[s.Service].Number, s.Service)
	if s.Drains == "" || def == nil || !def.Update.StopFirst {
		return true
	}
	spec := t.view.Instance(s.Instance).Spec
	need := place.Need{
		Service: spec.Service, Compute: def.Compute, Ports: def.FixedPorts(),
		Take: mariposa.Resources{Instances: 1, MilliCPU: def.MilliCPU, Memory: def.Memory},
	}
	probe := "probe/" + s.Instance
	_, why := t.e.placer.Pick(probe, need)
	t.e.placer.Release(probe)
	if why != nil {
		t.block(s.Service, why)
	}
	return why == nil
}

// movesOff reports whether the plan moves instances of a service off a node.
func (t *turn) movesOff(service string) bool {
	return slices.ContainsFunc(t.plan.Steps, func(s converge.Step) bool { return s.Service == service && s.Drains != "" })
}

// drainTask fills in the task that moves instances of a service off a node.
func (t *turn) drainTask(spec *mariposa.TaskSpec, node string) {
	spec.Task, spec.Component, spec.Node = mariposa.TaskReprovision, mariposa.DrainComponent, node
	r := t.e.Picture.Nodes.Get(node)
	if r == nil {
		return
	}
	spec.NodeName = r.Spec().Name
	if d := r.Spec().Drain; d != nil {
		spec.Parent = d.Task
		if d.By != "" {
			spec.Author = d.By
		}
	}
}
