package agent

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"mariposa"
	"mariposa/discover"
	"mariposa/wire"
)

// A process on the node is known by its uid: instances may ask for their project, root and the agent
// for everything, and nobody else.
func TestProcessesAreKnownByTheirUid(t *testing.T) {
	t.Parallel()
	var stored *wire.Names
	s := NewNameServer(NamesOptions{
		Node: "n1", Listen: netip.MustParseAddrPort("127.0.0.1:0"), Store: func(n *wire.Names) { stored = n },
		Resolvers: func() []netip.AddrPort { return nil },
	})
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	s.apply(&wire.Names{Snapshot: true, Last: true, Projects: []wire.ProjectNames{
		{ID: "p1", Full: true, Header: &wire.ProjectHeader{Name: "shop", Organization: "acme", Services: []string{"web"}}, Instances: []wire.NamedInstance{{ID: "a", Name: "web.1-a", Service: "web", Node: "n1", Addresses: []string{"127.0.0.1:80"}}}},
		{ID: "p2", Full: true, Header: &wire.ProjectHeader{Name: "blog", Organization: "acme", Services: []string{"web"}}},
	}})
	ask := func(name string) string {
		m := new(dns.Msg)
		m.SetQuestion(name+".acme.mariposa.internal.", dns.TypeA)
		in, _, err := new(dns.Client).ExchangeContext(t.Context(), m, s.loopback.String())
		if err != nil {
			t.Fatal(err)
		}
		return dns.RcodeToString[in.Rcode]
	}
	check := func(when, shop, blog string) {
		t.Helper()
		if a, b := ask("web.svc.shop"), ask("web.svc.blog"); a != shop || b != blog {
			t.Errorf("%s: %s and %s, want %s and %s", when, a, b, shop, blog)
		}
	}
	s.setOwner("broken", map[string]string{"uid": "nobody"}, &mariposa.Provenance{Project: "p2"}) // no uid
	check("the agent's own user", "NOERROR", "NOERROR")
	if os.Getuid() == 0 {
		s.mu.Lock() // instances never have the uid 0; this one stands for theirs
		s.owners[0] = map[string]string{"i1": "p1"}
		s.mu.Unlock()
		check("an instance of one project", "NOERROR", "NXDOMAIN")
		s.mu.Lock()
		s.owners[0]["i2"] = "p2"
		s.mu.Unlock()
		check("instances of two projects with one uid", "REFUSED", "REFUSED")
	}
	s.setOwner("i3", map[string]string{"uid": "70000"}, &mariposa.Provenance{Project: "p1"})
	s.setOwner("i3", map[string]string{"uid": "70001"}, &mariposa.Provenance{Project: "p1"})
	if s.owners[70000] != nil || s.owners[70001]["i3"] != "p1" {
		t.Errorf("they are %v", s.owners)
	}
	s.removeOwner("i3")
	if s.owners[70001] != nil || len(s.uids) != 0 {
		t.Errorf("they are %v", s.owners)
	}
	if s.Loopback().IsValid() {
		t.Error("resolvers would ask another port")
	}
	s.store()
	if stored == nil || len(stored.Projects) != 2 {
		t.Fatalf("stored were %+v", stored)
	}
	again := NewNameServer(NamesOptions{Node: "n1", Load: func() *wire.Names { return stored }})
	if again.searchDomains(&mariposa.Provenance{Project: "p1"}) == nil || again.searchDomains(nil) != nil {
		t.Error("another agent does not know them")
	}
}

// A process may ask for names before its start has ended, and so before its uid is known.
func TestAProcessThatIsBeingStartedIsKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewNameServer(NamesOptions{Node: "n1"})
		identify := func(uid int) string {
			id, ok := s.identifyUser(uid, discover.Identity{})
			return strings.TrimSpace(fmt.Sprintln(ok, id.Scope.Project))
		}
		const uid, other = 70000, 70001
		if got := identify(uid); got != "false" {
			t.Errorf("while nothing starts, a user gets %s", got)
		}
		s.setStarting("i1", true)
		s.setStarting("i2", true)
		got := make(chan string, 2)
		go func() { got <- identify(uid) }()
		synctest.Wait()
		s.setStarting("i2", false) // it waits on
		synctest.Wait()
		s.setOwner("i1", map[string]string{"uid": strconv.Itoa(uid)}, &mariposa.Provenance{Project: "p1"})
		s.setStarting("i1", false)
		if of := <-got; of != "true p1" {
			t.Errorf("the process gets %s", of)
		}
		s.setStarting("i3", true) // and never ends
		if of := identify(other); of != "false" {
			t.Errorf("somebody else gets %s", of)
		}
		for range ownerWaits {
			go identify(other)
		}
		synctest.Wait()
		begun := time.Now()
		if of := identify(other); of != "false" || !time.Now().Equal(begun) {
			t.Errorf("one more gets %s after %s", of, time.Since(begun))
		}
		time.Sleep(ownerDelay) // on the clock of the test: the others end
		synctest.Wait()
	})
}
