package agent_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// person is a minimal control plane: it sets goals of instances, keeps what their node
// reports, and loses a report now and then.
type person struct {
	*rig
	rt       *rapid.T
	specs    map[string]*wire.Assignment
	statuses map[string]*mariposa.InstanceStatus
	values   map[string]wire.MdataItem
	read     int // frames read from the current connection
}

var lifeWork = work(mariposa.Workload{
	Compute: mariposa.ComputeDummy, Restart: mariposa.Restart{Policy: mariposa.RestartOnFailure, Max: 2},
	Dummy: &mariposa.Dummy{Wait: 300 * time.Millisecond, MaxWait: time.Second},
})

// connectAgain opens a new session: values first, then everything there is.
func (p *person) connectAgain() {
	p.dial()
	p.read = 0
	p.say(wire.Frame{Welcome: &wire.Welcome{Epoch: 1, Cluster: "ours", Incarnation: p.inc, HeartbeatInterval: time.Hour}})
	m := &wire.Mdata{}
	for _, id := range slices.Sorted(maps.Keys(p.values)) {
		m.Items = append(m.Items, p.values[id])
	}
	p.say(wire.Frame{Mdata: m})
	var items []wire.Assignment
	for _, id := range slices.Sorted(maps.Keys(p.specs)) {
		it := *p.specs[id]
		if st := p.statuses[id]; st != nil {
			copied := *st
			it.Status = &copied
		}
		it.Drain = p.drainOf(id)
		items = append(items, it)
	}
	p.say(wire.Frame{Assign: &wire.Assign{Snapshot: true, Last: true, Items: items, Workloads: workloads(items)}})
}

// takeReports keeps the reports, and checks every change of state against the rules.
func (p *person) takeReports() {
	frames := p.conn.sent()
	for _, f := range frames[p.read:] {
		if f.Report == nil {
			continue
		}
		for _, it := range f.Report.Items {
			spec := mariposa.InstanceSpec{Node: "n1"}
			if from := mariposa.StateOf(&spec, p.statuses[it.ID]); !mariposa.CanFollow(from, it.Status.State) {
				p.rt.Fatalf("%s went from %s to %s", it.ID, from, it.Status.State)
			}
			if was := p.statuses[it.ID]; was != nil && was.ManualRestarts > it.Status.ManualRestarts && it.Status.State != mariposa.StateDestroyed {
				p.rt.Fatalf("%s has forgotten bounces: %d, then %d", it.ID, was.ManualRestarts, it.Status.ManualRestarts)
			}
			p.statuses[it.ID] = &it.Status
		}
	}
	p.read = len(frames)
}

// want changes the goal of an instance and sends it.
func (p *person) want(id string, change func(*wire.Assignment)) {
	it := p.specs[id]
	if it == nil {
		it = &wire.Assignment{ID: id, Name: "web." + id, Goal: mariposa.GoalRunning, Workload: lifeWork}
		p.specs[id] = it
	}
	if it.Goal == mariposa.GoalGone {
		return // the goal gone is final
	}
	change(it)
	it.Generation++
	sent := *it
	sent.Drain = p.drainOf(id)
	p.assign(sent)
}

// drainOf returns how long an instance may drain: like the control plane, only if it is known to run.
func (p *person) drainOf(id string) time.Duration {
	if st := p.statuses[id]; st == nil || st.State != mariposa.StateRunning && st.State != mariposa.StateDraining {
		return 0
	}
	return p.specs[id].Drain
}

