package discover

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"mariposa/leaktest"
	"mariposa/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// as returns how everybody is identified who asks.
func as(of Scope) func(Client) (Identity, bool) {
	return func(c Client) (Identity, bool) {
		return Identity{Scope: of, View: View{Node: "near"}, Key: c.Address.Addr().String()}, true
	}
}

// serve starts a server for one kind of client.
func serve(t *testing.T, s *Server, identify func(Client) (Identity, bool)) string {
	t.Helper()
	at, err := s.Open(t.Context(), Door{Address: loopback, Identify: identify})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return at.String()
}

// ask asks a server over UDP or TCP.
func ask(t *testing.T, at, network, name string, kind uint16, edns uint16) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, kind)
	if edns > 0 {
		m.SetEdns0(edns, false)
	}
	c := dns.Client{Net: network, Timeout: time.Minute, UDPSize: 4096}
	in, _, err := c.ExchangeContext(t.Context(), m, at)
	if err != nil {
		t.Fatalf("%s %s: %v", name, network, err)
	}
	return in
}

// text writes the answers of a message in an order of its own.
func text(m *dns.Msg) string {
	var all []string
	for _, rr := range m.Answer {
		all = append(all, strings.Join(strings.Fields(rr.String())[3:], " "))
	}
	slices.Sort(all)
	return dns.RcodeToString[m.Rcode] + " " + strings.Join(all, ", ")
}

func TestQueriesAreAnswered(t *testing.T) {
	t.Parallel()
	at := serve(t, &Server{Zone: sample()}, as(Scope{Project: "p1"}))
	const in = ".mariposa.internal."
	for _, c := range []struct {
		name string
		kind uint16
		want string
	}{
		{"web.svc.shop.acme" + in, dns.TypeA, "NOERROR A 10.0.0.1, A 192.0.2.7"},
		{"WEB.svc.SHOP.acme.Mariposa.INTERNAL.", dns.TypeA, "NOERROR A 10.0.0.1, A 192.0.2.7"},
		{"web.svc.shop.acme" + in, dns.TypeAAAA, "NOERROR "},
		{"db.svc.shop.acme" + in, dns.TypeAAAA, "NOERROR AAAA 2001:db8::5"},
		{"web.svc.shop.acme" + in, dns.TypeSRV, "NOERROR SRV 1 1 443 web.1-aaaaaa.inst.shop.acme.mariposa.internal., SRV 1 1 80 web.1-aaaaaa.inst.shop.acme.mariposa.internal., SRV 1 1 8080 web.2-bbbbbb.inst.shop.acme.mariposa.internal."},
		{"web.svc.shop.acme" + in, dns.TypeTXT, "NOERROR "},
		{"idle.svc.shop.acme" + in, dns.TypeA, "NOERROR "},
		{"nothing.svc.shop.acme" + in, dns.TypeA, "NXDOMAIN "},
		{"web.svc.secret.evil" + in, dns.TypeA, "NXDOMAIN "},
		{in[1:], dns.TypeNS, "NOERROR NS ns.mariposa.internal."},
		{"ns" + in, dns.TypeA, "NOERROR A 127.0.0.1"},
		{"web.svc.shop.acme" + in, dns.TypeANY, "REFUSED "},
		{in[1:], dns.TypeAXFR, "REFUSED "},
		{"6.0.0.10.in-addr.arpa.", dns.TypePTR, "NOERROR PTR web.1-ffffff.inst.blog.acme.mariposa.internal."},
		{"5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.", dns.TypePTR, "NOERROR PTR db.1-cccccc.inst.shop.acme.mariposa.internal."},
		{"7.0.0.10.in-addr.arpa.", dns.TypePTR, "REFUSED "}, // it is not ours, and nobody else is asked
		{"example.org.", dns.TypeA, "REFUSED "},
		{"db.", dns.TypeA, "NXDOMAIN "},
		{"db.svc.", dns.TypeA, "NXDOMAIN "},
	} {
		for _, network := range []string{"udp", "tcp"} {
			if c.kind == dns.TypeAXFR && network == "tcp" {
				continue // the client expects several messages
			}
			m := ask(t, at, network, c.name, c.kind, 1232)
			if text(m) != c.want {
				t.Errorf("%s %s over %s: %s, want %s", c.name, dns.TypeToString[c.kind], network, text(m), c.want)
			}
			if m.Question[0].Name != c.name {
				t.Errorf("%s is spelled %s in the answer", c.name, m.Question[0].Name)
			}
			ours := strings.HasSuffix(strings.ToLower(c.name), in)
			if negative := len(m.Answer) == 0 && m.Rcode != dns.RcodeRefused && ours; negative {
				soa, ok := (*dns.SOA)(nil), false
				if len(m.Ns) == 1 {
					soa, ok = m.Ns[0].(*dns.SOA)
				}
				if !ok || soa.Minttl != 5 || soa.Hdr.Ttl != 5 || !m.Authoritative {
					t.Errorf("%s %s: %v", c.name, dns.TypeToString[c.kind], m)
				}
			}
			for _, rr := range m.Answer {
				if rr.Header().Ttl != 5 {
					t.Errorf("%v", rr)
				}
			}
		}
	}
	if m := ask(t, at, "udp", "web.svc.shop.acme"+in, dns.TypeSRV, 1232); len(m.Extra) < 3 {
		t.Errorf("the addresses of the instances are missing: %v", m)
	}
}

