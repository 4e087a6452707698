package drivertest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver"
)

func testStart(t *testing.T, b *fixture) {
	i := b.Runs(t, b.id())
	before := time.Now().Add(-time.Minute)
	o := b.mustStart(t, i)
	if o.Started.Before(before) || !o.Finished.IsZero() || o.ExitCode != nil {
		t.Errorf("a running instance shows %+v", o)
	}
	if found := b.mustFind(t, i.ID); !found.Running || found.PhysicalID != o.PhysicalID || found.Labels != i.Labels {
		t.Errorf("List shows %+v", found)
	}
}

func testStartTwice(t *testing.T, b *fixture) {
	i := b.Runs(t, b.id())
	first := b.mustStart(t, i)
	if second := b.mustStart(t, i); second.PhysicalID != first.PhysicalID || !second.Started.Equal(first.Started) {
		t.Errorf("the second start returned %+v, the first %+v", second, first)
	}
	if b.endsReported(i.ID) != 0 {
		t.Error("an end was reported")
	}
}

func testStartAgain(t *testing.T, b *fixture) {
	i := b.Runs(t, b.id())
	o := b.mustStart(t, i)
	b.End(t, b.driver, o)
	b.awaitEnd(t, i.ID)
	b.mustStart(t, i)
	b.stop(t, i.ID, Limit)
	b.mustStart(t, i)
	if found := b.mustFind(t, i.ID); !found.Running || found.ExitCode != nil || !found.Finished.IsZero() {
		t.Errorf("after a restart, List shows %+v", found)
	}
	if n := b.endsReported(i.ID); n != 1 {
		t.Errorf("%d ends were reported, want only the unexpected one", n)
	}
}

func testBroken(t *testing.T, b *fixture) {
	i := b.Broken(t, b.id())
	o, err := b.start(t, i)
	if err == nil || err.Error() == "" {
		t.Fatalf("Start returned %+v, %v", o, err)
	}
	if o.Running || o.ID != i.ID {
		t.Errorf("Start returned %+v", o)
	}
	if found, ok := b.find(t, i.ID); ok && found.Running {
		t.Errorf("List shows %+v", found)
	}
	if b.endsReported(i.ID) != 0 {
		t.Error("an end was reported for an instance that never ran")
	}
}

func testUpdate(t *testing.T, b *fixture) {
	i := b.Runs(t, b.id())
	o := b.mustStart(t, i)
	updated, err := b.driver.Update(within(t), i)
	if err != nil || !updated.Running || updated.PhysicalID != o.PhysicalID {
		t.Errorf("Update returned %+v, %v", updated, err)
	}
	if _, err = b.driver.Update(within(t), b.Runs(t, NewID())); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Update of an unknown instance: %v", err)
	}
}

func checkEnded(t *testing.T, o driver.Observed, physical string) {
	t.Helper()
	if o.Running || o.Finished.IsZero() || o.Finished.Before(o.Started) || o.PhysicalID != physical || o.Reason == "" {
		t.Errorf("an ended instance shows %+v", o)
	}
}

func testStop(t *testing.T, b *fixture) {
	i := b.Runs(t, b.id())
	o := b.mustStart(t, i)
	checkEnded(t, b.stop(t, i.ID, Limit), o.PhysicalID)
	found := b.mustFind(t, i.ID)
	checkEnded(t, found, o.PhysicalID)
	if found.Labels != i.Labels {
		t.Errorf("its labels are %+v", found.Labels)
	}
}

func testStopTwice(t *testing.T, b *fixture) {
	i := b.Runs(t, b.id())
	b.mustStart(t, i)
	first := b.stop(t, i.ID, Limit)
	if second := b.stop(t, i.ID, Limit); !second.Finished.Equal(first.Finished) || second.Running {
		t.Errorf("the second stop returned %+v, the first %+v", second, first)
	}
}

