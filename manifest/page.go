package manifest

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"mariposa"
)

// valuesSubject is what faults in values are about.
const valuesSubject = "the metadata"

// valuesDocument is a document of values and where each of them is. Changes are
// made to the bytes and then read back: a result that does not read as it
// should is not used.
type valuesDocument struct {
	doc     []byte
	root    *yaml.Node
	entries []setting         // in the order of the document
	texts   map[string]string // what it says; keys set to null are left out
}

func readValuesDocument(doc []byte) (*valuesDocument, error) {
	c := &checker{subject: valuesSubject}
	root, faults := read(doc)
	c.faults = faults
	if root == nil {
		return nil, c.err()
	}
	top := valuesSpot(root)
	if k := top.kind(); k != kindMap && k != kindNull {
		c.invalid(top, "must be a mapping of names to values, not %s", k)
		return nil, c.err()
	}
	if n := len(root.Content) / 2; n > MaxKeys {
		return nil, tooManyKeys(n)
	}
	pg := &valuesDocument{doc: doc, root: root, texts: make(map[string]string, len(root.Content)/2)}
	tooLarge := ""
	c.entries(top, func(at *spot) {
		c.value(at, pg.texts)
		if len(pg.texts[at.key]) > MaxValue {
			tooLarge = at.key
		}
	})
	if err := c.err(); err != nil {
		return nil, err
	}
	if tooLarge != "" {
		return nil, tooLargeValue(tooLarge, len(pg.texts[tooLarge]))
	}
	pg.locate()
	return pg, nil
}

// valuesSpot makes faults of a key read metadata.KEY.
func valuesSpot(root *yaml.Node) *spot {
	return &spot{up: rootSpot(root), key: "metadata", index: -1, line: root.Line, node: root}
}

// value reads one key. An invalid name is not shown: it may be part of a value.
func (c *checker) value(at *spot, into map[string]string) {
	if why := metadataName(at.key); why != "" {
		c.invalid(&spot{up: at.up.up, key: "metadata", index: -1, line: at.line, node: at.node}, "a key %s", why)
		return
	}
	switch at.kind() {
	case kindNull, kindRefused:
	case kindList, kindMap:
		c.invalid(at, "must be a string, a number, true or false, not %s; write nested values as one string after a |", at.kind())
	default:
		into[at.key] = at.node.Value
	}
}

// secretStep is the granularity with which the length of a secret counts, so that
// filling up the rest of the limit does not reveal the exact length.
const secretStep = 64

// size is how many bytes the document counts for.
func (pg *valuesDocument) size(secret func(key string) bool) int {
	size := len(pg.doc)
	for _, e := range pg.entries {
		if key := e.key.Value; secret(key) {
			size += (len(pg.texts[key])/secretStep+1)*secretStep - (e.span.to - e.span.from)
		}
	}
	return size
}

func tooManyBytes(size int) error {
	return mariposa.Errorf(mariposa.TooLarge, "the metadata has %d bytes; the limit is %d", size, MaxValues)
}

func tooManyKeys(n int) error {
	return mariposa.Errorf(mariposa.TooLarge, "the metadata has %d keys; the limit is %d", n, MaxKeys)
}

func tooLargeValue(key string, size int) error {
	return mariposa.Errorf(mariposa.TooLarge, "the value of metadata key %s has %d bytes; the limit is %d", key, size, MaxValue)
}

// entry finds a key, even one set to null.
func (pg *valuesDocument) entry(key string) int {
	return slices.IndexFunc(pg.entries, func(e setting) bool { return e.key.Value == key })
}

func (pg *valuesDocument) has(key string) bool { return pg.entry(key) >= 0 }

// braces reports whether the document is a mapping in braces, as JSON is.
func (pg *valuesDocument) braces() bool {
	return pg.root.Kind == yaml.MappingNode && pg.root.Style&yaml.FlowStyle != 0
}

// edit replaces some bytes with a text.
type edit struct {
	span
	text string
}

