package mariposa

import (
	"fmt"
	"time"
)

// MetadataSpec is one generation of a project's metadata: every key with its
// value, sealed. A generation never changes; versions refer to one by number.
//
// The values are in parts, which a generation shares with the one before it as far as
// they did not change. A generation from before that has no parts and holds all of them
// itself.
type MetadataSpec struct {
	Project string    `json:"project"`
	Number  int       `json:"number"`
	Sealed  []byte    `json:"sealed"` // with Parts: what is left to say of the whole
	Parts   []PartRef `json:"parts,omitempty"`
	Created time.Time `json:"created"`
}

// PartRef names a part of a generation: the generation that made it, and which of its
// parts it is.
type PartRef struct {
	Generation int    `json:"g"`
	Index      int    `json:"n"`
	Digest     string `json:"d"` // keyed: by it the next generation finds what it can share
	Size       int64  `json:"s"` // how many bytes it takes up in a store
}

// ID is the id of the part in the store.
func (p PartRef) ID(project string) string {
	return fmt.Sprintf("%s/%08d/%05d", project, p.Generation, p.Index)
}

// PartSpec is a piece of a project's values, sealed. It never changes. It is used by
// the generation that made it and by those right after it, so whether one can go is
// seen from the generations next to the one that goes.
type PartSpec struct {
	Sealed []byte `json:"sealed"`
}

// PartStatus is empty.
type PartStatus struct{}

// MetadataStatus is empty.
type MetadataStatus struct{}

// MetadataID is the id of a generation in the store. The ids of one project sort
// by number.
func MetadataID(project string, number int) string { return fmt.Sprintf("%s/%08d", project, number) }

// Approval says that an operator has looked at a version, and that it may use
// protected secrets. It is of a content, not of a number: a version with another
// manifest or other values needs an approval of its own, and one that brings an
// approved content back needs none.
type Approval struct {
	Content string    `json:"content"` // a digest of what was approved
	Number  int       `json:"number"`  // the version that was looked at
	By      string    `json:"by"`
	At      time.Time `json:"at"`
}

// Approval finds the approval of a content; nil: there is none.
func (s *ProjectSpec) Approval(content string) *Approval {
	for i := range s.Approvals {
		if s.Approvals[i].Content == content {
			return &s.Approvals[i]
		}
	}
	return nil
}

// AwaitsApproval is why a version does not come into force: it uses protected secrets,
// and no operator has approved it.
func AwaitsApproval(number int, uses []string) *Reason {
	return &Reason{Code: ReasonWaitsApproval, Version: number, Keys: uses}
}

// KeySpec is a key that seals what belongs to one owner, itself sealed with a
// key that is kept outside the store.
type KeySpec struct {
	Owner   string    `json:"owner"`   // a project's id, or StoreKey
	Key     string    `json:"key"`     // the name of the outer key
	Wrapped []byte    `json:"wrapped"` // this key, sealed with the outer one
	Created time.Time `json:"created"`
}

// KeyStatus is empty.
type KeyStatus struct{}

// StoreKey owns the key that seals what belongs to no project.
const StoreKey = "store"

// AnswerSpec is the answer to a change, kept for retries with the same
// Idempotency-Key. Its id is a hash of the caller and the key.
type AnswerSpec struct {
	Request string    `json:"request"` // a keyed hash of the request
	Status  int       `json:"status"`
	Sealed  []byte    `json:"sealed"` // the answer's body
	Created time.Time `json:"created"`
}

// AnswerStatus is empty.
type AnswerStatus struct{}

// PackageSpec is a named size that operators offer. Its id is its name.
type PackageSpec struct {
	Name     string    `json:"name"`
	Family   string    `json:"family,omitempty"`
	Memory   int64     `json:"memory"`
	MilliCPU int64     `json:"milli_cpu"`
	Disk     int64     `json:"disk,omitempty"`
	Created  time.Time `json:"created"`
	Author   string    `json:"author,omitempty"`
}

// PackageStatus is empty.
type PackageStatus struct{}
