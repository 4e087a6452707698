package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/agent"
	"mariposa/contract"
	"mariposa/wire"
)

// An agent without a session cannot make the server keep large frames. One that has a
// session can send them.
func TestAnAgentWithoutASessionMaySendLittle(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	large := helloOf("n1")
	large.Offers = map[mariposa.ComputeType]mariposa.Offer{"dummy": {Unavailable: strings.Repeat("x", 4<<20)}}
	if _, f := h.dialAgent(large); f.Bye == nil || !strings.Contains(f.Bye.Reason, "must have at most 128 KiB") {
		t.Fatalf("a hello of 4 MiB was answered %+v", f)
	}
	a := h.connectAgent(helloOf("n1"))
	a.send(wire.Frame{Report: &wire.Report{Inventory: true, Quarantined: inQuarantine(9000, func(int) *mariposa.Provenance { return nil })}})
	h.until("its report to be stored", func() bool { return h.nodeByRef("n1").QuarantinedCount == 9000 })
}

// tryDial opens a connection of an agent and sends nothing.
func (h *testServer) tryDial(header http.Header) (*websocket.Conn, *http.Response, error) {
	h.t.Helper()
	conn, r, err := websocket.Dial(h.ctx, "ws"+strings.TrimPrefix(h.url, "http")+agent.Path, &websocket.DialOptions{HTTPClient: h.http, HTTPHeader: header})
	if err == nil {
		h.t.Cleanup(func() { _ = conn.CloseNow() })
	}
	return conn, r, err
}

