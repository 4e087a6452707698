package api

import (
	"cmp"
	"strings"
)

// compareNaturally compares names as people do: numbers in them compare as numbers, so
// that dummy-2 comes before dummy-10.
func compareNaturally(a, b string) int {
	for a != "" && b != "" {
		x, y := leadingNumber(a), leadingNumber(b)
		a, b = a[len(x):], b[len(y):]
		if isDigit(x[0]) && isDigit(y[0]) {
			n, m := strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			if c := cmp.Or(cmp.Compare(len(n), len(m)), cmp.Compare(n, m), cmp.Compare(len(x), len(y))); c != 0 {
				return c
			}
		} else if c := cmp.Compare(x, y); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// leadingNumber returns the digits at the beginning of a text, or the text before the
// first digit.
func leadingNumber(s string) string {
	end := 1
	for end < len(s) && isDigit(s[end]) == isDigit(s[0]) {
		end++
	}
	return s[:end]
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
