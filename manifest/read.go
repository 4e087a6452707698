package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"mariposa"
)

// maxDepth is how deeply collections may nest.
const maxDepth = 32

// maxRefusals bounds how many refused anchors, aliases and tags are listed.
const maxRefusals = 100

var byteOrderMark = []byte("\ufeff")

// read turns one YAML or JSON document into nodes. The root is nil if the syntax is
// broken; faults together with a root are things that were refused but could be skipped.
// No fault quotes the document: it may contain secrets, and faults end up in logs.
func read(data []byte) (*yaml.Node, []mariposa.Fault) {
	text := bytes.TrimPrefix(data, byteOrderMark)
	if fault := foreignBytes(text); fault != nil {
		return nil, []mariposa.Fault{*fault}
	}
	text, _ = joinSurrogates(text)
	root, err := decode(bytes.NewReader(text))
	if err != nil {
		return nil, []mariposa.Fault{explain(text, err)}
	}
	if root.Line == 0 { // the document is empty
		root.Line = lineAt(text, len(text))
	}
	r := &refusals{}
	if !r.walk(root, 1) {
		return nil, r.faults
	}
	return root, r.faults
}

// decode reads the only document of a stream. One without content is null, at line 0.
// Bugs of the library can cause a panic.
func decode(from io.Reader) (root *yaml.Node, err error) {
	defer func() {
		if recover() != nil {
			root, err = nil, errLibrary
		}
	}()
	d := yaml.NewDecoder(from)
	var doc, second yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return &yaml.Node{}, nil
	} else if err != nil {
		return nil, err
	}
	if err := d.Decode(&second); err == nil {
		return nil, secondDocument(second.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return doc.Content[0], nil
}

// secondDocument is the line on which another document begins.
type secondDocument int

func (secondDocument) Error() string {
	return "a second document begins here; a manifest must be a single document"
}

func syntaxFault(line int, message string) mariposa.Fault {
	return mariposa.Fault{Code: mariposa.FaultSyntax, Message: message, Line: line}
}

// foreignBytes finds the first character that has no use in a manifest: it would only
// reappear in a terminal or an environment. The library takes some of them for line
// ends, while other tools do not. It also refuses directives.
func foreignBytes(text []byte) *mariposa.Fault {
	fault := func(at int, format string, args ...any) *mariposa.Fault {
		f := syntaxFault(lineAt(text, at), fmt.Sprintf(format, args...))
		return &f
	}
	for i := 0; i < len(text); {
		c, size := rune(text[i]), 1
		if c >= utf8.RuneSelf {
			c, size = utf8.DecodeRune(text[i:])
		}
		switch {
		case c == utf8.RuneError && size == 1:
			return fault(i, "the text is not UTF-8; save the file in that encoding")
		case (c < ' ' && c != '\t' && c != '\r' && c != '\n') || (0x7f <= c && c < 0xa0) || c == 0xfffe || c == 0xffff:
			return fault(i, "contains the control character U+%04X; remove it", c)
		case c == 0x2028 || c == 0x2029 || c == 0xfeff:
			return fault(i, "contains the character U+%04[1]X; remove it, or write \"\\u%04[1]x\" in double quotes", c)
		}
		i += size
	}
	at := 0
	for line := range bytes.Lines(text) {
		if line[0] == '%' {
			return fault(at, "YAML directives are not supported; remove the line")
		}
		if !isBlank(line) {
			break
		}
		at += len(line)
	}
	return nil
}

// isBlank reports whether a line contains nothing but a comment.
func isBlank(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) == 0 || line[0] == '#'
}

// lineAt returns the line of an offset, counted from 1.
func lineAt(text []byte, at int) int {
	lines := bytes.Count(text[:at], []byte("\n")) + bytes.Count(text[:at], []byte("\r")) - bytes.Count(text[:at], []byte("\r\n"))
	return 1 + lines
}

var jsonEscape = regexp.MustCompile(`\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\.`)

