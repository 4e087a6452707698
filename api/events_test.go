package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// live is an open stream of events.
type live struct {
	t      testing.TB
	res    *http.Response
	lines  *bufio.Scanner
	cancel context.CancelFunc
}

type sse struct {
	id    int64
	event string
	data  contract.Event
	raw   []byte
}

func (h *testServer) stream(query string, last int64) *live {
	h.t.Helper()
	return h.streamAt("/v1/events"+query, last)
}

func (h *testServer) streamAt(path string, last int64) *live {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.ctx, time.Minute)
	req := must(http.NewRequestWithContext(ctx, http.MethodGet, h.url+path, nil))(h.t)
	req.Header.Set("Authorization", "Bearer "+h.token)
	req.Header.Set("Accept", "text/event-stream")
	if last >= 0 {
		req.Header.Set("Last-Event-ID", strconv.FormatInt(last, 10))
	}
	res := must(h.http.Do(req))(h.t)
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		h.t.Fatalf("no stream: %d %s", res.StatusCode, res.Header)
	}
	l := &live{t: h.t, res: res, lines: bufio.NewScanner(res.Body), cancel: cancel}
	l.lines.Buffer(nil, 1<<20)
	return l
}

func (l *live) close() {
	l.cancel()
	l.res.Body.Close()
}

// next reads the next event; false at the end of the stream.
func (l *live) next() (sse, bool) {
	var e sse
	for l.lines.Scan() {
		key, value, _ := strings.Cut(l.lines.Text(), ": ")
		switch key {
		case "id":
			e.id = must(strconv.ParseInt(value, 10, 64))(l.t)
		case "event":
			e.event = value
		case "data":
			e.raw = []byte(value)
			if err := json.Unmarshal([]byte(value), &e.data); err != nil {
				l.t.Fatal(err)
			}
		case "":
			if e.event != "" {
				return e, true
			}
		}
	}
	return e, false
}

func TestAStreamBringsWhatHappensFromNowOn(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("before", hello)
	l := h.stream("", -1)
	defer l.close()
	c := h.create("shop", hello)
	for _, kind := range []string{"project.created", "version.created", "task.queued"} {
		e, ok := l.next()
		if !ok || e.event != kind || e.data.Kind != kind || e.data.Revision != e.id || e.data.Project != c.ID || e.data.ProjectName != "shop" || e.data.Actor != "admin" || e.data.Time.IsZero() {
			t.Fatalf("%s: %v %+v", kind, ok, e)
		}
		object := must(json.Marshal(e.data.Object))(t)
		switch kind {
		case "project.created":
			if p := read[contract.Project](t, object); p.ID != c.ID || p.Name != "shop" {
				t.Errorf("object %s", object)
			}
		case "version.created":
			if v := read[contract.Version](t, object); v.Version != c.Version || v.Manifest != "" {
				t.Errorf("object %s", object)
			}
		case "task.queued":
			if k := read[contract.Task](t, object); k.ID != *c.Task || k.State != mariposa.TaskQueued || k.ProjectName != "shop" || e.data.Task != k.ID {
				t.Errorf("object %s", object)
			}
		}
	}
}

func read[T any](t testing.TB, text []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// A reader that is disconnected repeatedly during writes sees every event once, in order.
func TestAStreamResumesWithNothingMissedOrDoubled(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	since := h.picture.Revision()
	const writers, each = 4, 100
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				id := fmt.Sprintf("n-%d-%d", w, i)
				h.store.Commit(h.ctx, store.Unit{Writes: []store.Write{
					{Kind: mariposa.KindName, ID: id, Spec: &mariposa.NameSpec{}}, // says nothing to people
					{Kind: mariposa.KindNode, ID: id, Spec: &mariposa.NodeSpec{Name: id}, Event: mariposa.Event{Kind: "node.running", Node: id, Project: c.ID}},
				}})
			}
		})
	}
	var got []int64
	last, query := since, "?project=shop"
	for cut := 1; len(got) < writers*each; cut++ {
		l := h.stream(query+"&since="+strconv.FormatInt(since, 10), last)
		for range cut*7%23 + 1 {
			e, ok := l.next()
			if !ok {
				t.Fatal("the stream ended")
			}
			got, last = append(got, e.id), e.id
			if len(got) == writers*each {
				break
			}
		}
		l.close()
	}
	all.Wait()
	var wanted []int64
	for _, ch := range must(h.store.Changes(h.ctx, since, 0))(t) {
		if ch.Event.Kind == "node.running" {
			wanted = append(wanted, ch.Revision)
		}
	}
	if !slices.Equal(got, wanted) {
		t.Errorf("read %d events, %d were written, or in another order", len(got), len(wanted))
	}
}

