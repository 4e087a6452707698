package discover

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mariposa/wire"
)

// sample is two projects that share a network, and one that shares none.
func sample() *Zone {
	z := NewZone("")
	z.Apply(&wire.Names{Projects: []wire.ProjectNames{
		{
			ID: "p1", Full: true,
			Header: &wire.ProjectHeader{Name: "shop", Organization: "acme", Services: []string{"db", "front", "idle", "web"}, Networks: map[string]string{"n1": "backend", "n2": "own"}},
			Instances: []wire.NamedInstance{
				{ID: "a", Name: "web.1-aaaaaa", Service: "web", Slot: 1, Node: "near", DC: "East", Addresses: []string{"10.0.0.1:80", "10.0.0.1:443"}, Networks: map[string]string{"backend": "10.9.0.1"}},
				{ID: "b", Name: "web.2-bbbbbb", Service: "web", Slot: 2, Node: "far", DC: "west", Addresses: []string{"10.0.0.1:80"}, Host: "192.0.2.7", Published: []int{8080}},
				{ID: "c", Name: "db.1-cccccc", Service: "db", Slot: 1, Node: "far", Addresses: []string{"[2001:db8::5]:5432"}},
				{ID: "d", Name: "db.2-dddddd", Service: "db", Slot: 2, Node: "lost", Addresses: []string{"10.0.0.4:5432"}, Away: true},
				{ID: "h", Name: "front.1-bbbbbb", Service: "front", Slot: 1, Node: "near", Addresses: []string{"127.0.0.1:80"}, Host: "192.0.2.8", Published: []int{80}},
				{ID: "e", Name: "shell", Node: "near", Addresses: []string{"127.0.0.1:2222"}},
			},
		},
		{ID: "p2", Full: true, Header: &wire.ProjectHeader{Name: "blog", Organization: "acme", Services: []string{"web"}, Networks: map[string]string{"n1": "backend"}}, Instances: []wire.NamedInstance{
			{ID: "f", Name: "web.1-ffffff", Service: "web", Slot: 1, Node: "near", Addresses: []string{"10.0.0.6:80"}},
		}},
		{ID: "p3", Full: true, Header: &wire.ProjectHeader{Name: "secret", Organization: "evil", Services: []string{"web"}}, Instances: []wire.NamedInstance{
			{ID: "g", Name: "web.1-999999", Service: "web", Slot: 1, Node: "near", Addresses: []string{"10.0.0.7:80"}},
		}},
	}})
	return z
}

