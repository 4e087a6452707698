package manifest

import (
	"math"
	"strconv"
	"strings"
	"time"

	"mariposa"
)

// keys says which keys a mapping may have and what each does to the thing that
// the mapping describes. It is the only list of those keys: strictness,
// suggestions and decoding all use it.
type keys[T any] map[string]func(c *checker, at *spot, into *T)

// object decodes a mapping. Pattern is its name in unsupportedKeys.
func object[T any](c *checker, at *spot, pattern string, known keys[T], into *T) bool {
	if !c.mapping(at) {
		return false
	}
	c.entries(at, func(at *spot) {
		decode, ok := known[at.key]
		if !ok {
			c.unknown(at, func() []string { return sortedKeys(known) }, at.key, "unknown key")
			return
		}
		if at.kind() == kindNull || at.kind() == kindRefused {
			return
		}
		decode(c, at, into)
		c.refuseUnsupported(at, pattern+at.key)
	})
	return true
}

// mapping checks that a node is a mapping; null is an empty one.
func (c *checker) mapping(at *spot) bool {
	switch at.kind() {
	case kindMap, kindNull:
		return true
	}
	c.wrongType(at, "a mapping")
	return false
}

// entries visits each entry of a mapping once; a duplicate key is a fault.
func (c *checker) entries(at *spot, visit func(at *spot)) {
	lines := make(map[string]int, len(at.node.Content)/2)
	for key, value := range entriesOf(at.node) {
		here := at.entry(key, value)
		if line, twice := lines[key.Value]; twice {
			c.fault(here, mariposa.FaultDuplicate, "is set twice, first on line %d; remove one", line)
			continue
		}
		lines[key.Value] = key.Line
		if key.Value != "<<" { // refused by the reader
			visit(here)
		}
	}
}

func (c *checker) wrongType(at *spot, want string) {
	if at.kind() != kindRefused {
		c.invalid(at, "must be %s, not %s", want, at.kind())
	}
}

// items returns the spots of a list's entries.
func (c *checker) items(at *spot, of string) []*spot {
	if at.kind() != kindList {
		c.wrongType(at, "a list of "+of)
		return nil
	}
	spots := make([]*spot, len(at.node.Content))
	for i := range spots {
		spots[i] = at.item(i)
	}
	return spots
}

// text accepts any scalar as it was written.
func (c *checker) text(at *spot) (string, bool) {
	switch at.kind() {
	case kindText, kindInt, kindFloat, kindBool:
		return at.node.Value, true
	}
	c.wrongType(at, "a string")
	return "", false
}

func (c *checker) flag(at *spot) (on, ok bool) {
	if at.kind() != kindBool {
		c.wrongType(at, "true or false")
		return false, false
	}
	return strings.EqualFold(at.node.Value, "true"), true
}

func (c *checker) whole(at *spot, least, most int) (int, bool) {
	if at.kind() != kindInt {
		c.wrongNumber(at, "a whole number", float64(least), float64(most))
		return 0, false
	}
	n, err := strconv.Atoi(at.node.Value)
	if err != nil || n < least || n > most {
		c.wrongNumber(at, "a whole number", float64(least), float64(most))
		return 0, false
	}
	return n, true
}

func (c *checker) number(at *spot, least, most float64) (float64, bool) {
	if at.kind() != kindInt && at.kind() != kindFloat {
		c.wrongNumber(at, "a number", least, most)
		return 0, false
	}
	n, err := strconv.ParseFloat(at.node.Value, 64)
	if err != nil || math.IsNaN(n) || n < least || n > most {
		c.wrongNumber(at, "a number", least, most)
		return 0, false
	}
	return n, true
}

func (c *checker) wrongNumber(at *spot, what string, least, most float64) {
	got := at.kind().String()
	switch at.kind() {
	case kindRefused:
		return
	case kindInt, kindFloat, kindText:
		got = quoteText(at.node.Value)
	}
	c.invalid(at, "must be %s from %s to %s, not %s", what, formatNumber(least), formatNumber(most), got)
}

func formatNumber(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// year is the maximum of every duration.
const year = 365 * 24 * 3600

// seconds reads a time span, fractions allowed.
func (c *checker) seconds(at *spot, least float64, into *time.Duration) {
	c.secondsUpTo(at, least, year, into)
}

// secondsUpTo reads a time span with a maximum of its own.
func (c *checker) secondsUpTo(at *spot, least, most float64, into *time.Duration) {
	if n, ok := c.number(at, least, most); ok {
		*into = time.Duration(math.Round(n*1000)) * time.Millisecond
	}
}

// choice reads one of several words. A YAML 1.1 writer may have turned no and
// yes into booleans.
func (c *checker) choice(at *spot, words ...string) (string, bool) {
	word := at.node.Value
	if at.kind() == kindBool {
		word = map[bool]string{false: "no", true: "yes"}[strings.EqualFold(word, "true")]
	}
	for _, w := range words {
		if w == word && (at.kind() == kindText || at.kind() == kindBool) {
			return w, true
		}
	}
	if at.kind() != kindRefused {
		c.invalid(at, "must be %s", joinWithOr(words))
	}
	return "", false
}

func joinWithOr(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// amount reads a number or a percentage.
func (c *checker) amount(at *spot, into *mariposa.Amount, least int) {
	if at.kind() == kindInt || at.kind() == kindText {
		if a, ok := mariposa.ParseAmount(at.node.Value); ok && a.N >= least && a.N <= maxScale {
			*into = a
			return
		}
	}
	if at.kind() != kindRefused {
		c.invalid(at, "must be a whole number or a percentage like 25%%, at least %d", least)
	}
}

// size reads an amount of memory or disk in binary units.
func (c *checker) size(at *spot, into *int64) {
	if at.kind() == kindInt || at.kind() == kindFloat || at.kind() == kindText {
		if n, ok := ParseSize(at.node.Value); ok {
			*into = n
			return
		}
	}
	if at.kind() != kindRefused {
		c.invalid(at, "must be a size such as 512m or 1g, or a number of bytes, at most 1024t")
	}
}

// ParseSize reads an amount of bytes as manifests write it, like 512m.
func ParseSize(s string) (int64, bool) {
	s = strings.ToLower(s)
	unit := int64(1)
	if s != "" {
		if i := strings.IndexByte("kmgt", s[len(s)-1]); i >= 0 {
			unit, s = 1<<(10*(i+1)), s[:len(s)-1]
		}
	}
	if s == "" || strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(s, 64)
	bytes := math.Round(n * float64(unit))
	if err != nil || bytes > 1<<50 || (n > 0 && bytes < 1) {
		return 0, false
	}
	return int64(bytes), true
}

// port reads a port number.
func (c *checker) port(at *spot, into *int) {
	if n, ok := c.whole(at, 1, 65535); ok {
		*into = n
	}
}
