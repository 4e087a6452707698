package document

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Write writes a document the way a person would: a line per value, keys in
// their order, quotes only where the text could be taken for something else.
func Write(root *Node) []byte {
	var w yamlWriter
	if empty(root) {
		w.scalar(root, 0)
	} else {
		w.block(root, 0)
	}
	return []byte(w.String())
}

type yamlWriter struct{ strings.Builder }

// block writes a list or mapping that is not empty. The writer stands where its
// first line begins; the others are indented.
func (w *yamlWriter) block(n *Node, indent int) {
	margin := strings.Repeat(" ", indent)
	for i, item := range n.Items {
		if i > 0 {
			w.WriteString(margin)
		}
		w.WriteString("- ")
		if empty(item) {
			w.scalar(item, indent)
		} else {
			w.block(item, indent+2)
		}
	}
	for i, e := range n.Entries {
		if i > 0 {
			w.WriteString(margin)
		}
		w.WriteString(inline(e.Key) + ":")
		switch {
		case empty(e.Value):
			w.WriteString(" ")
			w.scalar(e.Value, indent)
		default:
			w.WriteString("\n" + margin + "  ")
			w.block(e.Value, indent+2)
		}
	}
}

// empty reports whether a node has nothing below it.
func empty(n *Node) bool { return len(n.Items) == 0 && len(n.Entries) == 0 }

// scalar writes a value and ends its line.
func (w *yamlWriter) scalar(n *Node, indent int) {
	switch n.Kind {
	case Map:
		w.WriteString("{}\n")
	case List:
		w.WriteString("[]\n")
	case Null:
		w.WriteString("null\n")
	case String:
		if head, lines := literal(n.Text); lines != nil {
			w.WriteString(head + "\n")
			for _, line := range lines {
				if line != "" {
					w.WriteString(strings.Repeat(" ", indent+2) + line)
				}
				w.WriteString("\n")
			}
			return
		}
		w.WriteString(inline(n.Text) + "\n")
	default: // numbers and booleans as they were written
		w.WriteString(n.Text + "\n")
	}
}

// literal lays a text of several lines out as lines, if it is one that survives
// that: none may be blank at its end or begin further right than the first.
func literal(text string) (head string, lines []string) {
	body, ended := strings.CutSuffix(text, "\n")
	if head = "|-"; ended {
		head = "|"
	}
	lines = strings.Split(body, "\n")
	odd := func(line string) bool {
		return strings.TrimRight(line, " \t") != line || strings.ContainsFunc(line, unprintable)
	}
	if len(lines) < 2 || lines[0] == "" || lines[len(lines)-1] == "" || strings.TrimLeft(lines[0], " \t") != lines[0] || slices.ContainsFunc(lines, odd) {
		return "", nil
	}
	return head, lines
}

// bare texts mean themselves in any reader of YAML: they begin with a letter and
// hold nothing that YAML has a meaning for.
var bare = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./=+-]*(:[A-Za-z0-9_./=+-]+)*$`)

// taken are the words that some reader of YAML takes for something else.
var taken = []string{"true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"}

// inline is a text on one line, as a key or a value.
func inline(text string) string {
	if bare.MatchString(text) && !slices.Contains(taken, strings.ToLower(text)) {
		return text
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case !unprintable(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) && r != ' ' }
