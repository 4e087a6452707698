package manifest

import "testing"

func TestEditDistanceCountsTypingMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"wait", "wait", 0},
		{"wiat", "wait", 1}, // swapped
		{"jsno", "json", 1},
		{"scal", "scale", 1},
		{"waiit", "wait", 1},
		{"wbit", "wait", 1},
		{"provious", "previous", 1},
		{"", "tail", 4},
		{"tail", "", 4},
		{"wiat", "tail", 3},
	} {
		if got := EditDistance(c.a, c.b); got != c.want || EditDistance(c.b, c.a) != got {
			t.Errorf("between %q and %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
