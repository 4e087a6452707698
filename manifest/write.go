package manifest

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// AsYAML returns a manifest that was submitted as JSON as YAML, with its keys
// in their order. What is not JSON is YAML already.
func AsYAML(doc []byte) []byte {
	if !json.Valid(doc) {
		return doc
	}
	root, faults := read(doc)
	if len(faults) > 0 { // it was read before, so this does not happen
		return doc
	}
	return write(root)
}

// write writes a document the way a person would: a line per value, keys in
// their order, quotes only where the text could be taken for something else.
func write(root *yaml.Node) []byte {
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(withStyle(root)); err != nil { // nodes that were read can be written, and a buffer accepts everything
		panic(err)
	}
	return out.Bytes()
}

// withStyle returns a tree without comments, in the style of write.
func withStyle(n *yaml.Node) *yaml.Node {
	out := &yaml.Node{Kind: n.Kind, Tag: n.Tag, Value: n.Value}
	switch kindOf(n) {
	case kindNull:
		out.Kind, out.Tag, out.Value = yaml.ScalarNode, "!!null", "null"
	case kindText:
		out.Tag, out.Style = "!!str", textStyle(n.Value)
	case kindMap, kindList:
		if len(n.Content) == 0 {
			out.Style = yaml.FlowStyle
		}
		for i, below := range n.Content {
			below = withStyle(below)
			if n.Kind == yaml.MappingNode && i%2 == 0 && below.Style == yaml.LiteralStyle {
				below.Style = yaml.DoubleQuotedStyle // a key is one line
			}
			if n.Kind == yaml.MappingNode && i%2 == 1 && isExplicit(n.Content[i-1].Value) {
				below = inFlow(below)
			}
			out.Content = append(out.Content, below)
		}
	}
	return out
}

// isExplicit reports whether a key is written with a question mark, on a line of its own.
func isExplicit(key string) bool {
	return len(key) > 100 || strings.ContainsAny(key, "\n\r\u0085\u2028\u2029")
}

// inFlow returns a tree on one line: not every reader knows blocks below a key with a
// question mark.
func inFlow(n *yaml.Node) *yaml.Node {
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Style == yaml.LiteralStyle {
			n.Style = yaml.DoubleQuotedStyle
		}
	default:
		n.Style = yaml.FlowStyle
	}
	for _, below := range n.Content {
		inFlow(below)
	}
	return n
}

// plainWord matches texts that every YAML reader takes literally: they begin with a
// letter and contain no character with a meaning in YAML.
var plainWord = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./=+-]*(:[A-Za-z0-9_./=+-]+)*$`)

// reservedWords are the words that some reader of YAML takes for something else.
var reservedWords = []string{"true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"}

func textStyle(text string) yaml.Style {
	switch {
	case plainWord.MatchString(text) && !slices.Contains(reservedWords, strings.ToLower(text)):
		return 0
	case readsAsLines(text):
		return yaml.LiteralStyle
	}
	return yaml.DoubleQuotedStyle
}

// readsAsLines reports whether a text of several lines can be written as lines: none may
// end with blanks or contain unprintable characters, the first may not be indented, and
// neither the first nor the last may be empty.
func readsAsLines(text string) bool {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	odd := func(line string) bool {
		return strings.TrimRight(line, " \t") != line || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) })
	}
	return len(lines) > 1 && lines[0] != "" && lines[len(lines)-1] != "" && lines[0][0] != ' ' && !slices.ContainsFunc(lines, odd)
}
