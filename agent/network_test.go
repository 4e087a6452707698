package agent_test

import (
	"testing"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

func network(id string, goal mariposa.Goal) wire.Provision {
	return wire.Provision{Kind: mariposa.KindNetwork, ID: id, Name: "backend", Compute: mariposa.ComputeProcess, Goal: goal}
}

// on is an instance on a network.
func on(it wire.Assignment, part string) wire.Assignment {
	it.Networks = append(it.Networks, mariposa.Join{Network: "net", Attachment: part, Name: "backend"})
	return it
}

func TestANetworkIsThereForItsInstancesAndGoesAfterThem(t *testing.T) {
	t.Parallel()
	k := &providerDriver{}
	r := newRig(t, k)
	r.begin(nil)
	r.assign(on(wanted("i1", 1, processWork()), "a1"), on(wanted("i2", 1, processWork()), "a1"))
	if st := r.wantState("i1", mariposa.StateProvisioning); st.Reason != "waits for its network backend" {
		t.Errorf("says %q", st.Reason)
	}
	r.provide(network("a1", mariposa.GoalKept))
	k.want(t, "provide a1")
	r.end(&k.manualDriver, "provide", "a1", at("/n/a1"), nil)
	k.want(t, "start i1", "start i2")
	if got := k.last(t, "start").instance.Networks; len(got) != 1 || got[0] != (driver.Network{ID: "a1", Name: "backend", Source: "/n/a1"}) {
		t.Errorf("started with %+v", got)
	}
	for _, id := range []string{"i1", "i2"} {
		r.end(&k.manualDriver, "start", id, driver.Observed{Running: true}, nil)
	}
	if p := r.provided("a1"); p.State != mariposa.ResourceMade || p.Path != "/n/a1" || p.Kind != mariposa.KindNetwork {
		t.Errorf("reported %+v", p)
	}

	r.provide(network("a1", mariposa.GoalGone)) // two are on it
	k.want(t)
	r.provide(network("a1", mariposa.GoalKept)) // it is kept after all
	r.provide(network("a1", mariposa.GoalGone))
	for _, id := range []string{"i1", "i2"} {
		k.want(t)
		r.assign(on(unwanted(id, 2), "a1"))
		r.end(&k.manualDriver, "stop", id, driver.Observed{}, nil)
		r.end(&k.manualDriver, "remove", id, driver.Observed{}, nil)
	}
	k.want(t, "withdraw a1")
	r.end(&k.manualDriver, "withdraw", "a1", driver.Observed{}, nil)
	if p := r.provided("a1"); p.State != mariposa.ResourceGone {
		t.Errorf("reported %+v", p)
	}
}