// dialUntilRefused opens connections until the server refuses one, and returns the others. It opens
// many at once, because the server ends those that say nothing for a while.
func (h *testServer) dialUntilRefused(who string, header http.Header) (silent []*websocket.Conn) {
	h.t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	refused := false
	goesOn := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return !refused && len(silent) <= 300
	}
	for range 20 {
		all.Go(func() {
			for goesOn() {
				conn, r, err := h.tryDial(header)
				mu.Lock()
				switch {
				case err == nil:
					silent = append(silent, conn)
				case r != nil && r.StatusCode == http.StatusTooManyRequests:
					refused = true
				default:
					refused = true
					h.t.Errorf("%s: %v", who, err)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if !refused {
		h.t.Fatalf("%s opened %d connections", who, len(silent))
	}
	return silent
}

// The key of a node opens a few connections that say nothing, and no more. The session of
// the node goes on, and the key can be used again once they are gone.
func TestAKeyCannotOpenConnectionsWithoutEnd(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	for who, header := range map[string]http.Header{
		"a key":   {wire.NodeHeader: {"n1:" + nodeKey + "n1"}},
		"a token": {"Authorization": {"Bearer " + h.mintBy(contract.NewToken{Name: "join", Use: mariposa.TokenJoin}).Secret}},
	} {
		a := h.connectAgent(helloOf("n1"))
		silent := h.dialUntilRefused(who, header)
		a.beat()
		for f := a.read(); f.Heartbeat == nil; f = a.read() {
			if f.Bye != nil {
				t.Fatalf("%s: the session ended: %s", who, f.Bye.Reason)
			}
		}
		for _, conn := range silent {
			_ = conn.CloseNow()
		}
		h.until("a connection to be possible again", func() bool {
			_, _, err := h.tryDial(header)
			return err == nil
		})
	}
}

// What a node reports is shown without characters that terminals obey, and without times
// and numbers that make no sense.
func TestWhatANodeReportsIsSafeToShow(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.connectAgent(helloOf("n1"))
	h.create("shop", "services: {web: {compute_type: dummy, scale: 0}}")
	made := want[contract.Changed](h.call("POST", "/v1/instances", `{"project":"shop","name":"alone","compute_type":"dummy"}`), 201)
	a := h.connectAgent(helloOf("n1"))
	const odd = "a\u202eb\x1b[31mc\u2066d\ne"
	exit, year9999 := 1<<40, time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	a.send(wire.Frame{Report: &wire.Report{
		Items: []wire.Status{{ID: made.ID, Status: mariposa.InstanceStatus{
			State: mariposa.StateRunning, Generation: 1, Reason: odd, PhysicalID: odd, Addresses: []string{odd}, Details: map[string]string{"log": odd},
			Started: year9999, Finished: year9999, Restarts: -5, ExitCode: &exit,
		}}},
		Inventory: true, Quarantined: []mariposa.Quarantined{
			{ID: "q-1", Name: odd, Project: odd, Compute: "dummy", State: "running", Reason: odd, Since: year9999, Origin: &mariposa.Provenance{Project: odd, Slot: -1}},
			{ID: odd, Name: "web.2-q", Compute: "dummy", State: "running"},
		},
		Machine: &mariposa.Machine{OS: odd, CPUs: -4, Memory: 1e18, Booted: year9999, Disks: []mariposa.Disk{{Name: "sda", Size: -1}}, NICs: []mariposa.NIC{{Name: "eth0", Speed: -7}}},
	}})
	h.until("the report to be stored", func() bool {
		return want[contract.Instance](h.call("GET", "/v1/instances/"+made.ID, nil), 200).State == mariposa.StateRunning && h.nodeByRef("n1").QuarantinedCount == 2
	})
	i := want[contract.Instance](h.call("GET", "/v1/instances/"+made.ID, nil), 200)
	if i.Reason != "ab[31mcd e" || i.Addresses[0] != "ab[31mcd e" || i.Restarts != 0 || i.ExitCode != nil {
		t.Errorf("the instance is shown as %+v", i)
	}
	for _, path := range []string{"/v1/instances/" + made.ID, "/v1/nodes/n1", "/v1/nodes", "/v1/events?since=0"} {
		body := string(h.call("GET", path, nil).body)
		for _, bad := range []string{"\u202e", "\\u202e", "\\u001b", "\u2066", "9999-", "1000000000000000000", ":-"} {
			if strings.Contains(body, bad) {
				t.Errorf("%s shows %q", path, bad)
			}
		}
	}
}

// An entry of the quarantine that is forged, or has no name, is refused with a sentence
// that says which one and why.
func TestAForgedQuarantineIsNotAdopted(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.connectAgent(helloOf("n1"))
	origin := h.serviceOf("shop", 1)
	made := want[contract.Changed](h.call("POST", "/v1/instances", `{"project":"shop","name":"alone","compute_type":"dummy"}`), 201)
	b := h.connectAgent(helloOf("n2"))
	b.send(wire.Frame{Report: &wire.Report{Inventory: true, Quarantined: []mariposa.Quarantined{{ID: made.ID, Compute: "dummy", State: "running", Origin: origin(1)}}}})
	h.until("the quarantine to be known", func() bool { return h.nodeByRef("n2").QuarantinedCount == 1 })
	for _, ask := range []contract.NodeAction{{Action: "adopt", Instances: []string{made.ID}}, {Action: "adopt"}} {
		h.call("PUT", "/v1/nodes/n2", ask).wantError(409, mariposa.Conflict,
			fmt.Sprintf("no instance on node n2 can be adopted: %s: another node has an instance with its id", made.ID))
	}
}

// A node that once had an instance of a project claims to have others. It is believed only
// what a server signed for it, for that instance.
func TestAnOriginThatNoServerSignedIsNotAdopted(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	a := h.connectAgent(helloOf("n1"))
	h.create("shop", "services: {web: {compute_type: dummy, scale: 5}}")
	real := map[int]wire.Assignment{}
	for len(real) < 5 {
		if f := a.read(); f.Assign != nil {
			for _, it := range f.Assign.Items {
				real[it.Origin.Slot] = it
			}
		}
	}
	if real[1].Origin.Proof == "" || real[1].Origin.Proof == real[2].Origin.Proof {
		t.Errorf("the proofs are %q and %q", real[1].Origin.Proof, real[2].Origin.Proof)
	}
	claim := func(id, name string, of wire.Assignment, forge func(*mariposa.Provenance)) mariposa.Quarantined {
		o := *of.Origin
		forge(&o)
		return mariposa.Quarantined{ID: id, Name: name, Project: "shop", Compute: mariposa.ComputeDummy, State: mariposa.StateRunning, Reason: "this store does not know it", Origin: &o}
	}
	forged := []mariposa.Quarantined{
		claim("forged-1", "web.4-f", real[1], func(o *mariposa.Provenance) { o.Slot, o.Proof = 4, "" }),
		claim("forged-2", "web.4-g", real[1], func(o *mariposa.Provenance) { o.Slot = 4 }),
		claim("forged-3", real[1].Name, real[1], func(*mariposa.Provenance) {}), // the proof of another instance
		claim("forged-4", "web.5-f", real[1], func(o *mariposa.Provenance) { o.Slot, o.Proof = 5, "k1=AAAA,"+o.Proof }),
	}
	a.send(wire.Frame{Report: &wire.Report{Inventory: true, Quarantined: forged}})
	b := h.connectAgent(helloOf("n2"))
	b.send(wire.Frame{Report: &wire.Report{Inventory: true, Quarantined: []mariposa.Quarantined{claim("forged-5", real[1].Name, real[1], func(*mariposa.Provenance) {})}}})
	h.until("the quarantines to be known", func() bool { return h.nodeByRef("n1").QuarantinedCount == 4 && h.nodeByRef("n2").QuarantinedCount == 1 })
	if shown := string(h.call("GET", "/v1/nodes/n1", nil).body); strings.Contains(shown, "proof") {
		t.Errorf("proofs are shown: %s", shown)
	}
	const why = "no server of this installation has signed where it came from for this node"
	for _, node := range []string{"n1", "n2"} {
		h.call("PUT", "/v1/nodes/"+node, contract.NodeAction{Action: "adopt"}).wantError(409, mariposa.Conflict, why)
		h.call("PUT", "/v1/nodes/"+node, contract.NodeAction{Action: "adopt", Replace: true}).wantError(409, mariposa.Conflict, why)
	}
	h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "adopt", Unverified: true}).wantError(400, mariposa.InvalidArgument, "instances must name those to adopt")
	h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "purge", Unverified: true}).wantError(400, mariposa.InvalidArgument, "only adopt uses it")
	done := want[contract.Changed](h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "adopt", Instances: []string{"forged-1"}, Replace: true, Unverified: true}), 200)
	if len(done.Adoptions) != 1 || !done.Adoptions[0].Adopted {
		t.Errorf("an admin who trusts the node adopts it: %+v", done)
	}
	if audit := string(h.call("GET", "/v1/audit?action=node.act&limit=1", nil).body); !strings.Contains(audit, "1 instance adopted, even if unverified") {
		t.Errorf("the audit says %s", audit)
	}
}

