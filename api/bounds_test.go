package api_test

import (
	"context"
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
	"mariposa/manifest"
	"mariposa/store"
	"mariposa/wire"
)

// handAgent is an agent whose frames the test writes by hand, over a real connection.
type handAgent struct {
	h    *testServer
	pipe *wire.Pipe
	mu   sync.Mutex // held while a frame is sent
	seq  int64
}

func helloOf(node string) wire.Hello {
	return wire.Hello{Protocol: wire.Protocol, Node: node, Key: nodeKey + node, Name: node, Drivers: []mariposa.ComputeType{mariposa.ComputeDummy}, Dummy: true}
}

// dialAgent sends a hello, and returns the answer.
func (h *testServer) dialAgent(hello wire.Hello) (*handAgent, wire.Frame) {
	h.t.Helper()
	conn, _, err := websocket.Dial(h.ctx, "ws"+strings.TrimPrefix(h.url, "http")+agent.Path, &websocket.DialOptions{
		HTTPClient: h.http, HTTPHeader: http.Header{"Authorization": {"Bearer " + joinToken}},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	a := &handAgent{h: h, pipe: wire.NewPipe(h.ctx, conn)}
	h.t.Cleanup(a.pipe.Close)
	a.send(wire.Frame{Hello: &hello})
	return a, a.read()
}

// connectAgent opens a session, up to the end of the snapshot.
func (h *testServer) connectAgent(hello wire.Hello) *handAgent {
	h.t.Helper()
	a, first := h.dialAgent(hello)
	if first.Welcome == nil {
		h.t.Fatalf("%s was answered %+v", hello.Name, first.Bye)
	}
	for f := first; f.Assign == nil || !f.Assign.Last; f = a.read() {
		if f.Bye != nil {
			h.t.Fatalf("%s was sent away: %s", hello.Name, f.Bye.Reason)
		}
	}
	ctx, cancel := context.WithCancel(h.ctx)
	var beats sync.WaitGroup
	beats.Go(func() { // a node that is silent is lost
		for ctx.Err() == nil {
			a.beat()
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	h.t.Cleanup(func() {
		cancel()
		beats.Wait()
	})
	return a
}

func (a *handAgent) read() wire.Frame {
	a.h.t.Helper()
	ctx, cancel := context.WithTimeout(a.h.ctx, time.Minute)
	defer cancel()
	return must(a.pipe.Read(ctx))(a.h.t)
}

func (a *handAgent) beat() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pipe.Send(wire.Frame{Heartbeat: &wire.Heartbeat{Sent: a.seq}})
}

func (a *handAgent) send(f wire.Frame) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seq++
	f.Seq = a.seq
	a.pipe.Send(f)
}

// inQuarantine returns quarantined instances of slots of a service.
func inQuarantine(n int, origin func(slot int) *mariposa.Provenance) []mariposa.Quarantined {
	out := make([]mariposa.Quarantined, n)
	for i := range out {
		out[i] = mariposa.Quarantined{
			ID: fmt.Sprintf("q-%05d", i+1), Name: fmt.Sprintf("web.%d-q", i+1), Project: "shop", Compute: mariposa.ComputeDummy, State: mariposa.StateRunning,
			Reason: "this store does not know it", Origin: origin(i + 1),
		}
	}
	return out
}

// signed signs where quarantined instances came from, as a server does that assigns them to
// a node.
func (h *testServer) signed(node string, all []mariposa.Quarantined) []mariposa.Quarantined {
	h.t.Helper()
	cluster := must(h.store.Identity(h.ctx))(h.t).Cluster
	for i := range all {
		q := &all[i]
		q.Origin.Proof = h.ring.Sign("provenance of an instance", q.Origin.SignedParts(cluster, node, q.ID, q.Name)...)
	}
	return all
}

// A hostile node reports a huge quarantine. What is stored, listed and sent as events
// stays small.
func TestTheQuarantineThatANodeReportsIsBounded(t *testing.T) {
	t.Parallel()
	long(t)
	h := newTestServer(t)
	a := h.connectAgent(helloOf("n1"))
	huge := inQuarantine(12_000, func(int) *mariposa.Provenance { return nil })
	for i := range 1000 {
		huge[i].Reason = strings.Repeat("x", 1100)
	}
	a.send(wire.Frame{Report: &wire.Report{Inventory: true, Quarantined: huge}})
	h.until("the quarantine to be known", func() bool { return h.nodeByRef("n1").QuarantinedCount == 12_000 })
	n := h.nodeByRef("n1")
	if len(n.Quarantined) == 0 || len(n.Quarantined) > 100 || n.ReasonCode != mariposa.ReasonReportCut || !strings.Contains(n.Reason, "its quarantine of 12000 instances") {
		t.Errorf("it is shown with %d in quarantine, because %q", len(n.Quarantined), n.Reason)
	}
	for _, path := range []string{"/v1/nodes", "/v1/nodes/n1", "/v1/events?since=0"} {
		if r := h.call("GET", path, nil); r.status != 200 || len(r.body) > 200_000 {
			t.Errorf("%s answered %d with %d bytes", path, r.status, len(r.body))
		}
	}
	if stored := must(h.store.Get(h.ctx, mariposa.KindNode, "n1"))(t); len((*store.Node)(&stored).Status().Quarantined) > 100 {
		t.Error("all of it is stored")
	}
	a.send(wire.Frame{Report: &wire.Report{Inventory: true}})
	h.until("nothing to be in quarantine", func() bool { return h.nodeByRef("n1").QuarantinedCount == 0 })
	if n := h.nodeByRef("n1"); n.Reason != "" {
		t.Errorf("its reason is still %q", n.Reason)
	}
}

// A node that changes what it reports all the time does not fill the database.
func TestTheStatusOfANodeIsNotWrittenAllTheTime(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	a := h.connectAgent(helloOf("n1"))
	before := must(h.store.Revision(h.ctx))(t)
	for i := range 300 {
		a.send(wire.Frame{Report: &wire.Report{Inventory: true, Quarantined: inQuarantine(i%7+1, func(int) *mariposa.Provenance { return nil })}})
		a.beat()
		for f := a.read(); f.Heartbeat == nil; f = a.read() {
			if f.Bye != nil {
				t.Fatal(f.Bye.Reason)
			}
		}
	}
	if n := must(h.store.Revision(h.ctx))(t) - before; n > 30 {
		t.Errorf("%d changes were stored", n)
	}
	h.until("the newest report to be stored", func() bool { return h.nodeByRef("n1").QuarantinedCount == 299%7+1 })
}

// A node that changes its instances all the time does not fill the database either, and
// their events are small.
func TestTheStatusOfAnInstanceIsNotWrittenAllTheTime(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.connectAgent(helloOf("n1"))
	h.create("shop", "services: {web: {compute_type: dummy, scale: 0}}")
	made := want[contract.Changed](h.call("POST", "/v1/instances", `{"project":"shop","name":"alone","compute_type":"dummy"}`), 201)
	a := h.connectAgent(helloOf("n1"))
	before := must(h.store.Revision(h.ctx))(t)
	st := mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1}
	for i := range 64 {
		st.Addresses = append(st.Addresses, fmt.Sprintf("%s:%d", strings.Repeat("x", 200), i))
	}
	const last = 1500
	for i := range last {
		st.Restarts = i + 1
		a.send(wire.Frame{Report: &wire.Report{Items: []wire.Status{{ID: made.ID, Status: st}}}})
		a.beat()
		for f := a.read(); f.Heartbeat == nil; f = a.read() {
			if f.Bye != nil {
				t.Fatal(f.Bye.Reason)
			}
		}
	}
	h.until("the newest state to be stored", func() bool {
		return want[contract.Instance](h.call("GET", "/v1/instances/"+made.ID, nil), 200).Restarts == last
	})
	if n := must(h.store.Revision(h.ctx))(t) - before; n > 500 {
		t.Errorf("%d changes were stored", n)
	}
	r := h.call("GET", "/v1/events?project=shop&limit=100", nil)
	if want[contract.Events](r, 200); len(r.body) > 200_000 || !strings.Contains(string(r.body), `"addresses_count":16`) {
		t.Errorf("100 events have %d bytes: %.2000s", len(r.body), r.body)
	}
}

// What instances report is cut, and the reason of the node says so.
func TestWhatANodeReportsAboutInstancesIsBounded(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.connectAgent(helloOf("n1"))
	h.create("shop", "services: {web: {compute_type: dummy, scale: 0}}")
	made := want[contract.Changed](h.call("POST", "/v1/instances", `{"project":"shop","name":"alone","compute_type":"dummy"}`), 201)
	a := h.connectAgent(helloOf("n1")) // the snapshot names it
	long := strings.Repeat("ä", 1<<19) // five of them fit into a frame
	st := mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1, PhysicalID: long, Reason: long, Health: mariposa.Health(long), Details: map[string]string{long: "x", "log": long}}
	for i := range 5000 {
		st.Addresses = append(st.Addresses, fmt.Sprintf("10.0.0.1:%d", i))
		st.Details[fmt.Sprint("detail", i)] = "x"
	}
	a.send(wire.Frame{Report: &wire.Report{Items: []wire.Status{{ID: made.ID, Status: st}}}})
	h.until("the node to have a reason", func() bool { return h.nodeByRef("n1").ReasonCode == mariposa.ReasonReportCut })
	r := h.call("GET", "/v1/instances/"+made.ID, nil)
	if i := want[contract.Instance](r, 200); i.State != mariposa.StateRunning || len(r.body) > 100_000 || len(i.Addresses) > 100 || i.Health != mariposa.HealthUnknown {
		t.Errorf("%d bytes, %d addresses, %s, %.20s", len(r.body), len(i.Addresses), i.State, i.Health)
	}
	for _, what := range []string{"the reason of an instance", "the addresses of an instance", "the details of an instance", "the physical id of an instance", "the health of an instance"} {
		if n := h.nodeByRef("n1"); !strings.Contains(n.Reason, what) {
			t.Errorf("the reason %q does not name %s", n.Reason, what)
		}
	}
}

// The hello of a node is cut, too. Numbers that no machine has are refused.
func TestTheHelloOfANodeIsBounded(t *testing.T) {
	t.Parallel()
	long(t)
	h := newTestServer(t)
	long := strings.Repeat("x", 1<<16)
	big := helloOf("n1")
	big.Capabilities, big.Offers = map[mariposa.ComputeType]mariposa.Capabilities{}, map[mariposa.ComputeType]mariposa.Offer{}
	for i := range 20 {
		kind := mariposa.ComputeType(fmt.Sprint("type", i))
		big.Drivers = append(big.Drivers, kind, mariposa.ComputeType(long[:500]))
		big.Capabilities[kind] = mariposa.Capabilities{Updates: []string{long[:1000]}}
		big.Offers[kind] = mariposa.Offer{Unavailable: long[:2500], Details: map[string]string{"a": long[:1500]}}
	}
	h.connectAgent(big)
	r := h.call("GET", "/v1/nodes/n1", nil)
	if n := want[contract.Node](r, 200); len(r.body) > 100_000 || n.ReasonCode != mariposa.ReasonReportCut || !strings.Contains(n.Reason, "its drivers") || n.Drivers[0] != mariposa.ComputeDummy {
		t.Errorf("%d bytes, %d drivers, %s", len(r.body), len(n.Drivers), n.Reason)
	}
	for what, c := range map[string]mariposa.Resources{"less than nothing": {Memory: -1}, "too many instances": {Instances: 1 << 60}, "negative CPU": {MilliCPU: -5}} {
		odd := helloOf("n2")
		odd.Capacity = c
		if _, f := h.dialAgent(odd); f.Bye == nil || !f.Bye.Final || !strings.Contains(f.Bye.Reason, "capacity") {
			t.Errorf("with %s it was answered %+v", what, f)
		}
	}
	named := helloOf("n3")
	named.Node = long
	if _, f := h.dialAgent(named); f.Bye == nil || !f.Bye.Final || !strings.Contains(f.Bye.Reason, "invalid node id") || len(f.Bye.Reason) > 200 {
		t.Errorf("with a long id it was answered with %d bytes", len(f.Bye.Reason))
	}
	keyed := helloOf("n3")
	keyed.Key = long
	if _, f := h.dialAgent(keyed); f.Bye == nil || !f.Bye.Final || !strings.Contains(f.Bye.Reason, "key") {
		t.Errorf("with a long key it was answered %+v", f)
	}
}

// A node that connects again and again must wait after a while, and can connect then.
func TestANodeCannotOpenSessionsWithoutEnd(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	opened, refused := 0, (*wire.Bye)(nil)
	h.until("the node to be refused", func() bool {
		_, f := h.dialAgent(helloOf("n1"))
		switch {
		case f.Welcome != nil:
			opened++
		case f.Bye != nil && strings.Contains(f.Bye.Reason, "connects too often"):
			refused = f.Bye
		}
		return refused != nil || opened > 60
	})
	if refused == nil || refused.Final || opened < 10 {
		t.Fatalf("after %d sessions it was answered %+v", opened, refused)
	}
	h.connectAgent(helloOf("n2")) // others are not concerned
	h.until("the node to be admitted again", func() bool {
		_, f := h.dialAgent(helloOf("n1"))
		return f.Welcome != nil
	})
}

// serviceOf creates a project with a service, and returns where its instances come from.
func (h *testServer) serviceOf(project string, scale int) func(slot int) *mariposa.Provenance {
	h.t.Helper()
	body := fmt.Sprintf("services: {web: {compute_type: dummy, scale: %d}}", scale)
	c := h.create(project, body)
	h.plan(c.ID, &mariposa.ProjectStatus{
		Goal: mariposa.GoalStarted, Version: c.Version, Number: 1, Status: mariposa.StatusConverged,
		Services: map[string]*mariposa.ServiceStatus{"web": {ID: "id-web", Scale: scale, Number: 1, Status: mariposa.StatusConverged}},
	})
	digest := must(manifest.Parse([]byte(body)))(h.t).Services[0].Digest
	return func(slot int) *mariposa.Provenance {
		return &mariposa.Provenance{Project: c.ID, Service: "id-web", ServiceName: "web", Slot: slot, Number: 1, Digest: digest, Created: time.Now()}
	}
}

// An honest node with thousands of quarantined instances: all of them can be adopted, with
// several requests.
func TestManyQuarantinedInstancesCanBeAdopted(t *testing.T) {
	t.Parallel()
	long(t)
	const total = 1200
	h := newTestServer(t)
	a := h.connectAgent(helloOf("n1"))
	origin := h.serviceOf("shop", total)
	a.send(wire.Frame{Report: &wire.Report{Inventory: true, Quarantined: h.signed("n1", inQuarantine(total, origin))}})
	h.until("the quarantine to be known", func() bool { return h.nodeByRef("n1").QuarantinedCount == total })
	if n := h.nodeByRef("n1"); len(n.Quarantined) != 100 || n.Reason != "" {
		t.Errorf("%d are shown, because %q", len(n.Quarantined), n.Reason)
	}
	for adopted := 0; adopted < total; {
		done := want[contract.Changed](h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "adopt"}), 200)
		for _, it := range done.Adoptions {
			if !it.Adopted {
				t.Fatalf("%s: %s", it.Name, it.Reason)
			}
			adopted++
		}
		if left := total - adopted; done.Remaining != left || len(done.Adoptions) == 0 {
			t.Fatalf("%d were adopted, %d remain: %s", adopted, done.Remaining, done.Reason)
		}
	}
	if n := h.picture.Instances.Len(); n != total {
		t.Errorf("there are %d instances", n)
	}
}

