package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"mariposa"
)

// Keys of JSON documents are matched exactly. Go's own reader takes {"Name": …} for name,
// and of a key that is there twice some readers take the first and others the last: what
// one check looks at, another would not.

// strictJSON is how bodies are read before they are validated.
var strictJSON = huma.Format{
	Marshal: huma.DefaultJSONFormat.Marshal,
	Unmarshal: func(body []byte, to any) error {
		if _, first := to.(*any); first { // it is read twice: to be validated, then into its type
			if err := checkRepeatedKeys(body); err != nil {
				return err
			}
		}
		return huma.DefaultJSONFormat.Unmarshal(body, to)
	},
}

// errRepeatedKey: an object has a key twice.
type errRepeatedKey string

func (e errRepeatedKey) Error() string { return string(e) + repeatedKey }

const (
	repeatedKey = " is given more than once"
	maxNesting  = 1000 // no document of ours comes near it
)

// checkRepeatedKeys looks for an object with a key that is there twice. What is no JSON
// is told by whoever reads it next.
func checkRepeatedKeys(body []byte) error {
	var repeated errRepeatedKey
	if errors.As(walkKeys(json.NewDecoder(bytes.NewReader(body)), 0), &repeated) {
		return repeated
	}
	return nil
}

// walkKeys reads one value; an error ends the walk.
func walkKeys(d *json.Decoder, nesting int) error {
	token, err := d.Token()
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
	for d.More() {
		if begins == '{' {
			token, err := d.Token()
			if err != nil {
				return err
			}
			key, _ := token.(string) // the decoder takes nothing else for a key
			if keys[key] {
				return errRepeatedKey(shortenText(key))
			}
			keys[key] = true
		}
		if err := walkKeys(d, nesting+1); err != nil {
			return err
		}
	}
	_, err = d.Token() // what closes it
	return err
}

var errTooDeep = errors.New("nested too deeply")

// unmarshalKeys reads the keys of a JSON object, each of which must be there once. Otherwise
// it says what the body should be.
func unmarshalKeys(body []byte, should string) (map[string]json.RawMessage, error) {
	if err := checkRepeatedKeys(body); err != nil {
		return nil, jsonFault(err)
	}
	var keys map[string]json.RawMessage
	if json.Unmarshal(body, &keys) != nil {
		return nil, invalid("%s", should)
	}
	return keys, nil
}

// unmarshalExact reads a JSON object into a struct without nested ones. Every key must be
// one of its names, letter for letter, and be there once.
func unmarshalExact(body []byte, to any) error {
	if err := checkRepeatedKeys(body); err != nil {
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

// errUnknownKey: an object has a key that is written differently from one that is known.
type errUnknownKey struct{ key, meant string }

func (e errUnknownKey) Error() string { return fmt.Sprintf("%s %s", e.key, unknownKey(e.meant)) }

// unknownKey says that a key is unknown, and which one may have been meant.
func unknownKey(meant string) string {
	if meant == "" {
		return unknownField
	}
	return "is unknown: did you mean " + meant + "? Names are case-sensitive"
}

// similarKey is the key that differs from another in case alone, if any.
func similarKey(known map[string]bool, key string) string {
	for one := range known {
		if one != key && strings.EqualFold(one, key) {
			return one
		}
	}
	return ""
}

// keysOfBody is where an operation keeps the names of all fields of its body.
const keysOfBody = "keys"

// gatherKeys gathers the names of all fields of a type, and of types within it.
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

// bodyKeys are the names of all fields of the body of an input.
func bodyKeys(input reflect.Type) map[string]bool {
	known := map[string]bool{}
	if body, ok := input.FieldByName("Body"); ok {
		gatherKeys(body.Type, known)
	}
	return known
}

// suggestKey says of an unknown key of a body which one may have been meant, and reports
// whether there is one.
func suggestKey(op *huma.Operation, f *mariposa.Fault) bool {
	known, _ := op.Metadata[keysOfBody].(map[string]bool)
	if f.Code != mariposa.FaultUnknown {
		return false
	}
	meant := similarKey(known, f.Field[strings.LastIndexByte(f.Field, '.')+1:])
	f.Message = unknownKey(meant)
	return meant != ""
}
