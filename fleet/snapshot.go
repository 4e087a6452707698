package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"mariposa"
	"mariposa/wire"
)

// maxSnapshotList bounds a node's list of snapshots, in bytes.
const maxSnapshotList = 64 << 10

// Snapshots lists the snapshots of an instance, the oldest first.
func (f *Fleet) Snapshots(ctx context.Context, node, instance string) (all []mariposa.Snapshot, err error) {
	r, err := f.read(ctx, node, wire.Open{Instance: instance, Snapshot: &wire.Saving{}})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if err := json.NewDecoder(io.LimitReader(timedReader{r}, maxSnapshotList)).Decode(&all); err != nil {
		return nil, err
	}
	for n := range all {
		s := &all[n]
		s.Name, s.Reason, s.Created = clean(shorten(s.Name, 64)), clean(shorten(s.Reason, maxReason)), s.Created.UTC()
		s.State = mariposa.SnapshotState(clean(shorten(string(s.State), 64)))
	}
	return all, nil
}

// ChangeSnapshot creates, restores or deletes a snapshot of an instance. If that takes longer
// than the context lasts, it continues, and done is false.
func (f *Fleet) ChangeSnapshot(ctx context.Context, node, instance string, o wire.Saving) (done bool, err error) {
	st, err := f.openStream(ctx, node, wire.Open{Instance: instance, Snapshot: &o})
	if err != nil {
		return false, err
	}
	defer st.Close()
	defer context.AfterFunc(ctx, func() { _ = st.Close() })()
	for {
		m, err := st.next()
		switch {
		case m.Error != "":
			return false, nodeError(m)
		case errors.Is(err, io.EOF):
			return true, nil
		case err != nil && ctx.Err() != nil:
			return false, nil
		case err != nil:
			return false, mariposa.Errorf(mariposa.Unavailable, "the connection to node %s was lost: list the snapshots to see the result", st.node)
		}
	}
}
