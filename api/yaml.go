package api

import (
	"encoding/json"

	"mariposa"
	tree "mariposa/manifest/document"
)

// yamlOf is a version's manifest as YAML: byte for byte as it was submitted, or
// generated if it came as JSON. What was sent as JSON and is none is YAML
// already.
func yamlOf(v *mariposa.VersionSpec) []byte {
	if !v.JSON || !json.Valid(v.Manifest) {
		return v.Manifest
	}
	root, faults := tree.Read(v.Manifest)
	if len(faults) > 0 || root == nil { // it was read before, so nobody comes here
		return v.Manifest
	}
	return tree.Write(root)
}