// step does one random action.
func (p *person) step() {
	id := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(p.rt, "id")
	switch rapid.SampledFrom([]string{"run", "stop", "go", "bounce", "bounce", "values", "crash", "wait", "wait", "read", "kill", "cut", "replay"}).Draw(p.rt, "step") {
	case "run":
		p.want(id, func(it *wire.Assignment) { it.Goal = mariposa.GoalRunning })
	case "stop":
		p.want(id, func(it *wire.Assignment) { it.Goal = mariposa.GoalHalted })
	case "go":
		if rapid.Bool().Draw(p.rt, "really") {
			p.want(id, func(it *wire.Assignment) { it.Goal = mariposa.GoalGone })
		}
	case "bounce":
		drain := time.Duration(rapid.IntRange(0, 2).Draw(p.rt, "drain")) * 10 * time.Second
		p.want(id, func(it *wire.Assignment) { it.ManualRestarts, it.Drain = it.ManualRestarts+1, drain })
	case "values":
		it := wire.MdataItem{ID: id, Number: p.values[id].Number + 1, Values: vars("k", fmt.Sprint(rapid.IntRange(0, 3).Draw(p.rt, "value")))}
		p.values[id] = it
		p.say(wire.Frame{Mdata: &wire.Mdata{Items: []wire.MdataItem{it}}})
	case "crash":
		_ = p.dummy.Crash(id) // if it runs
		p.run()
	case "wait":
		p.pass(time.Duration(rapid.IntRange(0, 2000).Draw(p.rt, "ms")) * time.Millisecond)
	case "read":
		p.takeReports()
	case "kill": // and its pending reports are lost
		p.dummy.Watch(func(driver.Event) {})
		p.boot()
		p.connectAgain()
	case "cut":
		p.node.Disconnected(p.conn)
		p.run()
		p.connectAgain()
	case "replay":
		if it := p.specs[id]; it != nil {
			old := *it
			old.Generation--
			p.assign(old, *it)
		}
	}
}

// TestWhateverHappensAnInstanceComesToItsGoal simulates instances with crashes, killed
// agents, lost reports and changing goals.
func TestWhateverHappensAnInstanceComesToItsGoal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := &person{
			rig: newRig(t), rt: rt, specs: map[string]*wire.Assignment{},
			statuses: map[string]*mariposa.InstanceStatus{}, values: map[string]wire.MdataItem{},
		}
		p.connectAgain()
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			p.step()
		}
		// An instance that has failed for good gets one more request.
		for id := range p.specs {
			p.want(id, func(it *wire.Assignment) { it.ManualRestarts++ })
		}
		p.pass(time.Minute)
		p.takeReports()
		for id, it := range p.specs {
			p.settled(id, it)
		}
	})
}

func (p *person) settled(id string, it *wire.Assignment) {
	st, o := p.statuses[id], p.realOrNothing(id)
	if st == nil {
		p.rt.Fatalf("nothing was ever reported of %s", id)
	}
	goals := map[mariposa.Goal]mariposa.State{
		mariposa.GoalRunning: mariposa.StateRunning, mariposa.GoalHalted: mariposa.StateStopped, mariposa.GoalGone: mariposa.StateDestroyed,
	}
	if st.State != goals[it.Goal] || o.running != (st.State == mariposa.StateRunning) || (it.Goal == mariposa.GoalGone && o.there) {
		p.rt.Fatalf("%s should be %s; it is reported as %+v, and there is %+v", id, it.Goal, *st, o)
	}
	if it.Goal != mariposa.GoalGone && st.Generation != it.Generation {
		p.rt.Fatalf("%s is at generation %d of %d", id, st.Generation, it.Generation)
	}
	if it.Goal != mariposa.GoalRunning {
		return
	}
	if st.ManualRestarts != it.ManualRestarts {
		p.rt.Fatalf("%s has made %d bounces of %d", id, st.ManualRestarts, it.ManualRestarts)
	}
	if got := p.publishedValues(id); !slices.Equal(got, p.values[id].Values) {
		p.rt.Fatalf("%s can read %v, want %v", id, got, p.values[id].Values)
	}
}

type reality struct{ there, running bool }

func (p *person) realOrNothing(id string) reality {
	o, there := p.real(id)
	return reality{there, o.Running}
}
