package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"mariposa"
	"mariposa/balance"
	"mariposa/store"
	"mariposa/wire"
)

// The members of load balancers. The session of a balancer's node sends it the members, computed
// from the picture, whenever they have changed. An instance that leaves, also for a restart that a
// user has asked for, is first a member that drains; its own node stops it once all balancers say
// that it has no connections left, or when the drain time has passed.

// balancers are the instances of load balancers, with their nodes, by project. Fleet.mu guards
// them.
type balancers struct {
	of map[string]map[string]string // project -> instance -> node
	// leaving are the nodes with instances that wait for balancers, by project.
	leaving map[string]map[string]bool
}

// noteBalancer keeps track of the balancers.
func (f *Fleet) noteBalancer(r *store.Record, deleted bool) {
	spec, ok := r.Spec.(*mariposa.InstanceSpec)
	if !ok || spec.Compute != mariposa.ComputeBalancer {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	of := f.balancers.of[spec.Project]
	if deleted || r.Archived {
		if delete(of, r.ID); len(of) == 0 {
			delete(f.balancers.of, spec.Project)
		}
		return
	}
	if of == nil {
		if f.balancers.of == nil {
			f.balancers.of = map[string]map[string]string{}
		}
		of = map[string]string{}
		f.balancers.of[spec.Project] = of
	}
	of[r.ID] = spec.Node
}

// findBalancers finds all balancers, when a replica starts.
func (f *Fleet) findBalancers() {
	f.Picture.Instances.Each(func(r *store.Instance) bool {
		f.noteBalancer(r.Record(), false)
		return true
	})
}

// hasBalancers reports whether there are any at all.
func (f *Fleet) hasBalancers() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.balancers.of) > 0
}

// balancersOf lists the balancers of a project, sorted.
func (f *Fleet) balancersOf(project string) []*store.Instance {
	f.mu.Lock()
	ids := sortedIDs(f.balancers.of[project])
	f.mu.Unlock()
	var all []*store.Instance
	for _, id := range ids {
		if r := f.Picture.Instances.Get(id); r != nil {
			all = append(all, r)
		}
	}
	return all
}

func sortedIDs[V any](m map[string]V) []string {
	all := make([]string, 0, len(m))
	for id := range m {
		all = append(all, id)
	}
	slices.Sort(all)
	return all
}

// routeMembers tells the sessions of balancers that their members may have changed, and those of
// leaving instances that they may stop.
func (f *Fleet) routeMembers(projects map[string]bool, byNode map[string][]message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, project := range sortedIDs(projects) {
		of := f.balancers.of[project]
		for _, id := range sortedIDs(of) {
			byNode[of[id]] = append(byNode[of[id]], message{balancer: id})
		}
		for _, node := range sortedIDs(f.balancers.leaving[project]) {
			byNode[node] = append(byNode[node], message{leaving: project})
		}
	}
}

// projectsOn returns the projects with balancers that have instances on a node.
func (f *Fleet) projectsOn(node string, into map[string]bool) {
	for _, r := range f.Picture.InstancesOn(node) {
		into[r.Spec().Project] = true
	}
}

// sendMembers sends the members of balancers, if they have changed.
func (s *Session) sendMembers(ctx context.Context, ids []string) error {
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		r := s.f.Picture.Instances.Get(id)
		if r == nil || r.Spec().Node != s.node || r.Spec().Goal == mariposa.GoalGone && mariposa.StateOf(r.Spec(), r.Status()) == mariposa.StateDestroyed {
			delete(s.members, id)
			continue
		}
		list, err := s.membersOf(ctx, r)
		if err != nil {
			return err
		}
		if last, sent := s.members[id]; sent && slices.Equal(last, list) {
			continue
		}
		s.members[id] = list
		s.send(wire.Frame{Balance: &wire.Balance{ID: id, Members: list}})
	}
	return nil
}

