package api

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"mariposa"
	"mariposa/reason"
)

const (
	// publishPause is the shortest time between two publications. The first change after a rest
	// is published at once. What happens meanwhile is sent together: a program that shows it to a
	// person cannot use it sooner, and many streams must not slow down the server.
	publishPause = 100 * time.Millisecond
	// maxPublishPause is the longest time until streams get new events: a killed instance has to
	// be visible within 300 ms.
	maxPublishPause = 200 * time.Millisecond
	// publishShare limits the counting, and the work of the streams, each to one part in this
	// many of a processor.
	publishShare = 20
	// maxPast is how many publications late a stream may be to share the work with the others.
	maxPast = 16
)

// publisher tells streams with states what has changed, and counts projects that have changed,
// once for all. It works only while there are such streams.
type publisher struct {
	s *server

	mu      sync.Mutex
	streams int
	stop    context.CancelFunc
	now     published
	past    []int64 // the last revisions that were published before, ascending
	newest  map[string]*publication
	log     []*publication // ascending; superseded ones are removed from time to time

	worked atomic.Int64 // nanoseconds that the streams have worked since the last publication
}

// published is what was published last.
type published struct {
	number     int64         // of the newest publication
	revision   int64         // up to which streams send events
	superseded chan struct{} // closed when there is more
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
func (p *publisher) join() (number int64, leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams++; p.streams == 1 {
		ctx, stop := context.WithCancel(context.Background())
		p.stop, p.newest, p.log = stop, map[string]*publication{}, nil
		p.s.Picture.FollowChanges(true)
		p.now.revision, p.now.superseded, p.past = p.s.Picture.Revision(), make(chan struct{}), nil
		go p.run(ctx, p.now.revision)
	}
	return p.now.number, sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.streams--; p.streams == 0 {
			p.stop()
			p.s.Picture.FollowChanges(false)
			p.s.selections.forgetUpTo(math.MaxInt64)
		}
	})
}

// after returns the newest states after a publication, and what was published last.
func (p *publisher) after(number int64) (fresh []*publication, now published) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := sort.Search(len(p.log), func(i int) bool { return p.log[i].number > number })
	for _, one := range p.log[first:] {
		if p.newest[one.project] == one {
			fresh = append(fresh, one)
		}
	}
	return fresh, p.now
}

// nextRevision returns the first published revision after one. Streams send what happened in
// between together, so that they share the work even if some are late.
func (p *publisher) nextRevision(after int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i, _ := slices.BinarySearch(p.past, after+1); i < len(p.past) {
		return p.past[i]
	}
	return p.now.revision
}

// note adds to the work of the streams.
func (p *publisher) note(work time.Duration) { p.worked.Add(int64(work)) }

// work notes the time until the function that it returns is called.
func (p *publisher) work() func() {
	began := time.Now()
	return func() { p.note(time.Since(began)) }
}

// run publishes what changes after a revision.
func (p *publisher) run(ctx context.Context, revision int64) {
	counted, nextCount := revision, time.Time{}
	for {
		var due <-chan time.Time
		if counted < revision {
			due = time.After(time.Until(nextCount))
		}
		select {
		case <-ctx.Done():
			return
		case <-due:
		case <-p.s.Picture.Moved(revision):
		}
		began := time.Now()
		var fresh []*publication
		if !began.Before(nextCount) {
			var touched []string
			touched, counted = p.s.Picture.TouchedSince(counted)
			fresh = p.count(ctx, touched)
			nextCount = time.Now().Add(publishShare * time.Since(began))
		}
		revision = p.s.Picture.Revision() // the events of what is counted come before the states
		p.publish(ctx, revision, fresh)
		if !p.rest(ctx) {
			return
		}
	}
}

// rest waits until the next publication may be made; false if there is none.
func (p *publisher) rest(ctx context.Context) bool {
	for rested := time.Duration(0); ; {
		pause := min(maxPublishPause, max(publishPause, publishShare*time.Duration(p.worked.Load()))) - rested
		if pause <= 0 {
			p.worked.Store(0)
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
			rested += pause
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

func (p *publisher) publish(ctx context.Context, revision int64, fresh []*publication) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return // others may have begun anew
	}
	if revision > p.now.revision {
		if p.past = append(p.past, p.now.revision); len(p.past) > maxPast {
			p.past = slices.Delete(p.past, 0, len(p.past)-maxPast)
		}
		p.s.selections.forgetUpTo(p.past[0])
		p.now.revision = revision
	}
	for _, one := range fresh {
		p.now.number++
		one.number = p.now.number
		p.newest[one.project] = one
		p.log = append(p.log, one)
	}
	if len(p.log) > 2*len(p.newest)+100 {
		p.tidy()
	}
	close(p.now.superseded)
	p.now.superseded = make(chan struct{})
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