func TestAnswersAreShuffled(t *testing.T) {
	t.Parallel()
	at := serve(t, &Server{Zone: sample()}, as(Scope{Project: "p1"}))
	first := map[string]bool{}
	for range 200 {
		first[ask(t, at, "udp", "web.svc.shop.acme.mariposa.internal.", dns.TypeA, 0).Answer[0].(*dns.A).A.String()] = true
	}
	if len(first) != 2 {
		t.Errorf("the first answer is always %v", first)
	}
}

// crowd is a zone with a service of many instances.
func crowd(n int) *Zone {
	z := NewZone("")
	p := wire.ProjectNames{ID: "p1", Full: true, Header: &wire.ProjectHeader{Name: "shop", Organization: "acme", Services: []string{"web"}}}
	for i := range n {
		p.Instances = append(p.Instances, wire.NamedInstance{
			ID: strconv.Itoa(i), Name: fmt.Sprintf("web.%d-%06d", i+1, i), Service: "web", Slot: i + 1, Node: "near", Addresses: []string{fmt.Sprintf("10.1.%d.%d:80", i/250, 1+i%250)},
		})
	}
	z.Apply(&wire.Names{Projects: []wire.ProjectNames{p}})
	return z
}

func TestAnswersThatDoNotFitComeOverTCP(t *testing.T) {
	t.Parallel()
	at := serve(t, &Server{Zone: crowd(3000)}, as(Scope{Project: "p1"}))
	for _, c := range []struct {
		edns uint16
		most int
	}{{0, 512}, {700, 700}, {60000, 1232}} {
		m := ask(t, at, "udp", "web.svc.shop.acme.mariposa.internal.", dns.TypeA, c.edns)
		m.Compress = true
		if !m.Truncated || m.Len() > c.most || len(m.Answer) == 0 {
			t.Errorf("with %d: truncated %t, %d bytes, %d answers", c.edns, m.Truncated, m.Len(), len(m.Answer))
		}
		if (m.IsEdns0() != nil) != (c.edns > 0) {
			t.Errorf("with %d, the answer has %v", c.edns, m.Extra)
		}
	}
	for kind, most := range map[uint16]int{dns.TypeA: maxAnswers, dns.TypeSRV: maxAnswers} {
		if m := ask(t, at, "tcp", "web.svc.shop.acme.mariposa.internal.", kind, 0); m.Truncated || len(m.Answer) != most {
			t.Errorf("over TCP: truncated %t, %d answers", m.Truncated, len(m.Answer))
		}
	}
}

func TestUnknownClientsAndStrangeMessagesAreRefused(t *testing.T) {
	t.Parallel()
	s := &Server{Zone: sample(), Forward: &Forwarder{Upstreams: func() []netip.AddrPort { t.Error("a stranger's query was passed on"); return nil }}}
	at := serve(t, s, func(Client) (Identity, bool) { return Identity{}, false })
	for _, name := range []string{"web.svc.shop.acme.mariposa.internal.", "example.org."} {
		if m := ask(t, at, "udp", name, dns.TypeA, 0); text(m) != "REFUSED " || len(m.Ns) > 0 {
			t.Errorf("%v", m)
		}
	}
	known := serve(t, &Server{Zone: sample()}, as(Scope{Project: "p1"}))
	send := func(change func(*dns.Msg)) *dns.Msg {
		m := new(dns.Msg)
		m.SetQuestion("web.svc.shop.acme.mariposa.internal.", dns.TypeA)
		change(m)
		in, _, err := (&dns.Client{Timeout: time.Minute}).ExchangeContext(t.Context(), m, known)
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	for want, change := range map[int]func(*dns.Msg){
		dns.RcodeNotImplemented: func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate },
		dns.RcodeFormatError:    func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) },
		dns.RcodeRefused:        func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS },
		dns.RcodeBadVers:        func(m *dns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) },
	} {
		if m := send(change); m.Rcode != want {
			t.Errorf("answered %s, want %s", dns.RcodeToString[m.Rcode], dns.RcodeToString[want])
		}
	}
}

