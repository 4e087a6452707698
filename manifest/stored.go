package manifest

import (
	"bytes"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ParseStored reads a manifest that was accepted when it was submitted, perhaps
// by an earlier release.
func ParseStored(data []byte) (*Project, error) {
	p, err := Parse(data)
	if err != nil {
		return Parse(Modernize(data))
	}
	return p, nil
}

// Modernize returns the text of a stored manifest, definition or document of
// values as it would be submitted today. Earlier releases accepted
// interpolations without quotes, ? inside brackets, and any blanks on blank
// lines; stored texts must stay readable, so quotes are added here and such
// blanks removed. A text that can be read, or cannot be repaired, is returned
// as it is.
func Modernize(doc []byte) []byte {
	if _, faults := read(doc); len(faults) == 0 || bytes.ContainsFunc(doc, isHidden) {
		return doc
	}
	for _, text := range [][]byte{doc, blankLine.ReplaceAll(doc, []byte("$1$2"))} {
		text = needsQuotes.ReplaceAllFunc(text, hideUnprintable)
		if root, faults := read(text); len(faults) == 0 {
			q := &quoter{finder: newFinder(text), text: text}
			q.walk(root)
			return revealHidden(append(q.out, text[q.done:]...))
		}
	}
	return doc
}

var (
	// A backslash may escape the quotes around an interpolation.
	needsQuotes = regexp.MustCompile(`\{\{[^{}"'\\\r\n]*\}\}|\?`)
	blankLine   = regexp.MustCompile(`(?m)^(?:[ \t]+(\r?)| *\t[ \t]*(#[^\n]*))$`)
)

// firstHidden is the first of the private-use characters that stand for ASCII
// while the library reads the text around them.
const firstHidden = '\ue000'

func isHidden(c rune) bool { return firstHidden <= c && c < firstHidden+0x80 }

func hideUnprintable(text []byte) []byte {
	return bytes.Map(func(c rune) rune {
		if c < 0x80 {
			c += firstHidden
		}
		return c
	}, text)
}

func revealHidden(text []byte) []byte {
	return bytes.Map(func(c rune) rune {
		if isHidden(c) {
			c -= firstHidden
		}
		return c
	}, text)
}

// quoter puts quotes around the plain texts that contain hidden characters.
type quoter struct {
	*finder
	text, out []byte
	done      int // bytes of text that are in out
}

func (q *quoter) walk(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Style == 0 && strings.ContainsFunc(n.Value, isHidden) {
		from := q.find(n)
		to := from
		for _, word := range strings.Fields(n.Value) { // line ends between them are folded
			to += bytes.Index(q.text[to:], []byte(word)) + len(word)
		}
		q.out = append(append(q.out, q.text[q.done:from]...), quoted(string(revealHidden([]byte(n.Value))))...)
		q.done = to
	}
	for _, below := range n.Content {
		q.walk(below)
	}
}
