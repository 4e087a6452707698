package api_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mariposa"
	"mariposa/api"
	"mariposa/contract"
	"mariposa/store"
)

// countedFeed counts reads of the feed and can block them.
type countedFeed struct {
	store.Store
	calls, changes  atomic.Int64
	reading, atMost atomic.Int64

	mu      sync.Mutex
	hold    chan struct{} // closed: readers go on; nil: nobody waits
	entered chan struct{} // one for each that waits
}

func (f *countedFeed) begin(ctx context.Context) func() {
	f.calls.Add(1)
	n := f.reading.Add(1)
	for {
		most := f.atMost.Load()
		if n <= most || f.atMost.CompareAndSwap(most, n) {
			break
		}
	}
	f.mu.Lock()
	hold := f.hold
	f.mu.Unlock()
	if hold != nil {
		f.entered <- struct{}{}
		select {
		case <-hold:
		case <-ctx.Done():
		}
	}
	return func() { f.reading.Add(-1) }
}

func (f *countedFeed) History(ctx context.Context, q store.HistoryQuery) ([]store.Change, error) {
	defer f.begin(ctx)()
	found, err := f.Store.History(ctx, q)
	f.changes.Add(int64(len(found)))
	return found, err
}

// reset resets the counters.
func (f *countedFeed) reset() {
	f.calls.Store(0)
	f.changes.Store(0)
	f.atMost.Store(0)
}

// withFeed lets a test count the reads of the feed.
func withFeed(f *countedFeed) option {
	return withStore(func(s store.Store) store.Store {
		f.Store = s
		return f
	})
}

// flood adds changes of instances of a project to the feed.
func (h *testServer) flood(project string, changes int) {
	h.t.Helper()
	id := newID()
	h.instance(id, project, "web", "n1", mariposa.StateRunning, nil)
	record := must(h.store.Get(h.ctx, mariposa.KindInstance, id))(h.t)
	for n := 0; n < changes; n += 100 {
		units := make([]store.Unit, 100)
		for i := range units {
			units[i] = store.Unit{Writes: []store.Write{{
				Kind: mariposa.KindInstance, ID: id, Status: record.Status,
				Event: mariposa.Event{Kind: "instance.running", Project: project, Instance: id},
			}}}
		}
		for _, r := range h.store.Commit(h.ctx, units...) {
			if r.Err != nil {
				h.t.Fatal(r.Err)
			}
		}
	}
}

// A caller who sees few projects of a busy installation gets their newest events
// without making the server read the whole feed.
func TestAListOfEventsDoesNotReadTheWholeFeed(t *testing.T) {
	t.Parallel()
	feed := &countedFeed{}
	w := newTestTeams(t, withFeed(feed))
	w.flood(w.dark.ID, 15_000)
	for user, sees := range map[string]bool{"sam": false, "olga": true} {
		for _, limit := range []int{1, 100} {
			feed.reset()
			page := want[contract.Events](w.asUser(user).call("GET", fmt.Sprintf("/v1/events?limit=%d", limit), nil), 200)
			if calls, changes := feed.calls.Load(), feed.changes.Load(); calls > 30 || changes > 12_000 {
				t.Errorf("%d events for %s took %d reads of %d changes", limit, user, calls, changes)
			}
			if (len(page.Events) > 0) != sees {
				t.Errorf("%s sees %d events", user, len(page.Events))
			}
			for i, e := range page.Events {
				if (e.Project != "" && e.Project != w.shop.ID) || (i > 0 && e.Revision <= page.Events[i-1].Revision) {
					t.Errorf("%s sees %+v", user, e)
				}
			}
		}
	}
	// A list since a revision can end early, and can be continued to the end.
	var events int
	for since, pages := int64(0), 0; ; pages++ {
		page := want[contract.Events](w.asUser("olga").call("GET", fmt.Sprintf("/v1/events?since=%d&limit=1000", since), nil), 200)
		events += len(page.Events)
		if !page.More {
			break
		}
		if page.Revision <= since || pages > 10 {
			t.Fatalf("page %d continues from %d to %d", pages, since, page.Revision)
		}
		since = page.Revision
	}
	if newest := len(want[contract.Events](w.asUser("olga").call("GET", "/v1/events?limit=1000", nil), 200).Events); events < newest {
		t.Errorf("the pages have %d events, and the newest are %d", events, newest)
	}
}

// A list of events has a limited size, however large the events are: a client can ask for
// many lists and read none of them.
func TestAListOfEventsHasALimitedSize(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", "services: {web: {compute_type: dummy}}")
	const events, most = 400, 1<<20 + 64<<10
	var last int64
	for i := range events {
		st := &mariposa.ProjectStatus{Goal: mariposa.GoalStarted, Version: c.Version, Number: 1, Status: mariposa.StatusBlocked, Reason: mariposa.TextReason(strings.Repeat(fmt.Sprint(i%10), 10_000))}
		last = h.commit(store.Unit{Writes: []store.Write{{Kind: mariposa.KindProject, ID: c.ID, Project: c.ID, Status: st, Event: mariposa.Event{Kind: "project.blocked", Project: c.ID, Reason: st.Reason}}}})
	}
	newest := h.call("GET", "/v1/events?limit=1000", nil)
	page := want[contract.Events](newest, 200)
	if n := len(page.Events); len(newest.body) > most || n < 20 || page.Events[n-1].Revision != last || page.Revision < last {
		t.Errorf("the newest events are %d in %d bytes", n, len(newest.body))
	}
	found := 0
	for since, pages := int64(0), 0; ; pages++ {
		r := h.call("GET", fmt.Sprintf("/v1/events?since=%d&limit=1000", since), nil)
		page := want[contract.Events](r, 200)
		if len(r.body) > most || pages > events {
			t.Fatalf("page %d has %d bytes", pages, len(r.body))
		}
		for _, e := range page.Events {
			if e.Kind == "project.blocked" {
				found++
			}
		}
		if since = page.Revision; !page.More {
			break
		}
	}
	if found != events {
		t.Errorf("the pages have %d of %d events", found, events)
	}
}

