package codec

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"mariposa"
	"mariposa/store"
)

// A chunk is one byte for the version of the format, then its changes in order. A change
// is a byte of flags, then numbers as varints and strings with their length in front.
// The revision of a change follows from its position in the chunk and is not stored.
//
// A thinned chunk, from which changes were removed, has another version. There, each
// change is preceded by a varint: how many changes were removed directly before it.
const (
	chunkVersion   = 1
	thinnedVersion = 2
)

const (
	flagDeleted = 1 << iota
	flagSpec
	flagStatus
	flagArchived
	flagReason // the event's reason is JSON; else it is text
)

var errDamaged = errors.New("the change log is damaged")

// Chunk is the changes of one commit, encoded.
type Chunk struct {
	Body  []byte
	Size  int   // before compression
	Sizes []int // of each change before compression; valid until the next call of Chunk
}

// Chunk encodes the changes of one commit; objects contains the encoded record of each
// change. The caller owns the body.
func (c *Codec) Chunk(changes []store.Change, objects []*Object) (Chunk, error) {
	b := append(c.plain[:0], chunkVersion)
	c.sizes = c.sizes[:0]
	for i := range changes {
		if err := objects[i].Encode(); err != nil {
			return Chunk{}, err
		}
		reason, coded, err := c.encodeReason(changes[i].Event.Reason)
		if err != nil {
			return Chunk{}, err
		}
		before := len(b)
		b = appendChange(b, &changes[i], objects[i], reason, coded)
		c.sizes = append(c.sizes, len(b)-before)
	}
	c.plain = b
	if cap(c.plain) > 16<<20 { // release the memory of one huge commit
		c.plain = nil
	}
	return Chunk{Body: c.encoder.EncodeAll(b, make([]byte, 0, len(b)/4+64)), Size: len(b), Sizes: c.sizes}, nil
}

// encodeReason encodes the reason of an event. Consecutive changes mostly have the same
// one.
func (c *Codec) encodeReason(r *mariposa.Reason) (text string, coded bool, err error) {
	if text, only := r.PlainText(); only {
		return text, false, nil
	}
	if c.lastReason != r {
		b, err := json.Marshal(r)
		if err != nil {
			return "", false, err
		}
		c.lastReason, c.lastReasonJSON = r, string(b)
	}
	return c.lastReasonJSON, true, nil
}

func appendChange(b []byte, c *store.Change, o *Object, reason string, coded bool) []byte {
	var flags byte
	if c.Deleted {
		flags |= flagDeleted
	}
	if c.Spec {
		flags |= flagSpec
	}
	if c.Status {
		flags |= flagStatus
	}
	if c.Record.Archived {
		flags |= flagArchived
	}
	if coded {
		flags |= flagReason
	}
	b = append(b, flags)
	b = appendString(b, string(c.Record.Kind))
	b = appendString(b, c.Record.ID)
	b = appendString(b, c.Record.Project)
	b = binary.AppendUvarint(b, uint64(c.Record.Revision))
	b = binary.AppendUvarint(b, uint64(c.Record.SpecRevision))
	b = binary.AppendUvarint(b, uint64(c.Record.StatusRevision))
	e := &c.Event
	for _, s := range [...]string{e.Kind, e.Project, e.Service, e.Instance, e.Node, e.Task, e.Actor, reason} {
		b = appendString(b, s)
	}
	if c.Record.Kind.Unlogged() {
		return append(b, 0, 0)
	}
	b = appendString(b, o.SpecJSON)
	return appendString(b, o.StatusJSON)
}

func appendString[S string | []byte](b []byte, s S) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// Entry is a change whose halves are still encoded, so that a reader that needs few of
// many changes decodes only those.
type Entry struct {
	change     store.Change
	spec, stat []byte
}

// Head is the change without the halves of its record.
func (e *Entry) Head() *store.Change { return &e.change }

// Size is the approximate size of the change in memory.
func (e *Entry) Size() int { return len(e.spec) + len(e.stat) + 100 }

