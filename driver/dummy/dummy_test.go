package dummy_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/clock"
	"mariposa/clock/clocktest"
	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/dummy"
	"mariposa/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func make1(id string, k mariposa.Dummy) driver.Instance {
	return driver.Instance{
		ID: id, Name: "web.1", Project: "shop", Service: "web", Labels: driver.Labels{Cluster: "c1", Incarnation: "i1"},
		Workload: &mariposa.Workload{Compute: mariposa.ComputeDummy, Image: "base", Dummy: &k},
	}
}

func harness(open func(t *testing.T) driver.Driver, wait time.Duration) drivertest.Harness {
	return drivertest.Harness{
		Open: open,
		Runs: func(_ *testing.T, id string) driver.Instance {
			return make1(id, mariposa.Dummy{Wait: wait / 2, MaxWait: wait})
		},
		End: func(t *testing.T, d driver.Driver, o driver.Observed) {
			if err := d.(*dummy.Driver).Crash(o.ID); err != nil {
				t.Error(err)
			}
		},
		Broken: func(_ *testing.T, id string) driver.Instance {
			return make1(id, mariposa.Dummy{Wait: wait, Fail: true})
		},
		Slow: func(_ *testing.T, id string) driver.Instance { return make1(id, mariposa.Dummy{Wait: time.Hour}) },
		Readdress: func(t *testing.T, d driver.Driver, o driver.Observed) {
			if err := d.(*dummy.Driver).Readdress(o.ID, "127.9.9.9"); err != nil {
				t.Error(err)
			}
		},
		Restart: func(t *testing.T, d driver.Driver, o driver.Observed) {
			if err := d.(*dummy.Driver).Restart(o.ID); err != nil {
				t.Error(err)
			}
		},
		LoseEngine: func(_ *testing.T, d driver.Driver) func() { return d.(*dummy.Driver).LoseEngine("it is unreachable") },
	}
}

func TestConformance(t *testing.T) {
	t.Run("in memory", func(t *testing.T) {
		drivertest.Run(t, func(*testing.T) drivertest.Harness {
			w := dummy.NewWorld(1)
			return harness(func(*testing.T) driver.Driver { return dummy.New(w, clock.Real{}) }, 0)
		})
	})
	t.Run("written down, with waits", func(t *testing.T) {
		drivertest.Run(t, func(t *testing.T) drivertest.Harness {
			path := filepath.Join(t.TempDir(), "dummies")
			h := harness(func(t *testing.T) driver.Driver {
				w, err := dummy.OpenWorld(path, 1) // the previous one is lost, as with a killed agent
				if err != nil {
					t.Fatal(err)
				}
				return dummy.New(w, clock.Real{})
			}, 4*time.Millisecond)
			h.LosesValues = true
			return h
		})
	})
}

func TestValuesAreNeverWrittenDown(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "dummies")
	w, err := dummy.OpenWorld(path, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	d := dummy.New(w, clock.Real{})
	i := make1("a", mariposa.Dummy{})
	i.Mdata.Values = []mariposa.Variable{{Name: "k", Value: "planted"}}
	i.Workload.Environment = []mariposa.Variable{{Name: "k", Value: "planted"}}
	i.Workload.Files = []mariposa.Variable{{Name: "/k", Value: "planted"}}
	if _, err := d.Start(t.Context(), i); err != nil {
		t.Error(err)
	}
	if err := d.PublishValues(t.Context(), "a", i.Mdata.Values); err != nil {
		t.Error(err)
	}
	if _, err := d.Stop(t.Context(), "a", 0); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || len(b) == 0 || strings.Contains(string(b), "planted") {
		t.Errorf("the journal holds %s (%v)", b, err)
	}
}

// run lets time pass until nothing waits, and returns how much passed.
func run(v *clocktest.Virtual) time.Duration {
	begin := v.Now()
	end := begin
	for do := v.Next(begin.Add(time.Hour)); do != nil; do = v.Next(begin.Add(time.Hour)) {
		do()
		end = v.Now()
	}
	return end.Sub(begin)
}

