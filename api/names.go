package api

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/discover"
	"mariposa/store"
)

type namesInput struct {
	OfProject
	Node string `query:"node" doc:"id or name of a node: as processes on it get the names; by default each instance is seen from its own node" maxLength:"255"`
}

// getNames shows what the names of a project's services resolve to.
func (s *server) getNames(ctx context.Context, in *namesInput) (*document[contract.Names], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	node := ""
	if in.Node != "" {
		n, err := s.findNode(in.Node)
		if err != nil {
			return nil, err
		}
		node = n.ID
	}
	book := s.Names
	if book == nil {
		book = discover.NewBook(s.Picture, s.Domain)
	}
	book.Hold(r.ID)
	defer book.Release(r.ID)
	v := s.viewer(ctx)
	doc := contract.Names{Domain: book.Zone.Domain(), Names: []contract.Name{}}
	goals := v.goals(r)
	for _, d := range book.Zone.Describe(r.ID, node) {
		one := contract.Name{Name: d.Name, Service: d.Service, Targets: []contract.NameTarget{}}
		for _, t := range d.Targets {
			i := s.Picture.Instances.Get(t.Instance)
			if i == nil {
				continue // removed in the meantime
			}
			target := contract.NameTarget{
				Name: strings.TrimSuffix(t.Name, "."), Instance: t.Instance, InstanceName: i.Spec().Name, Node: i.Spec().Node, NodeName: v.nodeName(i.Spec().Node),
				Address: t.Address.String(), Ports: []int{},
			}
			for _, p := range t.Ports {
				target.Ports = append(target.Ports, int(p))
			}
			one.Targets = append(one.Targets, target)
		}
		slices.SortFunc(one.Targets, func(a, b contract.NameTarget) int { return compareNaturally(a.InstanceName, b.InstanceName) })
		if len(one.Targets) == 0 {
			one.Reason = v.whyNoTarget(r, d.Service, goals[d.Service], d.Unreached)
		}
		doc.Names = append(doc.Names, one)
	}
	return answer(doc)
}

// whyNoTarget says why the name of a service does not resolve.
func (v *viewer) whyNoTarget(p *store.Project, service string, ss *mariposa.ServiceStatus, unreached []string) string {
	if ss != nil && ss.Scale == 0 {
		return "its scale is 0"
	}
	var first *store.Instance
	for _, r := range v.s.Picture.InstancesOf(p.ID) {
		if spec := r.Spec(); spec.ServiceName == service && spec.Managed && !spec.Kept && (first == nil || spec.Slot < first.Spec().Slot) {
			first = r
		}
	}
	if first == nil {
		return "it has no instances"
	}
	name, st := first.Spec().Name, first.Status()
	state := mariposa.StateOf(first.Spec(), st)
	switch {
	case slices.Contains(unreached, first.ID):
		return name + " has no address that can be reached from there: on other nodes, only fixed ports of containers can (`ports: [\"8080:80\"]`)"
	case state != mariposa.StateRunning:
		return fmt.Sprintf("%s is %s", name, state)
	case first.Spec().Goal != mariposa.GoalRunning:
		return name + " is about to stop"
	case len(st.Addresses) == 0:
		return name + " has no address"
	case st.Health == mariposa.HealthUnhealthy:
		return fmt.Sprintf("%s is not healthy: %s", name, st.Reason)
	case st.Health != "" && st.Health != mariposa.HealthHealthy:
		return name + " is not healthy yet: it is " + untestedDetail(st)
	}
	return name + " is up, but its name is not known yet"
}