func TestAClientThatAsksTooMuchGetsNoAnswers(t *testing.T) {
	t.Parallel()
	var r rates
	now := time.Now()
	for n := range rateBurst {
		if !r.take("a", "g", now) {
			t.Fatalf("query %d was refused", n)
		}
	}
	if r.take("a", "g", now) || !r.take("b", "g", now) || !r.take("a", "g", now.Add(time.Second)) {
		t.Error("the bound is wrong")
	}
	for n := range 2 * maxRateKeys {
		r.take(strconv.Itoa(n), "g", now.Add(2*time.Second))
	}
	if !r.take("another", "other", now.Add(2*time.Second)) {
		t.Error("invented clients of one group are in the way of another group")
	}
	if len(r.keys) > maxRateKeys+2 {
		t.Errorf("%d clients are remembered", len(r.keys))
	}
	if !r.take("new", "g", now.Add(time.Hour)) {
		t.Error("idle clients are not forgotten")
	}
}

// upstream is another name server. It answers over TCP what does not fit.
func upstream(t *testing.T, handle func(w dns.ResponseWriter, r *dns.Msg)) netip.AddrPort {
	t.Helper()
	packets, conns, at, err := listenBoth(t.Context(), &net.ListenConfig{}, loopback)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*dns.Server{{PacketConn: packets}, {Listener: conns}} {
		s.Handler = dns.HandlerFunc(handle)
		started, ended := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { _ = s.ActivateAndServe(); close(ended) }()
		<-started
		t.Cleanup(func() { _ = s.Shutdown(); <-ended })
	}
	return at
}

func TestOtherNamesComeFromOtherServers(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	release := make(chan struct{})
	good := upstream(t, func(w dns.ResponseWriter, r *dns.Msg) {
		asked.Add(1)
		m := new(dns.Msg)
		m.SetReply(r)
		m.Authoritative = true
		_, tcp := w.RemoteAddr().(*net.TCPAddr)
		switch name := strings.ToLower(r.Question[0].Name); {
		case name == "missing.example.org.":
			m.Rcode = dns.RcodeNameError
		case name == "large.example.org." && !tcp:
			m.Truncated = true
		case name == "slow.example.org.":
			<-release
			fallthrough
		default:
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 77}, A: net.IPv4(192, 0, 2, 1)})
		}
		_ = w.WriteMsg(m)
	})
	broken := upstream(t, func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg)
		_ = w.WriteMsg(m.SetRcode(r, dns.RcodeServerFailure))
	})
	f := &Forwarder{Upstreams: func() []netip.AddrPort { return []netip.AddrPort{broken, good} }}
	at := serve(t, &Server{Zone: sample(), Forward: f}, as(Scope{Project: "p1"}))
	for name, want := range map[string]string{
		"Example.org.": "NOERROR A 192.0.2.1", "large.example.org.": "NOERROR A 192.0.2.1", "missing.example.org.": "NXDOMAIN ",
		"web.svc.shop.acme.mariposa.internal.": "NOERROR A 10.0.0.1, A 192.0.2.7", "nothing.mariposa.internal.": "NXDOMAIN ",
	} {
		m := ask(t, at, "udp", name, dns.TypeA, 1232)
		if text(m) != want || m.Question[0].Name != name || !m.RecursionAvailable || m.Authoritative != strings.HasSuffix(name, ".internal.") {
			t.Errorf("%s: %v, want %s", name, m, want)
		}
	}

	before := asked.Load()
	done := make(chan *dns.Msg)
	for range 20 {
		go func() {
			m := new(dns.Msg)
			m.SetQuestion("slow.example.org.", dns.TypeA)
			in, _, err := (&dns.Client{Net: "tcp", Timeout: time.Minute}).Exchange(m, at)
			if err != nil {
				t.Error(err)
			}
			done <- in
		}()
	}
	for asked.Load() == before {
		time.Sleep(time.Millisecond) // there is no signal to wait for: poll
	}
	close(release)
	for range 20 {
		if m := <-done; m != nil && text(m) != "NOERROR A 192.0.2.1" {
			t.Errorf("%v", m)
		}
	}
	if n := asked.Load() - before; n > 10 {
		t.Errorf("equal queries at the same time were passed on %d times", n)
	}
}

