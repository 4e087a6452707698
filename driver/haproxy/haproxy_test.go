package haproxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/haproxy"
	"mariposa/driver/process"
	"mariposa/listener/porttest"
)

// The test binary replaces mariposa: it is its own supervisor.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "shim" {
		syscall.Exit(process.ShimMain(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, dir string) *haproxy.Driver {
	t.Helper()
	d, err := haproxy.New(haproxy.Options{Dir: dir, Interval: 50 * time.Millisecond})
	must(t, err)
	return d
}

// instance returns a balancer of one service.
func instance(id string, b mariposa.Balancer) driver.Instance {
	if b.Mode == "" {
		b.Mode = "http"
	}
	if b.Routes == nil {
		b.Routes = []mariposa.Route{{Service: "web", Port: 80}}
	}
	return driver.Instance{
		ID: id, Name: "front.1", Project: "shop", Service: "front", Workload: &mariposa.Workload{Compute: mariposa.ComputeBalancer},
		Mdata: driver.Mdata{Values: []mariposa.Variable{{Name: mariposa.BalancerValue, Value: b.Encode()}}},
	}
}

func pidOf(t *testing.T, o driver.Observed) int {
	t.Helper()
	pid, err := strconv.Atoi(o.Details["pid"])
	must(t, err)
	return pid
}

// The tests of values are left out: a balancer takes only its own. So are those that need a
// command.
func TestConformance(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		dir := t.TempDir()
		return drivertest.Harness{
			Open: func(t *testing.T) driver.Driver { return open(t, dir) },
			Runs: func(t *testing.T, id string) driver.Instance {
				return instance(id, mariposa.Balancer{Listen: []int{porttest.Reserve(t)}})
			},
			End: func(t *testing.T, _ driver.Driver, o driver.Observed) {
				must(t, syscall.Kill(pidOf(t, o), syscall.SIGKILL))
			},
			Broken: func(t *testing.T, id string) driver.Instance {
				l, err := net.Listen("tcp", ":0")
				must(t, err)
				t.Cleanup(func() { _ = l.Close() })
				return instance(id, mariposa.Balancer{Listen: []int{l.Addr().(*net.TCPAddr).Port}})
			},
		}
	}, "Start returns once the instance is running", "a second start changes nothing", "a start after the end restarts the same instance",
		"a failed start returns the reason and leaves nothing running", "an update keeps the physical id", "a stop keeps the instance for inspection",
		"a second stop changes nothing", "an unexpected end is reported exactly once", "a requested end is not reported", "remove stops and removes a running instance",
		"a second remove is not an error", "unknown ids can be stopped and removed, and are not found otherwise", "a restarted agent finds its instances",
		"ends are reported to a restarted agent", "operations after Close fail", "manual restarts are counted by successful starts", "usage of a running instance is measured",
		"operations on many instances run concurrently")
}

// reports keeps the last event of each instance.
type reports struct {
	mu   sync.Mutex
	last map[string]driver.Observed
}

func (r *reports) note(e driver.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[string]driver.Observed{}
	}
	r.last[e.Instance.ID] = e.Instance
}

// await waits until a member is as it should be.
func (r *reports) await(t *testing.T, id, member string, fits func(mariposa.MemberStatus) bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		r.mu.Lock()
		members := r.last[id].Members
		r.mu.Unlock()
		for _, m := range members {
			if m.Instance == member && fits(m) {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("member %s did not get there: %+v", member, members)
		}
	}
}

