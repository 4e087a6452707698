package agent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// providerDriver is a driver with volumes, whose operations end when the test decides.
// The path of a volume is reported as a physical id.
type providerDriver struct {
	manualDriver
	there []driver.Resource
}

var _ driver.Provider = (*providerDriver)(nil)

func (k *providerDriver) Provide(_ context.Context, r driver.Resource) (string, error) {
	o, err := k.do(&call{what: "provide", id: r.ID})
	return o.PhysicalID, err
}

func (k *providerDriver) Withdraw(_ context.Context, r driver.Resource) error {
	_, err := k.do(&call{what: "withdraw", id: r.ID})
	return err
}

func (k *providerDriver) Provided(context.Context) ([]driver.Resource, error) { return k.there, nil }

func at(path string) driver.Observed { return driver.Observed{PhysicalID: path} }

func volume(id string, goal mariposa.Goal) wire.Provision {
	return wire.Provision{Kind: mariposa.KindVolume, ID: id, Name: "data", Compute: mariposa.ComputeProcess, Goal: goal}
}

// using is an instance with volumes.
func using(it wire.Assignment, volumes ...string) wire.Assignment {
	for _, id := range volumes {
		it.Mounts = append(it.Mounts, mariposa.Mount{Volume: id, Name: "data-" + id, Path: "/" + id})
	}
	return it
}

func (r *rig) provide(items ...wire.Provision) {
	r.say(wire.Frame{Provide: &wire.Provide{Items: items}})
}

// begin opens a session with a snapshot of volumes and instances.
func (r *rig) begin(volumes []wire.Provision, items ...wire.Assignment) {
	r.t.Helper()
	r.dial()
	r.say(wire.Frame{Welcome: &wire.Welcome{Epoch: 1, Cluster: "ours", Incarnation: r.inc, HeartbeatInterval: 5 * time.Second}})
	r.say(wire.Frame{Provide: &wire.Provide{Snapshot: true, Last: true, Items: volumes}})
	r.say(wire.Frame{Assign: &wire.Assign{Snapshot: true, Last: true, Items: items, Workloads: workloads(items)}})
}

// provided returns what the node last reported about a volume.
func (r *rig) provided(id string) (last wire.Provided) {
	for _, f := range r.conn.sent() {
		if f.Report == nil {
			continue
		}
		for _, p := range f.Report.Provided {
			if p.ID == id {
				last = p
			}
		}
	}
	return last
}

func TestAnInstanceStartsOnceItsVolumesAreThere(t *testing.T) {
	t.Parallel()
	k := &providerDriver{}
	r := newRig(t, k)
	r.begin(nil)
	r.assign(using(wanted("i1", 1, processWork()), "v1", "v2")) // the volumes are not known yet
	if st := r.wantState("i1", mariposa.StateProvisioning); st.Reason != "waits for its volume data-v1" {
		t.Errorf("says %q", st.Reason)
	}
	k.want(t)
	r.provide(volume("v1", mariposa.GoalKept), volume("v2", mariposa.GoalKept))
	k.want(t, "provide v1", "provide v2")
	r.end(&k.manualDriver, "provide", "v1", at("/d/v1"), nil)
	k.want(t, "provide v2")
	r.end(&k.manualDriver, "provide", "v2", at("/d/v2"), nil)
	k.want(t, "start i1")
	got := k.last(t, "start").instance.Volumes
	if len(got) != 2 || got[0].Source != "/d/v1" || got[1].Source != "/d/v2" || got[1].Path != "/v2" || got[1].Name != "data-v2" {
		t.Errorf("started with %+v", got)
	}
	r.end(&k.manualDriver, "start", "i1", driver.Observed{Running: true}, nil)
	if st := r.wantState("i1", mariposa.StateRunning); st.Reason != "" {
		t.Errorf("still says %q", st.Reason)
	}
	if p := r.provided("v2"); p.State != mariposa.ResourceMade || p.Path != "/d/v2" || p.Kind != mariposa.KindVolume {
		t.Errorf("reported %+v", p)
	}
	r.provide(volume("v1", mariposa.GoalKept)) // sent again: it is there already
	k.want(t)
}

