package cli

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestADifferenceTurnsOneTextIntoTheOther(t *testing.T) {
	t.Parallel()
	line := rapid.SampledFrom([]string{"a", "b", "c", "", "  d", "-- e"})
	rapid.Check(t, func(t *rapid.T) {
		before := rapid.SliceOfN(line, 0, 60).Draw(t, "before")
		after := slices.Clone(before)
		for range rapid.IntRange(0, 6).Draw(t, "changes") {
			i := rapid.IntRange(0, len(after)).Draw(t, "where")
			end := rapid.IntRange(i, min(len(after), i+3)).Draw(t, "up to")
			after = slices.Replace(after, i, end, rapid.SliceOfN(line, 0, 3).Draw(t, "by")...)
		}
		diff := unifiedDiff("from", "to", joined(before), joined(after))
		if slices.Equal(before, after) != (diff == nil) {
			t.Fatalf("got %q", diff)
		}
		if got := patched(t, before, diff); !slices.Equal(got, after) {
			t.Fatalf("got %q by %q", got, diff)
		}
	})
}

// joined joins lines to a text.
func joined(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}

// patched applies a difference to lines, and checks that it matches them.
func patched(t *rapid.T, before, diff []string) (after []string) {
	next := 0 // the first line that is not in after yet
	for i, line := range diff {
		if i < 2 {
			continue // the file names
		}
		switch line[0] {
		case '@':
			was, is := hunkStart(t, line, 1), hunkStart(t, line, 2)
			for ; next < was-1; next++ {
				after = append(after, before[next])
			}
			if is > 0 && is != len(after)+1 {
				t.Fatalf("%q begins in line %d", line, len(after)+1)
			}
		case '+':
			after = append(after, line[1:])
		case ' ', '-':
			if before[next] != line[1:] {
				t.Fatalf("%q is said of %q", line, before[next])
			}
			if next++; line[0] == ' ' {
				after = append(after, line[1:])
			}
		default:
			t.Fatalf("%q", line)
		}
	}
	return append(after, before[next:]...)
}

// hunkStart returns the line at which a hunk begins, or 0.
func hunkStart(t *rapid.T, header string, field int) int {
	number, _, _ := strings.Cut(strings.Fields(header)[field][1:], ",")
	n, err := strconv.Atoi(number)
	if err != nil {
		t.Fatalf("%q: %v", header, err)
	}
	return n
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
	got := strings.Join(unifiedDiff("before", "after", strings.Join(before, "\n")+"\n", strings.Join(after, "\n")+"\n"), "\n") + "\n"
	golden(t, "diff", got)
	if d := unifiedDiff("x", "y", "same\n", "same\n"); d != nil {
		t.Errorf("equal texts differ: %q", d)
	}
	if d := unifiedDiff("x", "y", "same", "same\n"); d != nil {
		t.Errorf("the end of the last line is a difference: %q", d)
	}
	if d := unifiedDiff("x\n-a", "y", "", "b"); !slices.Equal(d, []string{"--- x\n-a", "+++ y", "@@ -0,0 +1 @@", "+b"}) {
		t.Errorf("from nothing: %q", d)
	}
}