func TestAStreamEndsAfterItsLimitAndSkipsOtherProjects(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", hello)
	other := h.create("other", hello)
	l := h.stream("?since=0&limit=2&project=other", -1)
	defer l.close()
	for range 2 {
		if e, ok := l.next(); !ok || e.data.Project != other.ID {
			t.Fatalf("%v %+v", ok, e)
		}
	}
	if e, ok := l.next(); ok {
		t.Errorf("one more: %+v", e)
	}
}

func TestEventsAreListed(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.create("other", hello)
	get := func(query string) contract.Events {
		return want[contract.Events](h.call("GET", "/v1/events"+query, nil), 200)
	}
	kinds := func(e contract.Events) string {
		var all []string
		for _, one := range e.Events {
			all = append(all, one.Kind)
		}
		return strings.Join(all, " ")
	}
	const three = "project.created version.created task.queued"
	if e := get(""); kinds(e) != three+" "+three || e.Revision != h.picture.Revision() {
		t.Errorf("newest: %s at %d", kinds(e), e.Revision)
	}
	if e := get("?limit=2"); kinds(e) != "version.created task.queued" || e.Events[0].ProjectName != "other" {
		t.Errorf("newest two: %s", kinds(e))
	}
	if e := get("?project=shop"); kinds(e) != three || e.Events[0].Project != c.ID {
		t.Errorf("of one project: %s", kinds(e))
	}
	if e := get("?project=" + newID()); kinds(e) != "" || e.Events == nil {
		t.Errorf("of one that is gone: %s", kinds(e))
	}
	var all []string
	for at := int64(0); ; {
		e := get(fmt.Sprintf("?since=%d&limit=2", at))
		if len(e.Events) == 0 {
			break
		}
		all, at = append(all, kinds(e)), e.Revision
	}
	if got := strings.Join(all, " "); got != three+" "+three {
		t.Errorf("page by page: %s", got)
	}
	for since, want := range map[int64]string{0: three + " " + three, 2: strings.TrimPrefix(three+" "+three, "project.created version.created ")} {
		var back []string
		for at, since := h.picture.Revision()+1, since+get("?limit=1000").Events[0].Revision-1; at > 0; {
			e := get(fmt.Sprintf("?since=%d&before=%d&limit=2", since, at))
			back, at = append([]string{kinds(e)}, back...), e.Before
		}
		if got := strings.TrimSpace(strings.Join(back, " ")); got != want {
			t.Errorf("backwards to %d: %s", since, got)
		}
	}
	h.call("GET", "/v1/events?before=7", nil, "Accept", "text/event-stream").wantError(400, mariposa.InvalidArgument, "before")
	for _, query := range []string{"?before=x", "?before=-1", "?since=x", "?since=-1", "?limit=1001", "?since=99999999999999999999"} {
		h.call("GET", "/v1/events"+query, nil).wantError(400, mariposa.InvalidArgument)
	}
	h.call("GET", "/v1/events", nil, "Accept", "text/event-stream", "Last-Event-ID", "soon").wantError(400, mariposa.InvalidArgument, "Last-Event-ID")
}

func TestAPointThatTheFeedDoesNotHaveIsReportedAsTooOld(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	for i := range 5 {
		h.create(fmt.Sprintf("shop-%d", i), hello)
	}
	if _, err := h.store.Trim(h.ctx, 0, 3); err != nil {
		t.Fatal(err)
	}
	for _, accept := range []string{"application/json", "text/event-stream"} {
		h.call("GET", "/v1/events?since=1", nil, "Accept", accept).wantError(410, mariposa.TooOld)
		h.call("GET", "/v1/events?since=1000000", nil, "Accept", accept).wantError(410, mariposa.TooOld) // of another store
	}
}

func TestAStreamThatFallsBehindTheFeedSaysSo(t *testing.T) {
	t.Parallel()
	behind := &trimming{}
	h := newTestServer(t, withStore(func(s store.Store) store.Store { behind.Store = s; return behind }))
	l := h.stream("", -1)
	defer l.close()
	behind.upTo.Store(h.picture.Revision())
	h.create("shop", hello)
	e, ok := l.next()
	if !ok || e.event != "error" {
		t.Fatalf("%v %+v", ok, e)
	}
}

// trimming is a store whose feed no longer reaches back to a revision, so that the picture reads
// everything anew.
type trimming struct {
	store.Store
	upTo atomic.Int64
}

func (s *trimming) Changes(ctx context.Context, after int64, limit int) ([]store.Change, error) {
	if after <= s.upTo.Load() {
		return nil, store.ErrTooOld
	}
	return s.Store.Changes(ctx, after, limit)
}