// Change decodes the whole change.
func (e *Entry) Change() (store.Change, error) {
	c := e.change
	var err error
	c.Record.Spec, c.Record.Status, err = decode(c.Record.Kind, e.spec, e.stat)
	if err != nil {
		return store.Change{}, fmt.Errorf("revision %d: %w", c.Revision, err)
	}
	return c, nil
}

// Entries expands a chunk whose first change has the revision first.
func (c *Codec) Entries(first int64, at time.Time, body []byte) ([]Entry, error) {
	var entries []Entry
	err := c.eachEntry(first, body, func(e Entry, _ []byte) {
		e.change.Time = at
		entries = append(entries, e)
	})
	return entries, err
}

// eachEntry calls visit with the entries of a chunk and the bytes of each.
func (c *Codec) eachEntry(first int64, body []byte, visit func(e Entry, encoded []byte)) error {
	plain, err := c.decoder.DecodeAll(body, nil)
	if err != nil {
		return fmt.Errorf("%w at revision %d: %w", errDamaged, first, err)
	}
	if len(plain) == 0 || plain[0] != chunkVersion && plain[0] != thinnedVersion {
		return fmt.Errorf("%w at revision %d: unknown format", errDamaged, first)
	}
	r := reader{rest: plain[1:]}
	for revision := first; len(r.rest) > 0; revision++ {
		if plain[0] == thinnedVersion {
			revision += r.number()
		}
		from := r.rest
		e := r.entry()
		if r.bad || revision < first {
			return fmt.Errorf("%w at revision %d: unexpected end", errDamaged, first)
		}
		e.change.Revision = revision
		visit(e, from[:len(from)-len(r.rest)])
	}
	return nil
}

// reader parses a chunk; once bad, it yields only zeros.
type reader struct {
	rest []byte
	bad  bool
	// The last reason and its encoding: the next one is mostly the same.
	lastReason     *mariposa.Reason
	lastReasonJSON []byte
}

func (r *reader) entry() Entry {
	if r.bad || len(r.rest) == 0 {
		r.bad = true
		return Entry{}
	}
	flags := r.rest[0]
	r.rest = r.rest[1:]
	var e Entry
	c := &e.change
	c.Deleted, c.Spec, c.Status = flags&flagDeleted != 0, flags&flagSpec != 0, flags&flagStatus != 0
	c.Record.Archived = flags&flagArchived != 0
	c.Record.Kind = mariposa.Kind(r.bytes())
	c.Record.ID = string(r.bytes())
	c.Record.Project = string(r.bytes())
	c.Record.Revision = r.number()
	c.Record.SpecRevision = r.number()
	c.Record.StatusRevision = r.number()
	v := &c.Event
	for _, s := range [...]*string{&v.Kind, &v.Project, &v.Service, &v.Instance, &v.Node, &v.Task, &v.Actor} {
		*s = string(r.bytes())
	}
	v.Reason = r.reason(flags&flagReason != 0)
	e.spec = r.bytes()
	e.stat = r.bytes()
	return e
}

func (r *reader) reason(coded bool) *mariposa.Reason {
	b := r.bytes()
	if !coded {
		return mariposa.TextReason(string(b))
	}
	if r.lastReason == nil || !bytes.Equal(b, r.lastReasonJSON) {
		reason := new(mariposa.Reason)
		if json.Unmarshal(b, reason) != nil {
			r.bad = true
			return nil
		}
		r.lastReason, r.lastReasonJSON = reason, b
	}
	return r.lastReason
}

func (r *reader) number() int64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.bad = true
		return 0
	}
	r.rest = r.rest[size:]
	return int64(n)
}

func (r *reader) bytes() []byte {
	n := r.number()
	if r.bad || n < 0 || n > int64(len(r.rest)) {
		r.bad = true
		return nil
	}
	s := r.rest[:n:n]
	r.rest = r.rest[n:]
	return s
}
