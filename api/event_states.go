package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"mariposa"
	"mariposa/store"
)

const (
	pieceSize = 256 << 10              // a larger piece is sent at once, in parts
	sendTime  = 100 * time.Microsecond // that sending a small piece takes at most
)

// streamWithStates sends the feed and the states of the projects as they change, until the
// client disconnects or the server stops.
func (f *feed) streamWithStates(ctx context.Context, w http.ResponseWriter) {
	out := f.openStream(w)
	seen, leave := f.s.published.join()
	defer leave()
	f.addStatesSince(ctx, f.after)
	for sent := 0; out.err == nil; {
		fresh, now := f.s.published.after(seen)
		n, err := f.sendUpTo(ctx, out, now.revision, f.limit-sent)
		if err != nil {
			if ctx.Err() == nil {
				out.send(f.sendEnd(ctx, err))
			}
			return
		}
		if sent += n; f.limit > 0 && sent >= f.limit {
			out.send(f.take()...)
			return
		}
		f.addAccess()
		f.addStates(ctx, fresh)
		seen = now.number
		f.flush(out)
		if time.Since(out.last) > f.s.Heartbeat {
			out.send(fmt.Appendf(nil, ": heartbeat\nid: %d\n\n", f.after))
		}
		if !f.awaitNews(ctx, out, now.superseded) {
			return
		}
	}
}

// sendUpTo sends the events, and the instances, that changed up to a revision. The last piece is
// only added to what is sent next. It returns the number of events.
func (f *feed) sendUpTo(ctx context.Context, out *sender, revision int64, limit int) (n int, err error) {
	if !f.renew(ctx, nil) {
		return 0, mariposa.Errorf(mariposa.Unauthorized, "the token is no longer valid")
	}
	for f.after < revision && out.err == nil {
		if f.size >= pieceSize {
			f.flush(out)
			if !f.renew(ctx, nil) { // a slow client may take long
				return 0, mariposa.Errorf(mariposa.Unauthorized, "the token is no longer valid")
			}
		}
		sel, err := f.selectUpTo(ctx, f.s.published.nextRevision(f.after))
		if err != nil {
			return 0, err
		}
		n += f.addSelection(ctx, sel, limit-n)
		if limit > 0 && n >= limit {
			break
		}
	}
	return n, nil
}

// addSelection adds what the caller can see of a selection. The instances come first, with the
// position before them: a client that is disconnected after them gets them again, and misses
// none.
func (f *feed) addSelection(ctx context.Context, sel *selection, limit int) (n int) {
	if sel.instances > 0 && f.seesState(f.instances) {
		f.add(sel.encoded(ctx, f.s))
	}
	defer f.s.published.work()()
	f.included = f.included[:0]
	for _, c := range sel.events {
		if f.sees(c) {
			f.included = append(f.included, c)
		}
	}
	f.after = sel.to
	return f.encodeEvents(ctx, f.included, limit)
}

// flush sends what was added.
func (f *feed) flush(out *sender) {
	began, size := time.Now(), f.size
	out.send(f.take()...)
	if size > 0 { // waiting for a slow client is no work
		f.s.published.note(min(time.Since(began), sendTime+time.Duration(size)*time.Nanosecond))
	}
}

// addAccess adds that the caller's rights are no longer those that the client knows. The client
// cannot see that in other events: whoever loses a project hears no more of it.
func (f *feed) addAccess() {
	if f.access == "" {
		return
	}
	if now := f.s.directory.Access(f.caller); now != f.access {
		f.access = now
		f.add(fmt.Appendf(nil, "id: %d\nevent: access\ndata: {\"access\":%q}\n\n", f.after, now))
	}
}

// addStatesSince adds the states of the visible projects that have changed since a revision.
func (f *feed) addStatesSince(ctx context.Context, revision int64) {
	v := f.s.viewer(ctx)
	touched, _ := f.s.Picture.TouchedSince(revision)
	for _, id := range touched {
		if !f.seesState(id) {
			continue
		}
		if st, ok := f.s.projectState(v, id); ok {
			text, _ := json.Marshal(st) // our own struct
			f.addState(text)
		}
	}
}

// addStates adds those of the new states that the caller can see.
func (f *feed) addStates(ctx context.Context, fresh []*publication) {
	if len(fresh) == 0 {
		return
	}
	v := f.s.viewer(ctx)
	for _, one := range fresh {
		// The event of a deleted project may be sent already.
		if f.seesState(one.project) && f.s.Picture.Projects.Get(one.project) != nil {
			f.addState(one.text[variant(v.mayOperate(one.project))])
		}
	}
}

func (f *feed) addState(text []byte) {
	f.add(fmt.Appendf(nil, "id: %d\nevent: state\ndata: ", f.after))
	f.add(text)
	f.add(endOfEvent)
}

var endOfEvent = []byte("\n\n")

// seesState reports whether the state of a project is part of the stream.
func (f *feed) seesState(project string) bool {
	if f.project.Project != "" && f.project.Project != project {
		return false
	}
	r := f.visible.record(project)
	return r != nil && (f.organization == "" || f.organization == r.Spec().Organization)
}

// awaitNews waits until there is more to send or a heartbeat is due; it returns false when the
// stream is over.
func (f *feed) awaitNews(ctx context.Context, out *sender, news <-chan struct{}) bool {
	heartbeat := time.NewTimer(max(time.Millisecond, f.s.Heartbeat-time.Since(out.last)+time.Millisecond))
	defer heartbeat.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-heartbeat.C:
	case <-news:
	}
	return true
}

// encodings keeps the newest events as they were last sent, so that many streams share them.
type encodings struct {
	mu     sync.Mutex
	events map[encodingKey]encoding
}

type encodingKey struct {
	revision int64
	variant  int
}

type encoding struct {
	text []byte
	at   time.Time
}

const (
	maxEncodings = 4096
	// encodingLifetime is short, because an event of a task may say what it waits for.
	encodingLifetime = time.Second
)

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// event returns a change as an event of a stream. The result is shared.
func (e *encodings) event(v *viewer, c *store.Change) ([]byte, error) {
	key, now := encodingKey{c.Revision, variant(v.mayOperate(c.Event.Project))}, time.Now()
	e.mu.Lock()
	known, ok := e.events[key]
	e.mu.Unlock()
	if ok && now.Sub(known.at) < encodingLifetime {
		return known.text, nil
	}
	b := buffers.Get().(*bytes.Buffer) //nolint:forcetypeassert // the pool has nothing else
	defer buffers.Put(b)
	b.Reset()
	fmt.Fprintf(b, "id: %d\nevent: %s\ndata: ", c.Revision, c.Event.Kind)
	if err := json.NewEncoder(b).Encode(v.event(c)); err != nil { // ends the line
		return nil, err
	}
	b.WriteByte('\n')
	text := bytes.Clone(b.Bytes())
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.events == nil || len(e.events) >= maxEncodings {
		e.events = map[encodingKey]encoding{}
	}
	e.events[key] = encoding{text, now}
	return text, nil
}
