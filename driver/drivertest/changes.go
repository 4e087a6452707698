package drivertest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"mariposa/driver"
)

// awaitChange waits until a change of a running instance is reported, and checks that
// List agrees.
func (b *fixture) awaitChange(t *testing.T, id string) driver.Observed {
	t.Helper()
	o := awaitNewest(t, b, "the change of "+id, func() []driver.Observed { return b.changed[id] })
	if found := b.mustFind(t, id); !found.Running || !found.Started.Equal(o.Started) || !slices.Equal(found.Addresses, o.Addresses) {
		t.Errorf("List shows %+v, reported was %+v", found, o)
	}
	return o
}

func testReaddress(t *testing.T, b *fixture) {
	if b.Readdress == nil {
		return
	}
	i := b.Runs(t, b.id())
	o := b.mustStart(t, i)
	b.reopen(t) // a restarted agent is notified as well
	b.Readdress(t, b.driver, o)
	now := b.awaitChange(t, i.ID)
	if !now.Started.Equal(o.Started) || now.PhysicalID != o.PhysicalID || slices.Equal(now.Addresses, o.Addresses) {
		t.Errorf("reported was %+v, before it was %+v", now, o)
	}
	b.stop(t, i.ID, Limit)
	if b.endsReported(i.ID) != 0 {
		t.Error("a requested end was reported")
	}
}

func testEngineRestart(t *testing.T, b *fixture) {
	if b.Restart == nil {
		return
	}
	i := b.Runs(t, b.id())
	o := b.mustStart(t, i)
	b.reopen(t)
	b.Restart(t, b.driver, o)
	if now := b.awaitChange(t, i.ID); !now.Started.After(o.Started) {
		t.Errorf("reported was %+v, before it was %+v", now, o)
	}
}

func testEngineLost(t *testing.T, b *fixture) {
	if b.LoseEngine == nil {
		return
	}
	i := b.Runs(t, b.id())
	o := b.mustStart(t, i)
	engine := func() []driver.Event { return b.engine }
	restore := b.LoseEngine(t, b.driver)
	if e := awaitNewest(t, b, "the loss of the engine", engine); e.Kind != driver.EngineLost || e.Reason == "" {
		t.Errorf("reported was %+v", e)
	}
	if _, err := b.driver.List(t.Context()); err == nil {
		t.Error("without its engine, the driver lists instances: an agent would assume that the others are gone")
	}
	b.End(t, b.driver, o)
	restore()
	back := func() []driver.Event {
		return slices.DeleteFunc(slices.Clone(b.engine), func(e driver.Event) bool { return e.Kind != driver.EngineBack })
	}
	awaitNewest(t, b, "the return of the engine", back)
	checkEnded(t, b.mustFind(t, i.ID), o.PhysicalID)
	b.mustStart(t, i)
}

// testCancel cancels operations before they begin and in the middle.
func testCancel(t *testing.T, b *fixture) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	i := b.Runs(t, b.id())
	if o, err := b.driver.Start(over, i); !errors.Is(err, context.Canceled) || o.Running || o.ID != i.ID {
		t.Errorf("Start returned %+v, %v", o, err)
	}
	if o, ok := b.find(t, i.ID); ok && o.Running {
		t.Errorf("List shows %+v", o)
	}
	b.mustStart(t, i)
	if _, err := b.driver.Stop(over, i.ID, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("Stop returned %v", err)
	}
	if err := b.driver.Remove(over, i.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("Remove returned %v", err)
	}
	if o := b.mustFind(t, i.ID); !o.Running {
		t.Errorf("List shows %+v", o)
	}
	if b.Slow != nil {
		i := b.Slow(t, b.id())
		if o, err := b.startSlow(t, i, func(cancel func()) { cancel() }); !errors.Is(err, context.Canceled) || o.Running {
			t.Errorf("canceled Start returned %+v, %v", o, err)
		}
		again := b.Runs(t, i.ID)
		b.mustStart(t, again)
		b.remove(t, i.ID)
	}
	if b.Stubborn != nil {
		b.cancelStop(t)
	}
}

// cancelStop cancels a stop that takes too long, and then stops by force.
func (b *fixture) cancelStop(t *testing.T) {
	t.Helper()
	o := b.startStubborn(t)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() {
		_, err := b.driver.Stop(ctx, o.ID, -1)
		stopped <- err
	}()
	cancel()
	select {
	case err := <-stopped:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("canceled Stop returned %v", err)
		}
	case <-time.After(Limit):
		t.Fatal("Stop does not return when its context ends")
	}
	checkEnded(t, b.stop(t, o.ID, 0), o.PhysicalID)
	if b.endsReported(o.ID) != 0 {
		t.Error("a requested end was reported")
	}
}

// startSlow begins a start, calls meanwhile once it is in progress, and returns its
// result.
func (b *fixture) startSlow(t *testing.T, i driver.Instance, meanwhile func(cancel func())) (o driver.Observed, err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		o, err = b.driver.Start(ctx, i)
		close(done)
	}()
	for deadline := time.Now().Add(Limit); ; {
		if _, ok := b.find(t, i.ID); ok {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a start in progress is not in the list")
		}
	}
	meanwhile(cancel)
	select {
	case <-done:
		return o, err
	case <-time.After(Limit):
		t.Fatal("Start does not return")
		return o, err
	}
}

func testCloseInMidCall(t *testing.T, b *fixture) {
	if b.Slow == nil {
		return
	}
	i := b.Slow(t, b.id())
	o, err := b.startSlow(t, i, func(func()) {
		if err := b.driver.Close(); err != nil {
			t.Error(err)
		}
	})
	if err == nil || o.Running {
		t.Errorf("after Close, Start returned %+v, %v", o, err)
	}
	b.open(t)
	b.mustStart(t, b.Runs(t, i.ID))
}
