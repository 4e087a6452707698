package manifest

import (
	"bytes"
	"encoding/json"
	"hash/fnv"
	"strings"

	"mariposa"
)

// Values are stored in parts, so that a change of one key rewrites only one part. A part
// is a sequence of keys of the document. Where parts end depends only on the names and
// sizes of the keys nearby, so that most parts stay the same when others change.
//
// A part begins with a key, and a document has each key once. So a part can only equal
// one of another generation with the same keys. The number of stored bytes therefore does
// not reveal whether a known text occurs elsewhere.
const (
	minPart = 16 << 10 // a part of this size ends before the next key for which endsParts is true
	maxPart = 32 << 10 // a part of this size ends before any key
)

// valuesHead is the data about the values as a whole.
type valuesHead struct {
	Last int64 `json:"last,omitempty"`
}

// Split encodes values for encryption: the head, and the parts.
func (v *Values) Split() (head []byte, parts [][]byte) {
	doc := v.document()
	pg, err := readValuesDocument(doc)
	if err != nil { // what was read once can be read again; if not, it is kept as it is
		pg = &valuesDocument{doc: doc}
	}
	from, size, pad, keys := 0, 0, 0, map[string]sealedKey{}
	cut := func(to int) {
		parts = append(parts, encodeSealed(sealedValues{Document: string(doc[from:to]), Keys: keys, Pad: strings.Repeat(" ", pad)}))
		from, size, pad, keys = to, 0, 0, map[string]sealedKey{}
	}
	for i, e := range pg.entries {
		value, set := v.Get(e.key.Value)
		length := pg.lengthOf(i)
		if value.Secret {
			length += padding(e.to - e.from)
		}
		if i > 0 && endsBefore(e.key.Value, size, length) {
			cut(e.at)
		}
		size += length
		if value.Secret {
			pad += padding(len(encodeSealed(string(doc[e.from:e.to]))))
		}
		if set {
			keys[e.key.Value] = sealedKey{Secret: value.Secret, CAS: value.CAS, Changed: value.Changed}
		}
	}
	cut(len(doc))
	var whole valuesHead
	if v != nil {
		whole.Last = v.Last
	}
	return encodeSealed(whole), parts
}

// lengthOf returns the number of bytes from an entry to the next; those before the first
// belong to it.
func (pg *valuesDocument) lengthOf(i int) int {
	begin, end := 0, len(pg.doc)
	if i > 0 {
		begin = pg.entries[i].at
	}
	if i+1 < len(pg.entries) {
		end = pg.entries[i+1].at
	}
	return end - begin
}

// padding returns the number of bytes by which the length of a secret is rounded up. The
// stored size of a project is shown to users, so lengths are rounded there too: in the
// encrypted bytes, and in where parts end.
func padding(length int) int { return secretStep - length%secretStep }

// endsBefore reports whether a part with size bytes ends before an entry with more bytes.
func endsBefore(key string, size, more int) bool {
	return size >= maxPart || more >= minPart || size >= minPart && endsParts(key)
}

// endsParts reports whether a part may end before a key: this is true for a quarter of
// all names.
func endsParts(key string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return h.Sum32()%4 == 0
}

// JoinValues reads what Split wrote.
func JoinValues(head []byte, parts [][]byte) (*Values, error) {
	var whole valuesHead
	if err := json.Unmarshal(head, &whole); err != nil {
		return nil, mariposa.Errorf(mariposa.Internal, "read stored metadata: %w", err)
	}
	all := sealedValues{Last: whole.Last, Keys: map[string]sealedKey{}}
	var doc strings.Builder
	for _, part := range parts {
		var kept sealedValues
		if err := json.Unmarshal(part, &kept); err != nil {
			return nil, mariposa.Errorf(mariposa.Internal, "read a part of the stored metadata: %w", err)
		}
		doc.WriteString(kept.Document)
		for key, info := range kept.Keys {
			all.Keys[key] = info
		}
	}
	all.Document = doc.String()
	return all.values()
}

// encodeSealed encodes values for encryption.
func encodeSealed(kept any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(kept); err != nil { // cannot happen: it contains only texts, numbers and a time
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
