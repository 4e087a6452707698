package agent

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// snapshotTimeout bounds a change of a snapshot: the memory of an instance is written or read.
const snapshotTimeout = 15 * time.Minute

// failedSnapshotAge is how long a change that failed is shown.
const failedSnapshotAge = 10 * time.Minute

// snapshots are the changes of snapshots on a node: those in progress, and for a while the last one
// of each instance that failed after its request had given up.
type snapshots struct {
	mu  sync.Mutex
	all map[string]*snapshotChange // by instance
}

// maxFailedSnapshots bounds the failed changes that are kept.
const maxFailedSnapshots = 1000

type snapshotChange struct {
	wire.Saving
	done  chan struct{}
	err   error // once done
	ended time.Time
}

func (c *snapshotChange) isDone() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// begin registers a change, unless another one of the same instance is in progress.
func (s *snapshots) begin(instance string, o wire.Saving) (*snapshotChange, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.all[instance]; c != nil && !c.isDone() {
		return nil, mariposa.Errorf(mariposa.Conflict, "another request is in progress: %s snapshot %s; wait until it is done", c.To, c.Name)
	}
	if s.all == nil {
		s.all = map[string]*snapshotChange{}
	}
	if len(s.all) >= maxFailedSnapshots {
		for id, c := range s.all {
			if c.isDone() {
				delete(s.all, id)
			}
		}
	}
	c := &snapshotChange{Saving: o, done: make(chan struct{})}
	s.all[instance] = c
	return c, nil
}

// end records the result of a change.
func (s *snapshots) end(instance string, c *snapshotChange, err error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.err, c.ended = err, now
	close(c.done)
	if err == nil {
		delete(s.all, instance)
	}
}

// forget drops a change whose result was returned.
func (s *snapshots) forget(instance string, c *snapshotChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[instance] == c {
		delete(s.all, instance)
	}
}

// describe adds what happens to snapshots, or what failed last, to a list of an instance's
// snapshots.
func (s *snapshots) describe(instance string, all []mariposa.Snapshot, now time.Time) []mariposa.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.all[instance]
	if c != nil && c.isDone() && now.Sub(c.ended) >= failedSnapshotAge {
		delete(s.all, instance)
		c = nil
	}
	if c == nil {
		return all
	}
	state, reason := c.To, ""
	if c.isDone() {
		state, reason = mariposa.SnapshotFailed, c.err.Error()
	}
	n := slices.IndexFunc(all, func(s mariposa.Snapshot) bool { return s.Name == c.Name })
	if n < 0 {
		return append(all, mariposa.Snapshot{Name: c.Name, State: state, Reason: reason})
	}
	all[n].State, all[n].Reason = state, reason
	return all
}

// handleSnapshots lists or changes the snapshots of an instance.
func (s *streams) handleSnapshots(ctx context.Context, st *wire.Stream, of streamTarget, o *wire.Saving) error {
	if of.instance.ID == "" || of.isForeign {
		return mariposa.Errorf(mariposa.Unavailable, "the instance is not on this node")
	}
	d, ok := of.driver.(driver.Snapshotter)
	if !ok {
		return mariposa.Errorf(mariposa.Conflict, "instances of compute type %s have no snapshots", of.compute)
	}
	if o.To == "" {
		all, err := d.Snapshots(ctx, of.instance.ID)
		if err != nil {
			return snapshotError(err)
		}
		b, err := json.Marshal(s.n.snapshots.describe(of.instance.ID, all, s.n.Clock.Now()))
		if err == nil {
			_, err = st.Write(b)
		}
		return err
	}
	c, err := s.n.snapshots.begin(of.instance.ID, *o)
	if err != nil {
		return err
	}
	s.n.changeSnapshot(of.instance.ID, d, c)
	select {
	case <-c.done:
		if ctx.Err() == nil { // else nobody hears of it
			s.n.snapshots.forget(of.instance.ID, c)
		}
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// changeSnapshot carries out a change. It outlives the connection, but not the agent.
func (n *Node) changeSnapshot(id string, d driver.Snapshotter, c *snapshotChange) {
	work := map[mariposa.SnapshotState]func(ctx context.Context, id, name string) error{
		mariposa.SnapshotCreating: d.Snapshot, mariposa.SnapshotRestoring: d.Restore, mariposa.SnapshotDeleting: d.DeleteSnapshot,
	}[c.To]
	if work == nil {
		n.snapshots.end(id, c, mariposa.Errorf(mariposa.InvalidArgument, "unknown snapshot request %q", c.To), n.Clock.Now())
		return
	}
	n.inbox.Put(func(ctx context.Context) {
		go func() { // ends with the change
			ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
			defer cancel()
			n.snapshots.end(id, c, snapshotError(work(ctx, id, c.Name)), n.Clock.Now())
		}()
	})
}

func snapshotError(err error) error {
	var fault *driver.CommandError
	switch {
	case errors.As(err, &fault):
		return mariposa.Errorf(mariposa.Conflict, "%w", err)
	case errors.Is(err, driver.ErrNotFound):
		return mariposa.Errorf(mariposa.Conflict, "the instance has not been started yet")
	}
	return err
}
