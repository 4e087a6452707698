package pace

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestAProjectAloneMayTakeAll(t *testing.T) {
	if got := NewGate(100, 5).Share("a"); got != 100 {
		t.Fatalf("share is %d", got)
	}
}

func TestAProjectMayAlwaysTakeItsFloor(t *testing.T) {
	g := NewGate(100, 5)
	g.Set("a", 100)
	if got := g.Share("b"); got != 5 {
		t.Fatalf("share is %d", got)
	}
}

func TestWhoHasTakenAllGivesWayToWhoComesLater(t *testing.T) {
	g := NewGate(100, 5)
	g.Set("a", 100)
	g.Set("b", 5)
	if got := g.Share("a"); got >= 100 || got < 45 {
		t.Fatalf("share is %d", got)
	}
}

func TestWhatIsGivenBackCanBeHadAgain(t *testing.T) {
	g := NewGate(100, 5)
	g.Set("a", 100)
	g.Set("a", 0)
	if got := g.Share("b"); got != 100 || len(g.shares) > 0 {
		t.Fatalf("share is %d of %v", got, g.shares)
	}
}

// TestSharesAreBoundedAndNeverStarve lets projects come, take what they may and
// give back, in any order.
func TestSharesAreBoundedAndNeverStarve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit, floor := rapid.IntRange(1, 200).Draw(t, "limit"), rapid.IntRange(1, 10).Draw(t, "floor")
		g := NewGate(limit, floor)
		has := map[string]int{}
		for range rapid.IntRange(1, 100).Draw(t, "events") {
			p := fmt.Sprintf("p%d", rapid.IntRange(0, 9).Draw(t, "project"))
			share := g.Share(p)
			if share < floor {
				t.Fatalf("%s may take %d, less than the floor of %d", p, share, floor)
			}
			if rapid.Bool().Draw(t, "take") {
				has[p] = max(has[p], share) // what is on its way up stays on its way
			} else {
				has[p] = rapid.IntRange(0, has[p]).Draw(t, "left")
			}
			g.Set(p, has[p])
			total := 0
			for _, n := range has {
				total += n
			}
			if most := limit + floor*len(has); total > most || total != g.total {
				t.Fatalf("%d are on their way (%d by the gate), at most %d may be", total, g.total, most)
			}
		}
	})
}

// TestEveryProjectGetsItsFairPart lets all projects want everything: after some
// turns of giving back and taking, nobody has much more than a fair part.
func TestEveryProjectGetsItsFairPart(t *testing.T) {
	const limit, projects = 120, 6
	g := NewGate(limit, 1)
	for range 50 {
		for i := range projects {
			p := fmt.Sprint(i)
			g.Set(p, g.Share(p)) // all that was on its way has come up; it takes anew
		}
	}
	for p, n := range g.shares {
		if n < limit/projects/2 || n > limit/projects*2 {
			t.Fatalf("%s has %d of %v", p, n, g.shares)
		}
	}
}
