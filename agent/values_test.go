package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

func vars(pairs ...string) (list []mariposa.Variable) {
	for n := 0; n < len(pairs); n += 2 {
		list = append(list, mariposa.Variable{Name: pairs[n], Value: pairs[n+1]})
	}
	return list
}

// sendValues sends values for one instance.
func (r *rig) sendValues(id string, number int64, pairs ...string) {
	r.say(wire.Frame{Mdata: &wire.Mdata{Items: []wire.MdataItem{{ID: id, Number: number, Values: vars(pairs...)}}}})
}

// publishedValues is what a dummy can read.
func (r *rig) publishedValues(id string) []mariposa.Variable {
	r.t.Helper()
	list, err := r.dummy.PublishedValues(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

func (r *rig) wantPublished(id string, pairs ...string) {
	r.t.Helper()
	if got := r.publishedValues(id); !slices.Equal(got, vars(pairs...)) {
		r.t.Fatalf("%s can read %v, want %v", id, got, pairs)
	}
}

func TestValuesAreThereAtTheStartAndChangeWhileItRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect()
	r.sendValues("a", 3, "k", "early")
	r.assign(wanted("a", 1, dummyWork()))
	r.wantPublished("a", "k", "early")
	r.sendValues("a", 5, "k", "new", "l", "more")
	r.wantPublished("a", "k", "new", "l", "more")
	r.sendValues("a", 4, "k", "old")
	r.wantPublished("a", "k", "new", "l", "more")
	r.sendValues("a", 6)
	r.wantPublished("a")
	r.sendValues("a", 7, "k", "v")
	r.assign(halted("a", 2, dummyWork()))
	r.sendValues("a", 8, "k", "while it was stopped")
	r.assign(wanted("a", 3, dummyWork()))
	r.wantPublished("a", "k", "while it was stopped")
}

func TestAStartIsGivenTheValuesItself(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.connect()
	r.sendValues("a", 1, "k", "one")
	r.assign(wanted("a", 1, processWork()))
	if got := h.last(t, "start").instance.Mdata; !slices.Equal(got.Values, vars("k", "one")) || got.URL != "" || got.Token != "" {
		t.Errorf("the start was given %+v", got)
	}
	r.sendValues("a", 2, "k", "two")
	h.want(t, "start a") // one operation at a time: it is not running yet
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	h.want(t, "publish a")
	r.sendValues("a", 3, "k", "three")
	r.sendValues("a", 4, "k", "four")
	h.want(t, "publish a")
	r.end(h, "publish", "a", driver.Observed{}, nil)
	if got := h.last(t, "publish").values; !slices.Equal(got, vars("k", "four")) {
		t.Errorf("it got %v", got)
	}
	r.end(h, "publish", "a", driver.Observed{}, nil)
	r.sendValues("a", 4, "k", "four")
	r.sendValues("a", 9, "k", "four")
	h.want(t) // nothing has changed
}

func TestValuesAreToldWhileAnInstanceIsStoppedOrChanged(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.connect(wanted("a", 1, processWork()), wanted("b", 1, processWork()))
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	r.end(h, "start", "b", driver.Observed{Running: true}, nil)
	r.assign(halted("a", 2, processWork()), wanted("b", 2, processWork()))
	r.sendValues("a", 1, "k", "v")
	r.sendValues("b", 1, "k", "v")
	h.want(t, "stop a", "update b", "publish a", "publish b")
	r.end(h, "stop", "a", driver.Observed{}, nil)
	r.end(h, "publish", "a", driver.Observed{}, driver.ErrNotFound)
	r.sendValues("a", 2, "k", "w")
	h.want(t, "update b", "publish b")
}

func TestTellingThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.connect(wanted("a", 1, processWork()))
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	r.sendValues("a", 1, "k", "v")
	r.end(h, "publish", "a", driver.Observed{}, errBroken)
	h.want(t)
	r.pass(5 * time.Second)
	h.want(t, "publish a")
	r.end(h, "publish", "a", driver.Observed{}, driver.ErrNotFound)
	r.pass(10 * time.Second)
	h.want(t) // there is no instance to publish to
}

