package bench

import (
	"context"
	"sync"
	"time"

	"mariposa"
	"mariposa/store"
)

// follower reads the feed like any external client and keeps the counts that the
// benchmark waits for.
type follower struct {
	st store.Store

	mu       sync.Mutex
	moved    *sync.Cond
	running  map[string]int // project -> running instances whose goal is running
	at       map[string]int // project -> instances created from the requested version or a newer one
	number   map[string]int // project -> that version
	state    map[string]seen
	replaced map[string]time.Time // name of the dead instance -> when its replacement was assigned
	repaired map[string]bool      // name of the dead instance -> its replacement has run
	err      error
}

type seen struct {
	project string
	node    string
	name    string
	number  int
	up      bool
	repair  bool
}

func follow(ctx context.Context, st store.Store) *follower {
	f := &follower{
		st: st, running: map[string]int{}, at: map[string]int{}, number: map[string]int{}, state: map[string]seen{},
		replaced: map[string]time.Time{}, repaired: map[string]bool{},
	}
	f.moved = sync.NewCond(&f.mu)
	go f.run(ctx)
	return f
}

func (f *follower) run(ctx context.Context) {
	var at int64
	for ctx.Err() == nil {
		changes, err := f.st.Changes(ctx, at, 10_000)
		if err == nil && len(changes) == 0 {
			err = f.st.Wait(ctx, at)
		}
		f.mu.Lock()
		for i := range changes {
			f.apply(&changes[i])
			at = changes[i].Revision
		}
		if ctx.Err() == nil && err != nil {
			f.err = err
		}
		f.moved.Broadcast()
		f.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (f *follower) apply(c *store.Change) {
	spec, ok := c.Record.Spec.(*mariposa.InstanceSpec)
	if !ok {
		return
	}
	old, known := f.state[c.Record.ID]
	if old.up {
		f.running[old.project]--
		if old.number >= f.number[old.project] {
			f.at[old.project]--
		}
	}
	if c.Deleted {
		delete(f.state, c.Record.ID)
		return
	}
	repair := spec.Reason.Is(mariposa.ReasonReplacesFailed, mariposa.ReasonReplacesUnhealthy, mariposa.ReasonReplacesLost)
	if repair && !known {
		f.replaced[spec.Reason.Subject] = c.Time
	}
	status, _ := c.Record.Status.(*mariposa.InstanceStatus)
	s := seen{
		project: spec.Project, node: spec.Node, name: spec.Name, number: spec.Number,
		repair: repair,
		up:     spec.Goal == mariposa.GoalRunning && status != nil && status.State == mariposa.StateRunning,
	}
	f.state[c.Record.ID] = s
	if s.up {
		if repair {
			f.repaired[spec.Reason.Subject] = true
		}
		f.running[s.project]++
		if s.number >= f.number[s.project] {
			f.at[s.project]++
		}
	}
}

// until waits until a condition on the counts is true.
func (f *follower) until(ctx context.Context, ok func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.moved.Broadcast()
	})
	defer stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for !ok() {
		if f.err != nil {
			return f.err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f.moved.Wait()
	}
	return nil
}

// countFrom starts to count the instances created from a version or a newer one.
func (f *follower) countFrom(project string, number int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.number[project], f.at[project] = number, 0
	for _, s := range f.state {
		if s.project == project && s.up && s.number >= number {
			f.at[project]++
		}
	}
}

// originals returns up to n running instances of a project that are not replacements, as
// names by id. Killing replacements would look like a crash loop, and back-off would
// delay the next ones.
func (f *follower) originals(project string, n int) map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]string{}
	for id, s := range f.state {
		if len(out) == n {
			break
		}
		if s.project == project && s.up && !s.repair {
			out[id] = s.name
		}
	}
	return out
}

// countOnNode counts the running instances on a node.
func (f *follower) countOnNode(node string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, s := range f.state {
		if s.node == node && s.up {
			n++
		}
	}
	return n
}
