package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"mariposa"
)

// Keys of JSON documents are matched exactly. Package encoding/json accepts {"Name": …} for
// name, and parsers differ in whether the first or the last of two equal keys counts. A
// check could then look at another value than the code that uses it.

// strictJSON decodes request bodies before they are validated.
var strictJSON = huma.Format{
	Marshal: huma.DefaultJSONFormat.Marshal,
	Unmarshal: func(body []byte, to any) error {
		if _, first := to.(*any); first { // a body is decoded twice: for validation, then into its type
			if err := checkBody(body); err != nil {
				return err
			}
		}
		return huma.DefaultJSONFormat.Unmarshal(body, to)
	},
}

// errRepeatedKey is the error for an object that contains a key twice.
type errRepeatedKey string

func (e errRepeatedKey) Error() string { return string(e) + repeatedKey }

const (
	repeatedKey = " is given more than once"
	maxNesting  = 1000 // far more than any document of the API needs
)

// checkBody returns an error for an object that contains a key twice, and for a string
// that is not valid text. It ignores invalid JSON, which the decoder reports later.
func checkBody(body []byte) error {
	err := newBodyWalker(body).walk("", 0)
	var repeated errRepeatedKey
	var wrong errNotText
	if errors.As(err, &repeated) || errors.As(err, &wrong) {
		return err
	}
	return nil
}

// walk reads one value and stops at the first error. Path is where the value is in the
// document.
func (w *bodyWalker) walk(path string, nesting int) error {
	token, err := w.token(path)
	begins, compound := token.(json.Delim)
	switch {
	case err != nil:
		return err
	case !compound:
		return nil
	case nesting > maxNesting:
		return errTooDeep
	}
	keys := map[string]bool{}
	for n := 0; w.d.More(); n++ {
		at := path + "[" + strconv.Itoa(n) + "]"
		if begins == '{' {
			token, err := w.token(path)
			if err != nil {
				return err
			}
			key, _ := token.(string) // the decoder accepts only strings as keys
			if keys[key] {
				return errRepeatedKey(shortenText(key))
			}
			keys[key] = true
			at = strings.TrimPrefix(path+"."+shortenText(key), ".")
		}
		if err := w.walk(at, nesting+1); err != nil {
			return err
		}
	}
	_, err = w.d.Token() // the closing delimiter
	return err
}

var errTooDeep = errors.New("nested too deeply")

// unmarshalKeys decodes the keys of a JSON object, without duplicates. The error describes
// what the body should be.
func unmarshalKeys(body []byte, should string) (map[string]json.RawMessage, error) {
	if err := checkBody(body); err != nil {
		return nil, jsonFault(err)
	}
	var keys map[string]json.RawMessage
	if json.Unmarshal(body, &keys) != nil {
		return nil, invalid("%s", should)
	}
	return keys, nil
}

// unmarshalExact decodes a JSON object into a flat struct. Every key must match a field
// name exactly and occur once.
func unmarshalExact(body []byte, to any) error {
	if err := checkBody(body); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errMoreJSON
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(body, &keys); err != nil {
		return err
	}
	known := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(to).Elem()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		known[name] = true
	}
	for key := range keys {
		if !known[key] {
			return errUnknownKey{key: key, meant: similarKey(known, key)}
		}
	}
	return nil
}

var errMoreJSON = errors.New("the request body contains more than one JSON document")

// errUnknownKey is the error for a key that differs from a known one only in case.
type errUnknownKey struct{ key, meant string }

func (e errUnknownKey) Error() string { return fmt.Sprintf("%s %s", e.key, unknownKey(e.meant)) }

// unknownKey returns the message for an unknown key, with the similar key if there is one.
func unknownKey(meant string) string {
	if meant == "" {
		return unknownField
	}
	return "is unknown: did you mean " + meant + "? Names are case-sensitive"
}

// similarKey returns the known key that differs from a key only in case, if any.
func similarKey(known map[string]bool, key string) string {
	for one := range known {
		if one != key && strings.EqualFold(one, key) {
			return one
		}
	}
	return ""
}

// keysOfBody is the metadata key of an operation for the field names of its body.
const keysOfBody = "keys"

// gatherKeys collects the field names of a type and its nested types.
func gatherKeys(t reflect.Type, known map[string]bool) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		gatherKeys(t.Elem(), known)
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && !known[name] {
				known[name] = true
				gatherKeys(f.Type, known)
			}
		}
	}
}

// bodyKeys returns all field names of the body of an input.
func bodyKeys(input reflect.Type) map[string]bool {
	known := map[string]bool{}
	if body, ok := input.FieldByName("Body"); ok {
		gatherKeys(body.Type, known)
	}
	return known
}

// suggestKey adds the similar key to the fault about an unknown key, and reports whether
// there is one.
func suggestKey(op *huma.Operation, f *mariposa.Fault) bool {
	known, _ := op.Metadata[keysOfBody].(map[string]bool)
	if f.Code != mariposa.FaultUnknown {
		return false
	}
	meant := similarKey(known, f.Field[strings.LastIndexByte(f.Field, '.')+1:])
	f.Message = unknownKey(meant)
	return meant != ""
}
