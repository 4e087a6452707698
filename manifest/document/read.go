package document

import (
	"bytes"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"mariposa"
)

// MaxDepth is how deeply collections may nest. The reader calls itself once a
// level, so this also bounds its stack.
const MaxDepth = 32

// maxRefusals bounds how many refused anchors, aliases and tags are listed.
const maxRefusals = 100

// Read reads one document. The node is nil when the syntax is broken; faults
// beside a node are things that were refused but could be stepped over.
func Read(data []byte) (*Node, []mariposa.Fault) { return read(data, false) }

// ReadHushed reads one document of which no fault may quote anything: it may
// hold secrets, and faults end up in logs.
func ReadHushed(data []byte) (*Node, []mariposa.Fault) { return read(data, true) }

func read(data []byte, hushed bool) (*Node, []mariposa.Fault) {
	if fault, bad := foreignBytes(data); bad {
		return nil, []mariposa.Fault{fault}
	}
	text := strings.TrimPrefix(string(data), "\ufeff")
	text = strings.ReplaceAll(text, "\r\n", "\n")
	text = strings.ReplaceAll(text, "\r", "\n")
	start, end, line, fault := oneDocument(text)
	if fault != nil {
		return nil, []mariposa.Fault{*fault}
	}
	r := &reader{src: text[:end], pos: start, lineStart: start, line: line, hushed: hushed}
	r.base, r.returns = leftOut(data)
	node := r.document()
	if r.broken != nil {
		return nil, append(r.refused, *r.broken)
	}
	return node, r.refused
}

// foreignBytes finds the first byte that no manifest has a use for: it would
// only reappear in somebody's terminal or environment.
func foreignBytes(data []byte) (mariposa.Fault, bool) {
	line := 1
	for i := 0; i < len(data); {
		c, size := rune(data[i]), 1
		if c >= utf8.RuneSelf {
			c, size = utf8.DecodeRune(data[i:])
		}
		switch {
		case c == '\n' || (c == '\r' && (i+1 == len(data) || data[i+1] != '\n')):
			line++
		case c == utf8.RuneError && size == 1:
			return syntax(line, "the text is not UTF-8; save the file with that encoding"), true
		case (c < ' ' && c != '\t' && c != '\r') || (0x7f <= c && c < 0xa0) || c == 0xfffe || c == 0xffff:
			return syntax(line, fmt.Sprintf("holds the control character U+%04X; remove it", c)), true
		}
		i += size
	}
	return mariposa.Fault{}, false
}

// oneDocument cuts the document out of its markers. By YAML's rules a marker
// at the start of a line is one wherever it stands, so no parsing is needed.
func oneDocument(text string) (start, end, line int, fault *mariposa.Fault) {
	end, line = len(text), 1
	n := 0
	content, ended := false, false
	for pos := 0; pos < len(text); {
		n++
		next := len(text)
		if i := strings.IndexByte(text[pos:], '\n'); i >= 0 {
			next = pos + i + 1
		}
		l := text[pos:next]
		blank := onlyComment(l)
		header, footer := marker(l, "---"), marker(l, "...")
		switch {
		case ended && !blank && !footer, header && (content || start > 0):
			f := syntax(n, "a second document begins here; a manifest is one document")
			return 0, 0, 0, &f
		case header && !onlyComment(l[3:]):
			f := syntax(n, "text follows the --- marker; put it on a line of its own")
			return 0, 0, 0, &f
		case header:
			start, line = next, n+1
		case footer && !ended:
			end, ended = pos, true
		case !blank && !content && l[0] == '%':
			f := syntax(n, "YAML directives are not accepted; remove the line")
			return 0, 0, 0, &f
		case !blank:
			content = true
		}
		pos = next
	}
	if end < start {
		end = start
	}
	return start, end, line, nil
}

func marker(line, mark string) bool {
	rest, ok := strings.CutPrefix(line, mark)
	return ok && (rest == "" || strings.IndexByte(" \t\n", rest[0]) >= 0)
}

func onlyComment(line string) bool {
	line = strings.TrimLeft(line, " \t")
	return line == "" || line[0] == '#' || line[0] == '\n'
}

func syntax(line int, message string) mariposa.Fault {
	return mariposa.Fault{Code: mariposa.FaultSyntax, Message: message, Line: line}
}

// reader walks the text once. After a failure it stands at the end of the
// text, so every loop finds its end by itself.
type reader struct {
	src       string
	pos       int
	line      int // of pos, counted from 1
	lineStart int // offset at which that line begins
	depth     int
	hushed    bool  // faults quote nothing
	base      int   // the submitted bytes left out before src
	returns   []int // the line ends of src that were two bytes
	broken    *mariposa.Fault
	refused   []mariposa.Fault
}

