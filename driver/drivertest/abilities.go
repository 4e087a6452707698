package drivertest

import (
	"context"
	"errors"
	"testing"

	"mariposa/driver"
)

// testCapabilities checks a driver's capabilities against the interfaces it implements
// and what the harness declares.
func testCapabilities(t *testing.T, b *fixture) {
	can := b.driver.Capabilities()
	_, execs := b.driver.(driver.Execer)
	_, publishes := b.driver.(driver.ValuePublisher)
	_, provides := b.driver.(driver.Provider)
	_, images := b.driver.(driver.Imager)
	_, crashes := b.driver.(driver.Crasher)
	for what, is := range map[string][2]bool{
		"logs": {can.Logs, b.Writes != nil}, "exec": {can.Exec, execs && b.Script != nil}, "mdata": {can.Mdata, publishes},
		"volumes or networks": {can.Volumes || can.Networks, provides}, "images": {can.Images, images}, "crash": {can.Crash, crashes},
	} {
		if is[0] != is[1] {
			t.Errorf("%s: declared %v, found %v", what, is[0], is[1])
		}
	}
	i := b.Runs(t, b.id())
	b.mustStart(t, i)
	b.reopen(t)
	if o, ok := b.find(t, i.ID); (ok && o.Running) != can.Survives {
		t.Errorf("declared %v; after a restart of the agent: %+v", can.Survives, o)
	}
}

func testUsage(t *testing.T, b *fixture) {
	i := b.Runs(t, b.id())
	if _, err := b.driver.Usage(t.Context(), i.ID); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Usage of an unknown instance: %v", err)
	}
	b.mustStart(t, i)
	b.reopen(t)
	first, err := b.driver.Usage(t.Context(), i.ID)
	if err != nil || first.At.IsZero() {
		t.Fatalf("Usage: %+v, %v", first, err)
	}
	second, err := b.driver.Usage(t.Context(), i.ID)
	if err != nil || second.At.Before(first.At) || (first.CPU == nil) != (second.CPU == nil) {
		t.Fatalf("Usage: %+v, then %+v, %v", first, second, err)
	}
	if first.CPU != nil && (*first.CPU < 0 || *second.CPU < *first.CPU) {
		t.Errorf("cpu time was %v, then %v", *first.CPU, *second.CPU)
	}
	for what, n := range map[string]*int64{
		"memory": first.Memory, "network in": first.NetworkIn, "network out": first.NetworkOut, "disk read": first.DiskRead, "disk written": first.DiskWritten, "log": first.Log,
	} {
		if n != nil && *n < 0 {
			t.Errorf("%s: %d", what, *n)
		}
	}
	b.stop(t, i.ID, Limit)
	if _, err := b.driver.Usage(t.Context(), i.ID); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Usage of an ended instance: %v", err)
	}
}

func testImages(t *testing.T, b *fixture) {
	d, ok := b.driver.(driver.Imager)
	if !ok {
		return // the agent makes the same check
	}
	image := b.Runs(t, NewID()).Workload.Image
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.EnsureImage(over, image, nil, func(driver.Progress) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled EnsureImage returned %v", err)
	}
	var steps []driver.Progress
	for range 2 {
		if err := d.EnsureImage(within(t), image, nil, func(p driver.Progress) { steps = append(steps, p) }); err != nil {
			t.Fatalf("EnsureImage: %v", err)
		}
	}
	for n, p := range steps {
		if p.Done < 0 || (p.Total > 0 && p.Done > p.Total) || (n > 0 && p.Total == steps[n-1].Total && p.Done < steps[n-1].Done) {
			t.Errorf("progress is %v", steps)
			break
		}
	}
}