// All of them can be purged, with one request.
func TestManyQuarantinedInstancesCanBePurged(t *testing.T) {
	t.Parallel()
	long(t)
	const total = 5000
	h := newTestServer(t)
	a := h.connectAgent(helloOf("n1"))
	a.send(wire.Frame{Report: &wire.Report{Inventory: true, Quarantined: inQuarantine(total, func(int) *mariposa.Provenance { return nil })}})
	h.until("the quarantine to be known", func() bool { return h.nodeByRef("n1").QuarantinedCount == total })
	if one := want[contract.Changed](h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "purge", Instances: []string{"q-04321"}}), 200); one.Reason != "1 quarantined instance will be removed" {
		t.Errorf("one of them: %s", one.Reason)
	}
	done := want[contract.Changed](h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "purge"}), 200)
	if done.Reason != "5000 quarantined instances will be removed" {
		t.Errorf("all of them: %s", done.Reason)
	}
	gone := map[string]bool{}
	for len(gone) < total {
		f := a.read()
		if f.Bye != nil {
			t.Fatal(f.Bye.Reason)
		}
		if f.Assign == nil {
			continue
		}
		if len(f.Assign.Items) > wire.Batch {
			t.Fatalf("%d in one frame", len(f.Assign.Items))
		}
		for _, it := range f.Assign.Items {
			if it.Goal == mariposa.GoalGone {
				gone[it.ID] = true
			}
		}
	}
}
