package manifest

import (
	"bytes"
	"encoding/json"
	"hash/fnv"
	"strings"

	"mariposa"
)

// Values are kept in parts, so that a change of one key writes one of them anew. A
// part is a run of keys as they stand in the document; parts end between keys, and
// where depends on the names of the keys, so that most parts stay the same whatever
// happens to others.
//
// A part begins with a key, and a document has each key once. So a part can only be
// the same as one of another generation with the very same keys: how many bytes are
// stored tells nobody whether a text that they know stands somewhere else.
const (
	minPart = 16 << 10 // a part that has this much ends before the next key whose name says so
	maxPart = 32 << 10 // and before any key once it has this much
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

// padding returns the number of bytes that are missing to the next step of the length of
// a secret. The stored size of a project is shown to users, so lengths are rounded there
// too: in the encrypted bytes, and in where parts end.
func padding(length int) int { return secretStep - length%secretStep }

// endsBefore reports whether a part of some bytes ends before an entry of some more.
func endsBefore(key string, size, more int) bool {
	return size >= maxPart || more >= minPart || size >= minPart && endsParts(key)
}

// endsParts reports whether a part may end before a key: a quarter of all names say so.
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

// encodeSealed writes down what is sealed.
func encodeSealed(kept any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(kept); err != nil { // texts, numbers and a time: nothing that cannot be written
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
