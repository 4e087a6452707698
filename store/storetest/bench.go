package storetest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"mariposa"
	"mariposa/store"
)

// The work of a fleet that starts: half the writes create instances, half report on
// instances created before, 200 writes per call.
const perCall = 200

// Bench measures commits. Each implementation runs it as its benchmark.
func Bench(b *testing.B, open func(*testing.B) store.Store) {
	b.Run("units of 200 writes", func(b *testing.B) { benchUnits(b, open) })
	b.Run("calls of 200 units", func(b *testing.B) {
		benchCommit(b, open, 4, func(writes []store.Write) []store.Unit {
			units := make([]store.Unit, len(writes))
			for i := range writes {
				units[i].Writes = writes[i : i+1]
			}
			return units
		})
	})
	b.Run("calls of 200 units with an entry each", func(b *testing.B) {
		benchCommit(b, open, 4, func(writes []store.Write) []store.Unit {
			units := make([]store.Unit, len(writes))
			for i := range writes {
				units[i].Writes = writes[i : i+1]
				units[i].Audit = []mariposa.Audit{auditOf(&writes[i])}
			}
			return units
		})
	})
	b.Run("one small unit alone", func(b *testing.B) { benchAlone(b, open) })
}

func benchUnits(b *testing.B, open func(*testing.B) store.Store) {
	for _, callers := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			benchCommit(b, open, callers, func(writes []store.Write) []store.Unit {
				return []store.Unit{{Writes: writes}}
			})
		})
	}
}

// GuardAllocations commits units of 200 writes, inserts and reports in turn, and fails
// if a write allocates more often than it may: allocations, unlike time, are the same on
// a busy machine.
func GuardAllocations(t *testing.T, s store.Store, perWrite float64) {
	t.Helper()
	const units, writes = 20, 200
	var made []string
	commit := func() {
		var u store.Unit
		ids := made
		made = nil
		for i := range writes {
			if i%2 == 1 && len(ids) > i/2 {
				u.Writes = append(u.Writes, report(ids[i/2]))
				continue
			}
			id := newID()
			made = append(made, id)
			u.Writes = append(u.Writes, makeInstance(id))
		}
		if r := s.Commit(t.Context(), u); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
	}
	commit() // one-time allocations do not count
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range units {
		commit()
	}
	runtime.ReadMemStats(&after)
	if n := float64(after.Mallocs-before.Mallocs) / (units * writes); n > perWrite {
		t.Errorf("one write allocates %.1f times, where %.0f are allowed", n, perWrite)
	} else {
		t.Logf("%.1f allocations a write", n)
	}
}

// benchAlone measures the latency of one small unit on an idle store.
func benchAlone(b *testing.B, open func(*testing.B) store.Store) {
	s := open(b)
	b.ReportAllocs()
	for b.Loop() {
		if r := s.Commit(b.Context(), store.Unit{Writes: []store.Write{makeInstance(newID())}}); r[0].Err != nil {
			b.Fatal(r[0].Err)
		}
	}
}

func benchCommit(b *testing.B, open func(*testing.B) store.Store, callers int, shape func([]store.Write) []store.Unit) {
	s := open(b)
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuTime(b)
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			var made []string // by the previous call
			for left.Add(-perCall) > -perCall {
				var writes []store.Write
				ids := made
				made = nil
				for i := range perCall {
					if i%2 == 1 && len(ids) > i/2 {
						writes = append(writes, report(ids[i/2]))
						continue
					}
					id := newID()
					made = append(made, id)
					writes = append(writes, makeInstance(id))
				}
				for _, r := range s.Commit(b.Context(), shape(writes)...) {
					if r.Err != nil {
						b.Error(r.Err)
					}
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/write")
}

// cpuTime returns the CPU time of this process, which shows the cost of a write even on
// a busy machine.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

var benchTime = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

// scaled is shared by all writes, as in a plan.
var scaled = &mariposa.Reason{Code: mariposa.ReasonScale, Count: 20}

func makeInstance(id string) store.Write {
	const project, task = "0198c0de-0000-7000-8000-000000000001", "0198c0de-0000-7000-8000-000000000002"
	return store.Write{
		Kind: mariposa.KindInstance, ID: id, Project: project,
		Spec: &mariposa.InstanceSpec{
			Name: "web-" + id[:8], Slot: 17, Project: project, Service: "0198c0de-0000-7000-8000-000000000003", ServiceName: "web",
			Number: 3, Digest: strings.Repeat("d", 64), Live: strings.Repeat("e", 40), Compute: mariposa.ComputeDocker,
			Node: "0198c0de-0000-7000-8000-000000000004", Goal: mariposa.GoalRunning, Generation: 1, Task: task,
			Reason: scaled, Created: benchTime, Managed: true, Memory: 512 << 20, MilliCPU: 500, Ports: []int{8080},
		},
		Event: mariposa.Event{Kind: "instance.provisioning", Project: project, Service: "web", Instance: id, Task: task, Reason: scaled},
	}
}

func report(id string) store.Write {
	return store.Write{
		Kind: mariposa.KindInstance, ID: id,
		Status: &mariposa.InstanceStatus{
			State: mariposa.StateRunning, Health: mariposa.HealthHealthy, Generation: 1,
			PhysicalID: strings.Repeat("f", 64), Addresses: []string{"10.0.0.17"}, Started: benchTime,
		},
		Event: mariposa.Event{Kind: "instance.running", Instance: id},
	}
}

func auditOf(w *store.Write) mariposa.Audit {
	return mariposa.Audit{
		Actor: "0198c0de-0000-7000-8000-000000000005", ActorName: "alice", From: "192.0.2.7", Request: w.ID, Token: "0198c0de-0000-7000-8000-000000000006",
		Action: "instance.create", Outcome: mariposa.AuditDone, Kind: string(w.Kind), Object: w.ID, ObjectName: "web-" + w.ID[:8],
		Organization: "0198c0de-0000-7000-8000-000000000007", Project: "0198c0de-0000-7000-8000-000000000001", ProjectName: "shop",
		Version: "0198c0de-0000-7000-8000-000000000008", Number: 3, Task: w.Event.Task,
	}
}