// apply makes edits, which must not overlap, with the document's own line ends.
func (pg *valuesDocument) apply(edits ...edit) []byte {
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(a.from, b.from) })
	ending := lineEnd(pg.doc)
	var out bytes.Buffer
	done := 0
	for _, e := range edits {
		out.Write(pg.doc[done:e.from])
		out.WriteString(strings.ReplaceAll(e.text, "\n", ending))
		done = e.to
	}
	out.Write(pg.doc[done:])
	return out.Bytes()
}

// set sets a key to a text.
func (pg *valuesDocument) set(key, text string) []byte {
	want := maps.Clone(pg.texts)
	want[key] = text
	var ways []func() edit
	for _, s := range spellings(text, pg.braces()) {
		if i := pg.entry(key); i >= 0 {
			ways = append(ways, func() edit { return pg.replace(i, s) })
			continue
		}
		ways = append(ways, func() edit { return pg.add(key, s) })
		if len(pg.entries) > 0 && !pg.braces() { // the last value may end with the document
			ways = append(ways, func() edit { return pg.addBefore(len(pg.entries)-1, key, s) })
		}
	}
	return pg.first(want, ways)
}

// deleteKey removes a key.
func (pg *valuesDocument) deleteKey(key string) []byte {
	want := maps.Clone(pg.texts)
	delete(want, key)
	i := pg.entry(key)
	if pg.braces() {
		return pg.first(want, []func() edit{func() edit { return pg.cut(i) }})
	}
	return pg.first(want, []func() edit{func() edit { return pg.cutLines(i) }, func() edit { return pg.cutToNext(i) }})
}

// first returns the result of the first way that produces the wanted document. If there
// is none the document is rewritten, which only happens to a document that is null.
func (pg *valuesDocument) first(want map[string]string, ways []func() edit) []byte {
	for _, way := range ways {
		doc := pg.apply(way())
		if readsAs(doc, want) {
			return doc
		}
	}
	return written(want)
}

func readsAs(doc []byte, want map[string]string) bool {
	root, faults := read(doc)
	if root == nil || len(faults) > 0 || (kindOf(root) != kindMap && kindOf(root) != kindNull) {
		return false
	}
	texts := make(map[string]string, len(want))
	c := &checker{}
	c.entries(valuesSpot(root), func(at *spot) { c.value(at, texts) })
	return len(c.faults) == 0 && maps.Equal(texts, want)
}

// replaced sets several keys to other texts, each on the lines of the old one.
func (pg *valuesDocument) replaced(texts map[string]string) []byte {
	want := maps.Clone(pg.texts)
	maps.Copy(want, texts)
	var edits []edit
	for i, e := range pg.entries {
		if text, ok := texts[e.key.Value]; ok {
			edits = append(edits, pg.replace(i, spelling{text: oneLine(text, pg.braces())}))
		}
	}
	if doc := pg.apply(edits...); readsAs(doc, want) {
		return doc
	}
	return written(want)
}

// replace writes a value in place of another.
func (pg *valuesDocument) replace(i int, s spelling) edit {
	e := edit{span: pg.entries[i].span, text: s.text}
	if s.lines != nil {
		e.text = s.block(pg.column(i))
		e.to = lineStop(pg.doc, e.to) // a comment cannot follow a block
		if e.to == len(pg.doc) {
			e.text += "\n"
		}
	}
	if e.from == pg.entries[i].to { // there was nothing after the key
		e.text = " " + e.text
		if pg.doc[e.from-1] != ':' {
			e.text = ":" + e.text
		}
	}
	return e
}

// add writes a key after all others.
func (pg *valuesDocument) add(key string, s spelling) edit {
	if pg.braces() {
		return pg.addInBraces(key, s)
	}
	column := 0
	if len(pg.entries) > 0 {
		column = pg.column(0)
	}
	e := edit{span: span{from: bodyEnd(pg.doc)}, text: s.line(key, column)}
	e.to = e.from
	if e.from > 0 && !isLineEnd(pg.doc[e.from-1]) {
		e.text = "\n" + e.text
	}
	return e
}

