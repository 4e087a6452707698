package place

import (
	"testing"

	"pgregory.net/rapid"

	"mariposa"
)

func TestOnlyTheNodeThatHasWhatIsNeededWillDo(t *testing.T) {
	t.Parallel()
	away := ready("away", mariposa.Resources{})
	away.Ready, away.NotReady = false, "is drained"
	p := placer(ready("busy", mariposa.Resources{}), ready("empty", mariposa.Resources{}), away, ready("full", mariposa.Resources{Instances: 1}))
	p.Claim("i1", "busy", need("web"))
	p.Claim("i2", "full", need("db"))
	p.Claim("i3", "forgotten", need("db"))
	for node, why := range map[string]string{"busy": "", "away": "is drained", "full": "is full", "forgotten": "is no more", "never": "is no more"} {
		n := need("web")
		n.Node = node
		got, err := p.Pick("new-"+node, n)
		switch {
		case why == "" && (err != nil || got.ID != node):
			t.Errorf("%s: picked %q, %v", node, got.ID, err)
		case why != "" && (!err.Is(mariposa.ReasonNodeRefuses) || err.Detail != why || err.Node != node):
			t.Errorf("%s: picked %q, %v", node, got.ID, err)
		}
	}
	if p.Used("busy").Instances != 2 || p.Used("full").Instances != 1 {
		t.Errorf("%v, %v are claimed", p.Used("busy"), p.Used("full"))
	}
}

// On any set of nodes, a pinned instance gets its node or none, and it gets its node if
// and only if it fits there.
func TestAPinnedInstanceNeverGoesElsewhere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := NewPlacer()
		fits := map[string]bool{}
		for _, id := range []string{"a", "b", "c"} {
			n := ready(id, mariposa.Resources{Instances: rapid.IntRange(1, 3).Draw(t, "places")})
			n.Ready = rapid.Bool().Draw(t, "ready")
			p.SetNode(n)
			taken := rapid.IntRange(0, 3).Draw(t, "taken")
			for i := range taken {
				p.Claim(id+string(rune('0'+i)), id, need("other"))
			}
			fits[id] = n.Ready && taken < n.Capacity.Instances
		}
		want := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "node")
		pinned := need("web")
		pinned.Node = want
		got, err := p.Pick("new", pinned)
		if (err == nil) != fits[want] || err == nil && got.ID != want {
			t.Fatalf("pinned to %s, picked %q: %v", want, got.ID, err)
		}
	})
}
