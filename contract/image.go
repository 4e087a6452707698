package contract

import (
	"encoding/json"
	"maps"
	"slices"

	"mariposa"
)

// Image is an image of a version's containers.
type Image struct {
	Image  string `json:"image" doc:"its name in the manifest"`
	Digest string `json:"digest,omitempty" doc:"the image that the name means in this version; absent if that is not known, so that each node uses what the name means there"`
	Reason string `json:"reason,omitempty" doc:"why the digest is not known"`

	Version  string `json:"version,omitempty" doc:"the version that the image's labels name (org.opencontainers.image.version)"`
	Revision string `json:"revision,omitempty" doc:"the revision, such as a commit, that they name (org.opencontainers.image.revision)"`
}

// ImagesOf returns the images of a version, sorted by name.
func ImagesOf(pins map[string]mariposa.ImagePin) []Image {
	all := []Image{}
	for _, name := range slices.Sorted(maps.Keys(pins)) {
		pin := pins[name]
		all = append(all, Image{Image: name, Digest: pin.Digest, Reason: pin.Why, Version: pin.Version, Revision: pin.Revision})
	}
	return all
}

// Refresh is the request to resolve the images of a project again.
type Refresh struct {
	Services []string        `json:"services,omitempty" maxItems:"1000" doc:"names of services, at least one; omit it for all"`
	Message  string          `json:"message,omitempty" maxLength:"1000" doc:"a message for the version history"`
	Rolling  json.RawMessage `json:"rolling,omitempty" doc:"how many instances to replace at a time: a number, or a percentage such as \"25%\""`
	Canary   json.RawMessage `json:"canary,omitempty" doc:"hold the rollout after this many instances: a number or a percentage"`
}