func TestADrainEndsWithTheLastConnection(t *testing.T) {
	t.Parallel()
	proceed := make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		<-proceed
		_, _ = io.WriteString(w, "done")
	}))
	t.Cleanup(backend.Close)
	dir, port := t.TempDir(), porttest.Reserve(t)
	d := open(t, dir)
	var seen reports
	d.Watch(seen.note)
	b := mariposa.Balancer{Listen: []int{port}, Drain: time.Minute}
	i := instance(drivertest.NewID(), b)
	member := mariposa.Member{Backend: "web.80", Instance: "a", Address: strings.TrimPrefix(backend.URL, "http://"), Weight: 100, State: mariposa.MemberUp}
	i.Members = []mariposa.Member{member}
	_, err := d.Start(t.Context(), i)
	must(t, err)
	t.Cleanup(func() {
		must(t, d.Remove(context.WithoutCancel(t.Context()), i.ID))
		must(t, d.Close())
	})
	seen.await(t, i.ID, "a", func(m mariposa.MemberStatus) bool { return m.State == mariposa.MemberUp })
	c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
	must(t, err)
	defer c.Close()
	_, err = fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	must(t, err)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // until the request has arrived
		u, err := d.Usage(t.Context(), i.ID)
		must(t, err)
		if len(u.Balancer.Members) == 1 && u.Balancer.Members[0].Connections == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the request has not arrived: %+v", u.Balancer)
		}
	}
	member.State = mariposa.MemberDrain
	must(t, d.SetMembers(t.Context(), i.ID, []mariposa.Member{member}))
	seen.await(t, i.ID, "a", func(m mariposa.MemberStatus) bool { return m.State == mariposa.MemberDrain && !m.Idle })

	// Other routes reload HAProxy. The connection is then that of a former worker, and still counts.
	b.Routes = []mariposa.Route{{Path: "/api", Service: "web", Port: 80}, {Service: "web", Port: 80}}
	must(t, d.PublishValues(t.Context(), i.ID, instance(i.ID, b).Mdata.Values))
	must(t, d.SetMembers(t.Context(), i.ID, []mariposa.Member{member}))
	u, err := d.Usage(t.Context(), i.ID)
	must(t, err)
	if m := u.Balancer.Members[0]; m.Idle {
		t.Errorf("it counts as idle although its request is in progress: %+v", m)
	}
	close(proceed)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	must(t, err)
	if text, err := io.ReadAll(r.Body); err != nil || string(text) != "done" {
		t.Errorf("the response is %q, %v", text, err)
	}
	must(t, c.Close())
	seen.await(t, i.ID, "a", func(m mariposa.MemberStatus) bool { return m.State == mariposa.MemberDrain && m.Idle })
}

func TestSettingsThatAreNotRoutesAreRefused(t *testing.T) {
	t.Parallel()
	d := open(t, t.TempDir())
	t.Cleanup(func() { must(t, d.Close()) })
	d.Watch(func(driver.Event) {})
	for name, b := range map[string]mariposa.Balancer{
		"a path with a line end": {Routes: []mariposa.Route{{Path: "/a\n    bind :1", Service: "web", Port: 80}}},
		"a host with a brace":    {Routes: []mariposa.Route{{Host: "a }", Service: "web", Port: 80}}},
		"a service with a space": {Routes: []mariposa.Route{{Service: "web server", Port: 80}}},
		"an unknown mode":        {Mode: "health"},
		"a socket of the node":   {Address: "/run/haproxy/admin.sock"},
	} {
		b.Listen = []int{porttest.Reserve(t)}
		if _, err := d.Start(t.Context(), instance(drivertest.NewID(), b)); err == nil {
			t.Errorf("%s: it was started", name)
		}
	}
	if list, err := d.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("there is %+v, %v", list, err)
	}
	i := instance(drivertest.NewID(), mariposa.Balancer{Listen: []int{porttest.Reserve(t)}})
	_, err := d.Start(t.Context(), i)
	must(t, err)
	for _, m := range []mariposa.Member{{Backend: "web.80", Instance: "a;b", Address: "127.0.0.1:1"}, {Backend: "web.80", Instance: "a", Address: "127.0.0.1:1 cookie x"}, {Backend: "a\nb", Instance: "a"}} {
		if err := d.SetMembers(t.Context(), i.ID, []mariposa.Member{m}); err == nil {
			t.Errorf("%+v was accepted", m)
		}
	}
	must(t, d.Remove(t.Context(), i.ID))
}
