package store

import (
	"time"

	"mariposa"
)

// Schema is the version of the stored form: the number of the newest migration, which is
// the same in every durable store. A dump of a newer schema cannot be restored.
const Schema = 7

// DumpHead describes the state that a dump contains.
type DumpHead struct {
	Identity
	Schema   int
	Revision int64     // the newest one
	Trimmed  int64     // the log is complete after it
	Audit    AuditMark // the end of the audit log
	Time     time.Time // when it was read, by the store's clock
}

// DumpItem is one item of a dump, as the store keeps it. Exactly one field is set.
type DumpItem struct {
	Object *EncodedObject
	Chunk  *EncodedChunk
	Lease  *Lease
	Claim  *NodeClaim
	Audit  *EncodedAudit
}

// EncodedObject is an object whose halves are encoded (see package codec).
type EncodedObject struct {
	Kind           mariposa.Kind
	ID             string
	Project        string
	Archived       bool
	Revision       int64
	SpecRevision   int64
	StatusRevision int64
	Spec           []byte
	Status         []byte // nil: there is none
}

// EncodedChunk is the encoded changes of one commit.
type EncodedChunk struct {
	First, Last int64
	At          time.Time
	Body        []byte
}

// NodeClaim is what is claimed of one node, or of the quota of an organization.
type NodeClaim struct {
	Node  string
	Taken mariposa.Resources
}

// EncodedAudit is an encoded entry of the audit log.
type EncodedAudit struct {
	ID   int64
	At   time.Time
	Body []byte
}

// Dump receives everything that a store contains, in one state: first Head, then the
// items. An error of either ends the dump and is returned.
type Dump struct {
	Head func(DumpHead) error
	Item func(*DumpItem) error
}

// DumpSource yields the items of a dump to a store that is restored from it.
type DumpSource interface {
	// Head describes the dump.
	Head() DumpHead
	// Next returns the next item, and io.EOF after the last one. It returns io.EOF only
	// if the dump was read completely and is undamaged.
	Next() (*DumpItem, error)
}

// revisionStep is the distance between the revisions of two incarnations.
const revisionStep = 1_000_000_000

// RestoredRevision returns the revision at which a restored store continues: above all
// that the backup contains, all that the store contained that it replaces (zero: none)
// and what was lost since. So a revision that a client has seen in the time that is lost
// (as the position in the event feed, or as the condition of a change) never denotes
// another change.
func RestoredRevision(dumped, replaced int64) int64 {
	return (max(dumped, replaced)/revisionStep + 1) * revisionStep
}
