package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"mariposa"
)

// spot is a place in the document: a node and the path to it. Its name is only
// built when a fault needs it.
type spot struct {
	up    *spot
	key   string
	index int // of a list entry, else -1
	line  int
	node  *yaml.Node
}

func rootSpot(node *yaml.Node) *spot {
	return &spot{index: -1, line: node.Line, node: node}
}

func (s *spot) entry(key, value *yaml.Node) *spot {
	return &spot{up: s, key: key.Value, index: -1, line: key.Line, node: value}
}

func (s *spot) item(i int) *spot {
	return &spot{up: s, index: i, line: s.node.Content[i].Line, node: s.node.Content[i]}
}

func (s *spot) kind() kind { return kindOf(s.node) }

// child returns the entry with a key; nil if it is absent or null, which is the
// same to a manifest.
func (s *spot) child(key string) *spot {
	for k, value := range entriesOf(s.node) {
		if k.Value == key && kindOf(value) != kindNull {
			return s.entry(k, value)
		}
	}
	return nil
}

// missing returns the spot of an absent key: it has the line of the mapping that should
// contain it.
func (s *spot) missing(key string) *spot {
	return &spot{up: s, key: key, index: -1, line: s.line, node: &yaml.Node{Line: s.line}}
}

func (s *spot) String() string {
	switch {
	case s.up == nil:
		return ""
	case s.index >= 0:
		return s.up.String() + "[" + strconv.Itoa(s.index) + "]"
	case s.up.up == nil:
		return shortenText(s.key)
	}
	return s.up.String() + "." + shortenText(s.key)
}

// shortenText shortens a user's text so that it fits a message.
func shortenText(s string) string {
	const most = 64
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "…"
}

func quoteText(s string) string { return strconv.Quote(shortenText(s)) }

const (
	maxFaults  = 1000 // listed; the rest is counted
	maxGuesses = 50   // "did you mean" among many names costs time for each
)

// checker collects the faults of one manifest.
type checker struct {
	subject   string // what has the faults; the manifest by default
	single    bool   // it is one instance that no service of the manifest manages
	faults    []mariposa.Fault
	more      int // faults beyond those listed
	guesses   int
	pattern   int // size of all patterns together
	generated int // values to be generated
}

func (c *checker) fault(at *spot, code mariposa.FaultCode, format string, args ...any) {
	if len(c.faults) >= maxFaults {
		c.more++
		return
	}
	c.faults = append(c.faults, mariposa.Fault{Field: at.String(), Code: code, Message: fmt.Sprintf(format, args...), Line: at.line})
}

func (c *checker) invalid(at *spot, format string, args ...any) {
	c.fault(at, mariposa.FaultInvalid, format, args...)
}

// unknown reports a name that is not among the known ones, which are listed only if a
// suggestion is needed.
func (c *checker) unknown(at *spot, known func() []string, name, format string, args ...any) {
	if len(c.faults) >= maxFaults { // it would not be shown, and guessing is expensive
		c.more++
		return
	}
	message := fmt.Sprintf(format, args...)
	if guess := c.guess(name, known()); guess != "" {
		message += "; did you mean " + quoteText(guess) + "?"
	}
	c.fault(at, mariposa.FaultUnknown, "%s", message)
}

// guess finds the known name that was probably meant.
func (c *checker) guess(name string, known []string) string {
	if len(known) > 100 {
		if c.guesses++; c.guesses > maxGuesses {
			return ""
		}
	}
	best, least := "", 1+len(name)/3
	for _, k := range known {
		if len(name) > 64 || len(k) > len(name)+least || len(name) > len(k)+least {
			continue
		}
		if d := EditDistance(name, k); d <= least && (best == "" || d < least) {
			best, least = k, d
		}
	}
	return best
}

// EditDistance returns the number of typing mistakes between two short names: letters that
// are missing, added, wrong, or swapped with their neighbor.
func EditDistance(a, b string) int {
	rows := [3][]int{} // before the last, the last, this one
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
	}
	for j := range rows[2] {
		rows[2][j] = j
	}
	for i := range len(a) {
		rows[0], rows[1], rows[2] = rows[1], rows[2], rows[0]
		rows[2][0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			least := min(rows[2][j]+1, rows[1][j+1]+1, rows[1][j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				least = min(least, rows[0][j-1]+1)
			}
			rows[2][j+1] = least
		}
	}
	return rows[2][len(b)]
}

// err returns the error for the user; nil if nothing is wrong.
func (c *checker) err() error {
	total := len(c.faults) + c.more
	if total == 0 {
		return nil
	}
	slices.SortStableFunc(c.faults, func(a, b mariposa.Fault) int { return a.Line - b.Line })
	of := cmp.Or(c.subject, "the manifest")
	message := fmt.Sprintf("%s has %d errors; the first: %s", of, total, c.faults[0])
	if total == 1 {
		message = of + " has an error: " + c.faults[0].String()
	}
	if c.more > 0 {
		c.faults = append(c.faults, mariposa.Fault{Code: mariposa.FaultTooLarge, Message: fmt.Sprintf("%d more errors are not listed", c.more)})
	}
	return &mariposa.Error{Code: mariposa.InvalidArgument, Message: strings.TrimSpace(message), Faults: c.faults}
}
