package place

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/reason"
)

// A node that was lost several times gets instances only if no other fits, and none that
// replace lost ones.
func TestAnUnstableNodeIsTheLastChoice(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 6, 0, 0, 0, time.UTC)
	shaky := ready("a", mariposa.Resources{Instances: 2})
	shaky.UnstableUntil, shaky.ShunnedUntil = now.Add(time.Hour), now.Add(time.Minute)
	p := placer(shaky, ready("b", mariposa.Resources{Instances: 2}))
	p.Now = func() time.Time { return now }
	stable := need("web")
	stable.Stable = true
	for i, want := range []string{"b", "b", "a"} {
		if n, why := p.Pick(string(rune('1'+i)), need("web")); n.ID != want {
			t.Fatalf("%d: picked %q, want %s: %s", i, n.ID, want, reason.Sentence(why))
		}
	}
	_, why := p.Pick("4", stable)
	if want := "no node fits this docker instance: full (1 of 2), was lost several times within an hour (1 of 2)"; reason.Sentence(why) != want {
		t.Errorf("says %q, want %q", reason.Sentence(why), want)
	}
	only := stable
	only.Node = "a"
	if n, why := p.Trial(nil).Pick("5", only); n.ID != "a" { // a volume is there
		t.Errorf("picked %q: %s", n.ID, reason.Sentence(why))
	}
	now = now.Add(time.Minute)
	if n, why := p.Pick("4", stable); n.ID != "a" {
		t.Errorf("after a while: picked %q: %s", n.ID, reason.Sentence(why))
	}
}

// Whatever nodes there are, an unstable one is picked only if no stable one fits, and never
// for an instance that needs a stable one.
func TestNoStableNodeIsPassedOver(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 3, 1, 6, 0, 0, 0, time.UTC)
		p := NewPlacer()
		p.Now = func() time.Time { return now }
		shaky, room := map[string]bool{}, map[string]int{}
		for i := range rapid.IntRange(1, 5).Draw(t, "nodes") {
			id := string(rune('a' + i))
			n := ready(id, mariposa.Resources{Instances: rapid.IntRange(1, 3).Draw(t, "places")})
			if shaky[id] = rapid.Bool().Draw(t, "unstable"); shaky[id] {
				n.UnstableUntil, n.ShunnedUntil = now.Add(time.Second), now.Add(time.Second)
			}
			room[id] = n.Capacity.Instances
			p.SetNode(n)
		}
		for i := range rapid.IntRange(0, 12).Draw(t, "instances") {
			ask := need("web")
			ask.Stable = rapid.Bool().Draw(t, "stable")
			stable, any := 0, 0
			for id, n := range room {
				if any += n; !shaky[id] {
					stable += n
				}
			}
			n, why := p.Pick(string(rune('0'+i)), ask)
			fits := stable > 0 || any > 0 && !ask.Stable
			if (why == nil) != fits || why == nil && shaky[n.ID] && (stable > 0 || ask.Stable) {
				t.Fatalf("picked %q (%s) with room %v, unstable %v, stable wanted: %v", n.ID, reason.Sentence(why), room, shaky, ask.Stable)
			}
			if why == nil {
				room[n.ID]--
			}
		}
	})
}