type result struct {
	o    driver.Observed
	err  error
	done bool
}

func start(d driver.Driver, v *clocktest.Virtual, i driver.Instance) *result {
	r := new(result)
	v.Go(func() {
		o, err := d.Start(context.Background(), i)
		*r = result{o, err, true}
	})
	return r
}

func TestStartWithoutWaitAnswersAtOnce(t *testing.T) {
	v := clocktest.New()
	d := dummy.New(dummy.NewWorld(1), v)
	if r := start(d, v, make1("a", mariposa.Dummy{})); !r.done || r.err != nil || !r.o.Running || len(r.o.PhysicalID) != 32 {
		t.Errorf("%+v", r)
	}
	if v.Waiting() != 0 {
		t.Error("a timer was set")
	}
}

func TestPhysicalIDIsThereBeforeWaitAndFailure(t *testing.T) {
	v := clocktest.New()
	d := dummy.New(dummy.NewWorld(1), v)
	r := start(d, v, make1("a", mariposa.Dummy{NameLen: 77, Wait: time.Minute, Fail: true}))
	list, err := d.List(t.Context())
	if err != nil || len(list) != 1 || len(list[0].PhysicalID) != 77 || list[0].Running || r.done {
		t.Fatalf("while it waits: %+v, %v", list, err)
	}
	if passed := run(v); passed != time.Minute {
		t.Errorf("it waited %v", passed)
	}
	if !r.done || !errors.Is(r.err, dummy.ErrConfiguredToFail) || r.o.Running || r.o.PhysicalID != list[0].PhysicalID || r.o.Reason != "the dummy is configured to fail" {
		t.Errorf("%+v", r)
	}
	// Removing a failed dummy waits, and does not fail.
	removed := false
	v.Go(func() { removed = d.Remove(t.Context(), "a") == nil })
	if passed := run(v); passed != time.Minute || !removed {
		t.Errorf("removed: %v after %v", removed, passed)
	}
}

func TestUpdateInPlace(t *testing.T) {
	v := clocktest.New()
	d := dummy.New(dummy.NewWorld(1), v)
	first := start(d, v, make1("a", mariposa.Dummy{UpdateInPlaceProp: "one"}))
	update := func(k mariposa.Dummy) (r result) {
		v.Go(func() {
			o, err := d.Update(t.Context(), make1("a", k))
			r = result{o, err, true}
		})
		run(v)
		return r
	}
	r := update(mariposa.Dummy{UpdateInPlaceProp: "two", Wait: time.Second})
	if r.err != nil || r.o.PhysicalID != first.o.PhysicalID || r.o.Details["update_in_place_prop"] != "two" {
		t.Errorf("%+v", r)
	}
	r = update(mariposa.Dummy{UpdateInPlaceProp: "three", Fail: true})
	if !errors.Is(r.err, dummy.ErrConfiguredToFail) || !r.o.Running || r.o.PhysicalID != first.o.PhysicalID || r.o.Details["update_in_place_prop"] != "two" {
		t.Errorf("%+v", r)
	}
}

func TestCrash(t *testing.T) {
	v := clocktest.New()
	d := dummy.New(dummy.NewWorld(1), v)
	var reported []driver.Observed
	d.Watch(func(e driver.Event) { reported = append(reported, e.Instance) })
	start(d, v, make1("a", mariposa.Dummy{}))
	if err := d.Crash("a"); err != nil {
		t.Fatal(err)
	}
	if len(reported) != 1 || reported[0].ID != "a" || *reported[0].ExitCode != 137 || reported[0].Reason == "" {
		t.Errorf("reported %+v", reported)
	}
	if d.Crash("a") == nil || !errors.Is(d.Crash("b"), driver.ErrNotFound) || len(reported) != 1 {
		t.Error("what does not run crashed")
	}
}