// A server whose other servers ask it in turn fails, and does not multiply queries.
func TestALoopOfServersEnds(t *testing.T) {
	t.Parallel()
	var self atomic.Pointer[netip.AddrPort]
	f := &Forwarder{Upstreams: func() []netip.AddrPort { return []netip.AddrPort{*self.Load()} }}
	at := netip.MustParseAddrPort(serve(t, &Server{Zone: sample(), Forward: f}, as(Scope{Project: "p1"})))
	self.Store(&at)
	if m := ask(t, at.String(), "udp", "example.org.", dns.TypeA, 0); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("%v", m)
	}
}

func TestDoorsOpenAndClose(t *testing.T) {
	t.Parallel()
	s := &Server{Zone: sample()}
	at, err := s.Open(t.Context(), Door{Address: loopback, Identify: as(Scope{Project: "p1"})})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Open(t.Context(), Door{Address: at, Identify: as(Scope{})}); err != nil || again != at || len(s.Addresses()) != 1 {
		t.Errorf("%s, %v", again, err)
	}
	if _, err := (&Server{Zone: sample()}).Open(t.Context(), Door{Address: at}); err == nil {
		t.Error("two servers listen at one address")
	}
	if _, err := s.Open(t.Context(), Door{Address: loopback, Device: "nothing0"}); err == nil {
		t.Error("a door is bound to an interface that does not exist")
	}
	s.Close(at)
	if _, err := s.Open(t.Context(), Door{Address: at, Identify: as(Scope{Project: "p1"})}); err != nil {
		t.Errorf("after it was closed: %v", err)
	}
	s.Shutdown()
	if _, err := s.Open(context.Background(), Door{Address: at}); err == nil {
		t.Error("a server that has ended listens")
	}
}

func TestResolversOfTheMachine(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/resolv.conf"
	if err := os.WriteFile(path, []byte("# comment\nnameserver 10.0.0.2\nnameserver 127.0.0.1\nnameserver fe80::1%eth0\nnameserver\nnameserver nobody\noptions ndots:2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &MachineResolvers{Path: path, Except: func(at netip.AddrPort) bool { return at.Addr().IsLoopback() }}
	if got := fmt.Sprint(r.Servers()); got != "[10.0.0.2:53 [fe80::1%eth0]:53]" {
		t.Errorf("they are %s", got)
	}
}

// FuzzMessages sends any bytes to a server: it never fails, answers only in the size that was
// asked for, and never tells what the client may not know.
func FuzzMessages(f *testing.F) {
	for _, name := range []string{"web.svc.shop.acme.mariposa.internal.", "web.svc.secret.evil.mariposa.internal.", "7.0.0.10.in-addr.arpa.", "_80._tcp.web.svc.shop.acme.mariposa.internal."} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypePTR, dns.TypeANY} {
			m := new(dns.Msg)
			m.SetQuestion(name, kind)
			m.SetEdns0(1232, true)
			b, err := m.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	s := &Server{Zone: sample()}
	who := Identity{Scope: Scope{Project: "p1"}, View: View{Node: "near"}}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 12 {
			return
		}
		header := dns.Header{Bits: uint16(b[2])<<8 | uint16(b[3]), Qdcount: uint16(b[4])<<8 | uint16(b[5]), Ancount: uint16(b[6])<<8 | uint16(b[7]), Nscount: uint16(b[8])<<8 | uint16(b[9]), Arcount: uint16(b[10])<<8 | uint16(b[11])}
		r := new(dns.Msg)
		if accept(header) != dns.MsgAccept || r.Unpack(b) != nil || len(r.Question) != 1 {
			return
		}
		m := s.resolve(r, who, Client{Server: netip.MustParseAddrPort("127.0.0.1:53")})
		m.Compress = true
		m.Truncate(512)
		out, err := m.Pack()
		if err != nil {
			t.Fatalf("cannot be sent: %v\n%v", err, m)
		}
		if len(out) > 512 && len(m.Answer) > 0 {
			t.Fatalf("%d bytes", len(out))
		}
		if strings.Contains(strings.ToLower(m.String()), "10.0.0.7") || strings.Contains(m.String(), "999999") && !strings.Contains(r.Question[0].Name, "999999") {
			t.Fatalf("a client got what it may not know: %v", m)
		}
	})
}
