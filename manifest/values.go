package manifest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"mariposa"
)

// The largest value, the largest document of values, and the most keys that are
// accepted.
const (
	MaxValue  = 1 << 20
	MaxValues = 4 << 20
	MaxKeys   = 10_000
)

// Mask is shown in place of a secret. It is not a value itself: a secret that is
// submitted as the mask stays unchanged.
const Mask = "••••"

// Values are a project's metadata: a YAML document kept byte for byte, and the values in
// it. They are shared and immutable; nil is empty.
type Values struct {
	Document []byte
	ByKey    map[string]Value
	Last     int64 // the newest CAS that was given, also to deleted keys
}

// Value is what one key is set to.
type Value struct {
	Text    string
	Secret  bool
	CAS     int64 // grows with every change of the key, even across its deletion
	Changed time.Time
}

// ReadValues reads a YAML or JSON mapping of names to texts, numbers and
// booleans, which keep their spelling; null means unset. Its error lists every
// fault with its line, and quotes nothing of the document.
func ReadValues(doc []byte) (*Values, error) {
	if len(doc) > MaxValues {
		return nil, tooManyBytes(len(doc))
	}
	return readStoredValues(doc)
}

// readStoredValues reads a document that was accepted before, however large it is.
func readStoredValues(doc []byte) (*Values, error) {
	pg, err := readValuesDocument(doc)
	if err != nil {
		return nil, err
	}
	v := &Values{Document: doc, ByKey: make(map[string]Value, len(pg.texts))}
	for key, text := range pg.texts {
		v.ByKey[key] = Value{Text: text}
	}
	return v, nil
}

// Get returns the value of a key.
func (v *Values) Get(key string) (Value, bool) {
	if v == nil {
		return Value{}, false
	}
	value, ok := v.ByKey[key]
	return value, ok
}

func (v *Values) isSecret(key string) bool {
	value, _ := v.Get(key)
	return value.Secret
}

// GivenKeys returns the keys whose values a document contains itself, as opposed to a
// mask.
func GivenKeys(doc []byte) (map[string]bool, error) {
	pg, err := readValuesDocument(doc)
	if err != nil {
		return nil, err
	}
	given := map[string]bool{}
	for key, text := range pg.texts {
		if text != Mask {
			given[key] = true
		}
	}
	return given, nil
}

// NullKeys returns the keys of a document whose value is null, so that they are not set,
// in its order.
func NullKeys(doc []byte) []string {
	pg, err := readValuesDocument(doc)
	if err != nil {
		return nil
	}
	var keys []string
	for _, e := range pg.entries {
		if _, set := pg.texts[e.key.Value]; !set {
			keys = append(keys, e.key.Value)
		}
	}
	return keys
}

// Keys lists the keys that are set, sorted.
func (v *Values) Keys() []string {
	if v == nil {
		return nil
	}
	return sortedKeys(v.ByKey)
}

// Import returns the values of a new document that replaces the old one. Keys whose text
// stays the same keep their CAS and time; secrets stay secret. A secret that is submitted
// as the mask stays unchanged. Without any change, it returns v itself.
func (v *Values) Import(doc []byte, now time.Time) (*Values, error) {
	if len(doc) > MaxValues {
		return nil, tooManyBytes(len(doc))
	}
	pg, err := readValuesDocument(doc)
	if err != nil {
		return nil, err
	}
	if pg, err = v.unmask(pg); err != nil {
		return nil, err
	}
	if size := pg.size(v.isSecret); size > MaxValues {
		return nil, tooManyBytes(size)
	}
	next := v.changed(pg.doc)
	maps.DeleteFunc(next.ByKey, func(key string, _ Value) bool { _, still := pg.texts[key]; return !still })
	cas := next.Last + 1
	for key, text := range pg.texts {
		was, had := v.Get(key)
		if !had || was.Text != text {
			next.ByKey[key] = Value{Text: text, Secret: was.Secret, CAS: cas, Changed: now}
			next.Last = cas
		}
	}
	if v != nil && bytes.Equal(v.Document, next.Document) && next.Last == v.Last {
		return v, nil
	}
	return next, nil
}

