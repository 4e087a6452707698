package fleet

import (
	"context"
	"errors"
	"slices"

	"mariposa"
	"mariposa/balance"
	"mariposa/store"
)

// unrouted returns the members of groups that a balancer has no routes to any more, as long as they
// may have connections: they drain. One that leaves is a member until its node has stopped it.
//
// The stored status of a balancer may be older than what it has been told. So those that this
// session has sent it, and those that leave and had a route since they were created, count too: the
// balancer then says itself that they have no connections.
func (s *Session) unrouted(ctx context.Context, r *store.Instance, b *mariposa.Balancer, instances []*store.Instance) ([]mariposa.Member, error) {
	if r.Status() == nil {
		return nil, nil
	}
	var all []mariposa.Member
	listed := map[balance.Key]bool{}
	add := func(m mariposa.Member, idle bool) {
		i, key := s.f.Picture.Instances.Get(m.Instance), balance.KeyOf(&m)
		if listed[key] || i == nil || i.Spec().Project != r.Spec().Project || i.Status() == nil || !isAlive(i.Status().State) {
			return
		}
		hasRoute := func(route mariposa.Route) bool { return b.Backend(r.Spec().ServiceName, route) == m.Backend }
		if listed[key] = true; slices.ContainsFunc(b.RoutesTo(i.Spec().ServiceName), hasRoute) {
			return
		}
		if i.Spec().Goal != mariposa.GoalRunning || !idle {
			m.State, m.Reason = mariposa.MemberDrain, ""
			all = append(all, m)
		}
	}
	for _, m := range r.Status().Members {
		add(mariposa.Member{Backend: m.Backend, Instance: m.Instance, Name: m.Name, Address: m.Address, Weight: m.Weight}, m.Idle)
	}
	for _, m := range s.members[r.ID] {
		add(m, false)
	}
	for _, i := range instances {
		if i.Spec().Goal == mariposa.GoalRunning || !i.Spec().Managed {
			continue
		}
		earlier, err := s.balancersSince(ctx, r.Spec(), i.Spec().Number)
		if err != nil {
			return nil, err
		}
		for _, was := range earlier {
			for _, route := range was.RoutesTo(i.Spec().ServiceName) {
				c, is, err := s.candidate(ctx, i, route.Port, r.Spec().Node)
				if err != nil {
					return nil, err
				}
				if is {
					c.Backend = was.Backend(r.Spec().ServiceName, route)
					add(c.Member, false)
				}
			}
		}
	}
	return all, nil
}

// recentVersions is how many versions are read at most to find out what a balancer may have been
// told since its stored status, which is seldom older than a few seconds.
const recentVersions = 16

// balancersSince returns what the versions from the given one to the one in force say that a
// balancer does. If there are too many, these are the given one and the last ones.
func (s *Session) balancersSince(ctx context.Context, spec *mariposa.InstanceSpec, number int) ([]*mariposa.Balancer, error) {
	newest := numberInForce(spec, s.f.Picture.Projects.Get(spec.Project))
	first, last := min(number, newest), max(number, newest)
	numbers := []int{number}
	for n := max(first, last-recentVersions+1); n <= last; n++ {
		if n != number {
			numbers = append(numbers, n)
		}
	}
	var all []*mariposa.Balancer
	for _, n := range numbers {
		b, err := s.balancerAt(ctx, spec, n)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

// balancerAt returns what a version says that a balancer does; nothing if it does not define it.
func (s *Session) balancerAt(ctx context.Context, spec *mariposa.InstanceSpec, number int) (*mariposa.Balancer, error) {
	def, _, err := s.definition(ctx, spec, number)
	switch {
	case errors.Is(err, errLost) || err == nil && def.Balancer == nil:
		return &mariposa.Balancer{}, nil
	case err != nil:
		return nil, err
	}
	return def.Balancer, nil
}