func TestWhoComesLastOfATellAndAStartDoesNotMatter(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.connect(wanted("a", 1, work(mariposa.Workload{Compute: mariposa.ComputeProcess, Restart: mariposa.Restart{Policy: mariposa.RestartAlways}})))
	r.end(h, "start", "a", driver.Observed{Running: true, Started: r.clk.Now()}, nil)
	r.sendValues("a", 1, "k", "one")
	r.sendValues("a", 2, "k", "two")
	h.changed(driver.Observed{ID: "a", Started: r.clk.Now(), Reason: "exited with code 1"})
	r.run()
	h.want(t, "publish a", "start a") // the start has two; the earlier PublishValues may yet overwrite them with one
	r.end(h, "publish", "a", driver.Observed{}, nil)
	r.end(h, "start", "a", driver.Observed{Running: true, Started: r.clk.Now().Add(time.Second)}, nil)
	h.want(t, "publish a")
	if got := h.last(t, "publish").values; !slices.Equal(got, vars("k", "two")) {
		t.Errorf("it got %v", got)
	}
}

func TestARestartedAgentKeepsWhatItsInstancesCanRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := work(mariposa.Workload{Compute: mariposa.ComputeDummy, Restart: mariposa.Restart{Policy: mariposa.RestartAlways}})
	r.connect(wanted("a", 1, w))
	r.sendValues("a", 7, "k", "v")
	st := r.wantState("a", mariposa.StateRunning)
	r.boot()
	r.connect(known(wanted("a", 1, w), st))
	r.wantPublished("a", "k", "v")
	r.crash("a") // before any values arrive
	r.wantPublished("a", "k", "v")
	r.sendValues("a", 8, "k", "w")
	r.wantPublished("a", "k", "w")
}

func TestARestartedAgentTellsOnlyNews(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		kept    map[string][]mariposa.Variable
		sent    []string
		publish bool
	}{
		{"the same", map[string][]mariposa.Variable{"a": vars("k", "v")}, []string{"k", "v"}, false},
		{"others", map[string][]mariposa.Variable{"a": vars("k", "v")}, []string{"k", "w"}, true},
		{"none any more", map[string][]mariposa.Variable{"a": vars("k", "v")}, nil, true},
		{"not known what it has", nil, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := &manualDriver{kept: c.kept, list: []driver.Observed{{ID: "a", Running: true, Labels: driver.Labels{Cluster: "ours", Incarnation: "first"}}}}
			r := newRig(t, h)
			r.dial()
			r.say(wire.Frame{Welcome: &wire.Welcome{Epoch: 1, Cluster: "ours", Incarnation: "first", HeartbeatInterval: 5 * time.Second}})
			r.sendValues("a", 1, c.sent...)
			items := []wire.Assignment{known(wanted("a", 1, processWork()), mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1})}
			r.say(wire.Frame{Assign: &wire.Assign{Snapshot: true, Last: true, Items: items, Workloads: workloads(items)}})
			if c.publish {
				h.want(t, "publish a")
			} else {
				h.want(t)
			}
		})
	}
}

func TestAnotherStoreNumbersItsValuesByItself(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := dummyWork()
	r.connect(wanted("a", 1, w))
	r.sendValues("a", 70, "k", "v")
	r.connect(wanted("a", 1, w))
	r.sendValues("a", 60, "k", "of a replica that is behind")
	r.wantPublished("a", "k", "v")
	r.inc = "restored"
	r.connect(wanted("a", 1, w))
	r.sendValues("a", 2, "k", "w")
	r.wantPublished("a", "k", "w")
}

func TestValuesForNobodyAreBoundedAndForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect()
	r.sendValues("a", 1, "k", "of the connection before")
	r.connect()
	r.assign(wanted("a", 1, dummyWork()))
	r.wantPublished("a")

	c := r.connect()
	big := strings.Repeat("x", 15<<20)
	for n := range 3 {
		r.sendValues("again", int64(n), "k", big) // only the newest is kept
		r.sendValues(fmt.Sprint("b", n), 1, "k", big)
	}
	if c.isClosed() {
		t.Fatal("it hung up too early")
	}
	r.sendValues("c", 1, "k", big)
	if !c.isClosed() {
		t.Error("it keeps more than it should")
	}
	if _, there := r.real("c"); there {
		t.Error("values made an instance")
	}
}

func TestValuesBeforeTheWelcomeMakeNoSense(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.dial()
	r.sendValues("a", 1, "k", "v")
	if !c.isClosed() {
		t.Error("they were taken")
	}
}
