package document

import "strings"

// block reads the node in front of the reader, which stands at its first
// character: on a fresh line, or behind "- ". Parent is the column that the
// node's lines must stay right of.
func (r *reader) block(parent int) *Node {
	r.properties()
	for r.at(0) == '\n' { // only behind a refused property
		r.skip()
		r.properties()
	}
	if r.eof() || r.col() <= parent && !(r.at(0) == '-' && r.gap(1)) {
		return &Node{Kind: Null, Line: r.line}
	}
	if !r.indented() || !r.enter() {
		return &Node{Kind: Refused, Line: r.line}
	}
	defer func() { r.depth-- }()
	switch {
	case r.at(0) == '-' && r.gap(1):
		return r.sequence(r.col())
	case r.keyAhead():
		return r.mapping(r.col())
	}
	return r.scalarOrFlow(parent)
}

// sequence reads the entries "- value" that begin in one column.
func (r *reader) sequence(col int) *Node {
	node := &Node{Kind: List, Line: r.line}
	for {
		line := r.line
		r.pos++ // the dash
		r.spaces()
		r.comment()
		var item *Node
		if r.at(0) != '\n' && !r.eof() {
			item = r.block(col)
		} else {
			item = r.nextLines(line, col, false)
		}
		node.Items = append(node.Items, item)
		r.skip()
		if r.eof() || r.col() < col || (r.col() == col && !(r.at(0) == '-' && r.gap(1))) {
			return node
		}
		if r.col() > col {
			r.fail("is indented differently from the list entries above it")
			return node
		}
		if !r.indented() {
			return node
		}
	}
}

// mapping reads the entries "key: value" that begin in one column.
func (r *reader) mapping(col int) *Node {
	node := &Node{Kind: Map, Line: r.line, Span: r.spanFrom(r.pos)}
	for {
		line, at := r.line, r.offset(r.pos)
		key := r.key()
		if r.broken != nil {
			return node
		}
		node.Entries = append(node.Entries, Entry{Key: key, Line: line, At: at, Value: r.value(line, col)})
		r.skip()
		if r.eof() || r.col() < col {
			return node
		}
		if r.col() > col {
			r.fail("is indented differently from the keys above it")
			return node
		}
		if !r.indented() {
			return node
		}
		r.properties()
		if r.at(0) == '-' && r.gap(1) {
			r.fail("a list entry stands where a key is expected; check its indentation")
			return node
		}
		if !r.keyAhead() {
			r.fail("%s is not a key followed by a colon and a space", r.glimpse())
			return node
		}
	}
}

// value reads what follows "key:".
func (r *reader) value(line, col int) *Node {
	behind := r.spanFrom(r.pos)
	node := r.valueNode(line, col)
	if node.Span.To == 0 {
		node.Span = behind
	}
	return node
}

func (r *reader) valueNode(line, col int) *Node {
	r.spaces()
	r.comment()
	r.properties()
	if r.at(0) == '\n' || r.eof() {
		return r.nextLines(line, col, true)
	}
	if r.at(0) == '-' && r.gap(1) {
		r.fail("a list begins behind its key; put it on the next line or in brackets")
	}
	return r.scalarOrFlow(col)
}

// nextLines reads a value that begins on a later line than its key or dash.
// The list of a key may stand in the key's own column.
func (r *reader) nextLines(line, col int, key bool) *Node {
	r.skip()
	dash := r.at(0) == '-' && r.gap(1)
	if r.eof() || r.col() < col || (r.col() == col && !(key && dash)) {
		return &Node{Kind: Null, Line: line}
	}
	return r.block(col)
}

// scalarOrFlow reads a node that is not a block collection and expects the
// line to end behind it.
func (r *reader) scalarOrFlow(parent int) *Node {
	line, start := r.line, r.pos
	var node *Node
	switch c := r.at(0); {
	case r.templateAhead():
		return r.plainLines(parent)
	case c == '|' || c == '>':
		return r.blockScalar(parent)
	case c == '[' || c == '{':
		node = r.flow()
	case c == '"' || c == '\'':
		node = &Node{Kind: String, Line: line, Text: r.quoted()}
	case c == '*':
		r.refuse("YAML aliases are not accepted; write the value out")
		for !r.gap(0) {
			r.pos++
		}
		node = &Node{Kind: Refused, Line: line}
	case strings.IndexByte("@`%,]}", c) >= 0 && c != 0:
		r.fail("a value cannot begin with %s; quote it", r.show(c))
	case c == '?' && r.gap(1):
		r.fail("keys introduced by ? are not accepted; write key: value")
	default:
		return r.plainLines(parent)
	}
	if r.broken != nil {
		return &Node{Kind: Refused, Line: line}
	}
	node.Span = r.spanFrom(start)
	r.endOfLine()
	return node
}

// properties steps over anchors and tags, which are refused: they are how
// small documents become huge ones, and a manifest has no use for them.
func (r *reader) properties() {
	for (r.at(0) == '&' || r.at(0) == '!') && r.broken == nil {
		if r.at(0) == '&' {
			r.refuse("YAML anchors are not accepted; write the value out")
		} else {
			r.refuse("YAML tags are not accepted; quote the value if it is a text")
		}
		for !r.gap(0) && strings.IndexByte(",[]{}", r.at(0)) < 0 {
			r.pos++
		}
		r.spaces()
		r.comment()
	}
}

// keyAhead reports whether the rest of the line begins with a key: a scalar, a
// colon and a gap. A quoted scalar is only looked over.
func (r *reader) keyAhead() bool {
	if c := r.at(0); c == '"' || c == '\'' {
		end := quoteEnd(r.src, r.pos)
		if end < 0 {
			return false
		}
		for end < len(r.src) && (r.src[end] == ' ' || r.src[end] == '\t') {
			end++
		}
		return end < len(r.src) && r.src[end] == ':' && (end+1 == len(r.src) || isSpace(r.src[end+1]))
	}
	if strings.IndexByte("[{|>@`%,]}*", r.at(0)) >= 0 && !r.templateAhead() {
		return false
	}
	end := plainEnd(r.src, r.pos, false)
	return end < len(r.src) && r.src[end] == ':'
}

// key reads a key and its colon; keyAhead said it is there.
func (r *reader) key() string {
	var key string
	if c := r.at(0); c == '"' || c == '\'' {
		key = r.quoted()
		r.spaces()
	} else {
		end := plainEnd(r.src, r.pos, false)
		key = strings.TrimRight(r.src[r.pos:end], " \t")
		if strings.HasPrefix(key, "? ") || key == "" {
			r.fail("the key is missing in front of the colon")
			return ""
		}
		r.pos = end
	}
	if key == "<<" {
		r.refuse("YAML merge keys are not accepted; write the keys out")
	}
	r.pos++ // the colon
	return key
}