// joinSurrogates rewrites characters that JSON writes as two escapes,
// \ud83d\ude00, as YAML does, \U0001f600, and returns the offsets at which two
// bytes were dropped.
func joinSurrogates(text []byte) (joined []byte, at []int) {
	if !bytes.Contains(text, []byte(`\ud`)) && !bytes.Contains(text, []byte(`\uD`)) || !json.Valid(text) {
		return text, nil
	}
	done := 0
	for _, found := range jsonEscape.FindAllIndex(text, -1) {
		escape := text[found[0]:found[1]]
		if len(escape) < 12 {
			continue
		}
		var char string
		if err := json.Unmarshal([]byte(`"`+string(escape)+`"`), &char); err != nil {
			continue
		}
		joined = append(joined, text[done:found[0]]...)
		at = append(at, len(joined))
		joined = fmt.Appendf(joined, `\U%08x`, []rune(char)[0])
		done = found[1]
	}
	return append(joined, text[done:]...), at
}

// refusals collects what YAML allows and a manifest does not.
type refusals struct{ faults []mariposa.Fault }

// refuse reports a node and takes it out of the tree, so that checks skip it.
func (r *refusals) refuse(n *yaml.Node, format string, args ...any) {
	r.report(n, format, args...)
	n.Kind, n.Content = yaml.AliasNode, nil
}

func (r *refusals) report(n *yaml.Node, format string, args ...any) {
	if len(r.faults) < maxRefusals {
		r.faults = append(r.faults, syntaxFault(n.Line, fmt.Sprintf(format, args...)))
	}
}

// walk checks a node and all below it; false if one of them cannot be skipped.
func (r *refusals) walk(n *yaml.Node, depth int) bool {
	switch {
	case depth > maxDepth && n.Kind != yaml.ScalarNode:
		r.faults = append(r.faults, syntaxFault(n.Line, tooDeep))
		return false
	case strings.IndexByte(n.Value, 0) >= 0: // neither environments nor command lines can carry one
		r.faults = append(r.faults, syntaxFault(n.Line, noCharacter))
		return false
	}
	if n.Anchor != "" {
		r.report(n, "YAML anchors are not supported; write the value itself")
	}
	if n.Style&yaml.TaggedStyle != 0 {
		r.report(n, "YAML tags are not supported; quote the value if it is a string")
	}
	if n.Kind == yaml.AliasNode {
		r.refuse(n, noAliases)
	}
	for key := range entriesOf(n) {
		switch {
		case isTemplate(n, key):
			r.refuse(n, quoteTemplate, n.Column)
		case key.Kind == yaml.SequenceNode || key.Kind == yaml.MappingNode:
			r.faults = append(r.faults, syntaxFault(key.Line, "a list or mapping cannot be a key"))
			return false
		case n.Style&yaml.FlowStyle != 0 && key.Line == n.Line && key.Column == n.Column:
			r.refuse(n, "a key is not allowed inside brackets; use braces, or quote it")
		case key.Value == "<<":
			r.report(key, "YAML merge keys are not supported; write the keys themselves")
		}
	}
	for _, below := range n.Content {
		if !r.walk(below, depth+1) {
			return false
		}
	}
	return true
}

// isTemplate reports whether a mapping is an interpolation without quotes: YAML
// reads {{ .a }} as a mapping whose key is a mapping.
func isTemplate(n, key *yaml.Node) bool {
	return key.Kind == yaml.MappingNode && key.Style&yaml.FlowStyle != 0 && key.Line == n.Line && key.Column == n.Column+1
}

// finder finds nodes in the submitted bytes, in the order of the document.
type finder struct {
	text         []byte // as the library reads it
	pairs        []int
	base         int // bytes before it
	line, column int
	at           int
}

func newFinder(doc []byte) *finder {
	f := &finder{line: 1, column: 1}
	f.text = bytes.TrimPrefix(doc, byteOrderMark)
	f.base = len(doc) - len(f.text)
	f.text, f.pairs = joinSurrogates(f.text)
	return f
}

// find returns where a node begins.
func (f *finder) find(n *yaml.Node) int {
	for f.at < len(f.text) && (f.line < n.Line || f.line == n.Line && f.column < n.Column) {
		c, size := utf8.DecodeRune(f.text[f.at:])
		f.at += size
		f.column++
		if c == '\n' || c == '\r' && !bytes.HasPrefix(f.text[f.at:], []byte("\n")) {
			f.line, f.column = f.line+1, 1
		}
	}
	return f.base + f.at + 2*sort.SearchInts(f.pairs, f.at)
}
