package api

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// maxMeasuredBalancers is how many instances of balancers are asked for their counters in one
// request.
const maxMeasuredBalancers = 100

type listBalancersInput struct {
	Organization string `query:"organization" doc:"id or name" maxLength:"255"`
}

func (s *server) listBalancers(ctx context.Context, in *listBalancersInput) (*document[contract.Balancers], error) {
	projects, err := s.projectsFor(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	return s.balancers(ctx, projects)
}

func (s *server) getBalancers(ctx context.Context, in *OfProject) (*document[contract.Balancers], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	return s.balancers(ctx, []*store.Project{r})
}

// balancers shows the load balancers of projects, with their members as they are now.
func (s *server) balancers(ctx context.Context, projects []*store.Project) (*document[contract.Balancers], error) {
	v := s.viewer(ctx)
	doc := contract.Balancers{Balancers: []contract.Balancer{}}
	var instances []contract.Instance // those that are asked for their counters
	var stored [][]mariposa.MemberStatus
	var of []int // the balancer of each
	for _, r := range projects {
		goals := v.goals(r)
		st, ok := s.projectState(v, r.ID)
		if !ok {
			continue // deleted in the meantime
		}
		at := map[string]int{}
		for _, one := range st.Services {
			if ss := goals[one.Name]; ss != nil {
				if def := v.definition(r.ID, ss.Number, one.Name); def != nil && def.Balancer != nil {
					at[one.Name] = len(doc.Balancers)
					doc.Balancers = append(doc.Balancers, balancerOf(&st, &one, def.Balancer))
				}
			}
		}
		if len(at) == 0 {
			continue
		}
		for _, i := range s.Picture.InstancesOf(r.ID) {
			n, listed := at[i.Spec().ServiceName]
			if !listed || i.Spec().Compute != mariposa.ComputeBalancer {
				continue
			}
			one := v.instance(i)
			doc.Balancers[n].Instances = append(doc.Balancers[n].Instances, contract.BalancerInstance{
				ID: one.ID, Name: one.Name, Node: one.Node, NodeName: one.NodeName, State: one.State, Addresses: one.Addresses,
			})
			var members []mariposa.MemberStatus
			if st := i.Status(); st != nil {
				members = st.Members
				doc.Balancers[n].Instances[len(doc.Balancers[n].Instances)-1].Problem = st.Details[mariposa.BalancerProblem]
			}
			instances, stored, of = append(instances, one), append(stored, members), append(of, n)
		}
	}
	s.measureAll(ctx, instances[:min(len(instances), maxMeasuredBalancers)])
	for k := range instances {
		b := &doc.Balancers[of[k]]
		b.Members = append(b.Members, membersOf(instances[k].ID, stored[k], instances[k].Usage.Balancer)...)
	}
	for i := range doc.Balancers {
		slices.SortFunc(doc.Balancers[i].Members, func(a, b contract.BalancerMember) int {
			return cmp.Or(strings.Compare(a.Backend, b.Backend), compareNaturally(a.InstanceName, b.InstanceName), strings.Compare(a.Balancer, b.Balancer))
		})
	}
	return answer(doc)
}

func balancerOf(p *contract.ProjectState, one *contract.ServiceState, b *mariposa.Balancer) contract.Balancer {
	doc := contract.Balancer{
		ID: one.ID, Name: one.Name, Project: p.ID, ProjectName: p.Name, Mode: b.Mode, Listen: neverNil(b.Listen), TLS: b.TLS, Drain: b.Drain.Seconds(),
		CanaryWeight: b.CanaryWeight, Address: b.Address, Status: one.Status, Reason: one.Reason, ReasonCode: one.ReasonCode,
		Instances: []contract.BalancerInstance{}, Members: []contract.BalancerMember{}, Routes: []contract.BalancerRoute{},
	}
	for _, r := range b.Routes {
		doc.Routes = append(doc.Routes, contract.BalancerRoute{Host: r.Host, Path: r.Path, Service: r.Service, Port: r.Port})
	}
	return doc
}

// membersOf returns the members of one instance of a balancer: as it says now, or as stored if it
// does not answer.
func membersOf(id string, stored []mariposa.MemberStatus, now *mariposa.BalancerUsage) (all []contract.BalancerMember) {
	list := stored
	if now != nil {
		list = now.Members[:min(len(now.Members), mariposa.MaxMembers)]
	}
	for i := range list {
		m := &list[i]
		doc := contract.BalancerMember{
			Balancer: id, Instance: m.Instance, InstanceName: m.Name, Backend: m.Backend, Address: m.Address, State: m.State, Weight: m.Weight, Responses: m.Responses, Reason: m.Reason,
		}
		if now != nil {
			doc.Connections = &m.Connections
		}
		all = append(all, doc)
	}
	return all
}
