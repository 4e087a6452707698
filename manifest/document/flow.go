package document

import "strings"

// flow reads a collection in brackets or braces; JSON is nothing else.
func (r *reader) flow() *Node {
	node, start := &Node{Kind: List, Line: r.line}, r.pos
	if !r.enter() {
		return node
	}
	defer func() { r.depth-- }()
	open, shut := r.at(0), byte(']')
	if open == '{' {
		node.Kind, shut = Map, '}'
	}
	r.pos++
	for {
		r.skip()
		switch {
		case r.broken != nil:
			return node
		case r.eof():
			r.failAt(node.Line, "the %q that opens here is never closed", string(open))
			return node
		case r.at(0) == shut:
			r.pos++
			node.Span = r.spanFrom(start)
			return node
		case node.Kind == Map:
			r.flowEntry(node)
		default:
			node.Items = append(node.Items, r.flowNode())
		}
		r.skip()
		switch {
		case r.eof(): // reported above
		case r.at(0) == ',':
			r.pos++
		case r.at(0) != shut:
			r.flowStray(node, open, shut)
			return node
		}
	}
}

// flowStray says why what stands here is neither a comma nor the end.
func (r *reader) flowStray(node *Node, open, shut byte) {
	if r.at(0) == ':' && node.Kind == List {
		r.fail("a key stands in a list; put it in braces: [{key: value}]")
		return
	}
	r.fail("%s stands where a comma or %q is expected (the %q opens on line %d)", r.glimpse(), string(shut), string(open), node.Line)
}

// flowEntry reads "key: value" in braces.
func (r *reader) flowEntry(node *Node) {
	line, at := r.line, r.offset(r.pos)
	key := r.flowNode()
	if r.broken != nil {
		return
	}
	if key.Kind == List || key.Kind == Map {
		r.failAt(line, "a list or mapping cannot be a key")
		return
	}
	if key.Text == "<<" {
		r.refuse("YAML merge keys are not accepted; write the keys out")
	}
	nothing := &Node{Kind: Null, Line: line, Span: r.spanFrom(r.pos)}
	entry := Entry{Key: key.Text, Line: line, At: at, Value: nothing}
	r.skip()
	if r.at(0) == ':' {
		r.pos++
		nothing.Span = r.spanFrom(r.pos)
		r.skip()
		if c := r.at(0); c != ',' && c != '}' {
			entry.Value = r.flowNode()
		}
	}
	node.Entries = append(node.Entries, entry)
}

// flowNode reads one value inside brackets or braces.
func (r *reader) flowNode() *Node {
	r.properties()
	line, start := r.line, r.pos
	switch c := r.at(0); {
	case r.templateAhead():
		return r.flowPlain()
	case c == '[' || c == '{':
		return r.flow()
	case c == '"' || c == '\'':
		text := r.quoted()
		return &Node{Kind: String, Line: line, Text: text, Span: r.spanFrom(start)}
	case c == '*':
		r.refuse("YAML aliases are not accepted; write the value out")
		for !r.gap(0) && strings.IndexByte(",[]{}", r.at(0)) < 0 {
			r.pos++
		}
		return &Node{Kind: Refused, Line: line}
	case c == '\n' || c == '#' || c == ',' || c == ']' || c == '}' || (c == ':' && r.gap(1)):
		r.fail("a value is missing in front of %s", r.glimpse())
	case strings.IndexByte("@`%|>", c) >= 0 && c != 0:
		r.fail("a value cannot begin with %s here; quote it", r.show(c))
	case (c == '-' || c == '?') && (r.gap(1) || strings.IndexByte(",[]{}", r.at(1)) >= 0):
		r.fail("%q stands inside brackets or braces; separate the values by commas", string(c))
	default:
		return r.flowPlain()
	}
	return &Node{Kind: Refused, Line: line}
}

// flowPlain reads a plain scalar, which may go on over several lines until
// punctuation ends it.
func (r *reader) flowPlain() *Node {
	node, start := &Node{Kind: String, Line: r.line}, r.offset(r.pos)
	var text strings.Builder
	for {
		end := plainEnd(r.src, r.pos, true)
		part := strings.TrimRight(r.src[r.pos:end], " \t")
		text.WriteString(part)
		node.Span = Span{start, r.offset(r.pos + len(part))}
		r.pos = end
		if r.at(0) != '\n' {
			break
		}
		blanks, more := r.continues(-1)
		if !more || strings.IndexByte(",[]{}:", r.at(0)) >= 0 {
			break
		}
		fold(&text, blanks)
	}
	node.Text = text.String()
	node.Kind = plainKind(node.Text)
	return node
}
