package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// resource is a volume or a network of the node, which instances use and which outlives
// them. It is created before the first instance that needs it starts, and removed only by
// a tombstone, once no instance uses it.
type resource struct {
	desired     wire.Provision // without a goal, only instances refer to it so far
	state       mariposa.ResourceState
	size        int64 // that it was last created with or grown to
	path        string
	reason      string // why it is not in its desired state
	inOperation bool   // a driver operation is in progress
	users       map[string]*instance
}

// handleProvide sets the goals of resources. After a complete snapshot, resources that
// it does not name are left as they are and no longer managed.
func (n *Node) handleProvide(p *wire.Provide) {
	for _, it := range p.Items {
		r := n.resource(it.ID)
		r.desired = it
		if n.offeredResources != nil {
			n.offeredResources[it.ID] = true
		}
		n.pursueResource(r)
	}
	if !p.Snapshot || !p.Last || n.offeredResources == nil {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(n.resources)) {
		if r := n.resources[id]; !n.offeredResources[id] {
			r.desired.Goal = ""
			n.dropResource(r)
		}
	}
	n.logUnclaimed()
	n.offeredResources = nil
}

// resource returns a resource by id, and adds it if it is new.
func (n *Node) resource(id string) *resource {
	r := n.resources[id]
	if r == nil {
		r = &resource{desired: wire.Provision{ID: id}, state: mariposa.ResourcePending, users: map[string]*instance{}}
		n.resources[id] = r
	}
	return r
}

// logUnclaimed logs resources that exist but are not named by the control plane. They may
// contain data that people need, so they stay in place.
func (n *Node) logUnclaimed() {
	for kind, l := range n.lanes {
		p, ok := l.driver.(driver.Provider)
		if !ok {
			continue
		}
		all, err := p.Provided(n.stepCtx)
		if err != nil {
			slog.Warn("cannot list the volumes and networks on this node", "node", n.Hello.Name, "compute", kind, "err", err)
		}
		for _, r := range all {
			if !n.offeredResources[r.ID] {
				slog.Warn("found a resource that is unknown to the control plane; leaving it in place", "node", n.Hello.Name, "kind", r.Kind, "id", r.ID)
			}
		}
	}
}

// useResources records which resources an instance needs.
func (n *Node) useResources(i *instance) {
	if i.status.State == mariposa.StateDestroyed {
		return
	}
	for _, need := range i.neededResources() {
		r := n.resource(need.ID)
		if r.users[i.id] == i {
			continue
		}
		r.users[i.id] = i
		i.resources = append(i.resources, r)
	}
}

// neededResources returns the resources that an instance cannot start without.
func (i *instance) neededResources() []driver.Resource {
	var all []driver.Resource
	for _, m := range i.desired.Mounts {
		all = append(all, driver.Resource{Kind: mariposa.KindVolume, ID: m.Volume, Name: m.Name})
	}
	for _, j := range i.desired.Networks {
		all = append(all, driver.Resource{Kind: mariposa.KindNetwork, ID: j.Attachment, Name: j.Name})
	}
	return all
}

// releaseResources records that an instance is gone or no longer ours. A removal that
// waited for it can then go on.
func (n *Node) releaseResources(i *instance) {
	for _, r := range i.resources {
		if r.users[i.id] == i {
			delete(r.users, i.id)
		}
		n.pursueResource(r)
		n.dropResource(r)
	}
	i.resources = nil
}

// dropResource removes a resource that neither the control plane nor an instance refers
// to.
func (n *Node) dropResource(r *resource) {
	if r.desired.Goal == "" && len(r.users) == 0 && !r.inOperation {
		delete(n.resources, r.desired.ID)
		delete(n.staleResources, r.desired.ID)
	}
}

// provideAll pursues every resource again, once all users are known.
func (n *Node) provideAll() {
	for _, id := range slices.Sorted(maps.Keys(n.resources)) {
		n.pursueResource(n.resources[id])
	}
}

// missingResources describes the first resource that an instance needs and that is not
// ready; empty: none.
func (i *instance) missingResources() string {
	for _, r := range i.resources {
		if r.state == mariposa.ResourceMade {
			continue
		}
		if r.reason != "" {
			return fmt.Sprintf("its %s %s cannot be created yet: %s", r.desired.Kind, r.desired.Name, r.reason)
		}
		for _, need := range i.neededResources() {
			if need.ID == r.desired.ID {
				return fmt.Sprintf("waits for its %s %s", need.Kind, need.Name)
			}
		}
	}
	return ""
}