// membersOf returns the members that a balancer should have.
func (s *Session) membersOf(ctx context.Context, r *store.Instance) ([]mariposa.Member, error) {
	spec := r.Spec()
	b, err := s.balancerOf(ctx, spec)
	if err != nil || b == nil {
		return nil, err
	}
	instances := s.f.Picture.InstancesOf(spec.Project)
	of := byService(b.Routes, instances)
	var all []mariposa.Member
	seen := map[string]bool{}
	for _, route := range b.Routes {
		backend := b.Backend(spec.ServiceName, route)
		if seen[backend] {
			continue
		}
		seen[backend] = true
		var list []balance.Candidate
		for _, i := range of[route.Service] {
			c, is, err := s.candidate(ctx, i, route.Port, spec.Node)
			if err != nil {
				return nil, err
			}
			if is {
				c.Backend = backend
				list = append(list, c)
			}
		}
		all = append(all, balance.Members(list, b.CanaryWeight)...)
	}
	rest, err := s.unrouted(ctx, r, b, instances)
	if err != nil {
		return nil, err
	}
	all = append(all, rest...)
	if len(all) > mariposa.MaxMembers { // those that are up first
		slices.SortStableFunc(all, func(a, b mariposa.Member) int { return compareStates(a.State, b.State) })
		all = all[:mariposa.MaxMembers]
	}
	return all, nil
}

// byService returns the instances that routes lead to, by service.
func byService(routes []mariposa.Route, all []*store.Instance) map[string][]*store.Instance {
	of := make(map[string][]*store.Instance, len(routes))
	for _, route := range routes {
		of[route.Service] = nil
	}
	for _, i := range all {
		spec := i.Spec()
		if list, routed := of[spec.ServiceName]; routed && spec.Managed {
			of[spec.ServiceName] = append(list, i)
		}
	}
	return of
}

func compareStates(a, b mariposa.MemberState) int {
	rank := map[mariposa.MemberState]int{mariposa.MemberUp: 0, mariposa.MemberDrain: 1}
	return rank[a] - rank[b]
}

// balancerOf returns what a balancer's instance does, by the definition in force; nil if that is
// lost.
func (s *Session) balancerOf(ctx context.Context, spec *mariposa.InstanceSpec) (*mariposa.Balancer, error) {
	project := s.f.Picture.Projects.Get(spec.Project)
	if project == nil {
		return nil, nil
	}
	def, _, err := s.definitionInForce(ctx, spec, project)
	if err != nil || def == nil {
		return nil, err
	}
	return def.Balancer, nil
}

// candidate returns an instance as a member, if it may be one: it is up and healthy, or it leaves
// and still runs.
func (s *Session) candidate(ctx context.Context, r *store.Instance, port int, from string) (c balance.Candidate, is bool, err error) {
	spec, st := r.Spec(), r.Status()
	if st == nil {
		return c, false, nil
	}
	c = balance.Candidate{
		Member: mariposa.Member{Instance: r.ID, Name: spec.Name, State: mariposa.MemberUp}, Number: spec.Number, Digest: spec.Digest,
	}
	switch {
	case leaves(spec, st):
		if !isAlive(st.State) {
			return c, false, nil
		}
		c.State = mariposa.MemberDrain
	case st.State != mariposa.StateRunning || st.Health != "" && st.Health != mariposa.HealthHealthy:
		return c, false, nil
	}
	if node := s.f.Picture.Nodes.Get(spec.Node); node != nil && node.Status() != nil {
		c.Suspect = node.Status().State.IsAway()
	}
	def, _, err := s.definition(ctx, spec, spec.Number)
	if err != nil && !errors.Is(err, errLost) {
		return c, false, err
	}
	c.Address, c.Reason = s.reach(spec, st, def, port, from)
	return c, true, nil
}

// leaves reports whether an instance is to stop, for good or to be restarted by a user.
func leaves(spec *mariposa.InstanceSpec, st *mariposa.InstanceStatus) bool {
	return spec.Goal != mariposa.GoalRunning || spec.ManualRestarts > st.ManualRestarts
}

