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
// session has sent it, and those that leave and had a route in their own version or a recent one,
// count too: the balancer then says itself that they have no connections.
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
		if leaves(i.Spec(), i.Status()) || !idle {
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
		if !i.Spec().Managed || i.Status() == nil || !leaves(i.Spec(), i.Status()) || !isAlive(i.Status().State) {
			continue
		}
		definitions, err := s.formerBalancers(ctx, r, i.Spec().Number)
		if err != nil {
			return nil, err
		}
		for _, was := range definitions {
			for _, route := range was.RoutesTo(i.Spec().ServiceName) {
				backend := was.Backend(r.Spec().ServiceName, route)
				if listed[balance.Key{Backend: backend, Instance: i.ID}] {
					continue
				}
				c, is, err := s.candidate(ctx, i, route.Port, r.Spec().Node)
				if err != nil {
					return nil, err
				}
				if is {
					c.Backend = backend
					add(c.Member, false)
				}
			}
		}
	}
	return all, nil
}

// recentVersions is how many versions are examined to find out what a balancer may have been told
// since it last reported, which is seldom more than a few seconds ago.
const recentVersions = 16

// balancerHistory is what recent versions say that a balancer does, without repetitions.
type balancerHistory struct {
	number      int // of the newest of these versions
	version     string
	definitions []*mariposa.Balancer
}

// maxHistories is how many of them a session keeps.
const maxHistories = 1000

// formerBalancers returns what the version of an instance and recent versions say that a balancer
// does. They need not have been in force.
func (s *Session) formerBalancers(ctx context.Context, r *store.Instance, number int) ([]*mariposa.Balancer, error) {
	own, err := s.balancerAt(ctx, r.Spec(), number)
	if err != nil {
		return nil, err
	}
	project := s.f.Picture.Projects.Get(r.Spec().Project)
	if project == nil || !r.Spec().Managed {
		return []*mariposa.Balancer{own}, nil
	}
	h, known := s.histories[r.ID]
	if !known || h.number != project.Spec().Number || h.version != project.Spec().Version {
		if h, err = s.readHistory(ctx, r, project.Spec()); err != nil {
			return nil, err
		}
		if len(s.histories) >= maxHistories {
			clear(s.histories)
		}
		s.histories[r.ID] = h
	}
	return append([]*mariposa.Balancer{own}, h.definitions...), nil
}

func (s *Session) readHistory(ctx context.Context, r *store.Instance, project *mariposa.ProjectSpec) (balancerHistory, error) {
	h := balancerHistory{number: project.Number, version: project.Version}
	numbers, known := project.Versions, map[string]bool{}
	for _, number := range numbers[max(0, len(numbers)-recentVersions):] {
		b, err := s.balancerAt(ctx, r.Spec(), number)
		if err != nil {
			return h, err
		}
		if text := b.Encode(); len(b.Routes) > 0 && !known[text] {
			known[text], h.definitions = true, append(h.definitions, b)
		}
	}
	return h, nil
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