func TestManyWaitSideBySide(t *testing.T) {
	const n = 2000
	v := clocktest.New()
	w := dummy.NewWorld(7)
	d := dummy.New(w, v)
	var last time.Time
	finished := 0
	for k := range n {
		v.Go(func() {
			o, err := d.Start(t.Context(), make1(fmt.Sprint("i", k), mariposa.Dummy{MaxWait: time.Minute}))
			if err != nil || !o.Running || v.Now().Before(last) {
				t.Errorf("%+v, %v at %v", o, err, v.Now())
			}
			last = v.Now()
			finished++
		})
	}
	if passed := run(v); finished != n || passed > time.Minute || passed < 58*time.Second || w.Len() != n {
		t.Errorf("%d of %d in %v", finished, w.Len(), passed)
	}
}

func TestIdleDummiesNeedNoGoroutine(t *testing.T) {
	const n = 100_000
	w := dummy.NewWorld(7)
	d := dummy.New(w, clock.Real{})
	defer d.Close()
	goroutines := runtime.NumGoroutine()
	for k := range n {
		i := make1(fmt.Sprint("i", k), mariposa.Dummy{})
		if !d.IsNonBlocking(i.ID, i.Workload) {
			t.Fatal("a start that does not wait is not called prompt")
		}
		if o, err := d.Start(t.Context(), i); err != nil || !o.Running {
			t.Fatalf("%+v, %v", o, err)
		}
	}
	if more := runtime.NumGoroutine() - goroutines; w.Len() != n || more > 0 {
		t.Errorf("%d dummies with %d goroutines", w.Len(), more)
	}
}

func TestPromptIsOnlyWhatNeverWaits(t *testing.T) {
	v := clocktest.New()
	d := dummy.New(dummy.NewWorld(1), v)
	now, later := make1("a", mariposa.Dummy{}).Workload, make1("a", mariposa.Dummy{MaxWait: time.Second}).Workload
	if !d.IsNonBlocking("a", now) || d.IsNonBlocking("a", later) || !d.IsNonBlocking("a", nil) {
		t.Error("of what there is not, the workload decides")
	}
	start(d, v, make1("a", mariposa.Dummy{Wait: time.Second}))
	run(v)
	if d.IsNonBlocking("a", now) || d.IsNonBlocking("a", nil) {
		t.Error("it waits before it is removed, whatever it is to become")
	}
}

func TestContextAndCloseEndWaits(t *testing.T) {
	w := dummy.NewWorld(1)
	d := dummy.New(w, clock.Real{})
	answers := make(chan error, 2)
	begin := func(ctx context.Context, id string) {
		o, err := d.Start(ctx, make1(id, mariposa.Dummy{Wait: time.Hour}))
		if o.Running || o.PhysicalID == "" {
			err = fmt.Errorf("%+v", o)
		}
		answers <- err
	}
	begun := func(n int) {
		for w.Len() < n {
			runtime.Gosched()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go begin(ctx, "a")
	go begin(t.Context(), "b")
	begun(2)
	cancel()
	if err := <-answers; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := <-answers; err == nil {
		t.Error("a closed driver answered well")
	}
	d = dummy.New(w, clock.Real{})
	defer d.Close()
	list, err := d.List(t.Context())
	if err != nil || len(list) != 2 || list[1].Running || list[1].Reason != "its start was cancelled" {
		t.Errorf("%+v, %v", list, err)
	}
	if o, err := d.Start(t.Context(), make1("b", mariposa.Dummy{})); err != nil || o.PhysicalID != list[1].PhysicalID {
		t.Error("it was not started again as the same")
	}
}

// Nothing of a dummy has to be stopped before it has run, so its removal takes no time.
func TestADummyThatNeverRanIsRemovedAtOnce(t *testing.T) {
	d := dummy.New(dummy.NewWorld(1), clock.Real{})
	defer d.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := d.Start(ctx, make1("a", mariposa.Dummy{Wait: time.Hour})); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if err := d.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if list, err := d.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestSameSeedSameWorld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		id := rapid.StringMatching("[a-z0-9-]{1,40}").Draw(t, "id")
		k := mariposa.Dummy{
			NameLen: rapid.IntRange(1, 100).Draw(t, "len"),
			Wait:    time.Duration(rapid.IntRange(0, 5000).Draw(t, "wait")),
			MaxWait: time.Duration(rapid.IntRange(0, 5000).Draw(t, "max")),
		}
		once := func(seed uint64) (*result, time.Duration) {
			v := clocktest.New()
			r := start(dummy.New(dummy.NewWorld(seed), v), v, make1(id, k))
			return r, run(v)
		}
		a, took := once(seed)
		b, again := once(seed)
		if a.o.PhysicalID != b.o.PhysicalID || took != again || !slices.Equal(a.o.Addresses, b.o.Addresses) {
			t.Fatalf("%+v after %v, %+v after %v", a, took, b, again)
		}
		if len(a.o.PhysicalID) != k.NameLen || strings.Trim(a.o.PhysicalID, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
			t.Fatalf("physical id %q", a.o.PhysicalID)
		}
		if took < k.Wait || took > k.Wait+k.MaxWait {
			t.Fatalf("it took %v", took)
		}
		if other, _ := once(seed + 1); k.NameLen > 8 && other.o.PhysicalID == a.o.PhysicalID {
			t.Fatal("another seed made the same")
		}
	})
}

func TestJournalCopesWithATornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dummies")
	fill := func() {
		w, err := dummy.OpenWorld(path, 1)
		if err != nil {
			t.Fatal(err)
		}
		d := dummy.New(w, clock.Real{})
		for _, id := range []string{"a", "b", "c"} {
			if _, err := d.Start(t.Context(), make1(id, mariposa.Dummy{})); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Remove(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want ...string) {
		t.Helper()
		w, err := dummy.OpenWorld(path, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		list, err := dummy.New(w, clock.Real{}).List(t.Context())
		var got []string
		for _, o := range list {
			got = append(got, o.ID)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("found %v (%v), want %v", got, err, want)
		}
	}
	fill()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for cut := 1; cut < len(`{"id":"b"`); cut++ {
		write(b[:len(b)-cut])
		check("a", "b", "c") // the line that removed b is incomplete
	}
	write(append(slices.Clone(b), "{}\n"...))
	check("a", "c")
	write(append([]byte("{\n"), b...))
	if w, err := dummy.OpenWorld(path, 1); err == nil {
		_ = w.Close()
		t.Error("damage in the middle was not noticed")
	}
}

func TestJournalForgetsHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dummies")
	w, err := dummy.OpenWorld(path, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	d := dummy.New(w, clock.Real{})
	for range 15_000 {
		_, err := d.Start(t.Context(), make1("a", mariposa.Dummy{}))
		_, stopErr := d.Stop(t.Context(), "a", 0)
		if err != nil || stopErr != nil {
			t.Fatal(err, stopErr)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 10_100*400 {
		t.Errorf("the journal grows without end: %v, %v", info.Size(), err)
	}
}

func TestOperationsSideBySide(t *testing.T) {
	w := dummy.NewWorld(1)
	d := dummy.New(w, clock.Real{})
	var all sync.WaitGroup
	for k := range 200 {
		all.Go(func() {
			i := make1(fmt.Sprint(k), mariposa.Dummy{MaxWait: time.Millisecond})
			_, err := d.Start(t.Context(), i)
			if err = errors.Join(err, d.Crash(i.ID), d.Remove(t.Context(), i.ID)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if w.Len() != 0 {
		t.Errorf("%d are left", w.Len())
	}
}

func BenchmarkStart(b *testing.B) {
	for name, open := range map[string]func() (*dummy.World, error){
		"memory":  func() (*dummy.World, error) { return dummy.NewWorld(1), nil },
		"journal": func() (*dummy.World, error) { return dummy.OpenWorld(filepath.Join(b.TempDir(), "dummies"), 1) },
	} {
		b.Run(name, func(b *testing.B) {
			w, err := open()
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			d := dummy.New(w, clock.Real{})
			i := make1("", mariposa.Dummy{})
			ids := make([]string, b.N)
			for k := range ids {
				ids[k] = fmt.Sprintf("0190f3c1-7e1b-7a3c-9b1d-%012d", k)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for k := range b.N {
				i.ID = ids[k]
				if _, err := d.Start(context.Background(), i); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
