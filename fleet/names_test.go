package fleet_test

import (
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/discover"
	"mariposa/store"
	"mariposa/wire"
)

// zone returns what a node with a DNS server knows by the frames that it got.
func (p *peer) zone() *discover.Zone {
	z := discover.NewZone("")
	for _, f := range p.heard() {
		if f.Names != nil {
			z.Apply(f.Names)
		}
	}
	return z
}

// finds returns the addresses that a name leads to for an instance of a project on the node.
func (p *peer) finds(name, project string) string {
	r := p.zone().Lookup(name, discover.Scope{Project: project}, discover.View{Node: "n1"})
	if !r.Known || !r.Exists {
		return "nothing"
	}
	var all []string
	for _, t := range r.Targets {
		all = append(all, t.Address.String())
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (p *peer) countNames() (n int) {
	for _, f := range p.heard() {
		if f.Names != nil {
			n++
		}
	}
	return n
}

// A node with a DNS server is told the names of the projects of its instances and of those that
// share a network with them, before it is told to start the instances, and of all changes.
func TestANodeIsToldTheNamesThatItsInstancesMayAskFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.commit(store.Write{Kind: mariposa.KindOrg, ID: "default", Spec: &mariposa.OrganizationSpec{Name: "acme"}})
	named := func(id, name string, services ...string) store.Write {
		st := &mariposa.ProjectStatus{Services: map[string]*mariposa.ServiceStatus{}}
		for _, s := range services {
			st.Services[s] = &mariposa.ServiceStatus{}
		}
		return store.Write{Kind: mariposa.KindProject, ID: id, Project: id, Spec: &mariposa.ProjectSpec{Name: name, Organization: "default", Number: 1}, Status: st}
	}
	r.project("p", manifestBody)
	r.commit(named("p", "shop", "web"), named("q", "blog", "page"), named("s", "secret", "safe"))
	of := func(id, node, project, service, address string, health mariposa.Health) store.Write {
		w := put(id, instance(id, node, service))
		w.Spec.(*mariposa.InstanceSpec).Project, w.Project = project, project
		w.Status = &mariposa.InstanceStatus{State: mariposa.StateRunning, Health: health, Addresses: []string{address}}
		return w
	}
	h := hello("n1")
	h.Names = true
	p, bye := r.try(h)
	if bye != nil {
		t.Fatal(bye.Reason)
	}
	r.run()
	plain := r.connect("n2")
	if p.countNames() != 1 || p.zone().SearchDomains("p") != nil {
		t.Errorf("without instances, the node got %d frames of names", p.countNames())
	}
	r.commit(of("i1", "n1", "p", "web", "10.0.0.1:80", ""), of("i2", "n2", "p", "web", "10.0.0.2:80", mariposa.HealthHealthy), of("i3", "n2", "q", "page", "10.0.0.3:80", ""), of("i4", "n2", "s", "safe", "10.0.0.4:80", ""))
	frames := p.heard()
	names := slices.IndexFunc(frames, func(f wire.Frame) bool { return f.Names != nil && len(f.Names.Projects) > 0 })
	assigned := slices.IndexFunc(frames, func(f wire.Frame) bool { return f.Assign != nil && len(f.Assign.Items) > 0 })
	if names < 0 || assigned < names {
		t.Errorf("the names of its instance came as frame %d, the instance as frame %d", names, assigned)
	}
	check := func(when, name, want string) {
		t.Helper()
		if got := p.finds(name, "p"); got != want {
			t.Errorf("%s: %s leads to %q, want %q", when, name, got, want)
		}
	}
	const web, page, safe = "web.private.svc.shop.acme", "page.private.svc.blog.acme", "safe.private.svc.secret.acme"
	check("at first", web, "10.0.0.1 10.0.0.2")
	check("without a shared network", page, "nothing")
	r.commit(of("i2", "n2", "p", "web", "10.0.0.2:80", mariposa.HealthUnhealthy))
	check("one is unhealthy", web, "10.0.0.1")
	r.commit(store.Write{Kind: mariposa.KindNetwork, ID: "net", Spec: &mariposa.NetworkSpec{Name: "meet", Organization: "default", Users: []string{"p"}}})
	r.commit(store.Write{Kind: mariposa.KindNetwork, ID: "net", Spec: &mariposa.NetworkSpec{Name: "meet", Organization: "default", Users: []string{"p", "q"}}})
	check("another project joins its network", page, "10.0.0.3")
	check("a project that shares nothing", safe, "nothing")
	if _, known := p.zone().Relative("x"); known || p.zone().SearchDomains("s") != nil {
		t.Error("the node was told about a project that its instances may not ask for")
	}
	before := p.countNames()
	r.commit(of("i4", "n2", "s", "safe", "10.0.0.4:80", mariposa.HealthUnhealthy))
	if p.countNames() != before {
		t.Error("a change of another project was sent")
	}
	r.commit(store.Write{Kind: mariposa.KindNetwork, ID: "net", Spec: &mariposa.NetworkSpec{Name: "meet", Organization: "default", Users: []string{"p"}}})
	check("it leaves the network", page, "nothing")
	r.commit(store.Write{Kind: mariposa.KindInstance, ID: "i1", Delete: true})
	if p.zone().SearchDomains("p") != nil {
		t.Error("the node knows the names of a project that it has no instances of")
	}
	if plain.countNames() != 0 {
		t.Error("a node without a DNS server was told names")
	}
	r.commit(of("i1", "n1", "p", "web", "10.0.0.1:80", ""))
	again, bye := r.try(h)
	if bye != nil {
		t.Fatal(bye.Reason)
	}
	r.run()
	if got := again.finds(web, "p"); got != "10.0.0.1" {
		t.Errorf("in another session, %s leads to %q", web, got)
	}
}
