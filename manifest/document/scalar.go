package document

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// templateEnd finds the end of an interpolation {{ … }} that begins at pos on
// one line, or -1. Its braces are part of a plain scalar, also inside brackets,
// where YAML alone would take them for mappings.
func templateEnd(s string, pos int) int {
	if !strings.HasPrefix(s[pos:], "{{") {
		return -1
	}
	for i := pos + 2; i < len(s); i++ {
		switch s[i] {
		case '}':
			if strings.HasPrefix(s[i:], "}}") {
				return i + 2
			}
			return -1
		case '{', '\n', '"', '\'':
			return -1
		}
	}
	return -1
}

func (r *reader) templateAhead() bool { return r.at(0) == '{' && templateEnd(r.src, r.pos) > 0 }

// plainEnd finds where a plain scalar that begins at pos ends on its line: at
// a colon with a gap, a comment, the line's end, and in flow collections at
// their punctuation.
func plainEnd(s string, pos int, flow bool) int {
	for i := pos; i < len(s); i++ {
		switch c := s[i]; c {
		case '\n':
			return i
		case ':':
			if i+1 == len(s) || isSpace(s[i+1]) || (flow && strings.IndexByte(",[]{}", s[i+1]) >= 0) {
				return i
			}
		case '#':
			if i > pos && isSpace(s[i-1]) {
				return i
			}
		case '{':
			if end := templateEnd(s, i); end > 0 {
				i = end - 1
			} else if flow {
				return i
			}
		case '}', ',', '[', ']':
			if flow {
				return i
			}
		}
	}
	return len(s)
}

// plainLines reads a plain scalar of a block collection, with the lines that
// continue it further right than parent.
func (r *reader) plainLines(parent int) *Node {
	node, start := &Node{Kind: String, Line: r.line}, r.offset(r.pos)
	var text strings.Builder
	for first := true; ; first = false {
		end := plainEnd(r.src, r.pos, false)
		part := strings.TrimRight(r.src[r.pos:end], " \t")
		node.Span = Span{start, r.offset(r.pos + len(part))}
		r.pos = end
		text.WriteString(part)
		if end < len(r.src) && r.src[end] == ':' {
			if first {
				r.fail("a colon and a space stand inside a value; quote the value, or check the indentation")
			} else {
				r.fail("a key stands where the value above it goes on; check the indentation")
			}
			return node
		}
		if r.at(0) == '#' {
			break
		}
		blanks, more := r.continues(parent)
		if !more {
			break
		}
		fold(&text, blanks)
	}
	r.comment()
	node.Text = text.String()
	node.Kind = plainKind(node.Text)
	return node
}

// continues goes to the next line of a plain scalar and counts the blank lines
// between; the reader stays where it is when the scalar has ended.
func (r *reader) continues(parent int) (blanks int, more bool) {
	pos, line, lineStart := r.pos, r.line, r.lineStart
	for r.at(0) == '\n' {
		r.newline()
		r.spaces()
		blanks++
	}
	if r.eof() || r.at(0) == '#' || r.col() <= parent || blanks == 0 {
		r.pos, r.line, r.lineStart = pos, line, lineStart
		return 0, false
	}
	return blanks - 1, true
}

// fold joins two lines: by a space, or by the blank lines between them.
func fold(text *strings.Builder, blanks int) {
	if blanks == 0 {
		text.WriteByte(' ')
		return
	}
	for range blanks {
		text.WriteByte('\n')
	}
}

// quoteEnd finds the end of a quoted scalar on its line, or -1.
func quoteEnd(s string, pos int) int {
	quote := s[pos]
	for i := pos + 1; i < len(s) && s[i] != '\n'; i++ {
		switch {
		case s[i] == '\\' && quote == '"':
			i++
		case s[i] == quote && quote == '\'' && i+1 < len(s) && s[i+1] == '\'':
			i++
		case s[i] == quote:
			return i + 1
		}
	}
	return -1
}

// quoted reads a quoted scalar, over several lines if need be.
func (r *reader) quoted() string {
	quote, line := r.at(0), r.line
	r.pos++
	var text strings.Builder
	for !r.eof() {
		c := r.at(0)
		switch {
		case c == quote && quote == '\'' && r.at(1) == '\'':
			text.WriteByte('\'')
			r.pos += 2
		case c == quote:
			r.pos++
			return text.String()
		case c == '\n' || c == ' ' || c == '\t':
			r.foldQuoted(&text)
		case c == '\\' && quote == '"':
			r.escape(&text)
		default:
			text.WriteByte(c)
			r.pos++
		}
	}
	r.failAt(line, "the quote that opens here is never closed")
	return ""
}

// foldQuoted reads white space inside quotes: kept within a line, folded
// around line ends.
func (r *reader) foldQuoted(text *strings.Builder) {
	start := r.pos
	r.spaces()
	if r.at(0) != '\n' {
		text.WriteString(r.src[start:r.pos])
		return
	}
	breaks := 0
	for r.at(0) == '\n' {
		r.newline()
		r.spaces()
		breaks++
	}
	fold(text, breaks-1)
}

var escapes = map[byte]string{
	'0': "\x00", 'a': "\a", 'b': "\b", 't': "\t", '\t': "\t", 'n': "\n", 'v': "\v", 'f': "\f", 'r': "\r", 'e': "\x1b",
	' ': " ", '"': "\"", '/': "/", '\\': "\\", 'N': "\u0085", '_': "\u00a0", 'L': "\u2028", 'P': "\u2029",
}

