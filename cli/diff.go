package cli

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/aymanbagabas/go-udiff"
)

// unifiedDiff returns the difference of two texts in the unified format, or nil if they
// are equal except for the end of the last line.
func unifiedDiff(from, to, before, after string) []string {
	diff := udiff.Unified("", "", endLine(before), endLine(after))
	if diff == "" {
		return nil
	}
	lines := strings.Split(strings.TrimSuffix(diff, "\n"), "\n")
	lines[0], lines[1] = "--- "+from, "+++ "+to // only now, because they may contain line ends
	renumber(lines[2:])
	return lines
}

func endLine(text string) string {
	if text == "" || strings.HasSuffix(text, "\n") {
		return text
	}
	return text + "\n"
}

var hunkHeader = regexp.MustCompile(`^@@ -(\d+)(\S*) \+\d+(\S*) @@$`)

// renumber corrects the position in the new text of every hunk except the first: the
// library drops lines between changes that share a hunk (golang/go#81453).
func renumber(lines []string) {
	more := 0 // how many more lines the new text has up to here
	for i, line := range lines {
		switch line[0] {
		case '+':
			more++
		case '-':
			more--
		case '@':
			if m := hunkHeader.FindStringSubmatch(line); m != nil && i > 0 {
				old, _ := strconv.Atoi(m[1]) // the match contains only digits
				lines[i] = fmt.Sprintf("@@ -%s%s +%d%s @@", m[1], m[2], old+more, m[3])
			}
		}
	}
}
