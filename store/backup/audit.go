package backup

import (
	"errors"
	"io"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/store/internal/codec"
)

// Audited returns a dump with one more entry at the end of the audit log: that it was
// restored.
func Audited(from store.DumpSource, entry mariposa.Audit, now time.Time) (store.DumpSource, error) {
	a := &audited{DumpSource: from, head: from.Head()}
	entry = store.CleanAudit(entry)
	entry.ID, entry.Time = a.head.Audit.Next(now), now
	var err error
	a.entry, err = codec.EncodeAudit(&entry)
	return a, err
}

type audited struct {
	store.DumpSource
	head  store.DumpHead
	entry *store.EncodedAudit // nil: passed on already
}

func (a *audited) Head() store.DumpHead { return a.head }

func (a *audited) Next() (*store.DumpItem, error) {
	it, err := a.DumpSource.Next()
	if errors.Is(err, io.EOF) && a.entry != nil {
		it, err = &store.DumpItem{Audit: a.entry}, nil
		a.entry = nil
	}
	return it, err
}
