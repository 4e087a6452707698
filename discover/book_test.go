package discover

import (
	"context"
	"reflect"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/clock"
	"mariposa/picture"
	"mariposa/store"
	"mariposa/store/memory"
	"mariposa/wire"
)

// shelf is a book that follows a store.
type shelf struct {
	t    rapid.TB
	st   *memory.Store
	pic  *picture.Picture
	book *Book
}

func newShelf(t rapid.TB) *shelf {
	t.Helper()
	s := &shelf{t: t, st: memory.New(clock.Real{})}
	var err error
	if s.pic, err = picture.Open(context.Background(), s.st); err != nil {
		t.Fatal(err)
	}
	s.book = NewBook(s.pic, "")
	s.pic.Subscribe(func(changes []store.Change) { s.book.Apply(changes) })
	return s
}

// write commits changes and lets the book follow.
func (s *shelf) write(ws ...store.Write) {
	s.t.Helper()
	if res := s.st.Commit(context.Background(), store.Unit{Writes: ws})[0]; res.Err != nil {
		s.t.Fatal(res.Err)
	}
	for {
		if n, err := s.pic.Advance(context.Background()); err != nil || n == 0 {
			return
		}
	}
}

func orgOf(id, name string) store.Write {
	return store.Write{Kind: mariposa.KindOrg, ID: id, Spec: &mariposa.OrganizationSpec{Name: name}}
}

func projectOf(id, name string, services ...string) store.Write {
	st := &mariposa.ProjectStatus{Services: map[string]*mariposa.ServiceStatus{}}
	for _, s := range services {
		st.Services[s] = &mariposa.ServiceStatus{}
	}
	return store.Write{Kind: mariposa.KindProject, ID: id, Project: id, Spec: &mariposa.ProjectSpec{Name: name, Organization: "o1"}, Status: st}
}

func instanceOf(id, project, node string, st *mariposa.InstanceStatus) store.Write {
	return store.Write{Kind: mariposa.KindInstance, ID: id, Project: project, Status: st, Spec: &mariposa.InstanceSpec{
		Name: "web." + id, Project: project, ServiceName: "web", Slot: 1, Node: node, Managed: true, Goal: mariposa.GoalRunning,
	}}
}

func running(address string, h mariposa.Health) *mariposa.InstanceStatus {
	return &mariposa.InstanceStatus{State: mariposa.StateRunning, Health: h, Addresses: []string{address}}
}

func nodeOf(id, dc string, state mariposa.NodeState) store.Write {
	return store.Write{Kind: mariposa.KindNode, ID: id, Spec: &mariposa.NodeSpec{Name: id, DC: dc}, Status: &mariposa.NodeStatus{State: state, Address: "192.0.2.9:1234"}}
}

// find asks the book as a DNS server does.
func (s *shelf) find(name string) string {
	s.book.Fetch(name)
	return spell(s.book.Zone.Lookup(name, Scope{All: true}, View{Local: true}))
}

func TestNamesFollowTheStore(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	const web = "web.svc.shop.acme"
	s.write(orgOf("o1", "acme"), projectOf("p1", "shop", "web", "old"), nodeOf("n1", "East", mariposa.NodeRunning), nodeOf("n2", "", mariposa.NodeRunning))
	s.write(instanceOf("i1", "p1", "n1", running("10.0.0.1:80", "")), instanceOf("i2", "p1", "n2", running("10.0.0.2:80", mariposa.HealthStarting)))
	check := func(what, name, want string) {
		t.Helper()
		if got := s.find(name); got != want {
			t.Errorf("%s: %s leads to %q, want %q", what, name, got, want)
		}
	}
	check("without a check one runs, with one it is not healthy yet", web, "10.0.0.1:80")
	s.write(instanceOf("i2", "p1", "n2", running("10.0.0.2:80", mariposa.HealthHealthy)))
	check("it is healthy", web, "10.0.0.1:80 10.0.0.2:80")
	check("in a data center", web+".east", "10.0.0.1:80")
	check("above names", "acme", "")
	check("above names of a data center", "acme.east", "")
	check("nowhere", "nothing", "-")
	s.write(instanceOf("i1", "p1", "n1", running("10.0.0.1:80", mariposa.HealthUnhealthy)))
	check("one is unhealthy", web, "10.0.0.2:80")
	s.write(instanceOf("i1", "p1", "n1", running("10.0.0.1:80", mariposa.HealthHealthy)), nodeOf("n2", "", mariposa.NodeUnknown))
	check("the node of the other cannot be reached", web, "10.0.0.1:80")
	s.write(instanceOf("i1", "p1", "n1", &mariposa.InstanceStatus{State: mariposa.StateStopping, Addresses: []string{"10.0.0.1:80"}}))
	check("and there is no other", web, "10.0.0.2:80")
	s.write(store.Write{Kind: mariposa.KindInstance, ID: "i2", Delete: true}, nodeOf("n2", "", mariposa.NodeRunning))
	check("all are gone", web, "")
	check("a service without instances", "old.svc.shop.acme", "")
	s.write(projectOf("p1", "store", "web"))
	check("the project has another name", web, "-")
	check("this one", "web.svc.store.acme", "")
	check("a service was removed", "old.svc.store.acme", "-")
	s.write(orgOf("o1", "umbrella"))
	check("the organization has another name", "web.svc.store.umbrella", "")
	s.write(store.Write{Kind: mariposa.KindProject, ID: "p1", Delete: true})
	check("the project is gone", "web.svc.store.umbrella", "-")
}

