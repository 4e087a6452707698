package bench_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"mariposa/bench"
	"mariposa/clock"
	"mariposa/store/memory"
)

// interrupter interrupts a benchmark as soon as it prints a text.
type interrupter struct {
	bytes.Buffer
	at        string
	interrupt func()
}

func (w *interrupter) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(w.at)) {
		w.interrupt()
	}
	return w.Buffer.Write(b)
}

// A phase that printed its result has ended: an interruption concerns the next one. One
// that was interrupted prints no result.
func TestAnInterruptedPhaseHasNoResult(t *testing.T) {
	t.Parallel()
	for at, c := range map[string]struct{ says, result string }{
		"starting 20 instances": {"interrupted while starting instances:", ""},
		"up in ":                {"interrupted while resting:", "up in "},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out := &interrupter{at: at, interrupt: cancel}
		_, err := bench.Converge(ctx, bench.Options{
			Environment: bench.Environment{Store: memory.New(clock.Real{}), StoreName: "memory", Dir: t.TempDir(), Progress: out},
			Instances:   20, Nodes: 1,
		})
		if err == nil || !strings.HasPrefix(err.Error(), c.says) {
			t.Errorf("interrupted at %q: %v\n%s", at, err, out)
		}
		if printed := strings.Contains(out.String(), "up in "); printed != (c.result != "") {
			t.Errorf("interrupted at %q, it prints\n%s", at, out)
		}
	}
}