func testStopByForce(t *testing.T, b *fixture) {
	for _, timeout := range []time.Duration{0, 50 * time.Millisecond} {
		o := b.startStubborn(t)
		checkEnded(t, b.stop(t, o.ID, timeout), o.PhysicalID)
	}
}

func testStopWithoutForce(t *testing.T, b *fixture) {
	i := b.startStubborn(t)
	if b.Stubborn == nil {
		checkEnded(t, b.stop(t, i.ID, -1), i.PhysicalID)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	o, err := b.driver.Stop(ctx, i.ID, -1)
	if !errors.Is(err, context.DeadlineExceeded) || !o.Running {
		t.Errorf("Stop returned %+v, %v", o, err)
	}
	if found := b.mustFind(t, i.ID); !found.Running {
		t.Errorf("List shows %+v", found)
	}
}

func testEnd(t *testing.T, b *fixture) {
	i, other := b.Runs(t, b.id()), b.Runs(t, b.id())
	o, bystander := b.mustStart(t, i), b.mustStart(t, other)
	b.End(t, b.driver, o)
	checkEnded(t, b.awaitEnd(t, i.ID), o.PhysicalID)
	checkEnded(t, b.mustFind(t, i.ID), o.PhysicalID)
	checkEnded(t, b.stop(t, i.ID, Limit), o.PhysicalID) // no error, and no second report
	b.End(t, b.driver, bystander)
	b.awaitEnd(t, other.ID)
	if n := b.endsReported(i.ID); n != 1 {
		t.Errorf("its end was reported %d times", n)
	}
}

func testAskedEnd(t *testing.T, b *fixture) {
	stopped, removed, last := b.Runs(t, b.id()), b.Runs(t, b.id()), b.Runs(t, b.id())
	b.mustStart(t, stopped)
	b.mustStart(t, removed)
	o := b.mustStart(t, last)
	b.stop(t, stopped.ID, Limit)
	b.remove(t, removed.ID)
	b.End(t, b.driver, o) // reports of anything earlier would have arrived by now
	b.awaitEnd(t, last.ID)
	if n := b.endsReported(stopped.ID) + b.endsReported(removed.ID); n != 0 {
		t.Errorf("%d requested ends were reported", n)
	}
}

func testRemove(t *testing.T, b *fixture) {
	i := b.startStubborn(t)
	b.remove(t, i.ID)
	if o, ok := b.find(t, i.ID); ok {
		t.Errorf("List still shows %+v", o)
	}
	if _, err := b.driver.Logs(t.Context(), i.ID, driver.LogOptions{}); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Logs of a removed instance: %v", err)
	}
	b.reopen(t)
	if o, ok := b.find(t, i.ID); ok {
		t.Errorf("a restarted agent finds %+v", o)
	}
}

func testRemoveTwice(t *testing.T, b *fixture) {
	i := b.Runs(t, b.id())
	b.mustStart(t, i)
	b.stop(t, i.ID, Limit)
	b.remove(t, i.ID)
	b.remove(t, i.ID)
}

func testUnknown(t *testing.T, b *fixture) {
	id := NewID()
	if o := b.stop(t, id, Limit); o.Running || o.ID != id {
		t.Errorf("Stop returned %+v", o)
	}
	b.remove(t, id)
	if _, err := b.driver.Logs(t.Context(), id, driver.LogOptions{}); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Logs: %v", err)
	}
	if o, ok := b.find(t, id); ok {
		t.Errorf("the requests have created it: %+v", o)
	}
}