func TestAVolumeThatCannotBeMadeIsTriedAgainAndItsInstanceSaysWhy(t *testing.T) {
	t.Parallel()
	k := &providerDriver{}
	r := newRig(t, k)
	r.begin([]wire.Provision{volume("v1", mariposa.GoalKept)}, using(wanted("i1", 1, processWork()), "v1"))
	r.end(&k.manualDriver, "provide", "v1", driver.Observed{}, errBroken)
	if st := r.wantState("i1", mariposa.StateProvisioning); st.Reason != "its volume data cannot be created yet: the disk is broken" {
		t.Errorf("says %q", st.Reason)
	}
	if p := r.provided("v1"); p.State != mariposa.ResourcePending || p.Reason != errBroken.Error() {
		t.Errorf("reported %+v", p)
	}
	r.linger(10 * time.Second)
	r.end(&k.manualDriver, "provide", "v1", at("/d/v1"), nil)
	k.want(t, "start i1")
	if p := r.provided("v1"); p.State != mariposa.ResourceMade || p.Reason != "" {
		t.Errorf("reported %+v", p)
	}
}

// A volume that cannot be made larger is used as it is, says why, and is tried again.
func TestAVolumeThatBecomesLargerKeepsItsInstance(t *testing.T) {
	t.Parallel()
	k := &providerDriver{}
	r := newRig(t, k)
	v := volume("v1", mariposa.GoalKept)
	v.Size = 1 << 30
	r.begin([]wire.Provision{v}, using(wanted("i1", 1, processWork()), "v1"))
	r.end(&k.manualDriver, "provide", "v1", at("/d/v1"), nil)
	r.end(&k.manualDriver, "start", "i1", driver.Observed{Running: true}, nil)
	v.Size = 2 << 30
	r.provide(v)
	r.end(&k.manualDriver, "provide", "v1", at("/d/v1"), &driver.GrowError{Err: errBroken})
	if p := r.provided("v1"); p.State != mariposa.ResourceMade || p.Path != "/d/v1" || p.Reason != errBroken.Error() {
		t.Errorf("reported %+v", p)
	}
	r.wantState("i1", mariposa.StateRunning)
	r.linger(10 * time.Second)
	r.end(&k.manualDriver, "provide", "v1", at("/d/v1"), nil)
	if p := r.provided("v1"); p.State != mariposa.ResourceMade || p.Reason != "" {
		t.Errorf("reported %+v", p)
	}
	r.wantState("i1", mariposa.StateRunning)
	v.Size = 1 << 30 // it stays as large as it is
	r.provide(v)
	k.want(t)
}

func TestAVolumeOfAKindThatTheNodeDoesNotHaveIsSaidSo(t *testing.T) {
	t.Parallel()
	r := newRig(t, &manualDriver{}) // a driver without volumes
	r.begin([]wire.Provision{volume("v1", mariposa.GoalKept)})
	if p := r.provided("v1"); !strings.Contains(p.Reason, "this node cannot create a volume for compute type process") {
		t.Errorf("reported %+v", p)
	}
}