// isAlive reports whether something of an instance may still have connections.
func isAlive(state mariposa.State) bool {
	return state == mariposa.StateRunning || state == mariposa.StateDraining || state == mariposa.StateStopping
}

// reach returns the address at which a port of an instance is reached from a node, or why it is
// not.
func (s *Session) reach(spec *mariposa.InstanceSpec, st *mariposa.InstanceStatus, def *mariposa.Service, port int, from string) (address, why string) {
	if len(st.Addresses) == 0 {
		return "", "it has no address"
	}
	host, _ := mariposa.SplitAddress(st.Addresses[0])
	actual, published := strconv.Itoa(port), 0
	if def != nil && len(def.Ports) == len(st.Addresses) { // one address for each port, in their order
		at := slices.IndexFunc(def.Ports, func(p mariposa.Port) bool { return p.Target == port })
		if at >= 0 {
			host, actual = mariposa.SplitAddress(st.Addresses[at])
			published = def.Ports[at].Host
		} else if spec.Compute == mariposa.ComputeProcess {
			return "", "it has no port " + strconv.Itoa(port)
		}
	}
	if spec.Node != from && !s.f.sharesMachine(spec.Node, from) {
		outside := s.f.hostOf(spec.Node)
		switch {
		case outside == "" || netip.MustParseAddr(outside).IsLoopback(): // that of a proxy
			return "", "the address of its node is not known"
		case spec.Compute == mariposa.ComputeProcess:
			host = outside
		case published != 0:
			host, actual = outside, strconv.Itoa(published)
		default:
			return "", "it is on another node, where only published ports of it can be reached: publish the port, like \"" + strconv.Itoa(port) + ":" + strconv.Itoa(port) + "\""
		}
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return "", "its address is not an IP address"
	}
	return net.JoinHostPort(host, actual), ""
}

// hostOf returns the address that a node connects from, without its port; empty if unknown.
func (f *Fleet) hostOf(node string) string {
	r := f.Picture.Nodes.Get(node)
	if r == nil || r.Status() == nil {
		return ""
	}
	host, _ := mariposa.SplitAddress(r.Status().Address)
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	return ""
}

// sharesMachine reports whether two nodes are on one machine, with one loopback. That they connect
// from the same address is not enough: they may be behind a proxy or a router.
func (f *Fleet) sharesMachine(a, b string) bool {
	one, other := f.hostOf(a), f.hostOf(b)
	return one == other && one != "" && f.networkOf(a) == f.networkOf(b)
}

// networkOf returns what identifies the network stack of a node; empty if it has not said it.
func (f *Fleet) networkOf(node string) string {
	if r := f.Picture.Nodes.Get(node); r != nil && r.Status() != nil && r.Status().Machine != nil {
		return r.Status().Machine.Network
	}
	return ""
}

// drainOf returns how long an instance that leaves may keep running so that its connections can
// end; zero if it has none, or is in no balancer.
func (s *Session) drainOf(ctx context.Context, r *store.Instance) (time.Duration, error) {
	spec, st := r.Spec(), r.Status()
	if st == nil || st.State != mariposa.StateRunning && st.State != mariposa.StateDraining || !leaves(spec, st) ||
		spec.Forced || !spec.Managed || spec.Compute == mariposa.ComputeBalancer {
		return 0, nil
	}
	var wait time.Duration
	for _, b := range s.f.balancersOf(spec.Project) {
		if !s.f.mayForward(b) || isDrained(b.Status().Members, r.ID) {
			continue
		}
		is, err := s.balancerOf(ctx, b.Spec())
		if err != nil {
			return 0, err
		}
		if is == nil {
			continue
		}
		waits := is.Serves(spec.ServiceName) || isListed(b.Status().Members, r.ID)
		if !waits {
			former, err := s.formerBalancers(ctx, b, spec.Number)
			if err != nil {
				return 0, err
			}
			waits = slices.ContainsFunc(former, func(was *mariposa.Balancer) bool { return was.Serves(spec.ServiceName) })
		}
		if waits {
			wait = max(wait, is.Drain)
		}
	}
	return wait, nil
}

