package picture

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"mariposa"
	"mariposa/store"
)

const (
	// minRecent is how many of the newest changes the picture keeps at least.
	minRecent = 4096
	// While somebody reads them several times a second, it keeps those of the last seconds, too:
	// the store takes far longer to read them again.
	recentTime = 2 * time.Second
	maxRecent  = 1 << 16
)

// recent keeps the newest changes, so that many followers of the feed share one copy, and
// the revision at which each project last changed.
type recent struct {
	batches  [][]store.Change // as they were read; ascending, without gaps
	size     int              // changes in them
	from, to int64            // they are all changes after from, up to to
	touched  map[string]int64 // project -> revision of its last change
	all      int64            // revision of the last change that may concern all projects
	followed bool             // those of the last seconds are kept
}

// add appends a batch of changes that brings the picture from one revision to another. Without
// the changes of the feed, it starts over.
func (r *recent) add(changes []store.Change, from, to int64, areFeed bool) {
	if areFeed && r.to == from {
		r.batches, r.size, r.to = append(r.batches, changes), r.size+len(changes), to
	} else {
		r.batches, r.size, r.from, r.to = nil, 0, to, to
	}
	for len(r.batches) > 1 && r.size-len(r.batches[0]) >= minRecent && !r.isFollowed(r.batches[0]) {
		first := r.batches[0]
		r.size, r.from = r.size-len(first), first[len(first)-1].Revision
		r.batches[0], r.batches = nil, r.batches[1:]
	}
	for i := range changes {
		r.touch(&changes[i], to)
	}
}

// isFollowed reports whether a batch is kept because somebody may not have read it yet.
func (r *recent) isFollowed(batch []store.Change) bool {
	newest := r.batches[len(r.batches)-1]
	return r.followed && r.size <= maxRecent && newest[len(newest)-1].Time.Sub(batch[len(batch)-1].Time) < recentTime
}

// FollowChanges makes the picture keep the changes of the last seconds, however many there are
// up to a limit, or no longer.
func (p *Picture) FollowChanges(follow bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recent.followed = follow
}

// touch notes which project a change concerns.
func (r *recent) touch(c *store.Change, revision int64) {
	switch c.Record.Kind {
	case mariposa.KindNode, mariposa.KindOrg:
		r.all = revision // names, and whether instances can be reached
	case mariposa.KindProject:
		if c.Deleted {
			delete(r.touched, c.Record.ID)
		} else {
			r.touched[c.Record.ID] = revision
		}
	default:
		if project := cmp.Or(c.Record.Project, c.Event.Project); project != "" {
			r.touched[project] = revision
		}
	}
}

// Changes returns changes after a revision, oldest first, if the picture still has all of
// them. They are shared and must not be changed.
func (p *Picture) Changes(after int64, limit int) (changes []store.Change, ok bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	r := &p.recent
	if after >= p.revision {
		return nil, after == p.revision
	}
	if after < r.from {
		return nil, false
	}
	for _, batch := range r.batches {
		if last := batch[len(batch)-1].Revision; last <= after {
			continue
		}
		first := sort.Search(len(batch), func(i int) bool { return batch[i].Revision > after })
		return batch[first:min(len(batch), first+limit)], true
	}
	return nil, false
}

// TouchedAt returns a revision after which nothing has changed that the state of a project
// shows.
func (p *Picture) TouchedAt(project string) int64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.touchedAt(project)
}

func (p *Picture) touchedAt(project string) int64 {
	at, known := p.recent.touched[project]
	if !known {
		at = p.opened
	}
	return max(at, p.recent.all)
}

// TouchedSince returns the projects that may have changed after a revision, in no particular
// order, and the revision that the picture shows.
func (p *Picture) TouchedSince(revision int64) (projects []string, now int64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if revision < p.opened || revision < p.recent.all {
		for id := range p.records[mariposa.KindProject] {
			projects = append(projects, id)
		}
		return projects, p.revision
	}
	for id, at := range p.recent.touched {
		if at > revision {
			projects = append(projects, id)
		}
	}
	return projects, p.revision
}

// AllTouchedAt returns the revision of the last change that may concern all projects.
func (p *Picture) AllTouchedAt() int64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.recent.all
}

// Recent returns the newest changes in batches, oldest first, and the revision before them.
// They are shared and must not be changed.
func (p *Picture) Recent() (batches [][]store.Change, from int64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.Clone(p.recent.batches), p.recent.from
}