// Also an installation admin gets only a few lists of events at a time: they stay in memory
// until they are sent.
func TestListsOfEventsAreFewAtATime(t *testing.T) {
	t.Parallel()
	feed := &countedFeed{entered: make(chan struct{}, 100)}
	h := newTestServer(t, withFeed(feed))
	hold := make(chan struct{})
	feed.mu.Lock()
	feed.hold = hold
	feed.mu.Unlock()
	feed.reset()
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			if r := h.call("GET", "/v1/events?limit=1000", nil); r.status != 200 {
				t.Errorf("%d %s", r.status, r.body)
			}
		})
	}
	for range 8 {
		<-feed.entered
	}
	select {
	case <-feed.entered:
	case <-time.After(300 * time.Millisecond): // what is not allowed would happen within that time
	}
	close(hold)
	all.Wait()
	if n := feed.atMost.Load(); n != 8 {
		t.Errorf("%d lists were read at once", n)
	}
}

// Heavy requests of one user wait for each other, but do not delay other users.
func TestOneUsersHeavyRequestsTakeTurns(t *testing.T) {
	t.Parallel()
	feed := &countedFeed{entered: make(chan struct{}, 100)}
	w := newTestTeams(t, withFeed(feed), withLimits(api.Limits{RequestRate: 1 << 20}))
	hold := make(chan struct{})
	feed.mu.Lock()
	feed.hold = hold
	feed.mu.Unlock()
	feed.reset()
	var all sync.WaitGroup
	ask := func(user string) {
		all.Go(func() {
			if r := w.asUser(user).call("GET", "/v1/events", nil); r.status != 200 {
				t.Errorf("%s: %d %s", user, r.status, r.body)
			}
		})
	}
	for range 12 {
		ask("oleg")
	}
	for range 4 {
		<-feed.entered
	}
	want[contract.Whoami](w.asUser("oleg").call("GET", "/v1/user", nil), 200)
	ask("ada")
	<-feed.entered
	close(hold)
	all.Wait()
	if n := feed.atMost.Load(); n != 5 {
		t.Errorf("%d requests read the feed at once", n)
	}
}

// If the clock is set back, a user who has used up the rate limit is not locked out.
func TestAClockThatGoesBackLocksNobodyOut(t *testing.T) {
	t.Parallel()
	now := &shiftedClock{}
	w := newTestTeams(t, withClock(now), withLimits(api.Limits{RequestRate: 2}))
	oleg := w.asUser("oleg")
	wrong := w.as("wrong")
	for _, who := range []*testServer{oleg, wrong} {
		last := reply{}
		for range 200 { // the clock goes on meanwhile
			if last = who.call("GET", "/v1/user", nil); last.status == 429 {
				break
			}
		}
		last.wantError(429, mariposa.Throttled)
	}
	now.turn(-24 * time.Hour)
	oleg.call("GET", "/v1/user", nil)
	wrong.call("GET", "/v1/user", nil)
	now.turn(time.Minute)
	want[contract.Whoami](oleg.call("GET", "/v1/user", nil), 200)
	wrong.call("GET", "/v1/user", nil).wantError(401, mariposa.Unauthorized)
}

// Metrics are public: concurrent requests share one collection, and the result is never
// older than the request.
func TestMetricsAreGatheredByOneAtATime(t *testing.T) {
	t.Parallel()
	var calls, gathering atomic.Int64
	begun, hold := make(chan struct{}, 1), make(chan struct{})
	r := prometheus.NewRegistry()
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gathered", Help: "How often it was gathered."}, func() float64 {
		n := calls.Add(1)
		if gathering.Add(1) > 1 {
			t.Error("two gather at once")
		}
		defer gathering.Add(-1)
		if n == 1 {
			begun <- struct{}{}
			<-hold
		}
		return float64(n)
	}))
	h := newTestServer(t, func(s *settings) { s.metrics = r })
	var all sync.WaitGroup
	all.Go(func() { h.call("GET", "/metrics", nil) })
	<-begun
	sent := make(chan struct{}, 50)
	for range cap(sent) {
		all.Go(func() {
			sent <- struct{}{}
			if text := string(h.call("GET", "/metrics", nil).body); !strings.Contains(text, "gathered ") || strings.Contains(text, "gathered 1\n") {
				t.Errorf("the metrics are from before they were asked for:\n%s", text)
			}
		})
	}
	for range cap(sent) {
		<-sent
	}
	close(hold)
	all.Wait()
}
