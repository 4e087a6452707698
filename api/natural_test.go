package api

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestNamesAreSortedAsPeopleSortThem(t *testing.T) {
	t.Parallel()
	wanted := []string{"", "1", "01", "2", "10", "a", "a-1", "a-1b", "a-2", "a-02", "a-10", "a-10-2", "a-10-10", "b", "node", "node2"}
	got := slices.Clone(wanted)
	slices.Reverse(got)
	slices.SortFunc(got, compareNaturally)
	if !slices.Equal(got, wanted) {
		t.Errorf("%q", got)
	}
}

func TestTheNaturalOrderIsAnOrder(t *testing.T) {
	t.Parallel()
	name := rapid.StringMatching(`[ab0-2]{0,6}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := name.Draw(t, "a"), name.Draw(t, "b"), name.Draw(t, "c")
		if (compareNaturally(a, b) == 0) != (a == b) || compareNaturally(a, b) != -compareNaturally(b, a) {
			t.Errorf("%q and %q: %d and %d", a, b, compareNaturally(a, b), compareNaturally(b, a))
		}
		if compareNaturally(a, b) < 0 && compareNaturally(b, c) < 0 && compareNaturally(a, c) >= 0 {
			t.Errorf("%q, %q, %q", a, b, c)
		}
	})
}