// spell writes a result as a text: - if the name does not exist.
func spell(r Result) string {
	if !r.Known {
		return "?"
	}
	if !r.Exists {
		return "-"
	}
	var all []string
	for _, t := range r.Targets {
		text := t.Address.String()
		for _, p := range t.Ports {
			text += ":" + strconv.Itoa(int(p))
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func TestNamesLeadToInstances(t *testing.T) {
	t.Parallel()
	z := sample()
	near := View{Node: "near"}
	shop := Scope{Project: "p1"}
	for _, c := range []struct {
		what, name string
		of         Scope
		from       View
		want       string
	}{
		{"a service, on the node and published elsewhere", "web.svc.shop.acme", shop, near, "10.0.0.1:80:443 192.0.2.7:8080"},
		{"its own addresses", "web.private.svc.shop.acme", shop, near, "10.0.0.1:80 10.0.0.1:80:443"},
		{"what nodes publish, else its own addresses", "web.public.svc.shop.acme", shop, near, "10.0.0.1:80:443 192.0.2.7:8080"},
		{"a service in a network", "web.backend.svc.shop.acme", shop, near, "10.9.0.1:80:443"},
		{"a service in a network that it is not in", "db.backend.svc.shop.acme", shop, near, ""},
		{"a network that does not exist", "web.nothing.svc.shop.acme", shop, near, "-"},
		{"one data center", "web.svc.shop.acme.east", shop, near, "10.0.0.1:80:443"},
		{"another data center", "web.svc.shop.acme.west", shop, near, "192.0.2.7:8080"},
		{"no data center", "web.svc.shop.acme.south", shop, near, "-"},
		{"only far ones are better than nothing, and unreachable nodes come last", "db.svc.shop.acme", shop, near, "2001:db8::5:5432"},
		{"a service without instances", "idle.svc.shop.acme", shop, near, ""},
		{"no service", "nothing.svc.shop.acme", shop, near, "-"},
		{"an instance", "web.1-aaaaaa.inst.shop.acme", shop, near, "10.0.0.1:80:443"},
		{"an instance in a network", "web.1-aaaaaa.backend.inst.shop.acme", shop, near, "10.9.0.1:80:443"},
		{"a slot", "web.2.inst.shop.acme", shop, near, "192.0.2.7:8080"},
		{"a slot without an instance", "web.9.inst.shop.acme", shop, near, ""},
		{"no slot", "web.01.inst.shop.acme", shop, near, "-"},
		{"an instance that is gone", "web.1-000000.inst.shop.acme", shop, near, "-"},
		{"an instance on an unreachable node", "db.2.inst.shop.acme", shop, near, "10.0.0.4:5432"},
		{"an unmanaged instance at the loopback of its node", "shell.inst.shop.acme", shop, View{Node: "near", Local: true}, "127.0.0.1:2222"},
		{"which is no address for containers there", "shell.inst.shop.acme", shop, near, ""},
		{"which is no address for others", "shell.inst.shop.acme", shop, View{Node: "far"}, ""},
		{"nor for clients that are nowhere", "shell.inst.shop.acme", shop, View{}, ""},
		{"but for those on the only machine", "shell.inst.shop.acme", shop, View{Local: true}, "127.0.0.1:2222"},
		{"a load balancer, for processes on its node", "front.svc.shop.acme", shop, View{Node: "near", Local: true}, "127.0.0.1:80"},
		{"for containers on its node", "front.svc.shop.acme", shop, near, "192.0.2.8:80"},
		{"and for all others", "front.svc.shop.acme", shop, View{Node: "far"}, "192.0.2.8:80"},
		{"one port", "_443._tcp.web.svc.shop.acme", shop, near, "10.0.0.1:443"},
		{"a port by a name, which ports do not have", "_http._tcp.web.svc.shop.acme", shop, near, "10.0.0.1:80:443 192.0.2.7:8080"},
		{"a port that nobody has", "_9._tcp.web.svc.shop.acme", shop, near, ""},
		{"a port of nothing", "_9._tcp.nothing.svc.shop.acme", shop, near, "-"},
		{"half of it", "_tcp.web.svc.shop.acme", shop, near, ""},
		{"more than a service", "more.web.svc.shop.acme", shop, near, "-"},
		{"what is above names: services", "svc.shop.acme", shop, near, ""},
		{"a service among instances", "web.inst.shop.acme", shop, near, ""},
		{"the project", "shop.acme", shop, near, ""},
		{"the organization", "acme", shop, near, ""},
		{"a data center", "east", shop, near, ""},
		{"the organization in a data center", "acme.east", shop, near, ""},
		{"another kind", "web.host.shop.acme", shop, near, "-"},
		{"the domain", "", shop, near, ""},
		{"an empty label", "web..svc.shop.acme", shop, near, "-"},

		{"a project that shares a network", "web.svc.blog.acme", shop, near, "10.0.0.6:80"},
		{"a project of others", "web.svc.secret.evil", shop, near, "-"},
		{"its organization", "evil", shop, near, "-"},
		{"and the other way round", "web.svc.shop.acme", Scope{Project: "p3"}, near, "-"},
		{"in a network", "web.svc.blog.acme", Scope{Network: "n1"}, near, "10.0.0.6:80"},
		{"in a network that only one is in", "web.svc.blog.acme", Scope{Network: "n2"}, near, "-"},
		{"everything", "web.svc.secret.evil", Scope{All: true}, near, "10.0.0.7:80"},
		{"a project that is not known yet", "web.svc.shop.acme", Scope{Project: "p9"}, near, "?"},
		{"nobody", "web.svc.shop.acme", Scope{}, near, "?"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			if got := spell(z.Lookup(c.name, c.of, c.from)); got != c.want {
				t.Errorf("%s leads to %q, want %q", c.name, got, c.want)
			}
		})
	}
}

// What a project's names lead to is shown as its clients get it.
func TestDescribedNamesLeaveOutInstancesThatCannotBeReached(t *testing.T) {
	t.Parallel()
	z := sample()
	describe := func() (of []string) {
		for _, d := range z.Describe("p1", "") {
			for _, target := range d.Targets {
				of = append(of, d.Service+"="+target.Instance)
			}
		}
		return of
	}
	if got := describe(); !slices.Equal(got, []string{"db=c", "front=h", "web=a", "web=b"}) {
		t.Errorf("the names lead to %v", got)
	}
	z.Apply(&wire.Names{Projects: []wire.ProjectNames{{ID: "p1", Gone: []string{"c"}}}})
	if got := describe(); !slices.Equal(got, []string{"db=d", "front=h", "web=a", "web=b"}) {
		t.Errorf("without others, the names lead to %v", got)
	}
}

func TestAddressesLeadBackToNames(t *testing.T) {
	t.Parallel()
	z := sample()
	for address, want := range map[string]string{
		"10.0.0.1": "web.1-aaaaaa.inst.shop.acme.mariposa.internal. web.2-bbbbbb.inst.shop.acme.mariposa.internal.",
		"10.9.0.1": "web.1-aaaaaa.inst.shop.acme.mariposa.internal.", "10.0.0.6": "web.1-ffffff.inst.blog.acme.mariposa.internal.",
		"10.0.0.7": "", "127.0.0.1": "", "10.1.1.1": "",
	} {
		if got := strings.Join(z.Reverse(netip.MustParseAddr(address), Scope{Project: "p1"}), " "); got != want {
			t.Errorf("%s leads to %q, want %q", address, got, want)
		}
	}
}

func TestInstancesSearchTheDomainsOfTheirProject(t *testing.T) {
	t.Parallel()
	z := sample()
	want := "svc.shop.acme.mariposa.internal shop.acme.mariposa.internal mariposa.internal"
	if got := strings.Join(z.SearchDomains("p1"), " "); got != want || z.SearchDomains("p9") != nil {
		t.Errorf("they search %s", got)
	}
}

func TestASnapshotReplacesEverythingOnceItIsComplete(t *testing.T) {
	t.Parallel()
	z := sample()
	all := Scope{All: true}
	z.Apply(&wire.Names{Snapshot: true, Domain: "Example.Org.", Projects: []wire.ProjectNames{{ID: "p2", Header: &wire.ProjectHeader{Name: "news", Organization: "acme"}, Full: true}}})
	if got := spell(z.Lookup("web.svc.shop.acme", all, View{})); got == "-" || z.Domain() != "example.org" {
		t.Errorf("half a snapshot removed a project: %q in %s", got, z.Domain())
	}
	if got := spell(z.Lookup("web.svc.blog.acme", all, View{})); got != "-" {
		t.Errorf("a project has its former name: %q", got)
	}
	z.ForgetSnapshot()
	z.Apply(&wire.Names{Snapshot: true, Last: true, Projects: []wire.ProjectNames{{ID: "p3", Header: &wire.ProjectHeader{Name: "secret", Organization: "evil"}, Full: true}}})
	if n := len(z.Names().Projects); n != 1 {
		t.Errorf("%d projects are left", n)
	}
}

// Whatever is said in whichever order, a zone equals one that is told the result at once, and a
// client never gets an address of a project that it may not ask for.
func TestZonesAreWhatTheyWereTold(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SampledFrom([]string{"p1", "p2", "p3"})
		words := rapid.SampledFrom([]string{"web", "db", "shop", "acme", "svc", "inst", "1", "public", "east"})
		header := rapid.Custom(func(t *rapid.T) *wire.ProjectHeader {
			h := &wire.ProjectHeader{Name: words.Draw(t, "name"), Organization: words.Draw(t, "organization"), Services: rapid.SliceOfDistinct(words, rapid.ID).Draw(t, "services")}
			slices.Sort(h.Services)
			h.Networks = rapid.MapOf(rapid.SampledFrom([]string{"n1", "n2"}), words).Draw(t, "networks")
			return h
		})
		z := NewZone("")
		named := map[string]string{} // project ids by name: two projects never have one name at once
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			n := wire.ProjectNames{ID: ids.Draw(t, "project"), Full: rapid.Bool().Draw(t, "full")}
			if rapid.Bool().Draw(t, "has header") {
				h := header.Draw(t, "header")
				if by, taken := named[h.Name+"."+h.Organization]; !taken || by == n.ID {
					maps.DeleteFunc(named, func(_, id string) bool { return id == n.ID })
					named[h.Name+"."+h.Organization], n.Header = n.ID, h
				}
			}
			for range rapid.IntRange(0, 3).Draw(t, "instances") {
				number := rapid.IntRange(1, 4).Draw(t, "number")
				n.Instances = append(n.Instances, wire.NamedInstance{
					ID: n.ID + strconv.Itoa(number), Name: words.Draw(t, "instance") + "." + strconv.Itoa(number) + "-" + n.ID, Service: words.Draw(t, "service"), Slot: number, Node: "near",
					DC: rapid.SampledFrom([]string{"", "east"}).Draw(t, "dc"), Addresses: []string{"10.0." + n.ID[1:] + "." + strconv.Itoa(number) + ":80"}, Away: rapid.Bool().Draw(t, "away"),
				})
			}
			if rapid.Bool().Draw(t, "one is gone") {
				n.Gone = []string{n.ID + strconv.Itoa(rapid.IntRange(1, 4).Draw(t, "gone"))}
			}
			m := &wire.Names{Projects: []wire.ProjectNames{n}}
			if rapid.IntRange(0, 9).Draw(t, "a project is gone") == 0 {
				id := ids.Draw(t, "gone project")
				m.Gone = []string{id}
				maps.DeleteFunc(named, func(_, by string) bool { return by == id })
			}
			for _, frame := range wire.PackNames(m.Projects) {
				z.Apply(frame)
			}
			z.Apply(&wire.Names{Gone: m.Gone})
		}
		fresh := NewZone("")
		for _, frame := range wire.PackNames(z.Names().Projects) {
			fresh.Apply(frame)
		}
		for range 20 {
			name := strings.Join(rapid.SliceOfN(words, 0, 6).Draw(t, "labels"), ".")
			of := Scope{Project: ids.Draw(t, "who")}
			a, b := z.Lookup(name, of, View{Node: "near"}), fresh.Lookup(name, of, View{Node: "near"})
			if spell(a) != spell(b) && len(z.projects) > 0 && !strings.HasSuffix(name, "east") { // former data centers are remembered
				t.Fatalf("%s leads to %s, and in a fresh zone to %s", name, spell(a), spell(b))
			}
			for _, target := range a.Targets {
				owner := "p" + strconv.Itoa(int(target.Address.As4()[2]))
				if !z.allows(of, z.projects[owner]) {
					t.Fatalf("%s got %s of %s", of.Project, target.Address, owner)
				}
			}
		}
	})
}