func testReopen(t *testing.T, b *fixture) {
	runs, stopped, ended := b.Runs(t, b.id()), b.Runs(t, b.id()), b.Runs(t, b.id())
	o := b.mustStart(t, runs)
	b.mustStart(t, stopped)
	b.End(t, b.driver, b.mustStart(t, ended))
	reported := b.awaitEnd(t, ended.ID)
	b.stop(t, stopped.ID, Limit)
	b.reopen(t)

	same := func(got, want driver.Observed) {
		t.Helper()
		if got.Running != want.Running || got.PhysicalID != want.PhysicalID || got.Labels != want.Labels ||
			!got.Started.Equal(want.Started) || got.Finished.IsZero() != want.Finished.IsZero() || got.Reason != want.Reason { // an end may be reported before it is recorded
			t.Errorf("after a restart of the agent it is %+v, was %+v", got, want)
		}
		if (got.ExitCode == nil) != (want.ExitCode == nil) || (got.ExitCode != nil && *got.ExitCode != *want.ExitCode) {
			t.Errorf("exit code of %s changed", got.ID)
		}
	}
	same(b.mustFind(t, runs.ID), o)
	same(b.mustFind(t, ended.ID), reported)
	if found := b.mustFind(t, stopped.ID); found.Running {
		t.Errorf("stopped, it is %+v after a restart of the agent", found)
	}
	same(b.mustStart(t, runs), o)
	if n := b.endsReported(ended.ID); n != 1 {
		t.Errorf("its end was reported %d times", n)
	}
}

func testEndAfterReopen(t *testing.T, b *fixture) {
	i := b.Runs(t, b.id())
	o := b.mustStart(t, i)
	b.reopen(t)
	b.End(t, b.driver, o)
	checkEnded(t, b.awaitEnd(t, i.ID), o.PhysicalID)
	b.reopen(t)
	checkEnded(t, b.mustFind(t, i.ID), o.PhysicalID)
	b.mustStart(t, i)
}

func testClosed(t *testing.T, b *fixture) {
	i := b.Runs(t, b.id())
	b.mustStart(t, i)
	if err := b.driver.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.driver.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if _, err := b.start(t, b.Runs(t, NewID())); err == nil {
		t.Error("a closed driver starts instances")
	}
	if _, err := b.driver.Stop(within(t), i.ID, 0); err == nil {
		t.Error("a closed driver stops instances")
	}
	b.open(t)
	if o := b.mustFind(t, i.ID); !o.Running {
		t.Errorf("closing the driver has ended its instance: %+v", o)
	}
}

func testLogs(t *testing.T, b *fixture) {
	if b.Writes == nil {
		i := b.Runs(t, b.id())
		b.mustStart(t, i)
		if _, err := b.driver.Logs(t.Context(), i.ID, driver.LogOptions{}); !errors.Is(err, driver.ErrNotSupported) {
			t.Errorf("Logs: %v", err)
		}
		return
	}
	i := b.Writes(t, b.id(), "one", "two", "three")
	before := time.Now().Add(-time.Second).Truncate(time.Microsecond)
	b.mustStart(t, i)
	follow := b.logs(t, i.ID, driver.LogOptions{Tail: -1, Follow: true})
	lines := bufio.NewScanner(follow)
	for _, want := range []string{"one", "two", "three"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("followed %q (%v), want %q", lines.Text(), lines.Err(), want)
		}
	}
	for tail, want := range map[int]string{-1: "one two three", 0: "", 1: "three", 2: "two three", 9: "one two three"} {
		text, err := io.ReadAll(b.logs(t, i.ID, driver.LogOptions{Tail: tail}))
		if got := strings.Join(strings.Fields(string(text)), " "); err != nil || got != want {
			t.Errorf("the last %d lines are %q (%v), want %q", tail, got, err, want)
		}
	}
	stamped, err := io.ReadAll(b.logs(t, i.ID, driver.LogOptions{Tail: -1, Timestamps: true}))
	if err != nil || bytes.Count(stamped, []byte("\n")) != 3 {
		t.Errorf("with timestamps: %q, %v", stamped, err)
	}
	last := before
	for line := range bytes.Lines(stamped) {
		at, _ := mariposa.CutLogTime(line)
		if at.Before(last) || at.After(time.Now().Add(time.Second)) { // the machine's clock may be set back a little
			t.Errorf("%q was written between %v and now", line, last)
		}
		last = at
	}
	for since, want := range map[time.Time]string{before: "one two three", time.Now().Add(time.Hour): ""} {
		text, err := io.ReadAll(b.logs(t, i.ID, driver.LogOptions{Tail: -1, Since: since}))
		if got := strings.Join(strings.Fields(string(text)), " "); err != nil || got != want {
			t.Errorf("since %v: %q (%v), want %q", since, got, err, want)
		}
	}
	b.testPositions(t, i.ID)
	b.remove(t, i.ID)
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("following the log of a removed instance returned %q, %v", lines.Text(), lines.Err())
	}
}

