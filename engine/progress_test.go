package engine

import (
	"testing"

	"pgregory.net/rapid"

	"mariposa"
)

// Whatever work is added, neither the work done nor its share of the total decreases, and
// all is done when nothing is left.
func TestProgressIsNeverTakenBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var p mariposa.Progress
		least := 51
		for _, todo := range append(rapid.SliceOfN(rapid.IntRange(0, 50), 1, 20).Draw(t, "left"), 0) {
			next := advance(p, todo, todo < least || todo == 0)
			if next.Done < p.Done || next.Total < p.Total || next.Done > next.Total || next.Done*p.Total < p.Done*next.Total {
				t.Fatalf("%+v follows %+v", next, p)
			}
			if todo == 0 && next.Done != next.Total {
				t.Fatalf("nothing is left, and it says %+v", next)
			}
			if todo >= least && next.Done != p.Done {
				t.Fatalf("%d are left, as before, and %+v follows %+v", todo, next, p)
			}
			p, least = next, max(1, min(least, todo))
		}
	})
}
