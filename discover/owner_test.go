package discover

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// stranger is the uid of another user in tests, which run as root.
const stranger = 54321

// TestAsksAs is no test: it is what another user runs in the next one.
func TestAsksAs(t *testing.T) {
	at, network := os.Getenv("ASK_AT"), os.Getenv("ASK_OVER")
	if at == "" {
		return
	}
	m := new(dns.Msg)
	m.SetQuestion("web.svc.shop.acme.mariposa.internal.", dns.TypeA)
	in, _, err := (&dns.Client{Net: network, Timeout: time.Minute}).ExchangeContext(t.Context(), m, at)
	if err != nil {
		t.Fatal(err)
	}
	if got := dns.RcodeToString[in.Rcode]; got != os.Getenv("ASK_WANT") {
		t.Errorf("answered %s", got)
	}
}

// A client on this machine is known by its user, over UDP and TCP, whichever address it sends from.
func TestClientsOnTheMachineAreKnownByTheirUser(t *testing.T) {
	t.Parallel()
	for name, owner := range map[string]func(Client) (int, error){"diagnostics": ownerByDiag, "lists": ownerByProc} {
		for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
			s := &Server{Zone: sample()}
			seen := make(chan int, 10)
			at, err := s.Open(t.Context(), Door{Address: netip.MustParseAddrPort(address), Identify: func(c Client) (Identity, bool) {
				uid, err := owner(c)
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				seen <- uid
				return Identity{Scope: Scope{All: true}, Key: "k"}, uid != stranger
			}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Shutdown)
			for _, network := range []string{"udp", "tcp"} {
				known := func() int {
					if network == "tcp" {
						<-seen // the connection, before its query
					}
					return <-seen
				}
				ask(t, at.String(), network, "web.svc.shop.acme.mariposa.internal.", dns.TypeA, 0)
				if uid := known(); uid != os.Getuid() {
					t.Errorf("%s over %s: asked as %d, known as %d", name, network, os.Getuid(), uid)
				}
				askAs(t, at.String(), network, "REFUSED")
				if uid := known(); uid != stranger {
					t.Errorf("%s over %s: asked as %d, known as %d", name, network, stranger, uid)
				}
			}
		}
	}
}

// askAs asks as another user.
func askAs(t *testing.T, at, network, want string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/fd/3", "-test.run=^TestAsksAs$", "-test.count=1")
	f, err := os.Open(program) // its directory may be closed to others
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // it was only read
	cmd.ExtraFiles, cmd.Dir = []*os.File{f}, "/"
	cmd.Env = []string{"ASK_AT=" + at, "ASK_OVER=" + network, "ASK_WANT=" + want}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestASocketThatIsClosedHasNoOwner(t *testing.T) {
	t.Parallel()
	server, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close() // nothing was received
	c := Client{Address: netip.MustParseAddrPort("127.0.0.9:9"), Server: server.LocalAddr().(*net.UDPAddr).AddrPort()}
	for _, tcp := range []bool{false, true} {
		c.TCP = tcp
		if uid, err := OwnerOf(c); err == nil {
			t.Errorf("it belongs to %d", uid)
		}
	}
}
