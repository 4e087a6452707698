package manifest

import (
	"bytes"

	"go.yaml.in/yaml/v3"
)

// span is a part of the submitted bytes.
type span struct{ from, to int }

// setting is one key of a document of values. Its span is that of its value
// without the comment after it; a missing value is an empty span after its key.
type setting struct {
	key, value *yaml.Node
	at         int // where the key begins
	span
}

// locate finds the keys and values in the bytes. The library reports where each
// begins; where a value ends follows from its style.
func (pg *valuesDocument) locate() {
	f := newFinder(pg.doc)
	for key, value := range entriesOf(pg.root) {
		e := setting{key: key, value: value, at: f.find(key)}
		e.from = f.find(value)
		pg.entries = append(pg.entries, e)
	}
	limit := len(pg.doc)
	if !pg.braces() {
		limit = bodyEnd(pg.doc)
	}
	for i := len(pg.entries) - 1; i >= 0; i-- {
		e := &pg.entries[i]
		switch {
		case e.value.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
			e.to = blockEnd(pg.doc[:limit], e.from, pg.column(i))
		case e.value.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
			e.to = quotedEnd(pg.doc[:limit], e.from)
		case e.value.Value == "":
			e.from = len(bytes.TrimRight(pg.doc[:e.from], " \t\r\n"))
			e.to = e.from
		default:
			e.to = plainEnd(pg.doc[:limit], e.from, pg.braces())
		}
		if !pg.braces() {
			limit = lineBegin(pg.doc, e.at)
		}
	}
}

// closing returns where the closing brace of the document is.
func (pg *valuesDocument) closing() int {
	at := newFinder(pg.doc).find(pg.root)
	if n := len(pg.entries); n > 0 {
		at = pg.entries[n-1].to
	}
	return at + bytes.IndexByte(pg.doc[at:], '}')
}

// quotedEnd returns where a text in quotes ends, behind the quote that closes it; if none
// does, where it begins. It looks at each byte once: a value may have a megabyte of them,
// and a regular expression takes a hundred times as long for it.
func quotedEnd(doc []byte, from int) int {
	if from >= len(doc) || doc[from] != '"' && doc[from] != '\'' {
		return from
	}
	quote := doc[from]
	for i := from + 1; i < len(doc); i++ {
		switch {
		case quote == '"' && doc[i] == '\\':
			i++
		case doc[i] != quote:
		case quote == '\'' && i+1 < len(doc) && doc[i+1] == quote:
			i++
		default:
			return i + 1
		}
	}
	return from
}

// plainEnd returns where a text without quotes ends: before a comment, in
// braces before their punctuation, else with the last of its lines.
func plainEnd(doc []byte, from int, braces bool) int {
	end := from
	space := func(i int) bool { return bytes.IndexByte([]byte(" \t\r\n"), doc[i]) >= 0 }
	for i := from; i < len(doc); i++ {
		switch c := doc[i]; {
		case braces && (c == ',' || c == '}'), c == '#' && space(i-1):
			return end
		case !space(i):
			end = i + 1
		}
	}
	return end
}

// blockEnd returns where a text after | or > ends, whose key is in a column.
// The blank lines after it belong to it only if they are kept, the last line
// end never.
func blockEnd(doc []byte, from, column int) int {
	end := lineStop(doc, from)
	head, _, _ := bytes.Cut(doc[from:end], []byte("#"))
	keep, indent := bytes.IndexByte(head, '+') > 0, 0
	if i := bytes.IndexAny(head, "123456789"); i > 0 {
		indent = column + int(head[i]-'0')
	}
	for at := nextLine(doc, from); at < len(doc); at = nextLine(doc, at) {
		line := doc[at:lineStop(doc, at)]
		lead := len(line) - len(bytes.TrimLeft(line, " "))
		switch blank := lead == len(line); {
		case blank && !keep:
		case !blank && lead < max(indent, column+1):
			return end
		case !blank && indent == 0:
			indent = lead
			fallthrough
		default:
			end = at + len(line)
		}
	}
	return end
}
