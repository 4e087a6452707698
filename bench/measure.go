package bench

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"mariposa/store"
)

// Percentiles of a set of durations, in milliseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func percentiles(d []time.Duration) Percentiles {
	if len(d) == 0 {
		return Percentiles{}
	}
	slices.Sort(d)
	at := func(q float64) float64 { return ms(d[min(len(d)-1, int(q*float64(len(d))))]) }
	return Percentiles{P50: at(0.50), P99: at(0.99)}
}

func ms(d time.Duration) float64 { return round(float64(d) / float64(time.Millisecond)) }

func round(f float64) float64 { return float64(int64(f*100+0.5)) / 100 }

// timed is a store that measures the time of commits, as their callers see it.
type timed struct {
	store.Store
	mu   sync.Mutex
	took []time.Duration
}

func (t *timed) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	began := time.Now()
	res := t.Store.Commit(ctx, units...)
	took := time.Since(began)
	t.mu.Lock()
	t.took = append(t.took, took)
	t.mu.Unlock()
	return res
}

func (t *timed) percentiles() Percentiles {
	t.mu.Lock()
	defer t.mu.Unlock()
	return percentiles(slices.Clone(t.took))
}

// fsync returns the median time of a small durable write in a directory.
func fsync(dir string) (time.Duration, error) {
	f, err := os.Create(filepath.Join(dir, "fsync"))
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var took []time.Duration
	block := make([]byte, 4096)
	for range 50 {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// cpu returns the CPU time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// rss returns the resident memory of this process, in MB.
func rss() float64 { return memoryOf("self", "VmRSS:") }

// memoryOf returns a figure of the memory of a process, in MB; 0 if it has ended.
func memoryOf(pid, figure string) float64 {
	b, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, figure); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return round(kb / 1024)
		}
	}
	return 0
}
