package api

import (
	"mariposa"
	"mariposa/manifest"
)

// yamlOf returns a version's manifest as YAML: byte for byte as submitted, or
// generated if it came as JSON.
func yamlOf(v *mariposa.VersionSpec) []byte {
	if !v.JSON {
		return v.Manifest
	}
	return manifest.AsYAML(v.Manifest)
}
