package manifest

import (
	"encoding/json"
	"iter"
	"strings"

	"go.yaml.in/yaml/v3"
)

// kind says what a node means to a manifest.
type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindInt
	kindFloat
	kindText
	kindList
	kindMap
	kindRefused // a fault was already reported for it; checks skip it
)

func (k kind) String() string {
	return [...]string{"nothing", "a boolean", "a number", "a number", "a string", "a list", "a mapping", "an unsupported value"}[k]
}

// kindOf returns what a node is. Dates and the like are texts; numbers keep
// their spelling in Value, so that 1.10 stays 1.10.
func kindOf(n *yaml.Node) kind {
	switch n.Kind {
	case yaml.MappingNode:
		return kindMap
	case yaml.SequenceNode:
		return kindList
	case yaml.AliasNode:
		return kindRefused
	case yaml.ScalarNode:
		switch n.Tag {
		case "!!null":
			return kindNull
		case "!!bool":
			return kindBool
		case "!!int":
			return kindInt
		case "!!float":
			return kindFloat
		}
		return kindText
	}
	return kindNull
}

// entriesOf visits the keys of a mapping with their values, in the order of the
// document, including duplicates.
func entriesOf(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; kindOf(n) == kindMap && i < len(n.Content); i += 2 {
			if !yield(n.Content[i], n.Content[i+1]) {
				return
			}
		}
	}
}

// ReadJSON reads a YAML or JSON document into the types of JSON: mappings,
// lists, texts, booleans, nil, and numbers with their spelling.
func ReadJSON(doc []byte) (any, error) {
	root, faults := read(doc)
	if len(faults) > 0 {
		return nil, (&checker{subject: "the document", faults: faults}).err()
	}
	return jsonOf(root), nil
}

func jsonOf(n *yaml.Node) any {
	switch kindOf(n) {
	case kindMap:
		all := make(map[string]any, len(n.Content)/2)
		for key, value := range entriesOf(n) {
			all[key.Value] = jsonOf(value)
		}
		return all
	case kindList:
		all := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			all = append(all, jsonOf(item))
		}
		return all
	case kindBool:
		return strings.EqualFold(n.Value, "true")
	case kindNull, kindRefused:
		return nil
	case kindInt, kindFloat:
		if json.Valid([]byte(n.Value)) { // otherwise a form that only YAML has
			return json.Number(n.Value)
		}
	}
	return n.Value
}
