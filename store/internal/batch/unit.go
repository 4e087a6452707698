package batch

import (
	"fmt"

	"mariposa"
	"mariposa/store"
	"mariposa/store/internal/codec"
)

// Unit is a unit prepared on its caller's goroutine, so that the writer only has to
// write it.
type Unit struct {
	*store.Unit
	Halves  []Halves // of each write
	Entries []Entry  // for the audit log
	Err     error    // why it can never be written
}

// Halves are the encoded halves that a write replaces.
type Halves struct{ Spec, Status []byte }

// Entry is an encoded entry of the audit log. The group adds its id and time.
type Entry struct {
	mariposa.Audit
	JSON []byte
}

// Prepare checks and encodes units.
func Prepare(units []store.Unit) []Unit {
	ready := make([]Unit, len(units))
	for i := range units {
		ready[i] = Unit{Unit: &units[i]}
		ready[i].Halves, ready[i].Err = encode(&units[i])
		if len(units[i].Audit) > 0 && ready[i].Err == nil {
			ready[i].Entries, ready[i].Err = encodeAudit(units[i].Audit)
		}
	}
	return ready
}

func encodeAudit(audit []mariposa.Audit) ([]Entry, error) {
	entries := make([]Entry, len(audit))
	for i := range audit {
		e := &entries[i]
		e.Audit = store.CleanAudit(audit[i])
		var err error
		if e.JSON, err = codec.Audit(&e.Audit); err != nil {
			return nil, fmt.Errorf("audit of %s: %w", e.Action, err)
		}
	}
	return entries, nil
}

func encode(u *store.Unit) ([]Halves, error) {
	if err := u.Check(); err != nil {
		return nil, err
	}
	halves := make([]Halves, len(u.Writes))
	for i := range u.Writes {
		w := &u.Writes[i]
		if w.Delete {
			continue
		}
		var err error
		if halves[i].Spec, err = codec.Half(w.Spec); err != nil {
			return nil, fmt.Errorf("spec of %s %s: %w", w.Kind, w.ID, err)
		}
		if halves[i].Status, err = codec.Half(w.Status); err != nil {
			return nil, fmt.Errorf("status of %s %s: %w", w.Kind, w.ID, err)
		}
	}
	return halves, nil
}