// An instance can be adopted by its name, however many others are in quarantine.
func TestOneOfManyQuarantinedInstancesCanBeAdopted(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	a := h.connectAgent(helloOf("n1"))
	origin := h.serviceOf("shop", 1000)
	a.send(wire.Frame{Report: &wire.Report{Inventory: true, Quarantined: h.signed("n1", inQuarantine(1000, origin))}})
	h.until("the quarantine to be known", func() bool { return h.nodeByRef("n1").QuarantinedCount == 1000 })
	for _, name := range []string{"web.700-q", "q-00701", "web.702"} {
		done := want[contract.Changed](h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "adopt", Instances: []string{name}}), 200)
		if len(done.Adoptions) != 1 || !done.Adoptions[0].Adopted {
			t.Errorf("%s: %+v", name, done)
		}
	}
	again := h.connectAgent(helloOf("n1")) // it has not said yet what is in quarantine
	r := h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "adopt", Instances: []string{"web.800-q"}})
	r.wantError(503, mariposa.Unavailable, "has not reported its quarantine yet: try again")
	again.send(wire.Frame{Report: &wire.Report{Inventory: true, Quarantined: h.signed("n1", inQuarantine(1000, origin))}})
	h.until("it to be adopted", func() bool {
		return h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "adopt", Instances: []string{"web.800-q"}}).status == 200
	})
}