func TestATombstoneTakesAVolumeOnceNoInstanceUsesIt(t *testing.T) {
	t.Parallel()
	k := &providerDriver{}
	r := newRig(t, k)
	r.begin([]wire.Provision{volume("v1", mariposa.GoalKept)}, using(wanted("i1", 1, processWork()), "v1"))
	r.end(&k.manualDriver, "provide", "v1", at("/d/v1"), nil)
	r.end(&k.manualDriver, "start", "i1", driver.Observed{Running: true}, nil)
	r.provide(volume("v1", mariposa.GoalGone))
	k.want(t)
	r.assign(using(unwanted("i1", 2), "v1"))
	r.end(&k.manualDriver, "stop", "i1", driver.Observed{}, nil)
	k.want(t, "remove i1")
	r.end(&k.manualDriver, "remove", "i1", driver.Observed{}, nil)
	k.want(t, "withdraw v1")
	r.end(&k.manualDriver, "withdraw", "v1", driver.Observed{}, errBroken)
	if p := r.provided("v1"); p.State != mariposa.ResourceMade || p.Reason != errBroken.Error() {
		t.Errorf("reported %+v", p)
	}
	r.linger(10 * time.Second)
	r.end(&k.manualDriver, "withdraw", "v1", driver.Observed{}, nil)
	if p := r.provided("v1"); p.State != mariposa.ResourceGone || p.Path != "" {
		t.Errorf("reported %+v", p)
	}
	r.provide(volume("v1", mariposa.GoalGone)) // the response was lost: it is requested again
	r.end(&k.manualDriver, "withdraw", "v1", driver.Observed{}, nil)
	r.assign(using(unwanted("i1", 2), "v1")) // the same for the instance
	r.provide(volume("v1", mariposa.GoalGone))
	r.end(&k.manualDriver, "withdraw", "v1", driver.Observed{}, nil)
	if p := r.provided("v1"); p.State != mariposa.ResourceGone {
		t.Errorf("reported %+v", p)
	}
	k.want(t)
}

func TestAnAgentThatComesBackFindsVolumesAndTombstonesAgain(t *testing.T) {
	t.Parallel()
	k := &providerDriver{}
	r := newRig(t, k)
	k.list = []driver.Observed{{ID: "i1", Running: true, Labels: driver.Labels{Cluster: "ours", Incarnation: "first"}}}
	r.boot()
	r.begin([]wire.Provision{volume("v1", mariposa.GoalKept), volume("v2", mariposa.GoalGone), volume("v3", mariposa.GoalGone)},
		known(using(wanted("i1", 1, processWork()), "v1", "v3"), mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1}))
	k.want(t, "provide v1", "withdraw v2") // v3 is still in use
	r.end(&k.manualDriver, "provide", "v1", at("/d/v1"), nil)
	r.end(&k.manualDriver, "withdraw", "v2", driver.Observed{}, nil)
	r.wantState("i1", mariposa.StateRunning)
	if p := r.provided("v2"); p.State != mariposa.ResourceGone {
		t.Errorf("reported %+v", p)
	}
	k.want(t)
}

func TestAVolumeThatNobodySpeaksOfIsLeftAlone(t *testing.T) {
	t.Parallel()
	k := &providerDriver{there: []driver.Resource{{Kind: mariposa.KindVolume, ID: "v1"}, {Kind: mariposa.KindVolume, ID: "v9"}}}
	r := newRig(t, k)
	r.begin([]wire.Provision{volume("v1", mariposa.GoalKept)})
	r.end(&k.manualDriver, "provide", "v1", at("/d/v1"), nil)
	r.conn.Close()
	r.begin(nil) // a store that was wiped
	k.want(t)
	if p := r.provided("v1"); p.ID != "" {
		t.Errorf("reported %+v to a store that does not know it", p)
	}
	r.begin([]wire.Provision{volume("v1", mariposa.GoalKept)})
	k.want(t, "provide v1") // to be sure that it is there
}

func TestAnInstanceInQuarantineHoldsNoVolumeItself(t *testing.T) {
	t.Parallel()
	k := &providerDriver{}
	r := newRig(t, k)
	r.begin([]wire.Provision{volume("v1", mariposa.GoalKept)}, using(wanted("i1", 1, processWork()), "v1"))
	r.end(&k.manualDriver, "provide", "v1", at("/d/v1"), nil)
	r.end(&k.manualDriver, "start", "i1", driver.Observed{Running: true}, nil)
	r.begin([]wire.Provision{volume("v1", mariposa.GoalGone)}) // the instance is not known any more
	k.want(t, "withdraw v1")                                   // the driver refuses while it runs
	r.end(&k.manualDriver, "withdraw", "v1", driver.Observed{}, errBroken)
	if p := r.provided("v1"); p.State != mariposa.ResourceMade || p.Reason == "" {
		t.Errorf("reported %+v", p)
	}
}