// escape reads a backslash and what it stands for. A NUL cannot be written even
// so: neither environments nor command lines can carry one.
func (r *reader) escape(text *strings.Builder) {
	c := r.at(1)
	if c == '\n' { // the line goes on without a space
		r.pos++
		for r.at(0) == '\n' {
			r.newline()
			r.spaces()
		}
		return
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
	if s, ok := escapes[c]; ok && c != '0' {
		text.WriteString(s)
		r.pos += 2
		return
	}
	if digits == 0 {
		r.fail("the escape %s is not known; write \\\\ for a backslash, or use single quotes", r.showEscape(c))
		return
	}
	r.pos += 2
	char := r.hex(digits)
	if utf16.IsSurrogate(char) && r.at(0) == '\\' && r.at(1) == 'u' { // JSON writes wide characters as two
		r.pos += 2
		if low := r.hex(4); utf16.DecodeRune(char, low) != utf8.RuneError {
			char = utf16.DecodeRune(char, low)
		}
	}
	if r.broken == nil && (!utf8.ValidRune(char) || char == 0) {
		r.fail("the escape names a character that does not exist")
		return
	}
	text.WriteRune(char)
}

func (r *reader) showEscape(c byte) string {
	if r.hushed {
		return "here"
	}
	return "\\" + string(rune(c))
}

func (r *reader) hex(digits int) (char rune) {
	for range digits {
		c := r.at(0)
		i := strings.IndexByte("0123456789abcdef", c|0x20)
		if i < 0 || c < '0' {
			r.fail("the escape needs %d hexadecimal digits", digits)
			return 0
		}
		char = char<<4 | rune(i)
		r.pos++
	}
	return char
}

// blockScalar reads a text introduced by | or >.
func (r *reader) blockScalar(parent int) *Node {
	node := &Node{Kind: String, Line: r.line, Span: r.spanFrom(r.pos)}
	folded := r.at(0) == '>'
	r.pos++
	chomp, indent := byte(0), 0
	for c := r.at(0); c == '+' || c == '-' || ('1' <= c && c <= '9'); c = r.at(0) {
		if digit(c) {
			indent = max(parent, 0) + int(c-'0')
		} else {
			chomp = c
		}
		r.pos++
	}
	if r.endOfLine(); r.broken != nil {
		return node
	}
	node.Span.To = r.offset(r.pos)
	if !r.eof() {
		r.newline()
	}
	start := r.pos
	lines := r.blockLines(max(parent+1, indent), indent == 0)
	node.Span.To = max(node.Span.To, r.blockEnd(start, chomp == '+'))
	node.Text = joinBlock(lines, folded, chomp)
	if n := len(lines); r.eof() && n > 0 && lines[n-1] != "" && !strings.HasSuffix(r.src, "\n") { // there was no line end to keep
		node.Text = strings.TrimSuffix(node.Text, "\n")
	}
	return node
}

// blockLines takes the lines of a block scalar without their indentation,
// which the first line with content decides when it is not given.
func (r *reader) blockLines(indent int, detect bool) (lines []string) {
	for !r.eof() {
		end := len(r.src)
		if i := strings.IndexByte(r.src[r.pos:], '\n'); i >= 0 {
			end = r.pos + i
		}
		line := r.src[r.pos:end]
		lead := len(line) - len(strings.TrimLeft(line, " "))
		blank := lead == len(line)
		if !blank && lead < indent {
			return lines
		}
		if detect && !blank {
			indent, detect = lead, false
		}
		lines = append(lines, line[min(indent, lead):])
		if blank && (detect || lead < indent) {
			lines[len(lines)-1] = ""
		}
		r.pos = end
		if !r.eof() {
			r.newline()
		}
	}
	return lines
}

// blockEnd is where a block scalar whose lines begin at start ends. The blank
// lines behind it belong to it only where they are kept, the last line end never.
func (r *reader) blockEnd(start int, keep bool) int {
	lines := strings.TrimSuffix(r.src[start:r.pos], "\n")
	if !keep {
		lines = strings.TrimRight(lines, " \n")
	}
	if lines == "" {
		return 0
	}
	return r.offset(start + len(lines))
}

// joinBlock joins the lines of a block scalar: literally, or folded, where
// lines that begin with a space keep their ends.
func joinBlock(lines []string, folded bool, chomp byte) string {
	n := len(lines)
	for n > 0 && lines[n-1] == "" {
		n--
	}
	var text strings.Builder
	for i, blanks := 0, 0; i < n; i++ {
		if !folded {
			text.WriteString(lines[i] + "\n")
			continue
		}
		if lines[i] == "" {
			blanks++
			continue
		}
		if i > blanks { // not the first line with content
			if isSpace(lines[i][0]) || isSpace(lines[i-blanks-1][0]) {
				blanks++
				fold(&text, blanks)
			} else {
				fold(&text, blanks)
			}
		} else if blanks > 0 {
			fold(&text, blanks)
		}
		text.WriteString(lines[i])
		blanks = 0
	}
	if folded && n > 0 {
		text.WriteByte('\n')
	}
	switch {
	case chomp == '-' || (n == 0 && chomp != '+'):
		return strings.TrimSuffix(text.String(), "\n")
	case chomp == '+':
		text.WriteString(strings.Repeat("\n", len(lines)-n))
	}
	return text.String()
}
