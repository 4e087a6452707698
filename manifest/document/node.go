// Package document turns submitted YAML or JSON bytes into a tree of nodes in
// which every node knows its line. It owns the syntax and the bounds against
// hostile bytes, and refuses to know what a manifest means.
//
// The reader is our own because three things were measured to be out of reach
// of the library at hand: its parser needs quadratic time for wide mappings (80,000
// keys: 22 s), its scanner hands out all tokens at once (300 bytes for each
// bracket of an attack), and `[MODE={{ .meta.mode }}]`, which people write and
// the contract promises, is not YAML to it. What is read here is the part of
// YAML that manifests need: block and flow collections, all five scalar
// styles, comments, one document. Anchors, aliases, merge keys, tags and
// directives are refused with their line. A differential test holds the
// reader equal to the library wherever both accept.
package document

import "strings"

// Kind says what a node is, by the core schema of YAML 1.2.
type Kind uint8

const (
	Null Kind = iota
	Bool
	Int
	Float
	String
	List
	Map
	Refused // stands where a fault was already reported; checks pass over it
)

func (k Kind) String() string {
	return [...]string{"nothing", "a boolean", "a number", "a number", "a text", "a list", "a mapping", "a refused value"}[k]
}

// Node is one value of the document. Text is the scalar as it was written,
// with quotes and escapes resolved, so that 1.10 stays 1.10.
type Node struct {
	Kind    Kind
	Line    int
	Text    string
	Span    Span
	Items   []*Node
	Entries []Entry
}

// Entry is one key of a mapping with its value. A mapping keeps every entry in
// the order of the document, the duplicates too.
type Entry struct {
	Key   string
	Line  int
	At    int // where the key begins in the submitted bytes
	Value *Node
}

// Span is where a node stands in the submitted bytes, without the comment behind
// it: for whoever changes one value and leaves every other byte alone. The value
// that is not there is an empty span behind its key. Only scalars, values in
// brackets or braces and the document itself have one.
type Span struct{ From, To int }

// plainKind tells what an unquoted scalar is.
func plainKind(s string) Kind {
	switch s {
	case "", "~", "null", "Null", "NULL":
		return Null
	case "true", "True", "TRUE", "false", "False", "FALSE":
		return Bool
	case ".inf", ".Inf", ".INF", "+.inf", "-.inf", ".nan", ".NaN", ".NAN":
		return Float
	}
	body := strings.TrimLeft(s[:1], "+-") + s[1:]
	if body == "" || (body[0] != '.' && !digit(body[0])) {
		return String
	}
	return numberKind(body)
}

// numberKind tells an integer from a float from a text that only looks like
// one. Hexadecimal and octal forms are texts: nobody writes ports that way,
// and 0x1F as a tag should stay what it is.
func numberKind(body string) Kind {
	whole, rest := leadingDigits(body)
	if rest == "" {
		return Int
	}
	fraction := ""
	if rest[0] == '.' {
		fraction, rest = leadingDigits(rest[1:])
	}
	if whole == "" && fraction == "" {
		return String
	}
	if rest == "" {
		return Float
	}
	if rest[0] != 'e' && rest[0] != 'E' {
		return String
	}
	rest = rest[1:]
	if rest != "" && (rest[0] == '+' || rest[0] == '-') {
		rest = rest[1:]
	}
	if exponent, tail := leadingDigits(rest); exponent == "" || tail != "" {
		return String
	}
	return Float
}

func leadingDigits(s string) (digits, rest string) {
	i := 0
	for i < len(s) && digit(s[i]) {
		i++
	}
	return s[:i], s[i:]
}

func digit(c byte) bool { return '0' <= c && c <= '9' }
