package cli

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestADifferenceTurnsOneTextIntoTheOther(t *testing.T) {
	t.Parallel()
	text := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "", "  d"}), 0, 30)
	rapid.Check(t, func(t *rapid.T) {
		before, after := text.Draw(t, "before"), text.Draw(t, "after")
		var old, cur []string
		for _, e := range compare(before, after) {
			if e.op != '+' {
				old = append(old, e.line)
			}
			if e.op != '-' {
				cur = append(cur, e.line)
			}
		}
		if strings.Join(old, "\n") != strings.Join(before, "\n") || strings.Join(cur, "\n") != strings.Join(after, "\n") {
			t.Fatalf("got %q and %q", old, cur)
		}
	})
}

func TestDifferencesAreInTheUnifiedFormat(t *testing.T) {
	t.Parallel()
	var before []string
	for _, r := range "abcdefghijklmnopqrstuvwxyz" {
		before = append(before, string(r))
	}
	after := append([]string{"new"}, before...)
	after[4] = "D"
	after = append(after[:20:20], after[21:]...)
	got := strings.Join(unified("before", "after", strings.Join(before, "\n")+"\n", strings.Join(after, "\n")+"\n"), "\n") + "\n"
	golden(t, "diff", got)
	if d := unified("x", "y", "same\n", "same\n"); d != nil {
		t.Errorf("equal texts differ: %q", d)
	}
}
