package drivertest

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver"
)

// values returns the values of an instance from names and texts.
func values(pairs ...string) (list []mariposa.Variable) {
	for n := 0; n < len(pairs); n += 2 {
		list = append(list, mariposa.Variable{Name: pairs[n], Value: pairs[n+1]})
	}
	return list
}

// publisher returns the driver under test if it can publish values. The agent makes the
// same check.
func (b *fixture) publisher() (driver.ValuePublisher, bool) {
	d, ok := b.driver.(driver.ValuePublisher)
	return d, ok
}

func (b *fixture) publishValues(t *testing.T, id string, list []mariposa.Variable) error {
	t.Helper()
	d, _ := b.publisher()
	return d.PublishValues(within(t), id, list)
}

func (b *fixture) mustPublishValues(t *testing.T, id string, list []mariposa.Variable) {
	t.Helper()
	if err := b.publishValues(t, id, list); err != nil {
		t.Fatalf("PublishValues: %v", err)
	}
}

// wantValues checks the values that an instance can read, as reported by the driver and
// as read by the instance itself.
func (b *fixture) wantValues(t *testing.T, id string, list []mariposa.Variable) {
	t.Helper()
	d, _ := b.publisher()
	got, err := d.PublishedValues(t.Context(), id)
	want, found := map[string]string{}, map[string]string{}
	for _, v := range list {
		want[v.Name] = v.Value
	}
	for n, v := range got {
		found[v.Name] = v.Value
		if n > 0 && got[n-1].Name >= v.Name {
			t.Errorf("PublishedValues is out of order: %v", got)
		}
	}
	if err != nil || !maps.Equal(found, want) {
		t.Fatalf("PublishedValues returned %v (%v), want %v", found, err, want)
	}
	if b.Reads == nil {
		return
	}
	if read := b.Reads(t, b.driver, id); !maps.Equal(read, want) {
		t.Fatalf("it reads %v, want %v", read, want)
	}
}

func testPublishValues(t *testing.T, b *fixture) {
	i := b.Runs(t, b.id())
	i.Mdata.Values = values("b", "2", "a", "one\n<&>")
	o := b.mustStart(t, i)
	if _, ok := b.publisher(); !ok {
		return // its compute type publishes no values
	}
	b.wantValues(t, i.ID, i.Mdata.Values)
	for _, list := range [][]mariposa.Variable{values("a", "two", "c", ""), values("ü.x/y", "3"), nil, values("a", "4")} {
		b.mustPublishValues(t, i.ID, list)
		b.wantValues(t, i.ID, list)
	}
	if found := b.mustFind(t, i.ID); !found.Running || found.PhysicalID != o.PhysicalID {
		t.Errorf("after PublishValues, List shows %+v", found)
	}
}

func testPublishAgain(t *testing.T, b *fixture) {
	i := b.Runs(t, b.id())
	i.Mdata.Values = values("a", "1")
	o := b.mustStart(t, i)
	if _, ok := b.publisher(); !ok {
		return
	}
	b.mustPublishValues(t, i.ID, values("a", "2"))
	b.reopen(t)
	if b.LosesValues {
		b.wantValues(t, i.ID, nil)
	} else {
		b.wantValues(t, i.ID, values("a", "2"))
	}
	b.mustPublishValues(t, i.ID, values("a", "3"))
	b.End(t, b.driver, o)
	b.awaitEnd(t, i.ID)
	i.Mdata.Values = values("a", "4", "b", "5")
	b.mustStart(t, i)
	b.wantValues(t, i.ID, values("a", "4", "b", "5"))
	b.stop(t, i.ID, Limit)
	i.Mdata.Values = nil
	b.mustStart(t, i)
	b.wantValues(t, i.ID, nil)
}

func testPublishWhileStopping(t *testing.T, b *fixture) {
	o := b.startStubborn(t)
	if _, ok := b.publisher(); !ok || b.Stubborn == nil {
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() {
		_, err := b.driver.Stop(ctx, o.ID, -1)
		stopped <- err
	}()
	b.mustPublishValues(t, o.ID, values("a", "1"))
	b.wantValues(t, o.ID, values("a", "1"))
	cancel()
	select {
	case err := <-stopped:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Stop returned %v before it was canceled", err)
		}
	case <-time.After(Limit):
		t.Fatal("Stop never returned")
	}
}

func testPublishToUnknown(t *testing.T, b *fixture) {
	d, ok := b.publisher()
	if !ok {
		return
	}
	i := b.Runs(t, b.id())
	check := func() {
		t.Helper()
		if err := b.publishValues(t, i.ID, values("a", "1")); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("PublishValues: %v", err)
		}
		if got, err := d.PublishedValues(t.Context(), i.ID); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("PublishedValues: %v, %v", got, err)
		}
		if o, there := b.find(t, i.ID); there {
			t.Errorf("PublishValues has created it: %+v", o)
		}
	}
	check()
	b.mustStart(t, i)
	b.remove(t, i.ID)
	check()
	b.mustStart(t, i)
	b.wantValues(t, i.ID, nil)
}

func testManualRestarts(t *testing.T, b *fixture) {
	i := b.Runs(t, b.id())
	i.ManualRestarts = 2
	want := func(o driver.Observed, n int) {
		t.Helper()
		if o.ManualRestarts != n {
			t.Errorf("it shows %d manual restarts, want %d: %+v", o.ManualRestarts, n, o)
		}
	}
	o := b.mustStart(t, i)
	want(o, 2)
	i.ManualRestarts = 3
	want(b.mustStart(t, i), 2) // it ran already, so nothing was restarted
	b.stop(t, i.ID, Limit)
	want(b.mustFind(t, i.ID), 2)
	again := b.mustStart(t, i)
	want(again, 3)
	b.reopen(t)
	want(b.mustFind(t, i.ID), 3)
	b.End(t, b.driver, again)
	want(b.awaitEnd(t, i.ID), 3)
}
