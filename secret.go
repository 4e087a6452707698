package mariposa

import (
	"fmt"
	"time"
)

// MetadataSpec is one generation of a project's metadata: every key with its value,
// encrypted. A generation never changes; versions refer to one by number.
//
// The values are split into parts, which a generation shares with the previous one if
// they did not change. Generations of older releases have no parts and contain all
// values themselves.
type MetadataSpec struct {
	Project string    `json:"project"`
	Number  int       `json:"number"`
	Sealed  []byte    `json:"sealed"` // with Parts: the rest of the document
	Parts   []PartRef `json:"parts,omitempty"`
	Created time.Time `json:"created"`
}

// PartRef identifies a part of a generation: the generation that created it, and its
// index there.
type PartRef struct {
	Generation int    `json:"g"`
	Index      int    `json:"n"`
	Digest     string `json:"d"` // a keyed digest, by which the next generation finds the parts that it can share
	Size       int64  `json:"s"` // how many bytes it uses in a store
}

// ID is the id of the part in the store.
func (p PartRef) ID(project string) string {
	return fmt.Sprintf("%s/%08d/%05d", project, p.Generation, p.Index)
}

// PartSpec is an encrypted part of a project's values. It never changes. It is used by
// the generation that created it and by those directly after it, so the neighbours of a
// deleted generation show whether the part is still in use.
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

// Approval records that an operator approved a version, so it may use protected secrets.
// It is for a content, not for a number: a version with another manifest or other values
// needs its own approval, and one that restores an approved content needs none.
type Approval struct {
	Content string    `json:"content"` // a digest of what was approved
	Number  int       `json:"number"`  // the version that was reviewed
	By      string    `json:"by"`
	At      time.Time `json:"at"`
}

// Approval returns the approval of a content; nil if there is none.
func (s *ProjectSpec) Approval(content string) *Approval {
	for i := range s.Approvals {
		if s.Approvals[i].Content == content {
			return &s.Approvals[i]
		}
	}
	return nil
}

// AwaitsApproval is why a version does not come into force: it uses protected secrets
// and no operator has approved it.
func AwaitsApproval(number int, uses []string) *Reason {
	return &Reason{Code: ReasonWaitsApproval, Version: number, Keys: uses}
}

// KeySpec is a key that encrypts the data of one owner. It is itself encrypted with a
// key that is kept outside the store.
type KeySpec struct {
	Owner   string    `json:"owner"`   // a project's id, or StoreKey
	Key     string    `json:"key"`     // the name of the outer key
	Wrapped []byte    `json:"wrapped"` // this key, encrypted with the outer one
	Created time.Time `json:"created"`
}

// KeyStatus is empty.
type KeyStatus struct{}

// StoreKey is the owner of the key that encrypts data of no project.
const StoreKey = "store"

// AnswerSpec is the response to a change, kept for retries with the same
// Idempotency-Key. Its id is a hash of the caller and the key.
type AnswerSpec struct {
	Request string    `json:"request"` // a keyed hash of the request
	Status  int       `json:"status"`
	Sealed  []byte    `json:"sealed"` // the body of the response
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