// testPositions reads the log of an instance that wrote three lines again from each of its
// positions.
func (b *fixture) testPositions(t *testing.T, id string) {
	t.Helper()
	read := func(o driver.LogOptions) (start string, positions, texts []string) {
		text, err := io.ReadAll(b.logs(t, id, o))
		if err != nil {
			t.Fatalf("with positions: %v", err)
		}
		first, rest, _ := bytes.Cut(text, []byte("\n"))
		start, _ = mariposa.CutLogPosition(first)
		for line := range bytes.Lines(rest) {
			position, line := mariposa.CutLogPosition(line)
			at, line := mariposa.CutLogTime(line)
			if at.IsZero() == o.Timestamps || position == "" {
				t.Errorf("%q has position %q and time %v", line, position, at)
			}
			positions, texts = append(positions, position), append(texts, strings.TrimSpace(string(line)))
		}
		return start, positions, texts
	}
	start, positions, texts := read(driver.LogOptions{Tail: -1, Positions: true})
	if len(positions) != 3 || start != positions[0] {
		t.Fatalf("starts at %q, lines %q at %q", start, texts, positions)
	}
	for n, from := range positions {
		start, again, rest := read(driver.LogOptions{Tail: 0, Since: time.Now().Add(time.Hour), Timestamps: true, Positions: true, From: from})
		if start != from || !slices.Equal(again, positions[n:]) || !slices.Equal(rest, texts[n:]) {
			t.Errorf("from %q: starts at %q, %q at %q", from, start, rest, again)
		}
	}
	if end, _, rest := read(driver.LogOptions{Tail: 0, Positions: true}); len(rest) > 0 || end == "" || slices.Contains(positions, end) {
		t.Errorf("the end is at %q, and then %q", end, rest)
	}
	if start, again, _ := read(driver.LogOptions{Tail: 0, Positions: true, From: "gone.0.n.7"}); start != positions[0] || len(again) != 3 {
		t.Errorf("from a position that is gone: starts at %q, then %q", start, again)
	}
}

func (b *fixture) logs(t *testing.T, id string, o driver.LogOptions) io.Reader {
	t.Helper()
	r, err := b.driver.Logs(t.Context(), id, o)
	if err != nil {
		t.Fatalf("Logs: %v", err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// testMany takes many instances through their life concurrently, as an agent does.
func testMany(t *testing.T, b *fixture) {
	const n = 12
	var all sync.WaitGroup
	failures := make(chan error, n)
	for k := range n {
		i := b.Runs(t, b.id())
		all.Go(func() {
			o, err := b.driver.Start(t.Context(), i)
			if err != nil || !o.Running {
				failures <- fmt.Errorf("start: %+v, %w", o, err)
				return
			}
			o, err = b.driver.Stop(t.Context(), i.ID, Limit)
			if err == nil && !o.Running && k%2 == 1 {
				err = b.driver.Remove(t.Context(), i.ID)
			}
			failures <- err
		})
	}
	all.Wait()
	for range n {
		if err := <-failures; err != nil {
			t.Error(err)
		}
	}
	list, err := b.driver.List(t.Context())
	if err != nil || len(list) != n/2 {
		t.Errorf("List has %d instances (%v), want %d", len(list), err, n/2)
	}
}
