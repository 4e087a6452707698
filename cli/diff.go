package cli

import (
	"fmt"
	"strings"
)

// context lines around a change, as everywhere.
const contextLines = 3

// tooMany cells of the table below would take too long; such texts differ as a whole.
const tooMany = 16 << 20

// An edit is one line of a difference: kept, removed or added.
type edit struct {
	op   byte // ' ', '-' or '+'
	line string
}

// unified says how two texts differ, in the unified format. Nothing when they
// do not.
func unified(from, to, before, after string) []string {
	edits := compare(split(before), split(after))
	var out []string
	old, cur := 1, 1 // the line numbers of the next edit
	for start := 0; start < len(edits); {
		if edits[start].op == ' ' {
			old, cur, start = old+1, cur+1, start+1
			continue
		}
		lead := max(0, min(contextLines, start, old-1, cur-1))
		begin, end := start-lead, hunkEnd(edits, start)
		removed, added := counts(edits[begin:end])
		if out == nil {
			out = append(out, "--- "+from, "+++ "+to)
		}
		out = append(out, fmt.Sprintf("@@ -%s +%s @@", span(old-lead, removed), span(cur-lead, added)))
		for _, e := range edits[begin:end] {
			out = append(out, string(e.op)+e.line)
		}
		old, cur, start = old-lead+removed, cur-lead+added, end
	}
	return out
}

// hunkEnd finds where a hunk ends: changes with little between them share one.
func hunkEnd(edits []edit, start int) int {
	last := start
	for i := start; i < len(edits) && i-last <= 2*contextLines; i++ {
		if edits[i].op != ' ' {
			last = i
		}
	}
	return min(len(edits), last+1+contextLines)
}

func counts(edits []edit) (old, cur int) {
	for _, e := range edits {
		if e.op != '+' {
			old++
		}
		if e.op != '-' {
			cur++
		}
	}
	return old, cur
}

func span(line, n int) string {
	if n == 0 {
		line--
	}
	if n == 1 {
		return fmt.Sprint(line)
	}
	return fmt.Sprintf("%d,%d", line, n)
}

func split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(s, "\n"), "\n")
}

// compare turns one list of lines into another with the fewest edits.
func compare(a, b []string) []edit {
	var head, tail []edit
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		head = append(head, edit{' ', a[0]})
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		tail = append(tail, edit{' ', a[len(a)-1]})
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	all := append(head, middle(a, b)...)
	for i := len(tail) - 1; i >= 0; i-- {
		all = append(all, tail[i])
	}
	return all
}

// middle compares by the longest common subsequence. Manifests are small: the
// plain table will do.
func middle(a, b []string) []edit {
	var all []edit
	if len(a)*len(b) > tooMany {
		for _, line := range a {
			all = append(all, edit{'-', line})
		}
		for _, line := range b {
			all = append(all, edit{'+', line})
		}
		return all
	}
	width := len(b) + 1
	longest := make([]int32, (len(a)+1)*width) // of a[i:] and b[j:]
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				longest[i*width+j] = longest[(i+1)*width+j+1] + 1
			} else {
				longest[i*width+j] = max(longest[(i+1)*width+j], longest[i*width+j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			all = append(all, edit{' ', a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && longest[(i+1)*width+j] >= longest[i*width+j+1]:
			all = append(all, edit{'-', a[i]})
			i++
		default:
			all = append(all, edit{'+', b[j]})
			j++
		}
	}
	return all
}