// addBefore writes a key before another.
func (pg *valuesDocument) addBefore(i int, key string, s spelling) edit {
	at := lineBegin(pg.doc, pg.entries[i].at)
	return edit{span: span{from: at, to: at}, text: s.line(key, pg.column(i))}
}

func (pg *valuesDocument) addInBraces(key string, s spelling) edit {
	text := fmt.Sprintf("%s: %s", quoted(key), s.text)
	n := len(pg.entries)
	if n == 0 {
		at := pg.closing()
		return edit{span: span{from: at, to: at}, text: text}
	}
	last := pg.entries[n-1]
	between := ", "
	if begin := lineBegin(pg.doc, last.at); len(bytes.TrimLeft(pg.doc[begin:last.at], " \t")) == 0 {
		between = ",\n" + string(pg.doc[begin:last.at])
	}
	at := last.to
	return edit{span: span{from: at, to: at}, text: between + text}
}

// cut removes an entry from braces, with one comma.
func (pg *valuesDocument) cut(i int) edit {
	cut := span{from: pg.entries[i].at, to: pg.entries[i].to}
	switch {
	case i+1 < len(pg.entries):
		cut.to = pg.entries[i+1].at
	case i > 0:
		cut.from = pg.entries[i-1].to
	default:
		cut.to = pg.closing()
	}
	return edit{span: cut}
}

// cutLines removes the lines of an entry and leaves what is around it.
func (pg *valuesDocument) cutLines(i int) edit {
	return edit{span: span{from: lineBegin(pg.doc, pg.entries[i].at), to: nextLine(pg.doc, pg.entries[i].to)}}
}

// cutToNext also removes comments and blank lines: after the previous value,
// they would become part of it.
func (pg *valuesDocument) cutToNext(i int) edit {
	cut := span{from: lineBegin(pg.doc, pg.entries[i].at), to: bodyEnd(pg.doc)}
	if i+1 < len(pg.entries) {
		cut.to = lineBegin(pg.doc, pg.entries[i+1].at)
	}
	return edit{span: cut}
}

func (pg *valuesDocument) column(i int) int {
	return pg.entries[i].at - lineBegin(pg.doc, pg.entries[i].at)
}

// lineBegin returns where the line of an offset begins, after a byte order
// mark.
func lineBegin(doc []byte, at int) int {
	begin := bytes.LastIndexAny(doc[:at], "\r\n") + 1
	if begin == 0 && bytes.HasPrefix(doc[:at], []byte("\ufeff")) {
		begin = len("\ufeff")
	}
	return begin
}

// lineStop returns where the line of an offset ends.
func lineStop(doc []byte, at int) int {
	if i := bytes.IndexAny(doc[at:], "\r\n"); i >= 0 {
		return at + i
	}
	return len(doc)
}

// nextLine returns where the line after that of an offset begins.
func nextLine(doc []byte, at int) int {
	stop := lineStop(doc, at)
	if bytes.HasPrefix(doc[stop:], []byte("\r\n")) {
		stop++
	}
	return min(stop+1, len(doc))
}

func isLineEnd(c byte) bool { return c == '\n' || c == '\r' }

// lineEnd returns how the document's first line ends.
func lineEnd(doc []byte) string {
	stop := lineStop(doc, 0)
	switch {
	case bytes.HasPrefix(doc[stop:], []byte("\r\n")):
		return "\r\n"
	case bytes.HasPrefix(doc[stop:], []byte("\r")):
		return "\r"
	}
	return "\n"
}

// bodyEnd returns where the document ends: at its marker, if it has one.
func bodyEnd(doc []byte) int {
	for at := 0; at < len(doc); {
		stop := lineStop(doc, at)
		if rest, ok := bytes.CutPrefix(doc[at:stop], []byte("...")); ok && (len(rest) == 0 || rest[0] == ' ' || rest[0] == '\t') {
			return at
		}
		at = stop + 1
	}
	return len(doc)
}