// pursueResource brings a resource to its goal.
func (n *Node) pursueResource(r *resource) {
	switch {
	case r.inOperation:
	case r.desired.Goal == mariposa.GoalKept && (r.state != mariposa.ResourceMade || r.size < r.desired.Size):
		n.callProvider(r, mariposa.ResourceMade)
	case r.desired.Goal == mariposa.GoalGone && n.snapshot != nil: // its users are not all known yet
	case r.desired.Goal == mariposa.GoalGone && r.state != mariposa.ResourceGone && len(r.users) == 0:
		n.callProvider(r, mariposa.ResourceGone)
	case r.desired.Goal != "":
		n.staleResources[r.desired.ID] = struct{}{} // report it again: the last report may have been lost
	}
}

func (r *resource) driverResource() driver.Resource {
	return driver.Resource{Kind: r.desired.Kind, ID: r.desired.ID, Name: r.desired.Name, Size: r.desired.Size}
}

// callProvider makes the driver create or remove a resource.
func (n *Node) callProvider(r *resource, state mariposa.ResourceState) {
	r.inOperation = true
	l := n.lane(r.desired.Compute)
	p, ok := l.driver.(driver.Provider)
	if !ok {
		n.post(func() {
			n.resourceDone(r, state, "", fmt.Errorf("this node cannot create a %s for compute type %s", r.desired.Kind, r.desired.Compute))
		})
		return
	}
	what := r.driverResource()
	n.runAsync(l, "", nil, func(ctx context.Context) func() {
		var path string
		var err error
		if state == mariposa.ResourceGone {
			err = p.Withdraw(ctx, what)
		} else {
			path, err = p.Provide(ctx, what)
		}
		return func() {
			if err == nil {
				r.size = what.Size
			}
			n.resourceDone(r, state, path, err)
		}
	})
}

// resourceDone records the result of a driver operation on a resource, whose goal may
// have changed meanwhile, and lets the instances that use it proceed.
func (n *Node) resourceDone(r *resource, state mariposa.ResourceState, path string, err error) {
	n.staleResources[r.desired.ID] = struct{}{}
	again := func() {
		r.inOperation = false
		n.pursueResource(r)
		n.dropResource(r)
	}
	small := (*driver.GrowError)(nil)
	if err == nil || errors.As(err, &small) { // one that is too small can be used
		r.state, r.path, r.reason = state, path, ""
	}
	if err == nil {
		again()
	} else {
		slog.Warn("cannot bring a resource to its desired state; retrying", "node", n.Hello.Name, "kind", r.desired.Kind, "id", r.desired.ID, "goal", r.desired.Goal, "err", err)
		r.reason = err.Error()
		n.Clock.After(retryDelay, func() { n.post(again) })
	}
	for _, id := range slices.Sorted(maps.Keys(r.users)) {
		n.pursue(r.users[id])
	}
}

// volumes describes an instance's volumes to its driver.
func (n *Node) volumes(i *instance) []driver.Volume {
	var all []driver.Volume
	for _, m := range i.desired.Mounts {
		v := driver.Volume{Mount: m}
		if r := n.resources[m.Volume]; r != nil {
			v.Source = r.path
		}
		all = append(all, v)
	}
	return all
}

// networks describes an instance's networks to its driver.
func (n *Node) networks(i *instance) []driver.Network {
	var all []driver.Network
	for _, j := range i.desired.Networks {
		v := driver.Network{ID: j.Attachment, Name: j.Name}
		if r := n.resources[j.Attachment]; r != nil {
			v.Source = r.path
		}
		all = append(all, v)
	}
	return all
}

// reportProvided sends the changes of resources: of those that are gone, or of the
// others. Then it removes those that are gone. If the report is lost, the control plane
// asks again and gets the same answer.
func (n *Node) reportProvided(gone bool) {
	var all []wire.Provided
	for _, id := range slices.Sorted(maps.Keys(n.staleResources)) {
		r := n.resources[id]
		if r != nil && (r.state == mariposa.ResourceGone) != gone {
			continue
		}
		delete(n.staleResources, id)
		if r == nil || r.desired.Goal == "" {
			continue
		}
		all = append(all, wire.Provided{Kind: r.desired.Kind, ID: id, State: r.state, Path: r.path, Reason: r.reason})
		if gone && r.desired.Goal == mariposa.GoalGone {
			r.desired.Goal = ""
			n.dropResource(r)
		}
	}
	for part := range slices.Chunk(all, wire.Batch) {
		n.send(wire.Frame{Report: &wire.Report{Provided: part}})
	}
}
