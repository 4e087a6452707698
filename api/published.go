package api

import (
	"context"
	"encoding/json"
	"sort"
	"sync"
	"time"

	"mariposa"
	"mariposa/reason"
)

const (
	// publishPause is the shortest time between two counts of a project for streams of states.
	// The first change after a rest is published at once.
	publishPause = 100 * time.Millisecond
	// publishShare limits the counting to one part in this many of a processor.
	publishShare = 20
)

// publisher counts projects that have changed, once for all streams of states. It works only
// while there are such streams.
type publisher struct {
	s *server

	mu      sync.Mutex
	streams int
	stop    context.CancelFunc
	last    int64 // number of the newest publication
	newest  map[string]*publication
	log     []*publication // ascending; superseded ones are removed from time to time
	moved   chan struct{}  // closed and replaced after new ones
}

// publication is the state of a project, encoded for operators of the project and for others.
type publication struct {
	number  int64
	project string
	text    [2][]byte
}

// variant is the index of an encoding.
func variant(operates bool) int {
	if operates {
		return 0
	}
	return 1
}

// join starts to publish for a stream. It returns the number of the newest publication, which
// the stream does not need if it reads the states itself after this call.
func (p *publisher) join() (last int64, leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams++; p.streams == 1 {
		ctx, stop := context.WithCancel(context.Background())
		p.stop, p.newest, p.log, p.moved = stop, map[string]*publication{}, nil, make(chan struct{})
		go p.run(ctx, p.s.Picture.Revision())
	}
	return p.last, sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.streams--; p.streams == 0 {
			p.stop()
		}
	})
}

// after returns the newest publications after one, and a channel that is closed when there are
// more.
func (p *publisher) after(number int64) (fresh []*publication, last int64, moved <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := sort.Search(len(p.log), func(i int) bool { return p.log[i].number > number })
	for _, one := range p.log[first:] {
		if p.newest[one.project] == one {
			fresh = append(fresh, one)
		}
	}
	return fresh, p.last, p.moved
}

// run publishes what changes after a revision.
func (p *publisher) run(ctx context.Context, revision int64) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.s.Picture.Moved(revision):
		}
		began := time.Now()
		var touched []string
		touched, revision = p.s.Picture.TouchedSince(revision)
		if fresh := p.count(ctx, touched); len(fresh) > 0 {
			p.publish(ctx, fresh)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(publishPause, publishShare*time.Since(began))):
		}
	}
}

// count counts projects. Deleted ones are left out: they have an event.
func (p *publisher) count(ctx context.Context, projects []string) (fresh []*publication) {
	v := p.s.viewer(ctx)
	for _, id := range projects {
		st, ok := p.s.countProject(v, id)
		if !ok || ctx.Err() != nil {
			continue
		}
		now, one := p.s.Clock.Now(), &publication{project: id}
		for i, say := range []func(*mariposa.Reason, time.Time) string{reason.At, reason.ForMember} {
			if i == 1 && !st.isTimed() {
				one.text[1] = one.text[0]
				break
			}
			one.text[i], _ = json.Marshal(st.at(now, say)) // our own struct
		}
		fresh = append(fresh, one)
	}
	return fresh
}

func (p *publisher) publish(ctx context.Context, fresh []*publication) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return // others may have begun anew
	}
	for _, one := range fresh {
		p.last++
		one.number = p.last
		p.newest[one.project] = one
		p.log = append(p.log, one)
	}
	if len(p.log) > 2*len(p.newest)+100 {
		p.tidy()
	}
	close(p.moved)
	p.moved = make(chan struct{})
}

// tidy removes what is superseded, and deleted projects.
func (p *publisher) tidy() {
	kept := p.log[:0]
	for _, one := range p.log {
		switch {
		case p.newest[one.project] != one:
		case p.s.Picture.Projects.Get(one.project) == nil:
			delete(p.newest, one.project)
		default:
			kept = append(kept, one)
		}
	}
	clear(p.log[len(kept):])
	p.log = kept
}

// isTimed reports whether a text of the state depends on the time and the reader.
func (st stateWithReasons) isTimed() bool {
	if reason.Timed(st.why) {
		return true
	}
	for _, w := range st.services {
		if reason.Timed(w.why) {
			return true
		}
	}
	return false
}