// mayForward reports whether a balancer may forward connections. One that is lost and replaced
// is not waited for.
func (f *Fleet) mayForward(b *store.Instance) bool {
	if b.Status() == nil || !isAlive(b.Status().State) {
		return false
	}
	if b.Spec().Goal == mariposa.GoalRunning {
		return true
	}
	node := f.Picture.Nodes.Get(b.Spec().Node)
	return node != nil && node.Status() != nil && !node.Status().State.IsAway()
}

// isListed reports whether an instance is a member of a balancer.
func isListed(members []mariposa.MemberStatus, id string) bool {
	return slices.ContainsFunc(members, func(m mariposa.MemberStatus) bool { return m.Instance == id })
}

// isDrained reports whether a balancer says that an instance gets no more connections, and has
// none left.
func isDrained(members []mariposa.MemberStatus, id string) bool {
	known := false
	for i := range members {
		if members[i].Instance == id {
			if known = true; !members[i].Idle {
				return false
			}
		}
	}
	return known
}

// noteLeaving notes that an instance waits for its balancers, or that it does not any more.
func (s *Session) noteLeaving(id, project string, waits bool) {
	if !waits {
		delete(s.leaving, id)
		return
	}
	s.leaving[id] = project
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	nodes := s.f.balancers.leaving[project]
	if nodes == nil {
		if s.f.balancers.leaving == nil {
			s.f.balancers.leaving = map[string]map[string]bool{}
		}
		nodes = map[string]bool{}
		s.f.balancers.leaving[project] = nodes
	}
	nodes[s.node] = true
}

// releaseLeaving sends the goals of leaving instances again that need not wait any longer.
func (s *Session) releaseLeaving(ctx context.Context, projects map[string]bool) error {
	var ready []*store.Instance
	for _, id := range sortedIDs(s.leaving) {
		if !projects[s.leaving[id]] {
			continue
		}
		r := s.f.Picture.Instances.Get(id)
		if r == nil {
			delete(s.leaving, id)
			continue
		}
		wait, err := s.drainOf(ctx, r)
		if err != nil {
			return err
		}
		if wait == 0 {
			ready = append(ready, r)
		}
	}
	if err := s.sendFrames(ctx, ready); err != nil {
		return err
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	for project := range projects {
		waits := false
		for _, p := range s.leaving {
			waits = waits || p == project
		}
		if nodes := s.f.balancers.leaving[project]; !waits && nodes != nil {
			if delete(nodes, s.node); len(nodes) == 0 {
				delete(s.f.balancers.leaving, project)
			}
		}
	}
	return nil
}

// haveOnlyMembersChanged reports whether two statuses of a load balancer differ only in its members.
func haveOnlyMembersChanged(a, b *mariposa.InstanceStatus) bool {
	next := *b
	next.Members = a.Members
	return !slices.Equal(a.Members, b.Members) && sameStatus(a, &next)
}

// memberNews returns the kind of event and the reason if the first member of a load balancer went
// down, or the last one that was down is up or gone; empty if neither happened.
func memberNews(before, after []mariposa.MemberStatus) (kind string, why *mariposa.Reason) {
	was, _ := countDown(before)
	is, first := countDown(after)
	switch {
	case was == 0 && is > 0:
		return "instance.degraded", mariposa.Reported(fmt.Sprintf("%d of %d members are down; %s: %s", is, len(after), first.Name, first.Reason))
	case was > 0 && is == 0:
		return "instance.recovered", nil
	}
	return "", nil
}

// countDown counts the members that are down, and returns the first of them.
func countDown(all []mariposa.MemberStatus) (n int, first *mariposa.MemberStatus) {
	for i := range all {
		if all[i].State == mariposa.MemberDown {
			if n++; first == nil {
				first = &all[i]
			}
		}
	}
	return n, first
}
