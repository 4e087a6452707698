package backup

import (
	"encoding/binary"
	"time"

	"mariposa"
	"mariposa/store"
)

// An item is a letter for its kind, then its fields: numbers as varints, texts with their
// length in front. Times are nanoseconds since 1970, 0 for none. What the bytes of an
// object, a chunk and an audit entry mean is up to the stores, which all encode them in
// the same way.
const (
	itemObject = 'o'
	itemChunk  = 'c'
	itemLease  = 'l'
	itemClaim  = 'n'
	itemAudit  = 'a'
)

func appendItem(b []byte, it *store.DumpItem) []byte {
	switch {
	case it.Object != nil:
		o := it.Object
		b = append(b, itemObject)
		b = appendBytes(b, string(o.Kind))
		b = appendBytes(b, o.ID)
		b = appendBytes(b, o.Project)
		b = append(b, flags(o.Archived, o.Status != nil))
		b = binary.AppendVarint(b, o.Revision)
		b = binary.AppendVarint(b, o.SpecRevision)
		b = binary.AppendVarint(b, o.StatusRevision)
		b = appendBytes(b, o.Spec)
		return appendBytes(b, o.Status)
	case it.Chunk != nil:
		c := it.Chunk
		b = append(b, itemChunk)
		b = binary.AppendVarint(b, c.First)
		b = binary.AppendVarint(b, c.Last)
		b = appendTime(b, c.At)
		return appendBytes(b, c.Body)
	case it.Lease != nil:
		l := it.Lease
		b = append(b, itemLease)
		b = appendBytes(b, l.Name)
		b = appendBytes(b, l.Holder)
		b = binary.AppendVarint(b, l.Epoch)
		return appendTime(b, l.Until)
	case it.Claim != nil:
		c := it.Claim
		b = append(b, itemClaim)
		b = appendBytes(b, c.Node)
		b = binary.AppendVarint(b, int64(c.Taken.Instances))
		b = binary.AppendVarint(b, c.Taken.MilliCPU)
		return binary.AppendVarint(b, c.Taken.Memory)
	case it.Audit != nil:
		a := it.Audit
		b = append(b, itemAudit)
		b = binary.AppendVarint(b, a.ID)
		b = appendTime(b, a.At)
		return appendBytes(b, a.Body)
	}
	return b
}

func flags(archived, status bool) (f byte) {
	if archived {
		f |= 1
	}
	if status {
		f |= 2
	}
	return f
}

func appendBytes[S string | []byte](b []byte, s S) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return binary.AppendVarint(b, 0)
	}
	return binary.AppendVarint(b, t.UnixNano())
}

// readItem reads the first item of a block, and returns the rest.
func readItem(b []byte) (*store.DumpItem, []byte, error) {
	f := &fields{rest: b[1:]}
	it := &store.DumpItem{}
	switch b[0] {
	case itemObject:
		o := &store.EncodedObject{Kind: mariposa.Kind(f.bytes()), ID: string(f.bytes()), Project: string(f.bytes())}
		set := f.byte()
		o.Archived = set&1 != 0
		o.Revision, o.SpecRevision, o.StatusRevision = f.number(), f.number(), f.number()
		o.Spec = f.bytes()
		if status := f.bytes(); set&2 != 0 {
			o.Status = status
		}
		it.Object = o
	case itemChunk:
		it.Chunk = &store.EncodedChunk{First: f.number(), Last: f.number(), At: f.time(), Body: f.bytes()}
	case itemLease:
		it.Lease = &store.Lease{Name: string(f.bytes()), Holder: string(f.bytes()), Epoch: f.number(), Until: f.time()}
	case itemClaim:
		it.Claim = &store.NodeClaim{Node: string(f.bytes())}
		it.Claim.Taken = mariposa.Resources{Instances: int(f.number()), MilliCPU: f.number(), Memory: f.number()}
	case itemAudit:
		it.Audit = &store.EncodedAudit{ID: f.number(), At: f.time(), Body: f.bytes()}
	default:
		f.bad = true
	}
	if f.bad {
		return nil, nil, damaged("an item is wrong")
	}
	return it, f.rest, nil
}

// fields parses an item; once bad, it yields only zeros.
type fields struct {
	rest []byte
	bad  bool
}

func (f *fields) byte() byte {
	if len(f.rest) == 0 {
		f.bad = true
		return 0
	}
	b := f.rest[0]
	f.rest = f.rest[1:]
	return b
}

func (f *fields) number() int64 {
	n, size := binary.Varint(f.rest)
	if size <= 0 {
		f.bad = true
		return 0
	}
	f.rest = f.rest[size:]
	return n
}

func (f *fields) bytes() []byte {
	n, size := binary.Uvarint(f.rest)
	if size <= 0 || n > uint64(len(f.rest)-size) {
		f.bad = true
		return nil
	}
	f.rest = f.rest[size:]
	b := f.rest[:n:n]
	f.rest = f.rest[n:]
	return b
}

func (f *fields) time() time.Time {
	n := f.number()
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}
