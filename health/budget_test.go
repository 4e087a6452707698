package health

import (
	"context"
	"errors"
	"testing"
	"time"

	"mariposa"
)

// costly is work that takes processor time, as the budget measures it.
func costly(b *budget, cost time.Duration) func() {
	var used time.Duration
	b.used = func() time.Duration { return used }
	return func() { used += cost }
}

func TestAProjectWaitsWhenItsProcessorTimeIsUsedUp(t *testing.T) {
	t.Parallel()
	b := &budget{burst: time.Second, share: 4}
	work := costly(b, 10*time.Minute)
	if err := b.spend(t.Context(), "greedy", work); err != nil {
		t.Fatalf("the first check: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var unclear *Inconclusive
	if err := b.spend(ctx, "greedy", work); !errors.As(err, &unclear) {
		t.Errorf("the second check: %v", err)
	}
	if err := b.spend(ctx, "modest", work); err != nil {
		t.Errorf("a check of another project: %v", err)
	}
}

func TestProcessorTimeIsSharedOverTime(t *testing.T) {
	t.Parallel()
	start := time.Now()
	a := &account{left: -time.Second, at: start}
	for _, c := range []struct {
		after time.Duration
		want  time.Duration
	}{{0, 4 * time.Second}, {3 * time.Second, time.Second}, {4 * time.Second, 0}, {time.Hour, 0}} {
		if got := a.refill(start.Add(c.after), 2*time.Second, 4); got != c.want {
			t.Errorf("after %s it waits for %s, want %s", c.after, got, c.want)
		}
	}
	if a.left != 2*time.Second {
		t.Errorf("it has %s left after an hour", a.left)
	}
}

func TestProcessorTimeIsMeasured(t *testing.T) {
	t.Parallel()
	re := compile(`(x+x+)+y`)
	body := make([]byte, maxBody)
	for i := range body {
		body[i] = 'x'
	}
	b := &budget{burst: time.Hour, share: 4, used: processorTime}
	if err := b.spend(t.Context(), "p", func() { re.Match(body) }); err != nil {
		t.Fatal(err)
	}
	if left := b.accounts["p"].left; left >= time.Hour {
		t.Errorf("matching 64 KiB costs nothing: %s are left", left)
	}
}

// An instance that has recovered is seen to do so within poll, however long it has failed.
func TestAFailingCheckIsRepeatedAtLeastAtTheNormalRhythm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ poll, unhealthy, want time.Duration }{
		{5 * time.Second, time.Second, 5 * time.Second},
		{time.Hour, time.Second, time.Minute},
		{time.Second, 10 * time.Second, 10 * time.Second},
	} {
		check := &mariposa.HealthCheck{Poll: c.poll, UnhealthyPoll: c.unhealthy}
		tr := &track{def: check, record: record{failures: 50, slowdown: 40}}
		if got := tr.pause(); got > c.want || got < c.want*9/10 {
			t.Errorf("poll %s, unhealthy_poll %s: it pauses for %s, want %s", c.poll, c.unhealthy, got, c.want)
		}
	}
}