// A reader that gets only changes, at any times, knows the same as the book.
// The ports of a load balancer are those of its node.
func TestALoadBalancerIsAtTheAddressOfItsNode(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	front := instanceOf("i1", "p1", "n1", running("127.0.0.1:80", ""))
	spec := front.Spec.(*mariposa.InstanceSpec)
	spec.Compute, spec.Ports = mariposa.ComputeBalancer, []int{80}
	s.write(orgOf("o1", "acme"), projectOf("p1", "shop", "web"), nodeOf("n1", "", mariposa.NodeRunning))
	s.write(front)
	s.book.Fetch("web.svc.shop.acme")
	if got := spell(s.book.Zone.Lookup("web.svc.shop.acme", Scope{All: true}, View{})); got != "192.0.2.9:80" {
		t.Errorf("it leads to %q", got)
	}
}

func TestReadersOfChangesKnowEverything(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newShelf(t)
		s.write(orgOf("o1", "acme"), projectOf("p1", "shop", "web"), nodeOf("n1", "", mariposa.NodeRunning))
		s.book.Hold("p1")
		reader, number := NewZone(""), int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			id := "i" + strconv.Itoa(rapid.IntRange(1, 8).Draw(t, "instance"))
			health := rapid.SampledFrom([]mariposa.Health{"", mariposa.HealthHealthy, mariposa.HealthUnhealthy}).Draw(t, "health")
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0:
				if s.pic.Instances.Get(id) != nil {
					s.write(store.Write{Kind: mariposa.KindInstance, ID: id, Delete: true})
				}
			case 1:
				s.write(projectOf("p1", rapid.SampledFrom([]string{"shop", "store"}).Draw(t, "name"), "web"))
			case 2:
				s.write(nodeOf("n1", "", rapid.SampledFrom([]mariposa.NodeState{mariposa.NodeRunning, mariposa.NodeUnknown}).Draw(t, "state")))
			case 3:
				s.book.mu.Lock()
				if p := s.book.pages["p1"]; len(p.log) > 3 {
					p.shorten()
				}
				s.book.mu.Unlock()
			case 4, 5:
				var n wire.ProjectNames
				var changed bool
				if n, number, changed = s.book.Since("p1", number); changed {
					for _, frame := range wire.PackNames([]wire.ProjectNames{n}) {
						reader.Apply(frame)
					}
				}
				if a, b := reader.Names(), s.book.Zone.Names(); !reflect.DeepEqual(a, b) {
					t.Fatalf("the reader knows %+v, the book %+v", a, b)
				}
			default:
				s.write(instanceOf(id, "p1", "n1", running("10.0.0.1:80", health)))
			}
		}
		fresh := NewBook(s.pic, "")
		fresh.Hold("p1")
		if a, b := fresh.Zone.Names(), s.book.Zone.Names(); !reflect.DeepEqual(a, b) {
			t.Fatalf("a fresh book has %+v, this one %+v", a, b)
		}
	})
}