// unmask restores secrets where a document contains their mask.
func (v *Values) unmask(pg *valuesDocument) (*valuesDocument, error) {
	hidden := map[string]string{}
	c := &checker{subject: valuesSubject}
	top := valuesSpot(pg.root)
	for _, e := range pg.entries {
		if pg.texts[e.key.Value] != Mask {
			continue
		}
		if was, _ := v.Get(e.key.Value); was.Secret {
			hidden[e.key.Value] = was.Text
		} else {
			c.invalid(top.entry(e.key, e.value), "is %s, the mask of a hidden value; write the value itself", Mask)
		}
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	if len(hidden) == 0 {
		return pg, nil
	}
	return readValuesDocument(pg.replaced(hidden))
}

// Set sets a key to a value, secret or not; a secret stays secret until it is
// deleted. All other bytes of the document stay as they are. Without any
// change, it returns v itself.
func (v *Values) Set(key, text string, secret bool, now time.Time) (*Values, error) {
	if err := CheckSetting(key, text); err != nil {
		return nil, err
	}
	was, had := v.Get(key)
	secret = secret || was.Secret
	if had && was.Text == text && was.Secret == secret {
		return v, nil
	}
	doc := v.document()
	if !had || was.Text != text {
		pg, err := readValuesDocument(doc)
		if err != nil {
			return nil, err
		}
		if !pg.has(key) && len(pg.entries) >= MaxKeys {
			return nil, tooManyKeys(len(pg.entries) + 1)
		}
		doc = pg.set(key, text)
		if pg, err = readValuesDocument(doc); err != nil {
			return nil, err
		}
		if size := pg.size(func(k string) bool { return v.isSecret(k) || secret && k == key }); size > MaxValues {
			return nil, tooManyBytes(size)
		}
	}
	next := v.changed(doc)
	next.Last++
	next.ByKey[key] = Value{Text: text, Secret: secret, CAS: next.Last, Changed: now}
	return next, nil
}

// CheckSetting refuses what no document could contain. The error never shows the text.
func CheckSetting(key, text string) error {
	if why := metadataName(key); why != "" {
		return valueFault("", mariposa.FaultInvalid, "the name of a metadata key "+why)
	}
	switch {
	case len(text) > MaxValue:
		return tooLargeValue(key, len(text))
	case !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0:
		return NotText(key)
	case text == Mask:
		return valueFault(key, mariposa.FaultInvalid, "is "+Mask+", the mask of a hidden value; write the value itself")
	}
	return nil
}

// NotText returns the error for a value that is not valid text.
func NotText(key string) error {
	return valueFault(key, mariposa.FaultInvalid, "must be UTF-8 text without NUL bytes; encode binary data, for example as base64")
}

// Delete removes a key. All other bytes of the document stay as they are; for
// an unknown key it returns v itself.
func (v *Values) Delete(key string) *Values {
	pg, err := readValuesDocument(v.document())
	if err != nil || !pg.has(key) { // a document that was read once can be read again
		return v
	}
	next := v.changed(pg.deleteKey(key))
	delete(next.ByKey, key)
	return next
}

// Add increments or decrements a key; a key that is not set counts from its default, or
// from 0.
func (v *Values) Add(p *Project, key string, by int64, now time.Time) (*Values, error) {
	text, ok := p.Value(v, key)
	if !ok {
		text = "0"
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, valueFault(key, mariposa.FaultInvalid, "is not a whole number, so it cannot be incremented; set it to a number first")
	}
	if (by > 0 && n > math.MaxInt64-by) || (by < 0 && n < math.MinInt64-by) {
		return nil, valueFault(key, mariposa.FaultInvalid, "would exceed the range of a 64-bit integer")
	}
	return v.Set(key, strconv.FormatInt(n+by, 10), p.IsSecret(key), now)
}

// Restore makes old values current again: document, texts and secrets are those
// of old, while the CAS of every key that differs advances.
func (v *Values) Restore(old *Values, now time.Time) *Values {
	next := v.changed(old.document())
	next.ByKey = make(map[string]Value, len(old.Keys()))
	cas := next.Last + 1
	for _, key := range old.Keys() {
		is, had := v.Get(key)
		then := old.ByKey[key]
		secret := is.Secret || then.Secret
		if !had || is.Text != then.Text || is.Secret != secret {
			is = Value{Text: then.Text, Secret: secret, CAS: cas, Changed: now}
			next.Last = cas
		}
		next.ByKey[key] = is
	}
	return next
}

// WithSecretsMarked returns the values with the keys marked that a project declares
// secret.
func (v *Values) WithSecretsMarked(p *Project) *Values {
	if v == nil || p == nil {
		return v
	}
	next := v
	for _, m := range p.Metadata {
		if value, ok := v.ByKey[m.Name]; ok && m.Secret && !value.Secret {
			if next == v {
				next = v.changed(v.Document)
			}
			value.Secret = true
			next.ByKey[m.Name] = value
		}
	}
	return next
}

// Masked returns the document with a mask in place of every secret. Comments
// are shown as they are.
func (v *Values) Masked(mask string) []byte {
	hidden := map[string]string{}
	for _, key := range v.Keys() {
		if v.ByKey[key].Secret {
			hidden[key] = mask
		}
	}
	if len(hidden) == 0 {
		return v.document()
	}
	pg, err := readValuesDocument(v.Document)
	if err != nil { // a document that was read once can be read again; if not, nothing is shown
		return nil
	}
	return pg.replaced(hidden)
}

// Secrets lists the texts that must not be shown, the longest first, so that a
// secret is found before another that is a part of it. Some keys can be left out.
func (v *Values) Secrets(without ...string) []string {
	var texts []string
	for _, key := range v.Keys() {
		if value := v.ByKey[key]; value.Secret && value.Text != "" && !slices.Contains(without, key) {
			texts = append(texts, value.Text)
		}
	}
	slices.SortFunc(texts, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	return slices.Compact(texts)
}

// changed returns a copy to be changed, with another document.
func (v *Values) changed(doc []byte) *Values {
	next := &Values{Document: doc, ByKey: map[string]Value{}}
	if v != nil {
		next.Last = v.Last
		maps.Copy(next.ByKey, v.ByKey)
	}
	return next
}

func (v *Values) document() []byte {
	if v == nil {
		return nil
	}
	return v.Document
}

// sealedValues is the stored form of values, or of a part of them. Texts are left out,
// because the document contains them.
type sealedValues struct {
	Document string               `json:"document"`
	Last     int64                `json:"last,omitempty"`
	Keys     map[string]sealedKey `json:"keys,omitempty"`
	Pad      string               `json:"pad,omitempty"` // hides the lengths of the secrets among them
}

type sealedKey struct {
	Secret  bool      `json:"secret,omitempty"`
	CAS     int64     `json:"cas,omitempty"`
	Changed time.Time `json:"changed,omitzero"`
}

// UnmarshalValues reads values that an earlier release stored without parts.
func UnmarshalValues(data []byte) (*Values, error) {
	var kept sealedValues
	if err := json.Unmarshal(data, &kept); err != nil {
		return nil, mariposa.Errorf(mariposa.Internal, "read stored metadata: %w", err)
	}
	return kept.values()
}

func (kept *sealedValues) values() (*Values, error) {
	v, err := readStoredValues(Modernize([]byte(kept.Document)))
	if err != nil {
		return nil, err
	}
	v.Last = kept.Last
	for key, value := range v.ByKey {
		info := kept.Keys[key]
		value.Secret, value.CAS, value.Changed = info.Secret, info.CAS, info.Changed
		v.ByKey[key] = value
	}
	return v, nil
}
