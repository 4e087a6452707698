package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"mariposa"
	"mariposa/store"
)

const (
	// streamPause is the shortest time between two pieces of a stream with states. What happens
	// meanwhile is sent together: a program that shows it to a person cannot use it sooner, and
	// many such streams must not slow down the server.
	streamPause = 100 * time.Millisecond
	pieceSize   = 256 << 10 // a larger piece is sent at once, in parts
)

// streamWithStates sends the feed and the states of the projects as they change, until the
// client disconnects or the server stops.
func (f *feed) streamWithStates(ctx context.Context, w http.ResponseWriter) {
	out := f.openStream(w)
	number, leave := f.s.published.join()
	defer leave()
	f.addStatesSince(ctx, f.after)
	for sent := 0; out.err == nil; {
		n, err := f.collect(ctx, f.limit-sent)
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
		isMore := f.size >= pieceSize
		fresh, last, published := f.s.published.after(number)
		f.addStates(ctx, fresh)
		number = last
		out.send(f.take()...)
		if time.Since(out.last) > f.s.Heartbeat {
			out.send(fmt.Appendf(nil, ": heartbeat\nid: %d\n\n", f.after))
		}
		if !isMore && !f.awaitNews(ctx, out, published) {
			return
		}
	}
}

// collect encodes the next events, up to the size of a piece.
func (f *feed) collect(ctx context.Context, limit int) (n int, err error) {
	for f.size < pieceSize {
		changes, err := f.next(ctx)
		if err != nil {
			return 0, err
		}
		if !f.renew(ctx, changes) {
			return 0, mariposa.Errorf(mariposa.Unauthorized, "the token is no longer valid")
		}
		if len(changes) == 0 {
			break
		}
		n += f.encode(ctx, changes, limit-n)
		if limit > 0 && n >= limit {
			break
		}
	}
	return n, nil
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
func (f *feed) awaitNews(ctx context.Context, out *sender, published <-chan struct{}) bool {
	heartbeat := time.NewTimer(max(time.Millisecond, f.s.Heartbeat-time.Since(out.last)+time.Millisecond))
	defer heartbeat.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-heartbeat.C:
		return true
	case <-published:
	case <-f.s.Picture.Moved(f.after):
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(streamPause - time.Since(out.last)): // at once after a rest
		return true
	}
}

// newestOnly leaves out progress of tasks and states of instances that later changes supersede:
// their objects show everything. Failures are kept.
func newestOnly(changes []*store.Change) []*store.Change {
	newest := make(map[string]*store.Change, len(changes))
	for _, c := range changes {
		newest[c.Record.ID] = c
	}
	return slices.DeleteFunc(changes, func(c *store.Change) bool {
		isPassing := strings.HasSuffix(c.Event.Kind, ".progress") || (strings.HasPrefix(c.Event.Kind, "instance.") && c.Event.Kind != "instance.failed")
		return isPassing && newest[c.Record.ID] != c
	})
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
