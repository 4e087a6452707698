package manifest

import (
	_ "embed"

	"mariposa"
)

// MaxBytes is the size of the largest manifest that is accepted.
const MaxBytes = 1 << 20

// Project is a validated manifest. It is shared and immutable.
type Project struct {
	Services      []*mariposa.Service // sorted by name
	ByName        map[string]*mariposa.Service
	Networks      []Network      // sorted by name
	Volumes       []Volume       // sorted by name
	LoadBalancers []LoadBalancer // sorted by name
	Metadata      []Metadata     // sorted by name

	paths map[string][]string // by service: its references to metadata and to other services
}

// Network is a network: of the project alone, or shared with others of its
// organization.
type Network struct {
	Name   string
	Shared bool
}

// Volume is storage that outlives instances.
type Volume struct {
	Name   string
	Size   int64 // bytes; 0: no limit
	Shared bool  // one for all instances that use it, instead of one for each slot
}

// LoadBalancer spreads connections over the serving instances of services. It is run by
// instances of the service with its name.
type LoadBalancer struct {
	Name string
	mariposa.Balancer
}

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema of manifests, for editors. It covers the
// shape; only Parse checks references, cycles and what is not supported yet.
func Schema() []byte { return append([]byte(nil), schema...) }