// leftOut finds what the reader's text lacks of the submitted bytes: a mark at the
// beginning, and half of the line ends of another system.
func leftOut(data []byte) (base int, returns []int) {
	base = len(data) - len(bytes.TrimPrefix(data, []byte("\ufeff")))
	data = data[base:]
	for pos := 0; ; pos += 2 {
		i := bytes.Index(data[pos:], []byte("\r\n"))
		if i < 0 {
			return base, returns
		}
		pos += i
		returns = append(returns, pos-len(returns))
	}
}

// offset is where a place of the reader's text stands in the submitted bytes.
func (r *reader) offset(pos int) int {
	if len(r.returns) == 0 { // nearly always
		return r.base + pos
	}
	return r.base + pos + sort.SearchInts(r.returns, pos)
}

// spanFrom is what lies between a place of the text and the reader.
func (r *reader) spanFrom(pos int) Span { return Span{r.offset(pos), r.offset(r.pos)} }

func (r *reader) document() *Node {
	r.skip()
	if r.eof() {
		return &Node{Kind: Null, Line: r.line}
	}
	node := r.block(-1)
	r.skip()
	if !r.eof() {
		r.fail("this line does not belong to what stands above it; check its indentation")
	}
	return node
}

func (r *reader) fail(format string, args ...any) {
	r.failAt(r.line, format, args...)
}

func (r *reader) failAt(line int, format string, args ...any) {
	if r.broken == nil {
		fault := syntax(line, fmt.Sprintf(format, args...))
		r.broken = &fault
	}
	r.pos = len(r.src)
}

func (r *reader) refuse(message string) {
	if len(r.refused) < maxRefusals {
		r.refused = append(r.refused, syntax(r.line, message))
	}
}

// enter guards every step into a collection.
func (r *reader) enter() bool {
	if r.depth >= MaxDepth {
		r.fail("nests deeper than %d levels", MaxDepth)
		return false
	}
	r.depth++
	return true
}

func (r *reader) eof() bool { return r.pos >= len(r.src) }

func (r *reader) col() int { return r.pos - r.lineStart }

// at reads the byte some steps ahead, 0 past the end.
func (r *reader) at(ahead int) byte {
	if r.pos+ahead < len(r.src) {
		return r.src[r.pos+ahead]
	}
	return 0
}

// gap reports whether a separating byte, or the end, stands some steps ahead.
func (r *reader) gap(ahead int) bool {
	return strings.IndexByte(" \t\n\x00", r.at(ahead)) >= 0
}

func (r *reader) newline() {
	r.pos++
	r.line++
	r.lineStart = r.pos
}

func (r *reader) spaces() {
	for !r.eof() && (r.src[r.pos] == ' ' || r.src[r.pos] == '\t') {
		r.pos++
	}
}

// comment steps over a comment, which must stand at the start of a line or
// behind a space.
func (r *reader) comment() {
	if r.at(0) != '#' || (r.pos > r.lineStart && !isSpace(r.src[r.pos-1])) {
		return
	}
	for !r.eof() && r.src[r.pos] != '\n' {
		r.pos++
	}
}

// skip goes to the next content, over spaces, comments and line ends.
func (r *reader) skip() {
	for {
		r.spaces()
		r.comment()
		if r.at(0) != '\n' {
			return
		}
		r.newline()
	}
}

// indented checks that the content in front of the reader is indented by
// spaces alone.
func (r *reader) indented() bool {
	if strings.IndexByte(r.src[r.lineStart:r.pos], '\t') >= 0 {
		r.fail("a tab indents this line; use spaces")
		return false
	}
	return true
}

// endOfLine expects nothing but a comment on the rest of the line.
func (r *reader) endOfLine() {
	r.spaces()
	r.comment()
	if r.at(0) != '\n' && !r.eof() {
		r.fail("%s follows a complete value; quote the whole value if it belongs to it", r.glimpse())
	}
}

// glimpse shows a few characters of what stands in front of the reader.
func (r *reader) glimpse() string {
	rest := r.src[r.pos:min(len(r.src), r.pos+48)]
	if i := strings.IndexByte(rest, '\n'); i >= 0 {
		rest = rest[:i]
	}
	if r.hushed {
		return "something"
	}
	if runes := []rune(strings.ToValidUTF8(rest, "")); len(runes) > 12 {
		return fmt.Sprintf("%q…", string(runes[:12]))
	}
	return fmt.Sprintf("%q", rest)
}

// show quotes characters in front of the reader for a fault.
func (r *reader) show(chars ...byte) string {
	if r.hushed {
		return "this"
	}
	return strconv.Quote(string(chars))
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' }
