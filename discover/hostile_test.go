package discover

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// byAddress identifies clients by their address, as groups of their own.
func byAddress(c Client) (Identity, bool) {
	return Identity{Scope: Scope{Project: "p1"}, View: View{Node: "near"}, Key: c.Address.Addr().String()}, true
}

// dialFrom connects to a server from an address of the loopback.
func dialFrom(t *testing.T, network, from, at string) *dns.Conn {
	t.Helper()
	var local net.Addr = &net.UDPAddr{IP: net.ParseIP(from)}
	if network == "tcp" {
		local = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c, err := (&net.Dialer{LocalAddr: local, Timeout: time.Minute}).DialContext(t.Context(), network, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &dns.Conn{Conn: c}
}

// askFrom asks a server from an address of the loopback.
func askFrom(t *testing.T, network, from, at, name string) *dns.Msg {
	t.Helper()
	c := dialFrom(t, network, from, at)
	m := new(dns.Msg)
	if err := c.WriteMsg(m.SetQuestion(name, dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	in, err := c.ReadMsg()
	if err != nil {
		t.Fatalf("%s over %s: %v", name, network, err)
	}
	return in
}

// slowUpstream never answers names that begin with slow, until the test ends.
func slowUpstream(t *testing.T) netip.AddrPort {
	release := make(chan struct{})
	at := upstream(t, func(w dns.ResponseWriter, r *dns.Msg) {
		if strings.HasPrefix(r.Question[0].Name, "slow") {
			<-release
			return
		}
		m := new(dns.Msg)
		m.SetReply(r)
		m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 77}, A: net.IPv4(192, 0, 2, 1)})
		_ = w.WriteMsg(m)
	})
	t.Cleanup(func() { close(release) }) // before the server is shut down, which waits
	return at
}

func TestAClientThatWaitsForNamesIsNotInTheWayOfOthers(t *testing.T) {
	t.Parallel()
	slow := slowUpstream(t)
	f := &Forwarder{Upstreams: func() []netip.AddrPort { return []netip.AddrPort{slow} }}
	at := serve(t, &Server{Zone: sample(), Forward: f}, byAddress)
	hostile := dialFrom(t, "udp", "127.0.0.2", at)
	const sent, allowedOnce = 200, 128
	for n := range sent {
		m := new(dns.Msg)
		if err := hostile.WriteMsg(m.SetQuestion(fmt.Sprintf("slow%d.example.org.", n), dns.TypeA)); err != nil {
			t.Fatal(err)
		}
	}
	for range sent - allowedOnce { // the others wait
		if in, err := hostile.ReadMsg(); err != nil || in.Rcode != dns.RcodeServerFailure {
			t.Fatalf("%v, %v", in, err)
		}
	}
	if m := askFrom(t, "udp", "127.0.0.1", at, "example.org."); text(m) != "NOERROR A 192.0.2.1" {
		t.Errorf("another client gets %v", m)
	}

	for range 100 { // connections that ask for nothing
		dialFrom(t, "tcp", "127.0.0.2", at)
	}
	if m := askFrom(t, "tcp", "127.0.0.1", at, "web.svc.shop.acme.mariposa.internal."); m.Rcode != dns.RcodeSuccess {
		t.Errorf("another client gets %v", m)
	}
}

// writer is a client that keeps the answer.
type writer struct {
	dns.ResponseWriter
	from   string
	answer *dns.Msg
}

func (w *writer) LocalAddr() net.Addr  { return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 53} }
func (w *writer) RemoteAddr() net.Addr { return &net.UDPAddr{IP: net.ParseIP(w.from), Port: 1024} }
func (w *writer) WriteMsg(m *dns.Msg) error {
	w.answer = m
	return nil
}

func TestManyEqualQueriesAreNotInTheWayOfOthers(t *testing.T) {
	t.Parallel()
	slow := slowUpstream(t)
	s := &Server{Zone: sample(), Forward: &Forwarder{Upstreams: func() []netip.AddrPort { return []netip.AddrPort{slow} }}}
	o := &openDoor{Door: Door{Identify: byAddress}, busy: make(chan struct{}, maxBusy)}
	ask := func(from, name string) *dns.Msg {
		w, m := &writer{from: from}, new(dns.Msg)
		s.answer(o, w, m.SetQuestion(name, dns.TypeA))
		return w.answer
	}
	const sent = 1000
	var ended atomic.Int64
	done := make(chan struct{})
	for range sent {
		go func() {
			ask("127.0.0.2", "slow.example.org.")
			if ended.Add(1) == sent {
				close(done)
			}
		}()
	}
	for int(ended.Load())+len(o.busy) < sent { // until each of them waits, or was left unanswered
		time.Sleep(time.Millisecond) // there is no signal to wait for: poll
	}
	if m := ask("127.0.0.1", "web.svc.shop.acme.mariposa.internal."); m == nil || m.Rcode != dns.RcodeSuccess {
		t.Errorf("another client gets %v", m)
	}
	<-done
}

func TestAServerThatDoesNotAnswerIsAskedLast(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	dead := upstream(t, func(dns.ResponseWriter, *dns.Msg) { asked.Add(1) })
	good := slowUpstream(t)
	f := &Forwarder{Upstreams: func() []netip.AddrPort { return []netip.AddrPort{dead, good} }}
	at := serve(t, &Server{Zone: sample(), Forward: f}, byAddress)
	for n := range 10 {
		if m := askFrom(t, "udp", "127.0.0.1", at, fmt.Sprintf("example%d.org.", n)); text(m) != "NOERROR A 192.0.2.1" {
			t.Errorf("%v", m)
		}
	}
	if n := asked.Load(); n == 0 || n > 3 {
		t.Errorf("it was asked %d times", n)
	}
	later := time.Now().Add(time.Hour)
	if first, second := f.ordered(later), f.ordered(later); first[0] != dead || second[0] != good {
		t.Errorf("later: %v, then %v", first, second)
	}
	f.note(dead, true)
	if got := f.ordered(later); got[0] != dead {
		t.Errorf("after it has answered: %v", got)
	}
}

func TestOtherServersSayNothingAboutOurNames(t *testing.T) {
	t.Parallel()
	liar := upstream(t, func(w dns.ResponseWriter, r *dns.Msg) {
		const victim = "Web.svc.shop.acme.mariposa.internal."
		m := new(dns.Msg)
		m.SetReply(r)
		header := func(name string, kind uint16) dns.RR_Header {
			return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: 3600}
		}
		false1 := &dns.A{Hdr: header(victim, dns.TypeA), A: net.IPv4(6, 6, 6, 6)}
		m.Answer = append(m.Answer, &dns.CNAME{Hdr: header(r.Question[0].Name, dns.TypeCNAME), Target: victim}, false1)
		m.Ns = append(m.Ns, &dns.NS{Hdr: header("mariposa.internal.", dns.TypeNS), Ns: "ns.evil.example."})
		m.Extra = append(m.Extra, false1)
		_ = w.WriteMsg(m)
	})
	f := &Forwarder{Upstreams: func() []netip.AddrPort { return []netip.AddrPort{liar} }}
	at := serve(t, &Server{Zone: sample(), Forward: f}, byAddress)
	m := askFrom(t, "udp", "127.0.0.1", at, "evil.example.")
	if strings.Contains(m.String(), "6.6.6.6") || len(m.Ns) > 0 || len(m.Answer) != 1 {
		t.Errorf("a client is told %v", m)
	}
}
